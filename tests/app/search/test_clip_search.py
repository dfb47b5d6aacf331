"""Clips answer with the moment, in the library, over HTTP, and in what the endpoints say."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from PIL import Image

from polyview.app.api import shell
from polyview.app.api.library import Library
from polyview.app.explain import lens
from polyview.app.gallery import thumbnails
from polyview.app.search.comparison import Run, compare
from polyview.app.search.query import Term
from polyview.app.settings import BUNDLED
from tests.app.clip_files import write_animation, write_video

SHOWN = 2  # seconds that a scene is shown
SUFFIXES = (".mp4", ".gif", ".webm", ".gif", ".mov", ".gif", ".mkv", ".gif", ".m4v", ".gif")
SCENES = BUNDLED / "scenes" / "gallery"


class Clips(NamedTuple):
    """Clips of four scenes each: one of all scenes shows a dog."""

    folder: Path
    dog: str
    begins: int


def show(path: Path, scenes: list[Image.Image]) -> None:
    if path.suffix == ".gif":
        write_animation(path, scenes, 1000 * SHOWN)
    else:
        write_video(path, [scene for scene in scenes for _ in range(5 * SHOWN)], rate=5)


def largest_dog(image: dict[str, Any]) -> float:
    """The share of an image that its largest dog takes."""
    boxes = [thing["box"] for thing in image["objects"] if thing["name"] == "dog"]
    return max(((x1 - x0) * (y1 - y0) for x0, y0, x1, y1 in boxes), default=0.0)


@pytest.fixture(scope="module")
def clips(tmp_path_factory: pytest.TempPathFactory) -> Clips:
    """Ten GIFs and videos of rendered scenes; a dog is seen in the third scene of the seventh."""
    folder = tmp_path_factory.mktemp("clips")
    known = json.loads((SCENES / "gallery.json").read_text("utf-8"))["images"]
    names = [{thing["name"] for thing in image["objects"]} for image in known]
    dog = max(known, key=largest_dog)
    like = {"dog", "wolf", "fox", "cat"}
    others = [image for image, things in zip(known, names, strict=True) if not things & like]
    place = 6
    for number, suffix in enumerate(SUFFIXES):
        scenes = others[4 * number : 4 * number + 4]
        if number == place:
            scenes[2] = dog
        opened = [Image.open(SCENES / scene["file"]).convert("RGB") for scene in scenes]
        show(folder / f"{number}{suffix}", opened)
    return Clips(folder, f"{place}{SUFFIXES[place]}", 2 * SHOWN)


@pytest.fixture(scope="module")
def library(clips: Clips, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Library]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("POLYVIEW_CACHE", str(tmp_path_factory.mktemp("cache")))
        with Library("scenes", clips.folder) as opened:
            yield opened


def test_thumbnails_of_frames_are_there_once_they_are_read(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    retriever = library._retriever
    monkeypatch.setattr(thumbnails, "open_frame", None)  # nothing is decoded again
    for hit in library.search("a dog", k=10):
        with Image.open(retriever.thumbnail(hit.image_id)) as small:
            assert max(small.size) <= thumbnails.SIDE


def test_a_dog_is_found_at_its_second(clips: Clips, library: Library) -> None:
    found = library.search("a dog", k=10)
    assert len({match.path for match in found}) == len(found) == 10
    assert found[0].path.name == clips.dog
    assert clips.begins <= (found[0].seconds or 0) < clips.begins + SHOWN
    assert found[0].frame == round(5 * (found[0].seconds or 0))


def test_every_method_ranks_clips_by_their_best_frame(library: Library) -> None:
    retriever = library._retriever
    retriever.index.images_done.wait()
    first, second, *_ = retriever.methods
    for spec in (first, f"{first}+{second}"):
        for terms in ([Term("a dog")], [Term("a dog", weight=2.0), Term("a tree", weight=-1.0)]):
            scores = retriever.scores(terms, spec)
            found = retriever.search(terms, spec, 4)
            order = np.argsort(-scores.values, kind="stable")[:4]
            assert [hit.image_id for hit in found.hits] == scores.images[order].tolist()
            assert found.searched == len(scores.ids) == 10
            some = {1, 6, 8}
            files = [hit.image_id % 10 for hit in retriever.search(terms, spec, 9, some).hits]
            assert set(files) == some
            assert len(files) == 3


def test_compared_methods_rank_clips_each_by_its_own_moment(library: Library) -> None:
    retriever = library._retriever
    retriever.index.images_done.wait()
    terms, specs = [Term("a dog")], list(retriever.methods)[:3]
    runs = [Run(spec, spec, "", retriever.scores(terms, spec), 1.0, 1) for spec in specs]
    compared = compare("a dog", runs, 10, leave_out=3)
    assert compared.pictures == 9
    assert all(overlap == 1.0 for row in compared.overlap for overlap in row)
    for spec, column in zip(specs, compared.columns, strict=True):
        found = [hit for hit in retriever.search(terms, spec, 10).hits if hit.image_id % 10 != 3]
        assert [place.image_id for place in column.hits] == [hit.image_id for hit in found]
        for place in column.hits:
            assert compared.ranks[place.image_id][specs.index(spec)] == place.rank


def test_the_lens_ranks_files(library: Library) -> None:
    retriever = library._retriever
    retriever.index.images_done.wait()
    found = lens.rank(retriever, "a dog", "mv_vse", (1.0, 1.0, 1.0), 10)
    hits = retriever.search([Term("a dog")], "mv_vse", 10).hits
    assert [hit.image_id for hit, _ in found.hits] == [hit.image_id for hit in hits]
    assert [hit.seconds for hit, _ in found.hits] == [hit.seconds for hit in hits]
    assert found.stayed == len(found.ids) == 10
    one = lens.rank(retriever, "a dog", "mv_vse", (1.0, 0.0, 0.0), 10)
    assert sorted(hit.image_id % 10 for hit, _ in one.hits) == list(range(10))
    assert sorted(before for _, before in one.hits) == list(range(1, 11))


def test_the_shell_prints_when(
    clips: Clips,
    library: Library,  # noqa: ARG001  (its cache is used again)
    capsys: pytest.CaptureFixture[str],
) -> None:
    shell.main(["a dog", "--gallery", str(clips.folder), "--pack", "scenes", "-k", "1"])
    score, path, when = capsys.readouterr().out.strip().split("\t")
    assert float(score) > 0
    assert Path(path).name == clips.dog
    assert clips.begins <= float(when.removeprefix("at ").removesuffix(" s")) < clips.begins + SHOWN
