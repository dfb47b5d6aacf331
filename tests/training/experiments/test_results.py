"""The results page: tables from measured files, and what stays of the page."""

import json
from pathlib import Path
from typing import Any

import pytest

from training.experiments.results import PAGE, README, replace_part, update_page, update_readme

RESULT: dict[str, Any] = {
    "name": "toy",
    "title": "Toy: views",
    "paper": "K, Fig. 9.",
    "found": "Three.",
    "here": "Agrees.",
    "command": "python -m training.ablate toy --seeds 0 1",
    "hardware": "an abacus",
    "seeds": [0, 1],
    "columns": ["K", "rsum", "parameters"],
    "rows": [["one", 401.5, 12345], ["two", 402.0, None]],
    "note": "Small.",
    "curves": {"two: pool": [0.5] + [0.05] * 10},
}
METRICS = {
    "split": "test",
    "command": "measure",
    "hardware": "an abacus",
    "seed": 4,
    "values": {"i2t_r1": 65.51, "rsum": 440.54, "i2t_medr": 1.0},
}
EMPTY = "# Results\n\nBefore.\n<!-- methods -->\nold\n<!-- /methods -->\nBetween.\n"
EMPTY += "<!-- ablations --><!-- /ablations -->\nAfter.\n"


@pytest.fixture
def paths(tmp_path: Path) -> tuple[Path, Path, Path]:
    """A page without tables, a folder with one ablation, and a pack with a measured method."""
    page, folder, pack = tmp_path / "page.md", tmp_path / "ablations", tmp_path / "pack.json"
    page.write_text(EMPTY)
    folder.mkdir()
    (folder / "toy.json").write_text(json.dumps(RESULT))
    methods = {"vsepp": {"metrics": METRICS}, "pvse": {"metrics": None}}
    pack.write_text(json.dumps({"methods": methods}))
    return page, folder, pack


def test_tables_are_written_between_the_marks(paths: tuple[Path, Path, Path]) -> None:
    update_page(*paths, None)
    text = paths[0].read_text()
    for line in (
        "| method | i2t R@1 | rsum |",
        "| `vsepp` | 65.5 | 440.5 |",
        "Seed 4; test split, an abacus.",
        "### Toy: views",
        "**The paper:** K, Fig. 9.",
        "**It found:** Three.",
        "**Here:** Agrees.",
        "| K | rsum | parameters |",
        "| one | 401.5 | 12,345 |",
        "| two | 402.0 | - |",
        "`python -m training.ablate toy --seeds 0 1`, seeds 0 and 1, an abacus. Small.",
    ):
        assert line in text.splitlines(), line
    curve = next(line for line in text.splitlines() if line.startswith("- two: pool"))
    assert curve.startswith("- two: pool (11 places): 0.500, 0.050,")
    assert curve.endswith("and 0.050 over the other 1")
    assert [word for word in ("Before.", "Between.", "After.") if word not in text] == []
    assert "old" not in text
    assert "pvse" not in text


def test_packs_have_tables_of_their_own(paths: tuple[Path, Path, Path], tmp_path: Path) -> None:
    page, folder, pack = paths
    page.write_text(EMPTY + "<!-- photos --><!-- /photos -->\n")
    other = {"vse_infty": {"metrics": {**METRICS, "split": "val"}}}
    (tmp_path / "photos.json").write_text(json.dumps({"methods": other}))
    update_page(page, folder, pack, tmp_path / "photos.json")
    scenes, photos = page.read_text().split("<!-- photos -->")
    assert "`vsepp`" in scenes
    assert "`vse_infty`" not in scenes
    assert "| `vse_infty` | 65.5 | 440.5 |" in photos
    assert "Seed 4; val split, an abacus." in photos


def test_writing_again_changes_nothing(paths: tuple[Path, Path, Path]) -> None:
    update_page(*paths, None)
    first = paths[0].read_text()
    update_page(*paths, None)
    assert paths[0].read_text() == first


def test_nothing_measured_is_said(paths: tuple[Path, Path, Path]) -> None:
    page, folder, pack = paths
    (folder / "toy.json").unlink()
    pack.write_text(json.dumps({"methods": {"pvse": {"metrics": None}}}))
    update_page(*paths, None)
    assert "No method was measured yet." in page.read_text()
    assert "None was run yet." in page.read_text()


def test_a_page_without_marks_or_a_bad_file_is_refused(paths: tuple[Path, Path, Path]) -> None:
    page, folder, _ = paths
    (folder / "toy.json").write_text("{")
    with pytest.raises(ValueError, match=r"toy\.json is damaged .*; run its command again"):
        update_page(*paths, None)
    (folder / "toy.json").unlink()
    page.write_text("# Results\n<!-- methods --><!-- /methods -->\n")
    with pytest.raises(ValueError, match=r"lacks the lines .*<!-- ablations -->"):
        update_page(*paths, None)


def test_the_page_here_says_what_the_files_say(tmp_path: Path) -> None:
    copy = tmp_path / "page.md"
    copy.write_text(PAGE.read_text("utf-8"), "utf-8")
    update_page(copy)
    assert copy.read_text("utf-8") == PAGE.read_text("utf-8"), "python -m training.ablate --report"


def test_the_readme_here_says_what_the_files_say(tmp_path: Path) -> None:
    copy = tmp_path / "readme.md"
    copy.write_text(README.read_text("utf-8"), "utf-8")
    update_readme(copy)
    assert copy.read_text("utf-8") == README.read_text("utf-8"), (
        "python -m training.ablate --report"
    )


def test_the_readme_has_a_line_of_every_study_that_was_run(tmp_path: Path) -> None:
    readme, pack = tmp_path / "readme.md", tmp_path / "pack.json"
    readme.write_text(
        "<!-- methods --><!-- /methods -->\n<!-- studies --><!-- /studies -->\nEnd.\n"
    )
    recalls = {f"{way}_r{k}": 50.0 for way in ("i2t", "t2i") for k in (1, 5, 10)}
    values = {**recalls, "rsum": 300.04, "evidence_word_pointing": 99.96}
    arguments = {"embed_dim": 64, "views": 16}
    entry = {"method": "mvam", "arguments": arguments, "metrics": {**METRICS, "values": values}}
    pack.write_text(json.dumps({"methods": {"mvam_small": entry}}))
    update_readme(readme, pack, tmp_path)
    text = readme.read_text()
    row = "| `mvam_small` | MVAM, arXiv 2402.17237 | 16 x 64 |" + 6 * " 50.0 |" + " 300.0 | 100.0 |"
    assert row in text
    assert "<!-- studies -->\n<!-- /studies -->\nEnd." in text
    columns = ["recipe", "seeds", "rsum", "its deviation", "above VSE∞", "low", "high"]
    study = {
        "command": "measure",
        "hardware": "an abacus",
        "columns": columns,
        "rows": [
            ["PVSE", 3, 400.0, 1.5, -20.0, -25.0, 3.25],
            ["VSE∞", 3, 420.0, None, None, None, None],
        ],
    }
    (tmp_path / "scenes_paper.json").write_text(json.dumps(study))
    update_readme(readme, pack, tmp_path)
    line = "- **As in the paper** (`measure`, an abacus): VSE∞ 420.0; PVSE 400.0 ± 1.5 (-20.0, "
    assert f"{line}-25.0 to +3.2)." in readme.read_text()
    before = readme.read_text()
    update_readme(readme, pack, tmp_path)
    assert readme.read_text() == before


def test_an_empty_part_is_two_lines(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("<!-- a -->\n\nold\n\n<!-- /a -->\n")
    replace_part(page, "a", [])
    assert page.read_text() == "<!-- a -->\n<!-- /a -->\n"
