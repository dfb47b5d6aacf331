"""Hostile packs and pictures: each is refused by its sentence, and costs little memory and time."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.soak.packs import ATTACKS

ROOT = Path(__file__).resolve().parents[2]
Told = dict[str, tuple[str, float, float]]


@pytest.fixture(scope="module")
def told(tiny_pack: Path, tmp_path_factory: pytest.TempPathFactory) -> Told:
    """For each attack, run in a process of its own: what was said, MB that it added, seconds."""
    work = tmp_path_factory.mktemp("hostile")
    command = [sys.executable, "-m", "tests.soak.packs", str(tiny_pack), str(work)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=200)
    assert ended.returncode == 0, ended.stderr[-3000:]
    lines = [json.loads(line) for line in ended.stdout.splitlines()]
    return {name: (complaint, grown, seconds) for name, complaint, grown, seconds in lines}


@pytest.mark.parametrize("name", ATTACKS)
def test_a_hostile_pack_is_refused(told: Told, name: str) -> None:
    complaint, grown, seconds = told[name]
    assert re.search(ATTACKS[name][1], complaint), complaint
    assert len(complaint) < 1000
    assert "Traceback" not in complaint
    assert "escaped" not in complaint
    assert grown < 150, f"{grown:.0f} MB"
    assert seconds < 5


def test_a_large_picture_of_16_bits_is_opened_in_bands(told: Told) -> None:
    complaint, grown, _ = told["deep.png"]
    assert complaint == "(2048, 2048)"
    assert grown < 400, f"{grown:.0f} MB"  # 1 GB where it is converted whole
