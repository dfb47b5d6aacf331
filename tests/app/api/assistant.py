"""An assistant that speaks MCP's streamable HTTP, without a package for it."""

import ast
import json
from typing import Any

import httpx

from tests.app.serving import Server


class Assistant:
    """Speaks the protocol's streamable HTTP, without a package for it."""

    def __init__(self, server: Server) -> None:
        self._url = f"{server.url}/gradio_api/mcp/"
        self._headers = {"Accept": "application/json, text/event-stream"}
        self._count = 0

    def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """What a request results in."""
        self._count += 1
        request = {"jsonrpc": "2.0", "id": self._count, "method": method, "params": params}
        reply = httpx.post(self._url, json=request, headers=self._headers, timeout=60)
        reply.raise_for_status()
        body = reply.text
        if reply.headers["Content-Type"].startswith("text/event-stream"):
            data = [line[5:] for line in body.splitlines() if line.startswith("data:")]
            body = next(line for line in data if '"id"' in line)
        answer = json.loads(body)
        assert answer["id"] == self._count
        return answer["result"]

    def tell(self, method: str) -> None:
        """Sends a notification."""
        told = {"jsonrpc": "2.0", "method": method}
        httpx.post(self._url, json=told, headers=self._headers, timeout=60).raise_for_status()

    def call(self, tool: str, **arguments: Any) -> dict[str, Any]:
        """What a tool answers."""
        result = self.ask("tools/call", name=tool, arguments=arguments)
        assert not result.get("isError"), result
        [content] = [part["text"] for part in result["content"] if part["type"] == "text"]
        return ast.literal_eval(content)  # gradio writes it as Python does
