"""A small server that speaks enough of the Hub's protocol for the real client to push and pull.

It knows model repositories with branches and commits, regular files inside commits, LFS uploads
for binaries, tokens that may read or write, and faults that a test asks for. Nothing of Xet: the
client then takes the plain HTTP way.
"""

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from io import BytesIO
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

from tests.export.faults import Fault, play

READER, WRITER = "token-that-reads", "token-that-writes"
BINARY = (".onnx", ".safetensors", ".webp", ".png")
ID = r"(?P<id>[\w.-]+/[\w.-]+)"


@dataclass
class Repo:
    """One repository: commits are {path: content}, branches are names of commits.

    `card` is what the front matter of its README.md would say; a gated one tells everybody what it
    holds, and gives it to the token that writes only.
    """

    private: bool = False
    card: dict[str, Any] = field(default_factory=dict)
    gated: bool = False
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    branches: dict[str, str] = field(default_factory=dict)

    def add_commit(self, branch: str, files: dict[str, bytes]) -> str:
        """Puts files on top of a branch; returns the commit's name."""
        tree = {**self.commits.get(self.branches.get(branch, ""), {}), **files}
        parts = [f"{len(self.commits)}", *(f"{k} {sha256(v)}" for k, v in sorted(tree.items()))]
        commit = hashlib.sha1("\n".join(parts).encode()).hexdigest()
        self.commits[commit] = tree
        self.branches[branch] = commit
        return commit


@dataclass
class HubState:
    """What the server holds, what it was asked, and which faults it plays.

    Attributes:
        repos: by `owner/name`.
        blobs: LFS contents by SHA-256.
        damaged: paths whose content is served with its last byte changed.
        faults: what is done to answers whose "METHOD /path" has a match of a pattern.
        over: set when the server ends, for whatever waits.
        down: whether every request is answered with status 503.
        requests: method and path of every request, in order.
        tokens: what was sent to be let in, "" for nothing.
        stated: path in a repository -> the size that the list of files states instead of its own.
    """

    repos: dict[str, Repo] = field(default_factory=dict)
    blobs: dict[str, bytes] = field(default_factory=dict)
    damaged: set[str] = field(default_factory=set)
    down: bool = False
    faults: dict[str, Fault] = field(default_factory=dict)
    over: threading.Event = field(default_factory=threading.Event)
    requests: list[str] = field(default_factory=list)
    tokens: list[str] = field(default_factory=list)
    stated: dict[str, Any] = field(default_factory=dict)
    url: str = ""


@contextmanager
def running_hub() -> Iterator[HubState]:
    """Runs the server on a free local port until the block ends."""
    state = HubState()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"state": state}))
    state.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    try:
        yield state
    finally:
        state.over.set()
        server.shutdown()
        server.server_close()
        thread.join()


def sha256(content: bytes) -> str:
    """Hexadecimal SHA-256."""
    return hashlib.sha256(content).hexdigest()


def git_sha1(content: bytes) -> str:
    """The name that git has for a file's content."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


class _RefusedError(Exception):
    """Ends a request with a status and the Hub's error code."""

    def __init__(self, status: int, code: str = "", message: str = "", **more: str) -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.more = status, code, message, more


class _Handler(BaseHTTPRequestHandler):
    state: HubState
    protocol_version = "HTTP/1.1"

    def do_HEAD(self) -> None:
        self._route({rf"/{ID}/resolve/(?P<rev>[^/]+)/(?P<path>.+)": self._resolve})

    def do_GET(self) -> None:
        self._route(
            {
                r"/api/models": self._search,
                rf"/api/models/{ID}(/revision/(?P<rev>[^/]+))?": self._repo_info,
                rf"/api/models/{ID}/tree/(?P<rev>[^/]+)": self._tree,
                rf"/{ID}/resolve/(?P<rev>[^/]+)/(?P<path>.+)": self._resolve,
            }
        )

    def do_PUT(self) -> None:
        self._route({r"/lfs/(?P<oid>[0-9a-f]{64})": self._lfs_upload})

    def do_POST(self) -> None:
        self._route(
            {
                r"/api/repos/create": self._create_repo,
                r"/api/validate-yaml": self._validate_card,
                rf"/api/models/{ID}/branch/(?P<rev>[^/]+)": self._create_branch,
                rf"/api/models/{ID}/preupload/(?P<rev>[^/]+)": self._preupload,
                rf"/{ID}\.git/info/lfs/objects/batch": self._lfs_batch,
                rf"/api/models/{ID}/commit/(?P<rev>[^/]+)": self._commit,
            }
        )

    def log_message(self, *_: Any) -> None:
        """Keeps quiet."""

    def _route(self, routes: dict[str, Any]) -> None:
        path = urlsplit(self.path).path
        self.state.requests.append(f"{self.command} {path}")
        self.state.tokens.append(self._token())
        self.body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        request = f"{self.command} {path}"
        faults = (fault for part, fault in self.state.faults.items() if re.search(part, request))
        fault = next(faults, None)
        if fault is None or not fault.take():
            self._reply(routes, path)
            return
        usual, raw = self.wfile, BytesIO()
        self.wfile = raw
        self._reply(routes, path)
        self.wfile = usual
        play(fault, raw.getvalue(), self.path, self.connection, self.state.over)
        self.close_connection = True

    def _reply(self, routes: dict[str, Any], path: str) -> None:
        try:
            if self.state.down:
                raise _RefusedError(503, message="down for maintenance")
            for pattern, handler in routes.items():
                if match := re.fullmatch(pattern, path):
                    handler(**{k: unquote(v) for k, v in match.groupdict("main").items()})
                    return
            raise _RefusedError(404, message=f"no such address {path}")
        except _RefusedError as refusal:
            headers = {"X-Error-Code": refusal.code, "X-Error-Message": refusal.message}
            self._answer({"error": refusal.message, **refusal.more}, refusal.status, headers)

    def _answer(
        self, content: Any, status: int = 200, headers: dict[str, str] | None = None
    ) -> None:
        data = content if isinstance(content, bytes) else json.dumps(content).encode()
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def _token(self) -> str:
        return self.headers.get("Authorization", "").removeprefix("Bearer ")

    def _must_write(self) -> None:
        if self._token() == READER:
            raise _RefusedError(403, message="this token may not write")
        if self._token() != WRITER:
            raise _RefusedError(401, message="Invalid credentials in Authorization header")

    def _repo(self, repo_id: str) -> Repo:
        repo = self.state.repos.get(repo_id)
        if repo is None or (repo.private and self._token() not in (READER, WRITER)):
            raise _RefusedError(401, "RepoNotFound", "Repository not found")
        return repo

    def _commit_of(self, repo: Repo, rev: str) -> str:
        commit = repo.branches.get(rev, rev)
        if commit not in repo.commits:
            raise _RefusedError(404, "RevisionNotFound", f"Invalid rev id: {rev}")
        return commit

    def _create_repo(self) -> None:
        self._must_write()
        content = json.loads(self.body)
        repo_id = f"{content['organization']}/{content['name']}"
        if repo_id in self.state.repos:
            url = f"{self.state.url}/{repo_id}"
            raise _RefusedError(409, message="You already created this model repo", url=url)
        self.state.repos[repo_id] = Repo(private=content.get("visibility") == "private")
        self.state.repos[repo_id].add_commit("main", {".gitattributes": b""})
        self._answer({"url": f"{self.state.url}/{repo_id}"})

    def _create_branch(self, id: str, rev: str) -> None:
        self._must_write()
        repo = self._repo(id)
        if rev in repo.branches:
            raise _RefusedError(409, message="Reference already exists")
        repo.branches[rev] = repo.branches["main"]
        self._answer({})

    def _validate_card(self) -> None:
        card = json.loads(self.body)["content"]
        if not card.startswith("---\n") or "\n---\n" not in card:
            self._answer({"errors": [{"message": "no metadata"}], "warnings": []}, 400)
        else:
            self._answer({"errors": [], "warnings": []})

    def _preupload(self, id: str, rev: str) -> None:
        self._must_write()
        self._commit_of(self._repo(id), rev)
        modes = []
        for file in json.loads(self.body)["files"]:
            mode = "lfs" if file["path"].endswith(BINARY) else "regular"
            modes.append({"path": file["path"], "uploadMode": mode, "shouldIgnore": False})
        self._answer({"files": modes})

    def _lfs_batch(self, id: str) -> None:
        self._must_write()
        self._repo(id)
        objects = json.loads(self.body)["objects"]
        for required in objects:
            if required["oid"] not in self.state.blobs:
                href = f"{self.state.url}/lfs/{required['oid']}"
                required["actions"] = {"upload": {"href": href, "header": {}}}
        self._answer({"transfer": "basic", "objects": objects})

    def _lfs_upload(self, oid: str) -> None:
        if sha256(self.body) != oid:
            raise _RefusedError(400, message="the content does not have this checksum")
        self.state.blobs[oid] = self.body
        self._answer({})

    def _commit(self, id: str, rev: str) -> None:
        self._must_write()
        repo = self._repo(id)
        self._commit_of(repo, rev)
        files = {}
        for line in self.body.splitlines():
            entry = json.loads(line)
            value = entry["value"]
            if entry["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif entry["key"] == "lfsFile":
                files[value["path"]] = self.state.blobs[value["oid"]]
        commit = repo.add_commit(rev, files)
        self._answer({"commitUrl": f"{self.state.url}/{id}/commit/{commit}", "commitOid": commit})

    def _repo_info(self, id: str, rev: str) -> None:
        repo = self._repo(id)
        commit = self._commit_of(repo, rev)
        files: list[dict[str, Any]] = []
        for path, content in repo.commits[commit].items():
            files.append({"rfilename": path, "size": self.state.stated.get(path, len(content))})
            if path.endswith(BINARY):
                large = {"sha256": sha256(content), "size": len(content), "pointerSize": 130}
                files[-1]["lfs"] = large
        tags = [str(tag) for tag in repo.card.get("tags", [])]
        values = {
            "id": id,
            "sha": commit,
            "private": repo.private,
            "gated": repo.gated,
            "tags": tags,
        }
        self._answer({**values, "siblings": files, "cardData": repo.card})

    def _search(self) -> None:
        query = parse_qs(urlsplit(self.path).query)
        required, author = query.get("filter", []), query.get("author", [""])[0]
        results = []
        for repo_id, repo in self.state.repos.items():
            may = not repo.private or self._token() in (READER, WRITER)
            tagged = set(required) <= {*repo.card.get("tags", []), repo.card.get("library_name")}
            if may and tagged and repo_id.split("/")[0] == (author or repo_id.split("/")[0]):
                tags = [*repo.card.get("tags", []), f"license:{repo.card.get('license', '')}"]
                commit = repo.branches["main"]
                results.append({"id": repo_id, "sha": commit, "tags": tags})
        self._answer(results)

    def _tree(self, id: str, rev: str) -> None:
        repo = self._repo(id)
        listing = []
        for path, content in repo.commits[self._commit_of(repo, rev)].items():
            listing.append(
                {"type": "file", "path": path, "size": len(content), "oid": git_sha1(content)}
            )
            if path.endswith(BINARY):
                large = {"oid": sha256(content), "size": len(content), "pointerSize": 130}
                listing[-1]["lfs"] = large
        self._answer(listing)

    def _resolve(self, id: str, rev: str, path: str) -> None:
        repo = self._repo(id)
        commit = self._commit_of(repo, rev)
        content = repo.commits[commit].get(path)
        if content is None:
            raise _RefusedError(404, "EntryNotFound", "Entry not found")
        if repo.gated and self._token() != WRITER:
            status = 403 if self._token() == READER else 401
            raise _RefusedError(status, "GatedRepo", "Access to this model is restricted")
        stated = sha256(content) if path.endswith(BINARY) else git_sha1(content)
        headers = {"X-Repo-Commit": commit, "ETag": f'"{stated}"'}
        if path in self.state.damaged:
            content = content[:-1] + bytes([content[-1] ^ 255])
        self._answer(content, headers=headers)
