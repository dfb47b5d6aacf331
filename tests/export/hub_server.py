"""A small server that speaks enough of the Hub's protocol for the real client to push and pull.

It has model repositories with branches and commits, tokens that may read or write, and faults.
Files are uploaded inside commits, without LFS and Xet.
"""

import asyncio
import base64
import hashlib
import json
import re
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware, RequestResponseEndpoint
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

READER, WRITER = "token-that-reads", "token-that-writes"


@dataclass
class Fault:
    """A fault of an answer.

    `kind` is "cut" (the connection ends after `at` bytes), "trickle" (after `at` bytes, one byte
    every 10 ms), "silent" (no answer), or "status" (`at`, with `headers`).
    """

    kind: str
    at: int = 0
    headers: dict[str, str] = field(default_factory=dict)


DOWN = Fault("status", 503)


@dataclass
class Repo:
    """A repository: `commits` maps names to {path: content}, `branches` names to commits.

    `card` is the front matter of its README.md. The files of a gated repository are only listed.
    """

    private: bool = False
    card: dict[str, Any] = field(default_factory=dict)
    gated: bool = False
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)

    def add_commit(self, branch: str, files: dict[str, bytes]) -> str:
        """Adds files to a branch; returns the name of the new commit."""
        tree = {**self.commits.get(self.branches.get(branch, ""), {}), **files}
        commit = hashlib.sha1(repr((len(self.commits), sorted(tree.items()))).encode()).hexdigest()
        self.commits[commit] = tree
        self.branches[branch] = commit
        return commit


def refusal(status: int, code: str = "", message: str = "") -> HTTPException:
    """Returns an exception with a status and the Hub's error code."""
    return HTTPException(status, message, {"X-Error-Code": code, "X-Error-Message": message})


@dataclass
class HubState:
    """The server: its repositories, the requests it received, its faults, and its routes."""

    repos: dict[str, Repo] = field(default_factory=dict)  # by `owner/name`
    damaged: set[str] = field(default_factory=set)  # paths served with their last byte changed
    # pattern -> fault of the answers whose "METHOD /path" matches it
    faults: dict[str, Fault] = field(default_factory=dict)
    over: threading.Event = field(default_factory=threading.Event)  # set when the server ends
    requests: list[str] = field(default_factory=list)  # "METHOD /path" of each, in order
    tokens: list[str] = field(default_factory=list)  # the token of each request, "" for none
    # path in a repository -> a wrong size for the list of files
    stated: dict[str, Any] = field(default_factory=dict)
    url: str = ""

    def add(self, name: str, files: dict[str, bytes], **about: Any) -> str:
        """Adds a repository with these files; returns the name of its commit."""
        self.repos[name] = Repo(**about)
        return self.repos[name].add_commit("main", files)

    def _token_of(self, request: Request) -> str:
        return request.headers.get("Authorization", "").removeprefix("Bearer ")

    def _must_write(self, request: Request) -> None:
        if self._token_of(request) == READER:
            raise refusal(403, message="this token may not write")
        if self._token_of(request) != WRITER:
            raise refusal(401, message="Invalid credentials in Authorization header")

    def _repo_of(self, request: Request) -> tuple[Repo, str, str]:
        """Returns the repository of a request, its id, and the name of the requested commit."""
        repo_id = "{owner}/{name}".format(**request.path_params)
        repo, revision = self.repos.get(repo_id), request.path_params.get("rev", "main")
        if repo is None or (repo.private and self._token_of(request) not in (READER, WRITER)):
            raise refusal(401, "RepoNotFound", "Repository not found")
        commit = repo.branches.get(revision, revision)
        if commit not in repo.commits:
            raise refusal(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        return repo, repo_id, commit

    async def _search(self, request: Request) -> Response:
        required, results = {*request.query_params.getlist("filter")}, []
        for repo_id, repo in self.repos.items():
            readable = not repo.private or self._token_of(request) in (READER, WRITER)
            if readable and required <= {*(tags := repo.card.get("tags", []))}:
                tags = [*tags, f"license:{repo.card.get('license', '')}"]
                results.append({"id": repo_id, "sha": repo.branches["main"], "tags": tags})
        return JSONResponse(results)

    async def _describe(self, request: Request) -> Response:
        repo, repo_id, commit = self._repo_of(request)
        files = [
            {"rfilename": path, "size": self.stated.get(path, len(content))}
            for path, content in repo.commits[commit].items()
        ]
        values = {"id": repo_id, "sha": commit, "private": repo.private, "gated": repo.gated}
        tags = list(map(str, repo.card.get("tags", [])))
        return JSONResponse({**values, "tags": tags, "siblings": files, "cardData": repo.card})

    async def _tree(self, request: Request) -> Response:
        repo, _, commit = self._repo_of(request)
        files = repo.commits[commit].items()
        listing = [{"type": "file", "path": p, "size": len(c), "oid": p} for p, c in files]
        return JSONResponse(listing)

    async def _resolve(self, request: Request) -> Response:
        repo, _, commit = self._repo_of(request)
        path = request.path_params["path"]
        content = repo.commits[commit][path]
        if repo.gated:
            raise refusal(403, "GatedRepo", "Access to this model is restricted")
        stated = hashlib.sha256(content).hexdigest()
        if path in self.damaged:
            content = content[:-1] + bytes([content[-1] ^ 255])
        return Response(content, headers={"X-Repo-Commit": commit, "ETag": f'"{stated}"'})

    async def _create_repo(self, request: Request) -> Response:
        self._must_write(request)
        content = await request.json()
        repo_id = f"{content['organization']}/{content['name']}"
        url = f"{self.url}/{repo_id}"
        if repo_id in self.repos:
            return JSONResponse({"error": "You already created this model repo", "url": url}, 409)
        private = content.get("visibility") == "private"
        self.add(repo_id, {".gitattributes": b""}, private=private)
        return JSONResponse({"url": url})

    async def _create_branch(self, request: Request) -> Response:
        self._must_write(request)
        repo = self.repos["{owner}/{name}".format(**request.path_params)]
        repo.branches[request.path_params["rev"]] = repo.branches["main"]
        return JSONResponse({})

    async def _validate_card(self, _: Request) -> Response:
        return JSONResponse({"errors": [], "warnings": []})

    async def _preupload(self, request: Request) -> Response:
        self._must_write(request)
        paths = [file["path"] for file in (await request.json())["files"]]
        files = [{"path": p, "uploadMode": "regular", "shouldIgnore": False} for p in paths]
        return JSONResponse({"files": files})

    async def _commit(self, request: Request) -> Response:
        self._must_write(request)
        repo, repo_id, _ = self._repo_of(request)
        entries = [json.loads(line) for line in (await request.body()).splitlines()]
        values = [entry["value"] for entry in entries if entry["key"] == "file"]
        files = {value["path"]: base64.b64decode(value["content"]) for value in values}
        commit = repo.add_commit(request.path_params["rev"], files)
        url = f"{self.url}/{repo_id}/commit/{commit}"
        return JSONResponse({"commitUrl": url, "commitOid": commit})

    async def _play(self, request: Request, call_next: RequestResponseEndpoint) -> Response:
        """Records a request, and answers it or applies a fault."""
        line = f"{request.method} {request.scope['raw_path'].decode()}"
        self.requests.append(line)
        self.tokens.append(self._token_of(request))
        faults = (fault for part, fault in self.faults.items() if re.search(part, line))
        fault = next(faults, None)
        if fault is None:
            return await call_next(request)
        if fault.kind == "status":
            return Response("<!DOCTYPE html>", fault.at, fault.headers)
        while fault.kind == "silent" and not self.over.is_set():
            await asyncio.sleep(0.01)
        answer = await call_next(request)
        body = b"".join([chunk async for chunk in answer.body_iterator])  # type: ignore[attr-defined]

        async def parts() -> AsyncIterator[bytes]:
            yield body[: fault.at]
            for place in range(fault.at, len(body)):
                if fault.kind != "trickle" or self.over.is_set():
                    raise ConnectionResetError
                await asyncio.sleep(0.01)
                yield body[place : place + 1]

        return StreamingResponse(parts(), answer.status_code, dict(answer.headers))

    def app(self) -> Starlette:
        """Returns the application."""
        repo = "/{owner}/{name}"
        routes = [
            Route("/api/models", self._search),
            Route(f"/api/models{repo}", self._describe),
            Route(f"/api/models{repo}/revision/{{rev:path}}", self._describe),
            Route(f"/api/models{repo}/tree/{{rev:path}}", self._tree),
            Route(f"{repo}/resolve/{{rev}}/{{path:path}}", self._resolve),
            Route("/api/repos/create", self._create_repo, methods=["POST"]),
            Route("/api/validate-yaml", self._validate_card, methods=["POST"]),
            Route(f"/api/models{repo}/branch/{{rev}}", self._create_branch, methods=["POST"]),
            Route(f"/api/models{repo}/preupload/{{rev}}", self._preupload, methods=["POST"]),
            Route(f"/api/models{repo}/commit/{{rev}}", self._commit, methods=["POST"]),
        ]
        return Starlette(False, routes, [Middleware(BaseHTTPMiddleware, dispatch=self._play)])


@contextmanager
def running_hub() -> Iterator[HubState]:
    """Runs the server on a free local port until the block ends."""
    state = HubState()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        state.url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        settings: Any = {"log_level": "critical", "lifespan": "off", "timeout_graceful_shutdown": 0}
        server = uvicorn.Server(uvicorn.Config(state.app(), **settings))
        thread = threading.Thread(target=server.run, args=([listening],), daemon=True)
        thread.start()
        try:
            yield state
        finally:
            state.over.set()
            server.should_exit = True
            thread.join()
