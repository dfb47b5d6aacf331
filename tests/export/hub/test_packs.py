"""The real client against a local server: push, pull, refusals and faults."""

import re
from pathlib import Path

import pytest
from huggingface_hub import constants

from polyview.export.hub import client, packs
from polyview.export.hub.client import HubError
from polyview.export.hub.packs import find_cached, main, pull, push, resolve
from polyview.export.pack.reading import list_files, load_info
from polyview.export.to_onnx import export_runs
from tests.export.conftest import LABELS, edited
from tests.export.hub_server import DOWN, READER, WRITER, Fault, HubState

pytestmark = pytest.mark.network
ID, ONNX, WORDS = "owner/tiny", "image_encoder.onnx", "tokenizer.json"
INFO, FILE = rf"GET /api/models/{ID}$", r"GET .*/image_encoder\.onnx"
REDIRECT = Fault("status", 307, {"Location": f"/api/models/{ID}"})  # to the same address
LOGIN = Fault("status", 200)  # as the login page of a guest network
FAULTS = [
    (INFO, Fault("status", 429, {"Retry-After": "77"}), "status 429; wait 77 s"),
    (INFO, Fault("status", 500), "status 500; try again later"),
    (INFO, Fault("silent"), r"cannot be reached \(.*timed out\); check the connec"),
    (INFO, REDIRECT, r"cannot be reached \(.*redirects\.\); check"),
    (INFO, Fault("cut", 30), r"cannot be reached \(.*\); check the connection"),
    (INFO, LOGIN, "is not a Hugging Face Hub; check .* whether the network requires a"),
    (FILE, Fault("status", 401), "status 401; log in with `hf auth login`"),
    (FILE, Fault("status", 403), "status 403; use a token with access"),
]
LIMITS = [
    ("MAX_BYTES", 10_000, "it has .* bytes, more than the 10,000 that visitors"),
    ("MAX_FILES", 3, "it has .* files, more than the 3 that visitors"),
    ("MIN_FREE_BYTES", 2**60, "there is no room for its .* bytes on the disk"),
]
REVISIONS = ("refs/pr/../../x", "..", "/etc", "a//b", "a\\..", "x\n", ".git", "x" * 201, "")


@pytest.fixture(scope="module")
def pack(runs: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pack of one method with a gallery; fewer files need fewer requests."""
    out = tmp_path_factory.mktemp("packs") / "tiny"
    export_runs(out, runs / "backbone", [runs / "vsepp"], LABELS, runs / "gallery")
    return out


@pytest.fixture
def stocked(server: HubState, pack: Path, monkeypatch: pytest.MonkeyPatch) -> HubState:
    """The server with the pack in a public repository, and a client with a short timeout."""
    monkeypatch.setattr(client, "ANSWER_TIMEOUT", 0.4)
    server.add(ID, contents(pack))
    return server


def contents(pack: Path) -> dict[str, bytes]:
    return {name: (pack / name).read_bytes() for name in list_files(load_info(pack))}


def fetched(server: HubState) -> set[str]:
    return {line.rpartition("/")[2] for line in server.requests if line.startswith("GET /owner/")}


def cached(tmp_path: Path) -> list[Path]:
    return [path for path in (tmp_path / "cache").glob("models--*/**/*") if path.is_file()]


def test_push_then_pull_keeps_every_byte(server: HubState, copied: Path) -> None:
    (copied / "notes.txt").write_text("not part of the pack")
    card = (copied / "README.md").read_bytes()
    (copied / "README.md").unlink()
    pushed = contents(copied) | {"README.md": card}
    commit = push(copied, ID, private=True, token=WRITER)
    assert commit.startswith(f"{server.url}/{ID}/commit/")
    assert sum("/commit/" in request for request in server.requests) == 1
    with edited(copied / "pack.json") as values:
        values["title"] = "On a branch"
    push(copied, f"{ID}@next", token=WRITER)
    assert server.repos[ID].private
    pinned = f"{ID}@{commit.rpartition('/')[2]}"
    for address, title in ((pinned, "Tiny"), (ID, "Tiny"), (f"{ID}@next", "On a branch")):
        assert load_info(pull(address, READER)).title == title
        assert load_info(find_cached(address)).title == title
    assert contents(find_cached(ID)) == pushed
    assert not (find_cached(ID) / "notes.txt").exists()
    with pytest.raises(HubError, match=r"there is no owner/tiny at .* or it is private"):
        pull(ID)


def test_push_is_refused(server: HubState, pack: Path, copied: Path) -> None:
    with pytest.raises(HubError, match="answered owner/tiny with status 401; log in"):
        push(pack, ID)
    with pytest.raises(HubError, match="status 403; use a token with access to it"):
        push(pack, ID, token=READER)
    requested = len(server.requests)
    with edited(copied / "pack.json") as values:
        values["licence"] = "unknown"
    with pytest.raises(ValueError, match=r"does not state the licence.*--licence"):
        push(copied, ID, token=WRITER)
    (copied / "tokenizer.json").write_text("{}")
    with pytest.raises(ValueError, match=r"tokenizer\.json has 2 bytes"):
        push(copied, ID, token=WRITER)
    assert len(server.requests) == requested
    assert not server.repos


def test_what_is_no_pack_is_not_kept(stocked: HubState, pack: Path, tmp_path: Path) -> None:
    whole = contents(pack)
    refused: dict[str, tuple[dict[str, bytes], str]] = {
        "empty": ({"README.md": b"hello"}, r"owner/empty is not a pack: it has no pack\.json"),
        "format": ({"pack.json": b'{"format": 99}', ONNX: b"0"}, "is of format 99"),
        "lacking": ({k: v for k, v in whole.items() if k != WORDS}, r"lacks tokenizer\.json"),
        "bytes": (whole | {ONNX: bytes(len(whole[ONNX]))}, r"encoder\.onnx does not match its"),
        "sizes": (whole | {WORDS: b"{}"}, "has 2 bytes on the Hub, but pack.json says"),
        "path": (whole | {"gallery/../../x": b"x"}, "which is not a path inside"),
        "gated": (whole, "is gated; accept its conditions on its page, then"),
    }
    for name, (files, sentence) in refused.items():
        stocked.add(f"owner/{name}", files, gated=name == "gated")
        stocked.requests.clear()
        with pytest.raises(ValueError, match=sentence):
            pull(f"owner/{name}")
        assert name == "gated" or not cached(tmp_path), name  # gated files may be listed
        assert (ONNX in fetched(stocked)) == (name == "bytes")
    with pytest.raises(HubError, match="there is no owner/other at http://127"):
        pull("owner/other")
    with pytest.raises(HubError, match="owner/tiny@v9: there is no such revision"):
        pull(f"{ID}@v9")


def test_visitor_limits(stocked: HubState, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for limit, value, sentence in LIMITS:
        with monkeypatch.context() as changed:
            changed.setattr(packs, limit, value)
            with pytest.raises(HubError, match=sentence):
                pull(ID, for_visitor=True)
    stocked.stated[ONNX] = None
    with pytest.raises(HubError, match=r"states no size for image_encoder\.onnx"):
        pull(ID, for_visitor=True)
    assert fetched(stocked) == {"pack.json", "gallery.json"}
    assert cached(tmp_path) == []
    assert pull(ID).is_dir()


def test_a_fault_is_a_sentence_and_the_next_pull_succeeds(stocked: HubState) -> None:
    for where, fault, sentence in FAULTS:
        stocked.faults = {where: fault}
        with pytest.raises(HubError) as raised:
            pull(ID)
        assert re.search(sentence, str(raised.value)), raised.value
        assert "\n" not in str(raised.value)
        with pytest.raises(HubError, match="not completely in the local cache; pull it"):
            find_cached(ID)
    stocked.faults.clear()
    assert load_info(pull(ID)).name == "tiny"


def test_a_failed_update_leaves_the_former_version(stocked: HubState, pack: Path) -> None:
    before = pull(ID)
    new = {"README.md": (pack / "README.md").read_bytes() + b"\nSecond edition.\n"}
    after = stocked.repos[ID].add_commit("main", new)
    stocked.faults["GET .*README.md"] = Fault("status", 403)
    with pytest.raises(HubError, match="status 403"):
        pull(ID)
    assert find_cached(ID) == before
    stocked.faults.clear()
    stocked.requests.clear()
    assert pull(ID).name == find_cached(ID).name == after
    assert ONNX not in fetched(stocked)  # fetched completely before


def test_a_local_card_need_not_be_on_the_hub(server: HubState, pack: Path) -> None:
    server.add(ID, {name: data for name, data in contents(pack).items() if name != "README.md"})
    folder = pull(ID)
    (folder / "README.md").write_text("written by evaluate")
    assert pull(ID) == folder
    assert load_info(folder).name == "tiny"


def test_offline_pull(stocked: HubState, pack: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    online = resolve(ID)
    stocked.faults["/"] = DOWN
    assert pull(ID) == online
    with pytest.raises(HubError, match=r"local cache, and .* status 503; try again later"):
        pull("owner/other")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    before = len(stocked.requests)
    assert pull(ID) == online
    assert len(stocked.requests) == before
    with pytest.raises(HubError, match="in the local cache, and HF_HUB_OFFLINE is set"):
        pull("owner/other")
    with pytest.raises(HubError, match="HF_HUB_OFFLINE is set"):
        push(pack, ID, token=WRITER)
    (online / WORDS).unlink()
    (online / WORDS).write_text("{}")
    with pytest.raises(HubError, match=r"owner/tiny .* cannot be used: .* has 2 bytes"):
        pull(ID)


def test_what_is_refused_before_a_request(server: HubState) -> None:
    for revision in REVISIONS:
        for look in (pull, find_cached):
            with pytest.raises(ValueError, match="is not a Hub id"):
                look(f"owner/name@{revision}")
    assert not server.requests


def test_command_line(stocked: HubState, pack: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["push", str(pack), "ann/secret", "--private", "--token", WRITER]) == 0
    assert capsys.readouterr().out.startswith(stocked.url)
    assert main(["pull", ID]) == 0
    out, errors = capsys.readouterr()
    commit = stocked.repos[ID].branches["main"]
    assert Path(out.strip()) == find_cached(ID)
    assert f"{ID}@{commit}\n" in errors
    assert main(["pull", "owner/other"]) == 1
    assert "pull failed: there is no owner/other" in capsys.readouterr().err

    for name in (ID, "ann/secret"):
        stocked.repos[name].card = {"tags": ["polyview"], "license": "apache-2.0"}
    stocked.add("ann/other", {"README.md": b"no pack"}, card={"tags": ["onnx"]})
    assert main(["list"]) == 0
    assert capsys.readouterr().out == f"{ID}@{commit}  apache-2.0\n"
    assert main(["list", "--token", READER]) == 0
    assert "\nann/secret@" in capsys.readouterr().out
