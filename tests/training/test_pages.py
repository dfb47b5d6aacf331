"""The commands of docs/training.md and docs/your-data.md, with less data."""

import re
import shlex
import shutil
from pathlib import Path

import pytest

from polyview.__main__ import main
from polyview.export.pack.reading import load_info
from tests.training.conftest import write_photographs

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
# an option on the page -> a faster one
SMALLER = {
    "--count 1500": "--count 16",
    "--count 300": "--count 12",
    "optimizer.warmup_steps=50": "optimizer.warmup_steps=1 --set epochs=2 --set batch_size=16",
    "app/bundled/scenes/gallery/images": "few",
    "--out runs/yours ": "--set epochs=1 --set feature_copies=1 "
    "--set optimizer.warmup_steps=0 --out runs/yours ",
}


def commands(page: str, heading: str) -> list[list[str]]:
    """Returns the commands of the shell blocks from a heading to the end, split into words."""
    text = (DOCS / page).read_text("utf-8")
    text = text[text.index(heading) :]
    blocks = re.findall(r"```sh\n(.*?)```", text, re.DOTALL)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    for displayed, smaller in SMALLER.items():
        lines = [f"{line} ".replace(displayed, smaller) for line in lines]
    return [shlex.split(line, comments=True) for line in lines]


def run(command: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Runs a command in this process and the current folder; returns its output."""
    assert command[:3] == ["python", "-m", "polyview"]
    assert main(command[3:]) == 0
    return capsys.readouterr().out


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory: app/bundled as in a checkout, and six images in `few`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("POLYVIEW_CACHE", str(tmp_path / "kept"))
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "bundled").symlink_to(ROOT / "app" / "bundled")
    images = sorted((ROOT / "app/bundled/scenes/gallery/images").iterdir())[:6]
    (tmp_path / "few").mkdir()
    for image in images:
        shutil.copyfile(image, tmp_path / "few" / image.name)
    return tmp_path


@pytest.mark.slow
@pytest.mark.font
def test_five_minutes_to_a_pack(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    steps = commands("training.md", "## Five minutes")[:7]
    names = ["scenes", "scenes", "train", "plot", "export", "evaluate", "search"]
    assert [step[3] for step in steps] == names
    reply = [run(step, capsys) for step in steps]
    assert "best val rsum" in reply[2]
    assert "| vse_infty |" in reply[5]
    assert len(reply[6].splitlines()) == 6  # all images of the folder
    info = load_info(checkout / "runs" / "quick_pack")
    assert (info.licence, info.credits) == ("Apache-2.0", "Noto Color Emoji (OFL 1.1)")


@pytest.mark.slow
def test_from_photographs_to_a_pack(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = write_photographs(checkout / "data" / "yours", {"train": 24, "val": 8, "test": 6})
    lines = ["file,caption"]
    lines += [f"{n:03}.jpg,a field of color {n % 4} and more" for n in range(38) for _ in range(2)]
    (data / "dataset_flickr8k.json").unlink()
    (data / "captions.csv").write_text("\n".join(lines))
    steps = commands("your-data.md", "## Train, export, search")
    trained, exported, measured, opened, *_ = steps
    summary = run(["python", "-m", "polyview", "data", "data/yours"], capsys)
    assert "photographs, captions in captions.csv" in summary
    assert "best val rsum" in run(trained, capsys)
    assert "ranking identical" in run(exported, capsys)
    assert "| vse_infty |" in run(measured, capsys)
    assert opened[:2] == ["python", "app/main.py"]  # starts a server, so it is not run
    info = load_info(checkout / "runs" / "yours_pack")
    assert (info.title, info.licence) == ("yours", "CC-BY-NC-4.0")
    assert "trained on yours (32 images with 64 captions)" in info.description
