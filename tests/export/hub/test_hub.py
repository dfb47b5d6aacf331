"""The real client against a local server: push, pull, and everything that can go wrong."""

import shutil
import socket
from pathlib import Path

import pytest
from filelock import FileLock
from huggingface_hub import constants

from export.build.to_onnx import export_runs
from export.hub import transfer as hub
from export.hub.resolve import resolve
from export.pack.reading import list_files, load_info
from tests.export.conftest import LABELS
from tests.export.editing import edited
from tests.export.hub_server import READER, WRITER, HubState, Repo

pytestmark = pytest.mark.network
ID = "owner/tiny"


@pytest.fixture(scope="module")
def pack(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pack of one method with a gallery, as each file is a question to the server."""
    out = tmp_path_factory.mktemp("packs") / "tiny"
    export_runs(out, runs / "backbone", [runs / "vsepp"], LABELS, runs / "gallery")
    return out


@pytest.fixture
def stocked(server: HubState, pack: Path) -> HubState:
    """The server with the pack in a public repository, put there without the client."""
    server.repos[ID] = Repo()
    server.repos[ID].add_commit("main", contents(pack))
    return server


def contents(pack: Path) -> dict[str, bytes]:
    """All files of a pack."""
    return {name: (pack / name).read_bytes() for name in list_files(load_info(pack))}


def test_push_then_pull_keeps_every_byte(server: HubState, copied: Path, tmp_path: Path) -> None:
    (copied / "notes.txt").write_text("not part of the pack")
    address = hub.push(copied, ID, token=WRITER)
    assert address.startswith(f"{server.url}/{ID}/commit/")
    folder = hub.pull(ID, cache_dir=tmp_path / "elsewhere")
    assert folder.is_relative_to(tmp_path / "elsewhere")
    assert contents(folder) == contents(copied)
    assert not (folder / "notes.txt").exists()
    assert "notes.txt" not in server.repos[ID].commits[server.repos[ID].branches["main"]]


def test_a_pack_of_unknown_licence_stays_here(server: HubState, copied: Path) -> None:
    with edited(copied / "pack.json") as values:
        values["licence"] = "unknown"
    with pytest.raises(ValueError, match=r"does not say which licence.*--licence"):
        hub.push(copied, ID, token=WRITER)
    assert not server.repos


def test_binaries_go_through_lfs_and_all_is_one_commit(server: HubState, pack: Path) -> None:
    hub.push(pack, ID, token=WRITER)
    texts = (".json", ".md", ".csv", ".toml")
    binaries = [data for name, data in contents(pack).items() if not name.endswith(texts)]
    assert len(server.blobs) == len(set(binaries))
    assert sum("/commit/" in request for request in server.requests) == 1


def test_a_pack_without_a_card_is_pushed_with_one(server: HubState, copied: Path) -> None:
    card = (copied / "README.md").read_bytes()
    (copied / "README.md").unlink()
    hub.push(copied, ID, token=WRITER)
    repo = server.repos[ID]
    assert repo.commits[repo.branches["main"]]["README.md"] == card
    assert not (copied / "README.md").exists()


@pytest.mark.usefixtures("server")
def test_pushing_again_adds_a_commit_and_pull_gets_it(copied: Path) -> None:
    hub.push(copied, ID, token=WRITER)
    with edited(copied / "pack.json") as values:
        values["title"] = "Second edition"
    hub.push(copied, ID, token=WRITER)
    assert load_info(hub.pull(ID)).title == "Second edition"


@pytest.mark.usefixtures("server")
def test_a_revision_is_pinned(copied: Path) -> None:
    first = hub.push(copied, ID, token=WRITER).rsplit("/", 1)[1]
    hub.push(copied, ID, token=WRITER, revision="next")
    with edited(copied / "pack.json") as values:
        values["title"] = "On a branch"
    hub.push(copied, ID, token=WRITER, revision="next")
    assert load_info(hub.pull(ID, first)).title == "Tiny"
    assert load_info(hub.pull(ID)).title == "Tiny"
    assert load_info(hub.pull(ID, "next")).title == "On a branch"
    assert load_info(resolve(f"{ID}@next")).title == "On a branch"


def test_only_files_of_the_pack_are_fetched(stocked: HubState) -> None:
    stocked.repos[ID].add_commit("main", {"optimizer.bin": b"x" * 1000, "notes/draft.md": b"y"})
    folder = hub.pull(ID)
    assert not (folder / "optimizer.bin").exists()
    assert not any("optimizer" in r or "draft" in r for r in stocked.requests if "/resolve/" in r)


def test_private_repositories_need_a_token(server: HubState, pack: Path) -> None:
    hub.push(pack, ID, private=True, token=WRITER)
    assert server.repos[ID].private
    with pytest.raises(hub.HubError, match=r"there is no owner/tiny at .* or it is private"):
        hub.pull(ID)
    assert load_info(hub.pull(ID, token=READER)).name == "tiny"


@pytest.mark.parametrize(
    ("token", "sentence"),
    [
        (None, "refused owner/tiny with status 401; log in"),
        ("wrong", "refused owner/tiny with status 401; log in"),
        (READER, "refused owner/tiny with status 403; use a token that is allowed to"),
    ],
)
def test_push_forbidden(server: HubState, pack: Path, token: str | None, sentence: str) -> None:
    with pytest.raises(hub.HubError, match=sentence):
        hub.push(pack, ID, token=token)
    assert not server.repos


@pytest.mark.usefixtures("stocked")
def test_missing_repository_and_revision() -> None:
    with pytest.raises(hub.HubError, match="there is no owner/other at http://127"):
        hub.pull("owner/other")
    with pytest.raises(hub.HubError, match="owner/tiny@v9: there is no such revision"):
        hub.pull(ID, "v9")
    with pytest.raises(hub.HubError, match="no/such/id"):
        hub.pull("no/such/id")


def test_a_repository_that_is_no_pack(server: HubState) -> None:
    server.repos[ID] = Repo()
    server.repos[ID].add_commit("main", {"README.md": b"hello"})
    with pytest.raises(hub.HubError, match=r"owner/tiny is not a pack: it has no pack\.json"):
        hub.pull(ID)


def test_a_pack_json_that_is_none_is_refused_before_anything_else(server: HubState) -> None:
    server.repos[ID] = Repo()
    server.repos[ID].add_commit("main", {"pack.json": b'{"format": 99}', "big.onnx": b"0"})
    with pytest.raises(hub.HubError, match="is of format 99"):
        hub.pull(ID)
    assert not any("big.onnx" in request for request in server.requests)


def test_a_file_with_other_bytes_is_refused(stocked: HubState) -> None:
    repo = stocked.repos[ID]
    content = repo.commits[repo.branches["main"]]
    content["image_encoder.onnx"] = bytes(len(content["image_encoder.onnx"]))
    with pytest.raises(hub.HubError, match=r"not a whole pack: .*image_encoder\.onnx is not the"):
        hub.pull(ID)


def test_a_file_that_is_missing_is_refused(stocked: HubState) -> None:
    repo = stocked.repos[ID]
    del repo.commits[repo.branches["main"]]["tokenizer.json"]
    with pytest.raises(hub.HubError, match=r"lacks tokenizer\.json"):
        hub.pull(ID)


def test_an_interrupted_pull_is_no_pack(stocked: HubState, monkeypatch: pytest.MonkeyPatch) -> None:
    stocked.refused["image_encoder.onnx"] = 403
    with pytest.raises(hub.HubError, match="status 403"):
        hub.pull(ID)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(
        hub.HubError, match="not all, in the local cache, and HF_HUB_OFFLINE is set"
    ):
        hub.pull(ID)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    stocked.refused.clear()
    assert load_info(hub.pull(ID)).name == "tiny"


def test_offline_finds_what_was_pulled(stocked: HubState, monkeypatch: pytest.MonkeyPatch) -> None:
    online = hub.pull(ID)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    asked = len(stocked.requests)
    assert hub.pull(ID) == online
    assert len(stocked.requests) == asked
    with pytest.raises(hub.HubError, match="in the local cache, and HF_HUB_OFFLINE is set"):
        hub.pull("owner/other")


@pytest.mark.usefixtures("stocked")
def test_nobody_answers(pack: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    online = hub.pull(ID)
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        port = unused.getsockname()[1]
    monkeypatch.setenv("HF_ENDPOINT", f"http://127.0.0.1:{port}")
    assert hub.pull(ID) == online
    silence = rf"the Hub at http://127\.0\.0\.1:{port} cannot be reached"
    with pytest.raises(hub.HubError, match=silence):
        hub.pull("owner/other")
    with pytest.raises(hub.HubError, match=silence):
        hub.push(pack, ID, token=WRITER)


def test_a_dead_hub_leaves_the_pull(stocked: HubState, monkeypatch: pytest.MonkeyPatch) -> None:
    online = hub.pull(ID)
    stocked.down = True
    assert hub.pull(ID) == online
    with pytest.raises(
        hub.HubError, match=r"local cache, and .* out of order \(status 503\); try again"
    ):
        hub.pull("owner/other")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(hub.HubError, match="cannot be reached while HF_HUB_OFFLINE is set"):
        hub.push(online, ID, token=WRITER)


def test_a_damaged_pack_is_not_pushed(server: HubState, copied: Path) -> None:
    (copied / "tokenizer.json").write_text("{}")
    with pytest.raises(ValueError, match=r"tokenizer\.json has 2 bytes"):
        hub.push(copied, ID, token=WRITER)
    assert not server.requests


def test_command_line(
    server: HubState, pack: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert hub.main(["push", str(pack), ID, "--token", WRITER]) == 0
    assert capsys.readouterr().out.startswith(server.url)
    cache = tmp_path / "mine"
    assert hub.main(["pull", ID, "--cache-dir", str(cache)]) == 0
    assert load_info(Path(capsys.readouterr().out.strip())).name == "tiny"
    shutil.rmtree(cache)
    assert hub.main(["pull", "owner/other"]) == 1
    assert "pull failed: there is no owner/other" in capsys.readouterr().err
    assert hub.main(["push", str(tmp_path / "nowhere"), ID, "--token", WRITER]) == 1
    assert "push failed: there is no pack folder" in capsys.readouterr().err


@pytest.mark.parametrize("etag", ["{}", "../../../../{.name}", "..", "x" * 300, "a b", ""])
def test_a_checksum_names_no_file_elsewhere(stocked: HubState, tmp_path: Path, etag: str) -> None:
    mine = tmp_path / "mine.txt"
    mine.write_text("mine")
    stocked.etags["pack.json"] = etag.format(mine)
    with pytest.raises(hub.HubError, match="ETag"):
        hub.pull(ID, cache_dir=tmp_path / "a" / "b" / "c")
    assert mine.read_text() == "mine"
    assert not [path for path in tmp_path.rglob("*") if path.is_file() and path != mine]


@pytest.mark.parametrize("size", ["big", -5, 1.5, True])
def test_a_size_that_is_none_is_refused(stocked: HubState, size: object) -> None:
    stocked.stated["pack.json"] = size
    with pytest.raises(hub.HubError, match="as the size of"):
        hub.pull(ID)


@pytest.mark.usefixtures("stocked")
def test_what_killed_downloads_left_goes_with_the_next(tmp_path: Path) -> None:
    blobs = tmp_path / "models--owner--tiny" / "blobs"
    locks = tmp_path / ".locks" / "models--owner--tiny"
    for folder in (blobs, locks):
        folder.mkdir(parents=True)
    left, older = blobs / "0a1b.01234567.incomplete", blobs / "2c3d.incomplete"
    under_way = blobs / "4e5f.89abcdef.incomplete"
    for path in (left, older, under_way):
        path.write_bytes(b"half")
    with FileLock(locks / "4e5f.lock"):
        hub.pull(ID, cache_dir=tmp_path)
    assert list(blobs.glob("*.incomplete")) == [under_way]
