"""--mcp: assistants find the endpoints as tools, and can call them."""

import ast
import json
from typing import Any

import httpx

from tests.app.blocks.test_page import ENDPOINTS
from tests.app.serving import Server

VERSION = "2025-03-26"  # of the protocol


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


def test_the_endpoints_are_tools_that_can_be_called(views_server: Server) -> None:
    assistant = Assistant(views_server)
    about = {"name": "test", "version": "1"}
    started = assistant.ask(
        "initialize", protocolVersion=VERSION, capabilities={}, clientInfo=about
    )
    assert "tools" in started["capabilities"]
    assistant.tell("notifications/initialized")
    tools = {tool["name"]: tool for tool in assistant.ask("tools/list")["tools"]}
    assert {f"/{name}" for name in tools} == ENDPOINTS
    search = tools["search_text"]
    assert search["description"].startswith("Finds the pictures that fit words best.")
    assert {"query", "method", "k", "filters"} == search["inputSchema"]["properties"].keys()
    found = assistant.call("search_text", query="a red circle", method="vse_infty", k=3)
    expected = views_server.ask("search_text", "a red circle", "vse_infty", 3)
    assert found["hits"] == expected["hits"]
    asked = {"query": "a red circle", "image": found["hits"][0]["image_id"], "method": "vse_infty"}
    lit, told = assistant.ask("tools/call", name="explain_image", arguments=asked)["content"]
    expected = views_server.ask("explain_image", *asked.values())
    assert (lit["type"], lit["mimeType"]) == ("image", "image/png")
    assert lit["data"] == expected["png"].partition(",")[2]
    assert ast.literal_eval(told["text"])["adds"] == expected["adds"]
    assert lit["data"] not in told["text"]
    refused = assistant.call("search_text", query="", method="vse_infty", k=3)
    assert "the query is empty" in refused["error"]
