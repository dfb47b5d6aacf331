"""The indexing benchmark measures the app and the bare encoder on the same pictures."""

from pathlib import Path

import pytest
from PIL import Image

from benchmarks import indexing


def test_rates_and_their_ratio_are_printed(
    tiny_pack: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for i in range(5):
        Image.new("RGB", (40, 30), (40 * i, 90, 30)).save(tmp_path / f"{i}.png")
    (tmp_path / "damaged.jpg").write_bytes(b"\xff\xd8\xff")
    arguments = ["--pack", str(tiny_pack), "--gallery", str(tmp_path), "--pictures", "6"]
    assert indexing.main([*arguments, "--repeats", "1"]) == 0
    about, _, run, head, *rows = capsys.readouterr().out.splitlines()
    assert "6 pictures" in about
    assert head.split() == ["medians", "pictures/s", "ratio", "range"]
    rates = {row[:40].strip(): [float(value) for value in row[40:58].split()] for row in rows}
    bare = [value for name, value in rates.items() if name.startswith("bare encoder")]
    assert len(bare) == 2
    fastest = max(rate for rate, _ in bare)
    for rate, ratio in rates.values():
        assert ratio == pytest.approx(rate / fastest, abs=0.02)
    assert rates["the app, one method"][0] >= rates["the app, all methods"][0]
    assert f"run 1: {rates['the app, one method'][1]:.2f} of" in run


def test_the_middle_of_several_runs_counts(
    tiny_pack: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Image.new("RGB", (40, 30), (40, 90, 30)).save(tmp_path / "0.png")
    names = ("bare encoder, all threads on one batch", "bare encoder, a batch for each thread")
    bare = dict(zip(names, (90.0, 100.0), strict=True))
    runs = iter([bare | {"the app, one method": rate} for rate in (70.0, 91.0, 88.0)])
    monkeypatch.setattr(indexing, "_measure", lambda *_: next(runs))
    assert indexing.main(["--pack", str(tiny_pack), "--gallery", str(tmp_path)]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.split()[-3:] == ["88.0", "0.88", "0.70-0.91"]


def test_a_folder_that_is_not_there_is_named(tiny_pack: Path, tmp_path: Path) -> None:
    gone = tmp_path / "gone"
    with pytest.raises(SystemExit, match="gone"):
        indexing.main(["--pack", str(tiny_pack), "--gallery", str(gone)])
