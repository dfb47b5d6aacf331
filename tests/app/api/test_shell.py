"""Search from a shell and from Python, over a folder with a broken file and a HEIC file."""

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from pillow_heif import register_heif_opener

from polyview.app.api import shell
from polyview.app.api.library import Library
from polyview.app.api.shell import main
from polyview.export.runtime import Runtime
from tests.app.conftest import draw

WORDS = "a red circle beside a blue bar"


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    register_heif_opener()
    for i in range(6):
        draw(i)[0].save(folder / f"{i}.{'heic' if i == 2 else 'png'}")
    draw(6)[0].save(folder / "two\nlines.png")
    (folder / "broken.jpg").write_bytes(b"\xff\xd8 broken")
    return folder


@pytest.fixture(scope="module", autouse=True)
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("POLYVIEW_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def arguments(photos: Path, many_pack: Path) -> list[str]:
    return [WORDS, "--gallery", str(photos), "--pack", str(many_pack), "--device", "cpu"]


def test_lines_of_scores_and_paths(
    arguments: list[str],
    photos: Path,
    many_pack: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([f"@{photos / '4.png'}", *arguments[1:], "-k", "1"]) == 0
    assert capsys.readouterr().out.endswith("4.png\n")
    assert main(arguments) == 0
    printed = capsys.readouterr()
    monkeypatch.delattr(Runtime, "pixel_features")  # all images are stored
    with Library(many_pack, photos, device="cpu") as library:
        results = library.search(WORDS)
    assert len(results) == 7  # the HEIC file is read, the broken one not
    paths = [str(item.path).encode("unicode_escape").decode() for item in results]
    expected = [f"{item.score:.3f}\t{path}" for item, path in zip(results, paths, strict=True)]
    assert printed.out.splitlines() == expected
    assert "broken.jpg" in printed.err
    assert main([*arguments, "--json", "-k", "3"]) == 0
    hits = json.loads(capsys.readouterr().out)["hits"]
    assert [hit["score"] for hit in hits] == pytest.approx([item.score for item in results[:3]])


def test_paths0_and_explain(
    arguments: list[str], tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    lit = tmp_path / "lit.png"
    assert main([*arguments, "--paths0", "--method", "mvam", "--explain", str(lit)]) == 0
    *paths, rest = capsysbinary.readouterr().out.split(b"\0")
    assert not rest
    assert all(Path(os.fsdecode(path)).is_file() for path in paths)
    with Image.open(lit) as image, Image.open(os.fsdecode(paths[0])) as plain:
        assert image.size == plain.size


def test_errors_are_one_line(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main([" ", *arguments[1:]]) == 2
    for changed, reply in (
        (["--gallery", "none/here"], "none/here"),
        (["--pack", "none/here/either"], "none/here/either"),
        (["--method", "none"], 'there is no method "none"'),
        (["-k", "0"], "-k must be 1 to 1,000, not 0"),
        (["--explain", "out.jpg"], "must end in .png"),
    ):
        assert main([*arguments, *changed]) == 2
        printed = capsys.readouterr()
        assert not printed.out
        assert reply in printed.err.splitlines()[-1]


def test_unknown_words_and_no_match(
    bundled_cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("POLYVIEW_CACHE", str(bundled_cache))
    arguments = ["--pack", "scenes", "--device", "cpu", "-k", "1", "--json"]
    assert main(["a doggy and an asdfgh", *arguments]) == 1
    printed = capsys.readouterr()
    assert "no image matches" in printed.err
    assert "“asdfgh” is unknown to this pack" in printed.err
    assert "“doggy” is read as “dog”" in printed.err
    words = {entry["word"]: entry["read_as"] for entry in json.loads(printed.out)["unknown"]}
    assert words == {"doggy": "dog", "asdfgh": None}


def test_interrupt_and_closed_pipe(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as pipe:  # closing raises if the buffer is not empty
        monkeypatch.setattr(sys, "stdout", pipe)
        assert main(arguments) == 0
    monkeypatch.undo()

    def interrupted(_: Any) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(shell, "_search", interrupted)
    assert main(arguments) == 130


def test_evidence_and_comparisons_from_python(photos: Path, many_pack: Path) -> None:
    with Library(many_pack, photos, method="mv_vse", device="cpu") as library:
        for query in (WORDS, "2: a bar - red", photos / "3.png"):
            best = library.search(query, 1)[0]
            why = library.explain(query, best)
            assert why.base + why.cells.sum() == pytest.approx(why.score, rel=1e-4, abs=1e-6)
            assert why.score == pytest.approx(best.score, abs=2e-3)
            assert why.cells.shape[2] == len(why.words)
        assert not np.array_equal(np.asarray(why.light()), np.asarray(Image.open(best.path)))
        compared = library.compare(WORDS, ["avse", "pvse+mvam"], k=2)
        assert compared["avse"] == library.search(WORDS, 2, "avse")
        with pytest.raises(ValueError, match='no word "green"'):
            library.explain(WORDS, 0).light("green")
