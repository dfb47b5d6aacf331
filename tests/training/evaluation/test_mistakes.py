"""What one method finds and another misses, and the same from another tool's run file."""

import csv
import json
import random
import re
from pathlib import Path
from typing import Any

import pytest

from polyview.training.data.image_files import ImageFiles
from polyview.training.data.open_split import from_pack
from polyview.training.evaluate import main
from tests.training.sample import write_sample


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundled pack with 20 of its scenes."""
    return write_sample(tmp_path_factory.mktemp("sample") / "scenes", 20)


def compared(pack: Path, b: str, out: Path, *options: str) -> tuple[Any, list[dict[str, str]]]:
    """What JSON and CSV say of PVSE and another method or run file."""
    files = ["--json", str(out / "all.json"), "--csv", str(out / "captions.csv")]
    main(["--pack", str(pack), "--method", "vse_infty", "--mistakes", "pvse", b, *options, *files])
    with (out / "captions.csv").open(encoding="utf-8") as table:
        return json.loads((out / "all.json").read_text())["mistakes"], list(csv.DictReader(table))


def test_a_run_file_of_our_scores_gives_the_same(
    pack: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own, captions = compared(pack, "vse_infty", tmp_path, "--trec", str(tmp_path))
    assert f"| all | 100 | {own['counts']['a']} | {own['counts']['b']} |" in capsys.readouterr().out
    run = tmp_path / "vse_infty.t2i.trec"
    files = from_pack(pack, "test").images
    assert isinstance(files, ImageFiles)
    for names in ({}, {f"i{i}": file.stem for i, file in enumerate(files.paths)}):
        lines = [line.split() for line in run.read_text().splitlines()]
        lines = [[q, q0, names.get(i, i), *rest] for q, q0, i, *rest in lines]
        random.Random(0).shuffle(lines)  # as long as ranks and scores are there
        other = tmp_path / "other.run"
        other.write_text("".join(f"{' '.join(line)}\n" for line in lines))
        theirs, same = compared(pack, str(other), tmp_path)
        assert theirs | {"b": "vse_infty"} == own
        assert [{**row, "suspect": ""} for row in same] == [
            {**row, "suspect": ""} for row in captions
        ]
    counted = [row["found"] for row in captions]
    assert {cell: counted.count(cell) for cell in own["counts"]} == own["counts"]
    for row in captions:
        assert (row["found"] in ("a", "both")) == (int(row["rank_a"]) == 1)


def test_a_short_run_file(pack: Path, tmp_path: Path) -> None:
    run = tmp_path / "short.trec"
    run.write_text("".join(f"t{q} Q0 i{q // 5} 1 0.5 x\nt{q} Q0 i19 2 0.4 x\n" for q in range(90)))
    results, captions = compared(pack, str(run), tmp_path, "--k", "2")
    assert results["counts"]["b"] + results["counts"]["both"] == 90
    assert (captions[0]["rank_b"], captions[0]["first_b"]) == ("1", "0")
    assert {row["first_b"] for row in captions[90:]} == {""}
    for content, options, sentence in (
        ("t0 Q0 i0 1 0.5 x\n", ("--k", "5"), "lists fewer than 5 images a caption"),
        ("t0 Q0 nowhere 1 0.5 x\n", (), "line 1: 'nowhere'"),
        ("t0 Q0 i0 first 0.5 x\n", (), "line 1: invalid literal"),
        ("t0 i0\n", (), "qid Q0 docid rank score tag"),
    ):
        run.write_text(content)
        with pytest.raises(SystemExit, match=re.escape(sentence)):
            compared(pack, str(run), tmp_path, *options)
    for arguments, sentence in (
        (["--mistakes", "pvse", "nowhere.trec"], 'there is no method "nowhere.trec"'),
        (["--mistakes", "pvse", "nothing"], 'there is no method "nothing"'),
        (["--mistakes", "pvse", "mvam", "--k", "0"], "--k must be at least 1"),
        (["--csv", "x.csv"], "add --mistakes A B"),
    ):
        with pytest.raises(SystemExit, match=re.escape(sentence)):
            main(["--pack", str(pack), "--method", "vsepp", *arguments])
