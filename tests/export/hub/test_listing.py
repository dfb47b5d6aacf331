"""Which packs there are, on the Hub and here, and what they are called by."""

from pathlib import Path

import pytest
from huggingface_hub import ModelCard, constants

from export.hub import transfer as hub
from export.pack.reading import list_files, load_info
from models import METHODS
from tests.export.hub_server import READER, HubState, Repo

pytestmark = pytest.mark.network
METHOD = next(iter(METHODS))


@pytest.fixture
def stocked(server: HubState, small_pack: Path) -> HubState:
    """Two owners' packs, a private one, and something that is no pack."""
    files = {name: (small_pack / name).read_bytes() for name in list_files(load_info(small_pack))}
    card = ModelCard(files["README.md"].decode()).data.to_dict()
    for name, private in (("ann/one", False), ("bob/two", False), ("bob/secret", True)):
        server.repos[name] = Repo(private=private, card=card)
        server.repos[name].add_commit("main", {**files, ".gitattributes": b"x" * 10**7})
    server.repos["bob/else"] = Repo(card={"tags": ["onnx"]})
    server.repos["bob/else"].add_commit("main", {"README.md": b"no pack"})
    return server


def listed(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[list[list[str]], str]:
    """What the command prints, by line and word, and what it says besides."""
    capsys.readouterr()
    assert hub.main(["list", *arguments]) == 0
    out, errors = capsys.readouterr()
    return [line.split() for line in out.splitlines()], errors


def test_packs_are_found_by_the_tag_of_their_cards_and_those_here_are_marked(
    stocked: HubState, capsys: pytest.CaptureFixture[str], small_pack: Path
) -> None:
    assert hub.main(["pull", "bob/two"]) == 0
    commit = stocked.repos["bob/two"].branches["main"]
    assert f"bob/two@{commit}\n" in capsys.readouterr().err
    size = sum((small_pack / name).stat().st_size for name in list_files(load_info(small_pack)))
    (heads, one, two), errors = listed(capsys)
    assert heads == ["PACK", "COMMIT", "SIZE", "LICENCE", "METHODS", "HERE"]
    assert one[0] == "ann/one"
    assert one[2:] == [f"{size / 1e6:.1f}", "MB", "apache-2.0", METHOD, "no"]
    assert two[:2] == ["bob/two", commit[:8]]
    assert two[-1] == "yes"
    assert "local cache" not in errors

    assert [line[0] for line in listed(capsys, "--author", "ann")[0]] == ["PACK", "ann/one"]
    private = listed(capsys, "--author", "bob", "--token", READER)[0]
    assert [line[0] for line in private] == ["PACK", "bob/two", "bob/secret"]
    after = stocked.repos["bob/two"].add_commit("main", {"new.txt": b"new"})
    assert listed(capsys)[0][2][-2:] == ["other:", commit[:8]]
    assert listed(capsys)[0][2][1] == after[:8]


def test_a_named_one_shows_its_refs(stocked: HubState, capsys: pytest.CaptureFixture[str]) -> None:
    repo = stocked.repos["ann/one"]
    first = repo.branches["main"]
    repo.tags["v1"] = first
    second = repo.add_commit("next", repo.commits[first])
    assert hub.main(["pull", "ann/one", "--revision", "v1"]) == 0
    lines, _ = listed(capsys, "ann/one")
    assert lines[-4:] == [
        ["ann/one:"],
        ["branch", "main", first[:8], "here"],
        ["branch", "next", second[:8]],
        ["tag", "v1", first[:8], "here"],
    ]


def test_without_a_connection_what_is_here_is_listed(
    stocked: HubState, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    hub.pull("ann/one")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    lines, errors = listed(capsys)
    assert [line[0] for line in lines] == ["PACK", "ann/one"]
    assert lines[1][-1] == "yes"
    assert "HF_HUB_OFFLINE is set: only what is in the local cache is listed" in errors
    nothing = ["no", "pack", "is", "in", "the", "local", "cache"]
    assert listed(capsys, "--author", "bob")[0] == [nothing]
    assert hub.main(["list", "bob/two"]) == 1
    assert "list failed: bob/two is not, or not all, in the local" in capsys.readouterr().err
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    stocked.down = True
    assert "is out of order (status 503): only what" in listed(capsys)[1]


def test_what_there_is_none_of(server: HubState, capsys: pytest.CaptureFixture[str]) -> None:
    assert hub.main(["list"]) == 0
    assert f"no pack is at {server.url}, and none is here" in capsys.readouterr().out
    assert hub.main(["list", "owner/none"]) == 1
    assert "list failed: there is no owner/none" in capsys.readouterr().err
