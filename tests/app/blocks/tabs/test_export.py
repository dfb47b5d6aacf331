"""Images found, as files: what they hold, and how much they may."""

import csv
import io
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from PIL import Image

from app.blocks.tabs.images import listed
from app.blocks.tabs.search import export
from app.blocks.tabs.search.view import Result
from app.search.questions import Question
from app.search.retriever import Retriever


def results(retriever: Retriever, count: int = 3) -> list[Result]:
    images, _ = listed(retriever, range(count))
    question = Question("words", "=1+1")
    return [
        Result(i, replace(images[i], file=f"a/@b{i}.webp"), "vsepp", i + 1, 0.5, question=question)
        for i in range(count)
    ]


def test_a_table_has_a_row_for_each_image_and_no_formula(retriever: Retriever) -> None:
    found = results(retriever)
    rows = list(csv.DictReader(io.StringIO(export.table(found).decode())))
    assert [row["image_id"] for row in rows] == ["0", "1", "2"]
    assert {row["query"] for row in rows} == {"'=1+1"}
    assert rows[0]["captions"].startswith(found[0].image.captions[0])
    named = [replace(found[0], image=replace(found[0].image, file="@b.webp"))]
    assert b"'@b.webp" in export.table(named)


@pytest.mark.parametrize("private", [True, False])
def test_an_archive_holds_the_images(retriever: Retriever, private: bool) -> None:
    content = export.archive(results(retriever), retriever, private=private)
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        assert archive.testzip() is None
        assert len(archive.namelist()) == 3
        for place, name in enumerate(archive.namelist()):
            original = retriever.image(place).path.read_bytes()
            assert (archive.read(name) == original) is private
            with Image.open(io.BytesIO(archive.read(name))) as image:
                assert image.size == (96, 72)


def test_files_are_bounded(
    retriever: Retriever, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = results(retriever, 1)
    for count in (0, export.MOST + 1):
        with pytest.raises(ValueError, match=f"choose 1 to {export.MOST} pictures"):
            export.write("csv", one * count, retriever, tmp_path, private=True)
    monkeypatch.setattr(export, "MOST_BYTES", 10)
    for private in (True, False):
        with pytest.raises(ValueError, match="choose fewer"):
            export.write("zip", one, retriever, tmp_path, private=private)
    assert list(tmp_path.iterdir()) == []
