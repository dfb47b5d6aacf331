"""What strangers may have fetched from the Hub by an app that others than its machine reach."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants

from polyview.app.packs.opened import Opened
from polyview.app.settings import Settings
from polyview.export.obtain import PACK
from polyview.export.pack.reading import list_files, load_info
from tests.app.packs.test_obtaining import fetch
from tests.export.hub_server import READER, HubState, Repo

pytestmark = [pytest.mark.network, pytest.mark.slow]
ALLOWED = tuple(f"owner/{name}" for name in ("shapes", "altered", "secret", "large"))
Stock = Callable[..., None]


@pytest.fixture
def public(
    hub: HubState,  # noqa: ARG001
    tiny_pack: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Opened:
    """A public app that knows the Hub; its machine's owner has a token."""
    monkeypatch.setenv("HF_TOKEN", READER)
    settings = Settings(str(tiny_pack), device="cpu", host="0.0.0.0", allow_packs=ALLOWED)
    return Opened(settings, tmp_path / "cache with a space")


@pytest.fixture
def stock(hub: HubState, tiny_pack: Path) -> Stock:
    """Puts the tiny pack on the Hub, with other values in pack.json, and more files."""

    def put(name: str, more: dict[str, bytes] | None = None, **values: Any) -> None:
        files = {f: (tiny_pack / f).read_bytes() for f in list_files(load_info(tiny_pack))}
        files["pack.json"] = json.dumps({**json.loads(files["pack.json"]), **values}).encode()
        hub.repos[f"owner/{name}"] = Repo()
        hub.repos[f"owner/{name}"].add_commit("main", files | (more or {}))

    return put


def load(public: Opened, address: str) -> str:
    """The title of a pack that a visitor fetched, or the sentence of the refusal."""
    try:
        job = fetch(public.downloads, PACK, address)
    except ValueError as error:
        sentence = public.public_message(error)
    else:
        if job.state == "ready":
            return public.retriever(job.pack).info.title
        sentence = job.error
    for secret in (str(public.cache), str(public.settings.pack), "/tmp", "snapshots"):
        assert secret not in sentence
    assert len(sentence) < 1000
    return sentence


def cached_bytes(name: str) -> int:
    """How many bytes of a repository are in the cache."""
    files = Path(constants.HF_HUB_CACHE, f"models--owner--{name}").rglob("*")
    return sum(path.stat().st_size for path in files if path.is_file() and not path.is_symlink())


def test_the_owners_token_is_not_used(public: Opened, hub: HubState, stock: Stock) -> None:
    stock("secret")
    hub.repos["owner/secret"].private = True
    assert "here is no owner/secret" in load(public, "owner/secret")
    assert any("owner/secret" in request for request in hub.requests)
    assert set(hub.tokens) == {""}
    assert cached_bytes("secret") == 0


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
def test_only_what_was_allowed_is_asked_for(
    public: Opened, hub: HubState, stock: Stock, address: str
) -> None:
    stock("unknown")
    allowed = "may be loaded here; name one of clip_tiny, photos, scenes, scenes_moving"
    assert allowed in load(public, address)
    assert hub.requests == []


def test_an_allowed_pack_loads_and_only_its_own_files_are_fetched(
    public: Opened, hub: HubState, stock: Stock
) -> None:
    stock("shapes", {"gallery/big.bin": bytes(3_000_000)}, title="From the Hub")
    assert load(public, "owner/shapes") == "From the Hub"
    assert 0 < cached_bytes("shapes") < 3_000_000
    assert not any("big.bin" in request for request in hub.requests)
    assert set(hub.tokens) == {""}


def test_the_limits_of_visitors_hold(
    public: Opened, hub: HubState, tiny_pack: Path, stock: Stock
) -> None:
    stated = json.loads((tiny_pack / "pack.json").read_text("utf-8"))["files"]
    stated["image_encoder.onnx"]["bytes"] = hub.stated["image_encoder.onnx"] = 2_100_000_000
    stock("large", files=stated)
    refusal = load(public, "owner/large")
    assert "more than the 2,000,000,000 in 20,000 that visitors may have fetched" in refusal
    assert cached_bytes("large") == 0
    assert not any("onnx" in request for request in hub.requests)


def test_an_altered_pack_is_never_shown_for_another(public: Opened, stock: Stock) -> None:
    stock("altered", title="Altered", credits="A thief")
    stock("shapes", title="Genuine")
    assert load(public, "owner/altered") == "Altered"
    assert load(public, "owner/shapes") == "Genuine"
    # the same weights as those that the app began with, under other words
    assert {"Altered", "Genuine"} <= {info.title for info in public.packs().values()}
