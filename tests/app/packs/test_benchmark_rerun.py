"""Measuring again in a process of its own: what is run, what is said, and that nothing is left."""

import os
import time
from collections.abc import Generator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from app.blocks.tabs.benchmark import view
from app.packs.jobs import CancelledError, JobError, Step
from app.packs.rerun import Outcome, Runner, compare, measured_methods, obstacle
from export.pack.reading import load_info
from export.pack.schema import Metrics, PackInfo

BUNDLED = Path(__file__).parents[3] / "app" / "bundled"
CPU = torch.device("cpu")
COMMAND = "python -m training.evaluate --pack somewhere --method {} --split test"
VALUES = {"i2t_r1": 61.04, "rsum": 432.16, "t2i_nmr": 0.0012}
# Stands in for the real evaluation: tells one step, starts a process, and waits for good.
_ENDLESS = """
import json, pathlib, subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
pathlib.Path("pids").write_text(f"{child.pid}")
print(json.dumps({"done": 1, "total": 9, "doing": "pictures"}), file=sys.stderr, flush=True)
time.sleep(600)
"""
_FAILING = """
import sys
print("Traceback ...", file=sys.stderr)
sys.exit("the pack is on fire")
"""
_WRITING = """
import json, pathlib, sys
pathlib.Path("arguments").write_text(json.dumps(sys.argv[1:]))
values = {"i2t_r1": 61.0, "rsum": 432.0, "t2i_nmr": 0.0012}
place = sys.argv[sys.argv.index("--json") + 1]
methods = {"vsepp": values, "vse_infty": values}
pathlib.Path(place).write_text(json.dumps({"methods": methods}))
"""


@pytest.fixture(scope="module")
def info(tiny_pack: Path) -> PackInfo:
    """The tiny pack with stated numbers."""
    info = load_info(tiny_pack)
    return with_command(info, COMMAND)


def with_command(info: PackInfo, command: str, split: str = "test") -> PackInfo:
    """The pack with numbers that a command made."""
    methods = {
        name: replace(m, metrics=Metrics(split, command.format(name), "here", 0, VALUES))
        for name, m in info.methods.items()
    }
    return replace(info, methods=methods)


def root(folder: Path, script: str) -> Path:
    """A folder whose `training.evaluate` is another one."""
    (folder / "training").mkdir(parents=True)
    (folder / "training" / "evaluate.py").write_text(script)
    return folder


Signs = Generator[Step | Outcome, None, None]


def start(runner: Runner, info: PackInfo, owner: str) -> tuple[Signs, int]:
    """An endless evaluation after its first step, and the process it started."""
    signs = runner.run(info, ["vsepp"], CPU, owner)
    for sign in signs:
        if isinstance(sign, Step) and sign.total == 9:
            break
    return signs, int((runner._root / "pids").read_text())


def alive(pid: int) -> bool:
    """Whether a process still runs; one that was killed may wait to be collected."""
    state = Path(f"/proc/{pid}/stat")
    if Path("/proc/self").exists():
        return state.is_file() and state.read_text().rpartition(")")[2].split()[0] != "Z"
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def dies(pid: int) -> bool:
    deadline = time.monotonic() + 30
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not alive(pid)


def test_cancelling_kills_all_that_was_started(info: PackInfo, tmp_path: Path) -> None:
    runner = Runner(root(tmp_path, _ENDLESS))
    signs, child = start(runner, info, "me")
    assert alive(child)
    assert not runner.cancel("somebody else")
    assert alive(child)
    assert runner.cancel("me")
    with pytest.raises(CancelledError, match="Cancelled after"):
        list(signs)
    assert dies(child)
    assert not runner.cancel("me")


def test_a_visitor_who_leaves_leaves_nothing_behind(info: PackInfo, tmp_path: Path) -> None:
    runner = Runner(root(tmp_path, _ENDLESS))
    signs, child = start(runner, info, "me")
    signs.close()
    assert dies(child)
    again, _ = start(runner, info, "another")  # the place is free
    again.close()


def test_there_is_one_at_a_time(info: PackInfo, tmp_path: Path) -> None:
    runner = Runner(root(tmp_path, _ENDLESS))
    signs, _ = start(runner, info, "me")
    with pytest.raises(JobError, match=r"running already \(11 % done\)"):
        next(runner.run(info, ["vsepp"], CPU, "you"))
    assert runner.cancel("me")
    with pytest.raises(CancelledError):
        list(signs)


def test_a_failure_is_told_in_its_own_words(info: PackInfo, tmp_path: Path) -> None:
    runner = Runner(root(tmp_path, _FAILING))
    with pytest.raises(JobError, match="ended with status 1: the pack is on fire"):
        list(runner.run(info, ["vsepp"], CPU, "me"))


def test_the_recorded_command_is_run_and_compared(info: PackInfo, tmp_path: Path) -> None:
    runner = Runner(root(tmp_path, _WRITING))
    with_views = with_command(info, COMMAND + " --views")
    *_, outcome = runner.run(with_views, ["vsepp"], CPU, "me")
    assert isinstance(outcome, Outcome)
    text = (tmp_path / "arguments").read_text()
    expected = ["--pack", str(info.folder.resolve()), "--method", "vsepp", "--split", "test"]
    assert text.startswith(str(expected)[:-1].replace("'", '"') + ', "--views", "--device", "cpu"')
    assert outcome.values.keys() == {"vsepp"}
    pairs = compare(VALUES, outcome.values["vsepp"])
    assert [pair.equal for pair in pairs] == [True, False, True]  # 61.04 is shown as 61.0
    assert pairs[1].difference == "-0.16"
    page = view.outcome({"vsepp": pairs}, {"vsepp": "VSE++"}, "3 s")
    assert "Not reproduced: 1 of 3 numbers differ." in page
    assert "<td>432.2</td><td>432.0</td><td>-0.16</td>" in page
    same = view.outcome({"vsepp": compare(VALUES, VALUES)}, {"vsepp": "VSE++"}, "3 s")
    assert "Reproduced: all 3 numbers are equal" in same


def test_a_number_that_is_gone_is_missed() -> None:
    with pytest.raises(JobError, match="gave no rsum"):
        compare({"rsum": 1.0}, {})


@pytest.mark.parametrize(
    "command",
    [
        "rm -rf / #",
        COMMAND + "; rm -rf /",
        COMMAND + " --data data/scenes",
        COMMAND + " '",
        "python -m training.train --pack somewhere --method {} --split test",
    ],
)
def test_only_the_evaluation_is_run_again(info: PackInfo, command: str, tmp_path: Path) -> None:
    odd = with_command(info, command)
    assert measured_methods(odd) == []
    runner = Runner(root(tmp_path, _WRITING))
    with pytest.raises(JobError, match="states no numbers that its own gallery could give"):
        next(runner.run(odd, ["vsepp"], CPU, "me"))
    assert not (tmp_path / "arguments").exists()


@pytest.mark.parametrize("name", ["scenes", "scenes_moving"])
def test_what_ships_can_be_measured_again(name: str) -> None:
    shipped = load_info(BUNDLED / name)
    assert measured_methods(shipped) == list(shipped.methods)


def test_what_cannot_be_measured_again_is_said(info: PackInfo, tmp_path: Path) -> None:
    assert obstacle(info) == ""
    assert "the training folder is missing" in obstacle(info, tmp_path)
    assert "comes without pictures" in obstacle(replace(info, gallery=None))
    assert "states no numbers" in obstacle(with_command(info, COMMAND, split="val"))
    runner = Runner(root(tmp_path / "here", _WRITING))
    with pytest.raises(JobError, match='no numbers of a method "nothing"'):
        next(runner.run(info, ["nothing"], CPU, "me"))
