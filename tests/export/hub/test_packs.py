"""The real client against a local server: push, pull, list, and what is refused."""

import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from huggingface_hub import ModelCard, constants

from export.hub import packs
from export.hub.__main__ import main
from export.hub.client import HubError, NotCachedError
from export.hub.packs import find_cached, pull, push, resolve
from export.pack.reading import list_files, load_info
from export.to_onnx import export_runs
from models import METHODS
from tests.export.conftest import LABELS
from tests.export.editing import edited
from tests.export.faults import Fault
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
    server.repos[ID] = Repo(card=ModelCard((pack / "README.md").read_text()).data.to_dict())
    server.repos[ID].add_commit("main", contents(pack))
    return server


def contents(pack: Path) -> dict[str, bytes]:
    """All files of a pack."""
    return {name: (pack / name).read_bytes() for name in list_files(load_info(pack))}


def fetched(server: HubState) -> list[str]:
    """The files whose bytes were asked for."""
    return [line.rpartition("/")[2] for line in server.requests if line.startswith("GET /owner/")]


def cached(tmp_path: Path) -> list[Path]:
    """All files of repositories in the client's cache."""
    return [path for path in (tmp_path / "cache").glob("models--*/**/*") if path.is_file()]


def test_push_then_pull_keeps_every_byte(server: HubState, copied: Path) -> None:
    (copied / "notes.txt").write_text("not part of the pack")
    card = (copied / "README.md").read_bytes()
    (copied / "README.md").unlink()
    assert push(copied, ID, token=WRITER).startswith(f"{server.url}/{ID}/commit/")
    folder = pull(ID)
    assert contents(folder) == contents(copied) | {"README.md": card}
    assert not (folder / "notes.txt").exists()
    binary = [name for name in contents(copied) if name.endswith((".onnx", ".safetensors"))]
    assert len(server.blobs) >= len({(copied / name).read_bytes() for name in binary})
    assert sum("/commit/" in request for request in server.requests) == 1


def test_push_makes_a_branch_and_pull_pins_a_revision(server: HubState, copied: Path) -> None:
    first = push(copied, ID, private=True, token=WRITER).rsplit("/", 1)[1]
    with edited(copied / "pack.json") as values:
        values["title"] = "On a branch"
    push(copied, f"{ID}@next", token=WRITER)
    assert server.repos[ID].private
    assert load_info(pull(f"{ID}@{first}", READER)).title == "Tiny"
    assert load_info(pull(ID, READER)).title == "Tiny"
    assert load_info(pull(f"{ID}@next", READER)).title == "On a branch"
    assert load_info(find_cached(f"{ID}@next")).title == "On a branch"
    with pytest.raises(HubError, match=r"there is no owner/tiny at .* or it is private"):
        pull(ID)


@pytest.mark.parametrize(
    ("token", "sentence"),
    [
        (None, "refuses owner/tiny, status 401; log in"),
        (READER, "refuses owner/tiny, status 403; use a token that is allowed to"),
    ],
)
def test_push_forbidden(server: HubState, pack: Path, token: str | None, sentence: str) -> None:
    with pytest.raises(HubError, match=sentence):
        push(pack, ID, token=token)
    assert not server.repos


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda pack: (pack / "tokenizer.json").write_text("{}"), r"tokenizer\.json has 2 bytes"),
        (
            lambda pack: (pack / "pack.json").write_text(
                (pack / "pack.json").read_text().replace('"Apache-2.0"', '"unknown"')
            ),
            r"does not say which licence.*--licence",
        ),
    ],
)
def test_a_damaged_pack_and_one_of_unknown_licence_stay_here(
    server: HubState, copied: Path, change: Callable[[Path], object], sentence: str
) -> None:
    change(copied)
    with pytest.raises(ValueError, match=sentence):
        push(copied, ID, token=WRITER)
    assert not server.requests


def test_only_files_of_the_pack_are_fetched(stocked: HubState) -> None:
    stocked.repos[ID].add_commit("main", {"optimizer.bin": b"x" * 1000, "gallery/draft.md": b"y"})
    folder = resolve(ID)
    assert not {"optimizer.bin", "draft.md"} & set(fetched(stocked))
    assert load_info(folder).name == "tiny"
    before = len(fetched(stocked))
    assert pull(ID) == folder
    assert len(fetched(stocked)) == before


@pytest.mark.parametrize(
    ("address", "sentence"),
    [
        ("owner/other", "there is no owner/other at http://127"),
        (f"{ID}@v9", "owner/tiny@v9: there is no such revision"),
        ("no/such/id", '"no/such/id" is no Hub id'),
        ("owner/empty", r"owner/empty is not a pack: it has no pack\.json"),
        ("owner/format", "is of format 99"),
        ("owner/lacking", r"lacks tokenizer\.json"),
        ("owner/bytes", r"is refused: .*image_encoder\.onnx is not the"),
        ("owner/sizes", r"tokenizer\.json has 2 bytes on the Hub, but pack\.json says"),
        ("owner/path", "'gallery/../../x', which is no path inside a repository"),
        ("owner/gated", "is gated; accept its conditions on its page, then"),
    ],
)
def test_what_is_no_pack_is_refused_and_not_kept(
    stocked: HubState, pack: Path, tmp_path: Path, address: str, sentence: str
) -> None:
    whole = contents(pack)
    onnx = "image_encoder.onnx"
    for name, files in {
        "empty": {"README.md": b"hello"},
        "format": {"pack.json": b'{"format": 99}', onnx: b"0"},
        "lacking": {name: data for name, data in whole.items() if name != "tokenizer.json"},
        "bytes": whole | {onnx: bytes(len(whole[onnx]))},
        "sizes": whole | {"tokenizer.json": b"{}"},
        "path": whole | {"gallery/../../x": b"x"},
        "gated": whole,
    }.items():
        stocked.repos[f"owner/{name}"] = Repo(gated=name == "gated")
        stocked.repos[f"owner/{name}"].add_commit("main", files)
    with pytest.raises(ValueError, match=sentence):
        pull(address)
    assert not cached(tmp_path) or address == "owner/gated"
    if address != "owner/bytes":
        assert onnx not in fetched(stocked)


@pytest.mark.parametrize("visitor", [True, False])
def test_an_oversized_repository_is_refused_before_it_is_fetched(
    stocked: HubState, tmp_path: Path, visitor: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packs, "VISITOR_TOTAL", 10_000)
    if not visitor:
        assert pull(ID).is_dir()
        return
    with pytest.raises(HubError, match=r"it has [\d,]+ bytes, more than the 10,000 that visitors"):
        pull(ID, visitor=True)
    assert set(fetched(stocked)) == {"pack.json", "gallery.json"}
    assert cached(tmp_path) == []


@pytest.mark.parametrize(
    ("limit", "value", "sentence"),
    [
        ("VISITOR_FILE", 1000, "has .* bytes, more than the 1,000 that"),
        ("VISITOR_GALLERY", 1000, "its gallery has .* bytes, more than the 1,000 that"),
        ("VISITOR_FILES", 3, "it has .* files, more than the 3 that"),
        ("VISITOR_SPARE", 2**60, "there is no room for its .* bytes on the disk"),
    ],
)
@pytest.mark.usefixtures("stocked")
def test_limits_of_visitors(
    limit: str, value: int, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(packs, limit, value)
    with pytest.raises(HubError, match=sentence):
        pull(ID, visitor=True)


def test_a_size_that_the_hub_does_not_state(stocked: HubState) -> None:
    stocked.stated["image_encoder.onnx"] = None
    with pytest.raises(HubError, match=r"states no size of image_encoder\.onnx"):
        pull(ID, visitor=True)
    assert pull(ID).is_dir()


def test_a_failed_update_leaves_what_was_pulled(stocked: HubState, pack: Path) -> None:
    before = pull(ID)
    new = {"README.md": (pack / "README.md").read_bytes() + b"\nSecond edition.\n"}
    after = stocked.repos[ID].add_commit("main", new)
    stocked.faults["GET .*README.md"] = Fault("status", 403)
    with pytest.raises(HubError, match="status 403"):
        pull(ID)
    assert find_cached(ID) == before
    stocked.faults.clear()
    assert pull(ID).name == find_cached(ID).name == after


def test_files_that_came_whole_are_not_fetched_twice(stocked: HubState) -> None:
    stocked.faults["GET .*image_encoder.onnx"] = Fault("status", 403)
    with pytest.raises(HubError, match="status 403"):
        pull(ID)
    with pytest.raises(NotCachedError, match="not all, in the local cache; pull it"):
        find_cached(ID)
    before = set(fetched(stocked))
    stocked.requests.clear()
    stocked.faults.clear()
    pull(ID)
    assert "pack.json" in before
    assert not before - {"image_encoder.onnx"} & set(fetched(stocked))


def test_offline_finds_what_was_pulled(stocked: HubState, monkeypatch: pytest.MonkeyPatch) -> None:
    online = pull(ID)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    before = len(stocked.requests)
    assert pull(ID) == online
    assert len(stocked.requests) == before
    with pytest.raises(HubError, match="in the local cache, and HF_HUB_OFFLINE is set"):
        pull("owner/other")
    with pytest.raises(HubError, match="HF_HUB_OFFLINE is set"):
        push(online, ID, token=WRITER)


def test_nobody_answers(stocked: HubState, pack: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    online = pull(ID)
    stocked.down = True
    assert pull(ID) == online
    with pytest.raises(HubError, match=r"local cache, and .* status 503; try again later"):
        pull("owner/other")
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}"
    monkeypatch.setenv("HF_ENDPOINT", url)
    assert pull(ID) == online
    with pytest.raises(HubError, match=f"the Hub at {url} cannot be reached"):
        push(pack, ID, token=WRITER)


@pytest.mark.parametrize(
    "revision", ["refs/pr/../../x", "..", "/etc", "a//b", "a\\..", "x\n", ".git", "x" * 201, ""]
)
def test_a_revision_that_leads_out_is_refused_before_anybody_is_asked(
    server: HubState, revision: str
) -> None:
    for look in (pull, find_cached):
        with pytest.raises(ValueError, match="is no Hub id"):
            look(f"owner/name@{revision}")
    assert not server.requests


def test_command_line(
    server: HubState, pack: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["push", str(pack), ID, "--token", WRITER]) == 0
    assert capsys.readouterr().out.startswith(server.url)
    assert main(["pull", ID]) == 0
    out, errors = capsys.readouterr()
    assert load_info(Path(out.strip())).name == "tiny"
    assert f"{ID}@{server.repos[ID].branches['main']}\n" in errors
    assert main(["pull", "owner/other"]) == 1
    assert "pull failed: there is no owner/other" in capsys.readouterr().err
    assert main(["push", str(tmp_path / "nowhere"), ID, "--token", WRITER]) == 1
    assert "push failed: there is no pack folder" in capsys.readouterr().err


def test_list(
    stocked: HubState,
    pack: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    card = stocked.repos[ID].card
    files = contents(pack)
    stocked.repos["ann/secret"] = Repo(private=True, card=card)
    stocked.repos["ann/secret"].add_commit("main", files | {".gitattributes": b"x" * 10**7})
    stocked.repos["ann/else"] = Repo(card={"tags": ["onnx"]})
    stocked.repos["ann/else"].add_commit("main", {"README.md": b"no pack"})
    commit = pull(ID).name[:8]

    def rows(*arguments: str) -> list[list[str]]:
        capsys.readouterr()
        assert main(["list", *arguments]) == 0
        return [line.split() for line in capsys.readouterr().out.splitlines()]

    header = ["PACK", "COMMIT", "LICENCE", "METHODS", "CACHED"]
    assert rows() == [header, [ID, commit, "apache-2.0", next(iter(METHODS)), "yes"]]
    assert rows("--author", "ann") == [header]
    secret = rows("--author", "ann", "--token", READER)[1]
    assert (secret[0], secret[-1]) == ("ann/secret", "no")
    after = stocked.repos[ID].add_commit("main", {"new.txt": b"new"})
    assert rows()[1][1:2] + rows()[1][-1:] == [after[:8], "no"]
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert rows()[1][:2] == [ID, commit]
