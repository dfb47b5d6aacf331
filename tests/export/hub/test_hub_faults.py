"""Every fault of a server and of the way to it: a sentence, soon, and the next pull succeeds."""

import random
import re
import shutil
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from huggingface_hub import constants, file_download
from huggingface_hub.utils import _http

from export.build.obtain import obtain
from export.hub import connection
from export.hub import transfer as hub
from export.hub.client import NotHereError
from export.hub.offer import PACK
from export.pack.reading import list_files, load_info
from tests.export.faults import Fault
from tests.export.hub_server import READER, WRITER, HubState, Repo

pytestmark = pytest.mark.network
ID = "owner/small"
INFO = rf"GET /api/models/{ID}$"
HEAD, GET = r"HEAD .*/image_encoder\.onnx", r"GET .*/image_encoder\.onnx"
FIRST = r"GET .*/pack\.json"
BUSY = {"Retry-After": "77"}
FAULTS = {
    "no token": (GET, Fault("status", 401), "status 401; log in with `hf auth login`"),
    "not allowed": (GET, Fault("status", 403), "status 403; use a token that is allowed"),
    "not found": (GET, Fault("status", 404), "status 404; check the name, and that HF_ENDPOINT"),
    "busy when asked": (
        INFO,
        Fault("status", 429, BUSY),
        "is busy .* to wait 77 s; try again then",
    ),
    "busy": (HEAD, Fault("status", 429, BUSY), "is busy .* to wait 77 s; try again then"),
    "busy in a file": (GET, Fault("status", 429), "is busy .* to wait a little; try again then"),
    "out of order": (INFO, Fault("status", 500), r"out of order \(status 500\); try again later"),
    "file out of order": (HEAD, Fault("status", 500), r"out of order \(status 500\); try again"),
    "no answer when asked": (INFO, Fault("silent"), "did not answer within 0 s; check the conn"),
    "no answer": (HEAD, Fault("silent"), "did not answer within 0 s; check the connection"),
    "no file": (GET, Fault("silent"), "did not answer within 0 s; check the connection"),
    "trickling headers": (INFO, Fault("trickle"), "did not answer within 0 s"),
    "trickle": (GET, Fault("trickle", 400, pause=0.05), r"sent only \d+ bytes in 1 s; check"),
    "stall": (FIRST, Fault("trickle", 400, pause=99), "stopped sending; try again: files that"),
    "circle when asked": (INFO, Fault("redirect"), "redirects in circles; check HF_ENDPOINT"),
    "circle": (HEAD, Fault("redirect"), "redirects in circles; check HF_ENDPOINT"),
    "cut when asked": (INFO, Fault("cut", 0), "broke the connection off .*; try again"),
    "cut headers": (GET, Fault("cut", 30), "broke the connection off .*; try again"),
    "cut start": (FIRST, Fault("cut", 250), "broke the connection off .*; try again: files"),
    "cut middle": (GET, Fault("cut", 2500), "broke the connection off .*; try again: files"),
    "cut last byte": (GET, Fault("cut", -1), "broke the connection off .*; try again: files"),
    "reset": (GET, Fault("reset", 2500), "broke the connection off .*; try again"),
    "wrong size": (GET, Fault("short"), r"onnx came with \d+ bytes instead of \d+; try again"),
    "login page when asked": (INFO, Fault("login"), "no Hub; check .* whether the network wants a"),
    "login page": (HEAD, Fault("login"), "what answers at .* is no Hub; check HF_ENDPOINT"),
}
AT = ("cut", "reset", "trickle")  # a byte
WAITING = ("silent", "trickle")


@pytest.fixture
def stocked(server: HubState, small_pack: Path) -> HubState:
    """The server with the small pack in a public repository."""
    server.repos[ID] = Repo()
    server.repos[ID].add_commit("main", contents(small_pack))
    return server


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """How long the client would have slept between its attempts, which here takes no time."""
    waits: list[float] = []
    calm = SimpleNamespace(sleep=waits.append, time=time.time, monotonic=time.monotonic)
    for module in (file_download, _http):
        monkeypatch.setattr(module, "time", calm)
    return waits


def contents(pack: Path) -> dict[str, bytes]:
    """All files of a pack."""
    return {name: (pack / name).read_bytes() for name in list_files(load_info(pack))}


def impatient(patch: pytest.MonkeyPatch) -> None:
    """Shortens every wait for the server."""
    patch.setattr(constants, "HF_HUB_ETAG_TIMEOUT", 0.4)
    patch.setattr(constants, "HF_HUB_DOWNLOAD_TIMEOUT", 0.3)
    patch.setattr(connection, "WINDOW", 0.6)


def suffer(server: HubState, where: str, fault: Fault) -> str:
    """What a pull under a fault says, after seeing that nothing half is taken for whole."""
    with pytest.MonkeyPatch.context() as patch:
        if fault.kind in WAITING:
            impatient(patch)
        server.faults[where] = fault
        with pytest.raises(hub.HubError) as raised:
            hub.pull(ID)
    server.faults.clear()
    with pytest.raises(NotHereError, match="not all, in the local cache"):
        hub.pull(ID, local=True)
    return str(raised.value)


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_a_sentence_and_the_next_pull_succeeds(
    stocked: HubState, slept: list[float], small_pack: Path, name: str
) -> None:
    where, fault, sentence = FAULTS[name]
    complaint = suffer(stocked, where, fault)
    assert ID in complaint
    assert re.search(sentence, complaint), complaint
    assert "\n" not in complaint
    assert sum(slept) <= 5
    assert contents(hub.pull(ID)) == contents(small_pack)


@pytest.mark.parametrize("file", ["pack.json", "README.md", "image_encoder.onnx"])
def test_a_damaged_file_is_fetched_again(stocked: HubState, small_pack: Path, file: str) -> None:
    stocked.damaged.add(file)
    with pytest.raises(hub.HubError, match=f"owner/small.*: {file} came damaged, .* try again"):
        hub.pull(ID)
    with pytest.raises(NotHereError):
        hub.pull(ID, local=True)
    stocked.damaged.clear()
    assert contents(hub.pull(ID)) == contents(small_pack)


def test_what_came_whole_is_not_fetched_twice(stocked: HubState) -> None:
    stocked.faults[GET] = Fault("status", 403)
    with pytest.raises(hub.HubError):
        hub.pull(ID)
    stocked.faults.clear()
    hub.pull(ID)
    gets = [request for request in stocked.requests if re.match("GET .*/resolve/", request)]
    assert {request for request in gets if gets.count(request) > 1} == {
        request for request in gets if request.endswith("image_encoder.onnx")
    }


@pytest.mark.parametrize("kind", ["cut", "reset"])
def test_a_file_that_breaks_off_once_goes_on_where_it_was(
    stocked: HubState,
    slept: list[float],
    small_pack: Path,
    kind: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(constants, "DOWNLOAD_CHUNK_SIZE", 1000)
    stocked.faults[GET] = Fault(kind, 3500, times=1)
    assert contents(hub.pull(ID)) == contents(small_pack)
    assert slept == [1]
    assert kind == "reset" or 2000 <= stocked.resumed[0] <= 3500


def test_an_answer_that_is_out_of_order_once_is_asked_for_again(stocked: HubState) -> None:
    stocked.faults = {
        where: Fault("status", status, times=1)
        for where, status in ((INFO, 502), (HEAD, 500), (GET, 504))
    }
    assert hub.pull(ID).is_dir()


def test_a_failed_update_leaves_what_was_pulled(stocked: HubState, small_pack: Path) -> None:
    before = hub.pull(ID)
    card = (small_pack / "README.md").read_bytes() + b"\nSecond edition.\n"
    after = stocked.repos[ID].add_commit("main", {"README.md": card})
    stocked.faults["GET .*README"] = Fault("status", 403)
    with pytest.raises(hub.HubError):
        hub.pull(ID)
    assert hub.pull(ID, local=True) == before
    stocked.faults.clear()
    assert hub.pull(ID).name == after
    assert hub.pull(ID, local=True).name == after


def test_a_gated_repository_needs_a_token_that_was_let_in(stocked: HubState) -> None:
    stocked.repos[ID].gated = True
    for token in (None, READER):
        with pytest.raises(hub.HubError, match="is gated; accept its conditions on its page, then"):
            hub.pull(ID, token=token)
    assert hub.pull(ID, token=WRITER).is_dir()


def test_a_lost_upload(server: HubState, small_pack: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connection, "STORING", 0.3)
    server.faults["POST /api/repos/create"] = Fault("silent")
    with pytest.raises(hub.HubError, match=f"{ID}: the Hub at .* did not answer within 0 s"):
        hub.push(small_pack, ID, token=WRITER)


def test_obtaining_takes_nothing_damaged(stocked: HubState) -> None:
    stocked.damaged.add("image_encoder.onnx")
    with pytest.raises(hub.HubError, match=r"image_encoder\.onnx came damaged"):
        obtain(PACK, ID, None)
    stocked.damaged.clear()
    assert load_info(obtain(PACK, ID, None)).name == "tiny"


SOAK = 240.0  # seconds
CUTS = 150


@pytest.mark.soak
@pytest.mark.timeout(600)
@pytest.mark.usefixtures("slept")
def test_cuts_at_any_byte_of_any_answer(stocked: HubState, small_pack: Path) -> None:
    """The first pull of a cache meets a cut, the second none."""
    rng = random.Random(7)
    whole = contents(small_pack)
    sizes = {INFO: 900}
    for name, content in whole.items():
        sizes[f"HEAD .*/{re.escape(name)}$"] = 200
        sizes[f"GET .*/{re.escape(name)}$"] = len(content) + 250
    complaint: list[str] = []
    end = time.monotonic() + SOAK
    while len(complaint) < CUTS and time.monotonic() < end:
        where = rng.choice(list(sizes))
        stocked.faults[where] = Fault(rng.choice(["cut", "reset"]), rng.randrange(sizes[where]))
        complaint.append(_attempt())
        stocked.faults.clear()
        assert contents(hub.pull(ID)) == whole, where
        shutil.rmtree(constants.HF_HUB_CACHE)
    broken = [sentence for sentence in complaint if sentence]
    assert all("broke the connection off" in sentence for sentence in broken)
    assert len(broken) > len(complaint) / 2 > 20


def _attempt() -> str:
    """What a pull says where it fails, after which it must not be found; else nothing."""
    try:
        hub.pull(ID)
    except hub.HubError as error:
        with pytest.raises(NotHereError):
            hub.pull(ID, local=True)
        return str(error)
    return ""


@pytest.mark.soak
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", [name for name in FAULTS if FAULTS[name][0] in (HEAD, GET)])
def test_every_fault(stocked: HubState, slept: list[float], small_pack: Path, name: str) -> None:
    where, fault, sentence = FAULTS[name]
    whole = contents(small_pack)
    for file, content in whole.items():
        if fault.kind == "trickle" and len(content) < 1000:
            continue  # it comes whole soon enough
        same = [re.escape(name) for name in whole if whole[name] == content]  # fetched once
        place = f"{where.split()[0]} .*/small/resolve/[^/]+/({'|'.join(same)})$"
        middle = -(len(content) // 2 + 1)
        within = middle if fault.at > len(content) // 2 and fault.kind in AT else fault.at
        complaint = suffer(stocked, place, replace(fault, at=within))
        assert re.search(sentence.replace("onnx", ""), complaint), (file, complaint)
        assert sum(slept) <= 5 * len(same)
        assert contents(hub.pull(ID)) == whole
        shutil.rmtree(constants.HF_HUB_CACHE)
        slept.clear()
