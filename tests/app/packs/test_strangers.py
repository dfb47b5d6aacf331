"""What strangers may have fetched from the Hub by an app that others than its machine reach."""

import json
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from polyview.export.pack.reading import list_files, load_info
from tests.app.serving import Serve, Server
from tests.export.hub_server import READER, Fault, HubState, Repo, running_hub

pytestmark = [pytest.mark.network, pytest.mark.slow]
ALLOWED = [f"owner/{name}" for name in ("shapes", "altered", "secret", "large")]


@dataclass(frozen=True)
class Public:
    """A public app, the Hub it knows, and its Hub client's cache."""

    server: Server
    hub: HubState
    cache: Path
    pack: Path

    def stock(self, name: str, change: Callable[[dict[str, bytes]], None] | None = None) -> None:
        """Puts the tiny pack on the Hub, changed."""
        files = {file: (self.pack / file).read_bytes() for file in list_files(load_info(self.pack))}
        if change is not None:
            change(files)
        self.hub.repos[f"owner/{name}"] = Repo()
        self.hub.repos[f"owner/{name}"].add_commit("main", files)

    def load(self, address: str) -> str:
        """The title of a pack that a visitor fetched, or the sentence of the refusal."""
        reply = self.server.http.post("packs/fetch", json={"address": address})
        answer, deadline = reply.json(), time.monotonic() + 60
        while answer.get("state") == "running":
            assert time.monotonic() < deadline
            time.sleep(0.05)
            answer = self.server.get("packs/job", job=answer["job"])
        for secret in (str(self.cache), str(self.pack), "/tmp", str(Path.home()), "snapshots"):
            assert secret not in str(answer)
        if answer.get("error"):
            return answer["error"]
        return self.server.get("info", pack=answer["pack"])["pack"]["title"]

    def kept(self, name: str) -> int:
        """How many bytes of a repository are in the cache."""
        folder = self.cache / f"models--owner--{name}"
        files = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
        return sum(path.stat().st_size for path in files)

    def asked(self, name: str) -> list[str]:
        """What the Hub was asked about a repository."""
        return [request for request in self.hub.requests if f"owner/{name}" in request]


@pytest.fixture(scope="module")
def public(
    serve: Serve, tiny_pack: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Public]:
    cache = tmp_path_factory.mktemp("cache with a space")
    with running_hub() as hub:
        server = serve("--pack", tiny_pack, "--host", "0.0.0.0", **variables(hub, cache))
        yield Public(server, hub, cache, tiny_pack)


def variables(hub: HubState, cache: Path) -> dict[str, str]:
    return {
        "POLYVIEW_ALLOW_PACK": " ".join(ALLOWED),
        "HF_TOKEN": READER,
        "HF_ENDPOINT": hub.url,
        "HF_HUB_OFFLINE": "0",
        "HF_HUB_CACHE": str(cache),
        "HF_TOKEN_PATH": str(cache / "no-token"),
        "NO_PROXY": "127.0.0.1",
    }


def said_in(content: dict[str, bytes], **values: Any) -> None:
    """Changes what pack.json says."""
    content["pack.json"] = json.dumps({**json.loads(content["pack.json"]), **values}).encode()


def test_the_owners_token_is_not_used(public: Public) -> None:
    public.stock("secret")
    public.hub.repos["owner/secret"].private = True
    sentence = public.load("owner/secret")
    assert "here is no owner/secret" in sentence
    assert public.asked("secret")
    assert set(public.hub.tokens) == {""}
    assert public.kept("secret") == 0


@pytest.mark.parametrize(
    "address",
    [
        "owner/unknown",
        "owner/shapes@main",
        "owner/shapes@refs/pr/1",
        "owner/shapes@../../x",
        "/etc",
    ],
)
def test_only_what_was_allowed_is_asked_for(public: Public, address: str) -> None:
    public.stock("unknown")
    before = len(public.hub.requests)
    sentence = public.load(address)
    assert (
        "may not be loaded here; name one of clip_tiny, photos, scenes, scenes_moving" in sentence
    )
    assert len(public.hub.requests) == before


def test_an_allowed_pack_loads_and_only_its_own_files_are_fetched(public: Public) -> None:
    def add(files: dict[str, bytes]) -> None:
        said_in(files, title="From the Hub")
        files["gallery/big.bin"] = bytes(3_000_000)

    public.stock("shapes", add)
    assert public.load("owner/shapes") == "From the Hub"
    assert 0 < public.kept("shapes") < 3_000_000
    assert not any("big.bin" in request for request in public.hub.requests)
    assert set(public.hub.tokens) == {""}


def test_the_limits_of_visitors_hold(public: Public) -> None:
    def claim(files: dict[str, bytes]) -> None:
        stated = json.loads(files["pack.json"])["files"]
        stated["image_encoder.onnx"]["bytes"] = 1_500_000_000
        said_in(files, files=stated)

    public.stock("large", claim)
    public.hub.stated["image_encoder.onnx"] = 1_500_000_000
    try:
        refusal = public.load("owner/large")
    finally:
        public.hub.stated.clear()
    assert "has 1,500,000,000 bytes, more than the 1,000,000,000 that visitors may" in refusal
    assert public.kept("large") == 0
    assert not any("onnx" in request for request in public.asked("large"))


def test_an_altered_pack_is_never_shown_for_another(public: Public) -> None:
    public.stock("altered", lambda files: said_in(files, title="Altered", credits="A thief"))
    public.stock("shapes", lambda files: said_in(files, title="Genuine"))
    assert public.load("owner/altered") == "Altered"
    assert public.load("owner/shapes") == "Genuine"
    # the same weights as those that the app began with, under other words
    titles = {pack["title"] for pack in public.server.get("packs")["packs"]}
    assert {"Altered", "Genuine"} <= titles


def test_a_long_name_is_not_echoed_whole(public: Public) -> None:
    answer = public.server.refusal("explain", q="a dog", image="0", method="x" * 40_000)
    assert "at most 500 characters" in answer
    assert len(answer) < 3000
    assert len(public.load(f"owner/{'x' * 40_000}")) < 3000
    assert max(map(len, public.server.log.read_text().splitlines()), default=0) < 10_000


def test_searches_go_on_while_the_hub_is_silent(public: Public) -> None:
    public.stock("large")
    public.hub.faults["GET /api/models/owner/large"] = Fault("silent")
    with ThreadPoolExecutor() as pool:
        look = pool.submit(public.server.refusal, "packs/look", address="owner/large")
        assert public.server.get("search", q="a red circle", method="vsepp", k=2)["hits"]
        assert not look.done()
        assert "timed out" in look.result(60)
    public.hub.faults.clear()
    assert public.server.post("packs/look", address="owner/large")["parts"]
