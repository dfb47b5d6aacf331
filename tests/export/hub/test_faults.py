"""Faults of a server and of the way to it: one sentence, soon, and the next pull succeeds."""

import re
from pathlib import Path

import pytest

from export.hub import client
from export.hub.client import HubError, NotCachedError
from export.hub.packs import find_cached, pull, push
from export.pack.reading import list_files, load_info
from tests.export.faults import Fault
from tests.export.hub_server import WRITER, HubState, Repo

pytestmark = pytest.mark.network
ID = "owner/small"
INFO, TREE = rf"GET /api/models/{ID}$", rf"GET /api/models/{ID}/tree"
FILE = r"GET .*/image_encoder\.onnx"
BUSY = Fault("status", 429, {"Retry-After": "77"})
FAULTS = {
    "no token": (FILE, Fault("status", 401), "status 401; log in with `hf auth login`"),
    "not allowed": (FILE, Fault("status", 403), "status 403; use a token that is allowed"),
    "not found": (FILE, Fault("status", 404), "status 404; try again later"),
    "busy": (INFO, BUSY, "status 429; wait 77 s"),
    "out of order": (INFO, Fault("status", 500), "status 500; try again later"),
    "no answer": (
        INFO,
        Fault("silent"),
        r"cannot be reached \(.*timed out\); check the connection",
    ),
    "circle": (INFO, Fault("redirect"), r"cannot be reached \(.*redirects\.\); check"),
    "cut": (INFO, Fault("cut", 30), r"cannot be reached \(.*\); check the connection"),
    "login page": (INFO, Fault("login"), "is no Hub; check .* whether the network wants a"),
    "login page in a list": (TREE, Fault("login"), "no Hub; check .* whether the network wants a"),
}


@pytest.fixture
def stocked(server: HubState, small_pack: Path, monkeypatch: pytest.MonkeyPatch) -> HubState:
    """The server with the small pack in a public repository, and an impatient client."""
    monkeypatch.setattr(client, "ANSWER", 0.4)
    files = {name: (small_pack / name).read_bytes() for name in list_files(load_info(small_pack))}
    server.repos[ID] = Repo()
    server.repos[ID].add_commit("main", files)
    return server


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_a_sentence_and_the_next_pull_succeeds(stocked: HubState, name: str) -> None:
    where, fault, sentence = FAULTS[name]
    stocked.faults[where] = fault
    with pytest.raises(HubError) as raised:
        pull(ID)
    assert re.search(sentence, str(raised.value)), raised.value
    assert "\n" not in str(raised.value)
    with pytest.raises(NotCachedError):
        find_cached(ID)
    stocked.faults.clear()
    assert load_info(pull(ID)).name == "tiny"


@pytest.mark.parametrize("file", ["pack.json", "image_encoder.onnx"])
def test_a_damaged_file_is_refused_and_fetched_again(stocked: HubState, file: str) -> None:
    stocked.damaged.add(file)
    with pytest.raises(HubError, match=f"{file}.*nothing of it is kept"):
        pull(ID)
    with pytest.raises(NotCachedError):
        find_cached(ID)
    stocked.damaged.clear()
    assert load_info(pull(ID)).name == "tiny"


def test_a_push_to_a_server_that_breaks_off(server: HubState, small_pack: Path) -> None:
    server.faults["POST /api/repos/create"] = Fault("cut", 30)
    with pytest.raises(HubError, match=r"the Hub at .* cannot be reached"):
        push(small_pack, ID, token=WRITER)
