"""What strangers may have fetched from the Hub by an app that others than its machine reach."""

import csv
import io
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from gradio_client import Client

from export.pack.reading import list_files, load_info
from tests.app.conftest import draw
from tests.app.serving import Serve, Server
from tests.export.hub_server import READER, HubState, Repo, running_hub

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

    def load(self, address: str, visitor: Client | None = None) -> str:
        """What a visitor is told who presses the button until nothing more is offered."""
        visitor = visitor or Client(self.server.url, verbose=False)
        answer = str(visitor.predict("pack", address, api_name="/load_pack"))
        if "To download" in answer:
            answer = str(visitor.predict("pack", address, api_name="/load_pack"))
        for secret in (str(self.cache), str(self.pack), "/tmp", str(Path.home()), "snapshots"):
            assert secret not in answer
        return answer

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
    assert "There is no owner/secret" in sentence
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
    assert "may not be loaded here; name one of photos, scenes, scenes_moving" in sentence
    assert len(public.hub.requests) == before


def test_an_allowed_pack_loads_and_only_its_own_files_are_fetched(public: Public) -> None:
    def add(files: dict[str, bytes]) -> None:
        said_in(files, title="From the Hub")
        files["gallery/big.bin"] = bytes(3_000_000)

    public.stock("shapes", add)
    assert "From the Hub is loaded" in public.load("owner/shapes")
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
    first, second = (Client(public.server.url, verbose=False) for _ in range(2))
    assert "Altered is loaded" in public.load("owner/altered", first)
    assert "Genuine is loaded" in public.load("owner/shapes", second)
    # the same weights as those that the app began with, under other words
    answer = str(second.predict(api_name="/models_swap"))
    assert "Genuine" in answer
    assert "A thief" not in answer


def test_tables_hold_no_formula(serve: Serve, tiny_pack: Path, tmp_path: Path) -> None:
    folder = tmp_path / "photos"
    folder.mkdir()
    formula = '=HYPERLINK("evil.example")'
    draw(1)[0].save(folder / f"{formula}.png")
    (folder / f"{formula}&.jpg").write_bytes(b"no picture")
    server = serve("--pack", tiny_pack, "--gallery", folder)
    visitor = Client(server.url, verbose=False)
    left_out = saved(visitor, "save_left_out")
    assert left_out[1][0] == f"'{formula}&.jpg"
    visitor.predict(formula, ["vsepp", "vse_infty"], 3, api_name="/compare_words")
    compared = saved(visitor, "compare_csv")
    row = dict(zip(compared[0], compared[1], strict=True))
    assert (row["query"], row["file"]) == (f"'{formula}", f"'{formula}.png")
    assert -1 <= float(row["score"]) <= 1  # a number stays one


def saved(visitor: Client, event: str) -> list[list[str]]:
    """The cells of a file that an event makes."""
    file = visitor.predict(api_name=f"/{event}")
    path = Path(file["value"] if isinstance(file, dict) else file)
    rows = list(csv.reader(io.StringIO(path.read_text())))
    assert not any(cell.startswith("=") for row in rows for cell in row)
    return rows


def test_a_long_name_is_not_echoed_whole(public: Public) -> None:
    visitor = Client(public.server.url, verbose=False)
    answer = str(visitor.predict("a dog", "x" * 40_000, 3, api_name="/search_text"))
    assert "there is no method" in answer
    assert len(answer) < 3000
    assert len(public.load(f"owner/{'x' * 40_000}")) < 3000
    assert max(map(len, public.server.log.read_text().splitlines()), default=0) < 10_000
