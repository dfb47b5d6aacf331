"""What strangers may have fetched from the Hub by an app that others than its machine reach."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

from polyview.app.packs.downloads import Downloads
from polyview.app.packs.opened import Opened
from polyview.app.settings import Settings
from polyview.export.obtain import PACK
from polyview.export.pack.reading import list_files, load_info
from tests.app.packs.test_obtaining import fetch
from tests.export.hub_server import READER, HubState, Repo

pytestmark = [pytest.mark.network, pytest.mark.slow]
ALLOWED = tuple(f"owner/{name}" for name in ("shapes", "altered", "secret", "large"))


class Public:
    """A public app that knows the Hub; its machine's owner has a token.

    Args:
        hub: the Hub.
        pack: what `stock` puts on it.
        cache: of the app, and of what is fetched.
    """

    def __init__(self, hub: HubState, pack: Path, cache: Path) -> None:
        settings = Settings(str(pack), device="cpu", host="0.0.0.0", allow_packs=ALLOWED)
        self.opened = Opened(settings, cache)
        self._downloads = Downloads(self.opened)
        self._hub, self._pack, self._cache = hub, pack, cache

    def stock(self, name: str, change: Callable[[dict[str, bytes]], None] | None = None) -> None:
        """Puts the tiny pack on the Hub, changed."""
        files = {f: (self._pack / f).read_bytes() for f in list_files(load_info(self._pack))}
        if change is not None:
            change(files)
        self._hub.repos[f"owner/{name}"] = Repo()
        self._hub.repos[f"owner/{name}"].add_commit("main", files)

    def load(self, address: str) -> str:
        """The title of a pack that a visitor fetched, or the sentence of the refusal."""
        try:
            job = fetch(self._downloads, PACK, address)
        except ValueError as error:
            sentence = self.opened.sentence(error)
        else:
            if job.state == "ready":
                return self.opened.retriever(job.pack).info.title
            sentence = job.error
        for secret in (str(self._cache), str(self._pack), "/tmp", "snapshots"):
            assert secret not in sentence
        assert len(sentence) < 1000
        return sentence

    def kept(self, name: str) -> int:
        """How many bytes of a repository are in the cache."""
        files = Path(constants.HF_HUB_CACHE, f"models--owner--{name}").rglob("*")
        return sum(
            path.stat().st_size for path in files if path.is_file() and not path.is_symlink()
        )


@pytest.fixture
def public(
    hub: HubState, tiny_pack: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Public:
    monkeypatch.setenv("HF_TOKEN", READER)
    return Public(hub, tiny_pack, tmp_path / "cache with a space")


def said_in(content: dict[str, bytes], **values: Any) -> None:
    """Changes what pack.json says."""
    content["pack.json"] = json.dumps({**json.loads(content["pack.json"]), **values}).encode()


def test_the_owners_token_is_not_used(public: Public, hub: HubState) -> None:
    public.stock("secret")
    hub.repos["owner/secret"].private = True
    assert "here is no owner/secret" in public.load("owner/secret")
    assert any("owner/secret" in request for request in hub.requests)
    assert set(hub.tokens) == {""}
    assert public.kept("secret") == 0


@pytest.mark.parametrize(
    "address",
    [
        "owner/unknown",
        "owner/shapes@main",
        "owner/shapes@refs/pr/1",
        "owner/shapes@../../x",
        "/etc",
        f"owner/{'x' * 40_000}",
    ],
)
def test_only_what_was_allowed_is_asked_for(public: Public, hub: HubState, address: str) -> None:
    public.stock("unknown")
    sentence = public.load(address)
    assert (
        "may not be loaded here; name one of clip_tiny, photos, scenes, scenes_moving" in sentence
    )
    assert hub.requests == []


def test_an_allowed_pack_loads_and_only_its_own_files_are_fetched(
    public: Public, hub: HubState
) -> None:
    def add(files: dict[str, bytes]) -> None:
        said_in(files, title="From the Hub")
        files["gallery/big.bin"] = bytes(3_000_000)

    public.stock("shapes", add)
    assert public.load("owner/shapes") == "From the Hub"
    assert 0 < public.kept("shapes") < 3_000_000
    assert not any("big.bin" in request for request in hub.requests)
    assert set(hub.tokens) == {""}


def test_the_limits_of_visitors_hold(public: Public, hub: HubState) -> None:
    def claim(files: dict[str, bytes]) -> None:
        stated = json.loads(files["pack.json"])["files"]
        stated["image_encoder.onnx"]["bytes"] = 2_100_000_000
        said_in(files, files=stated)

    public.stock("large", claim)
    hub.stated["image_encoder.onnx"] = 2_100_000_000
    refusal = public.load("owner/large")
    assert "more than the 2,000,000,000 in 20,000 that visitors may" in refusal
    assert public.kept("large") == 0
    assert not any("onnx" in request for request in hub.requests)


def test_an_altered_pack_is_never_shown_for_another(public: Public) -> None:
    public.stock("altered", lambda files: said_in(files, title="Altered", credits="A thief"))
    public.stock("shapes", lambda files: said_in(files, title="Genuine"))
    assert public.load("owner/altered") == "Altered"
    assert public.load("owner/shapes") == "Genuine"
    # the same weights as those that the app began with, under other words
    assert {"Altered", "Genuine"} <= {info.title for info in public.opened.packs().values()}
