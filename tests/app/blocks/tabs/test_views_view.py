"""The Views tab's pieces of HTML: outside text stays text, numbers are where they belong."""

import re
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from app.blocks.tabs.views import charts, view
from app.blocks.tabs.views.outlines import Outline, outlines
from app.blocks.tabs.views.view import Shown
from app.explain.collapse import Collapse, Reading
from app.explain.look import Look, look
from app.search.retriever import Retriever
from models import METHODS, build
from models.panel import Knob, Panel
from tests.app.conftest import HOSTILE
from tests.app.many import HEIGHT, WIDTH, box
from tests.app.markup import stays_text

METHOD = METHODS["pvse"](4, 4, 4)
GREY = Image.new("RGB", (60, 40), "grey")


def seen_by(words: tuple[str, ...] = ("a", HOSTILE), views: int = 2) -> Look:
    """A look with made-up numbers."""
    rng = np.random.default_rng(1)
    shares = rng.dirichlet(np.ones(len(words)), views).astype(np.float32)
    return Look(
        method="pvse",
        maps=rng.dirichlet(np.ones(12), views).reshape(views, 3, 4).astype(np.float32),
        similarity=np.eye(views, dtype=np.float32),
        text=" ".join(words),
        words=words,
        word_maps=shares,
        text_similarity=np.eye(views, dtype=np.float32),
        view_scores=np.linspace(0.1, 0.5, views),
        score=0.5,
        mentioned=frozenset({0}),
        panels=(
            Panel("matrix", HOSTILE, HOSTILE, torch.zeros(1, 1), (HOSTILE,), (HOSTILE,), ((0, 0),)),
            Panel("curve", HOSTILE, HOSTILE, torch.zeros(2, 2), (HOSTILE,) * 2, (HOSTILE,) * 2),
            Panel("number", HOSTILE, HOSTILE, torch.tensor(1.5)),
        ),
    )


OUTLINED = Shown(GREY, HOSTILE, (0, 0, 1, 1), (Outline(HOSTILE, "M0 0"), Outline("x", "M1 1")))


@pytest.mark.parametrize(
    "piece",
    [
        view.maps(seen_by(), METHOD, OUTLINED),
        view.words(seen_by(), METHOD),
        view.words(seen_by(views=5), METHOD),
        charts.cards(seen_by()),
        view.knobs([Knob(HOSTILE, HOSTILE, HOSTILE, (HOSTILE,)), Knob("n", HOSTILE, 1)], {"n": 0}),
        view.lens(HOSTILE, 2),
        view.meter(Reading(problem=HOSTILE), captioned=True),
        view.meter(Reading(progress=HOSTILE), captioned=True),
    ],
)
def test_text_from_outside_stays_text(piece: str) -> None:
    assert stays_text(piece)


def test_the_map_covers_what_the_encoder_sees() -> None:
    drawn = view.maps(seen_by(), METHOD, Shown(GREY, "x", (0.25, 0.0, 0.75, 1.0)))
    assert drawn.count("left:25.00%;top:0.00%;width:50.00%;height:100.00%") == 4  # 2, mean, most
    assert "--pv-ratio:60/40" in drawn


def test_a_map_says_its_peak_its_score_and_whether_it_won() -> None:
    look = seen_by()
    assert look.maps is not None
    drawn = view.maps(look, METHOD, Shown(GREY, "x", (0, 0, 1, 1)))
    labels = re.findall(r'aria-label="(View \d: [^"]*)"', drawn)
    assert len(labels) == 2
    for place, sentence in enumerate(labels):
        row, column = np.unravel_index(look.maps[place].argmax(), (3, 4))
        assert f"row {row + 1}, column {column + 1}" in sentence
        assert f"{100 * look.maps[place].max():.1f} %" in sentence
        assert ("wins" in sentence) == (place == 1)
    assert drawn.count("★") == 1
    assert view.winner(look, METHOD) == "view 2 of 2 wins"
    assert "★" not in view.maps(look, METHOD, OUTLINED, alike=True)


def test_cosines_are_not_shown_as_shares() -> None:
    method = build("mv_vse", 4, 4, {"embed_dim": 4})
    drawn = view.maps(seen_by(), method, Shown(GREY, "x", (0, 0, 1, 1)))
    assert re.findall(r"peak [-\d.]+( %)?", drawn) == [""] * 4
    assert "0 or less" in drawn
    assert "cosines of word and text" in view.words(seen_by(), method)


def test_without_attention_it_says_so() -> None:
    bare = Look("pvse", None, np.eye(1, dtype=np.float32))
    assert "no attention to show" in view.maps(bare, METHOD, Shown(GREY, "x", (0, 0, 1, 1)))
    assert "Type a sentence" in view.words(bare, METHOD)
    assert "nothing else to show" in charts.cards(bare)


def test_numbers_stand_in_the_cells_of_a_small_matrix_only() -> None:
    small = Panel("matrix", "t", "m", torch.tensor([[0.125, -1.0]]), ("r",), ("a", "b"), ((0, 1),))
    drawn = charts.matrix(small)
    assert re.findall(r">(★ )?(-?[\d.]+)</td>", drawn) == [("", "0.12"), ("★ ", "-1.00")]
    names = tuple(f"view {i}" for i in range(12))
    large = charts.matrix(Panel("matrix", "t", "m", torch.eye(12), names, names))
    assert large.count('<span class="pv-v-hidden">') == 144
    assert 'title="view 3, view 3: 1.000"' in large


def test_curves_say_in_words_where_they_are_highest() -> None:
    values = torch.tensor([[0.1, 0.7, 0.2], [0.5, 0.2, 0.3]])
    drawn = charts.curves(Panel("curve", "P", "m", values, ("a", "b"), ("1", "2", "3")))
    assert "a is highest at 2 with 0.700 and lowest at 1 with 0.100" in drawn
    assert "b is highest at 1 with 0.500 and lowest at 2 with 0.200" in drawn
    heights = [
        [float(point.split(",")[1]) for point in line.split()]
        for line in re.findall(r'points="([^"]*)"', drawn)
    ]
    assert [int(np.argmin(line)) for line in heights] == [1, 0]  # the top of the page is 0


def test_outlines_follow_the_mask_or_else_the_box(many_retriever: Retriever) -> None:
    image = many_retriever.image(5)
    assert image.truth is not None
    for place, outline in enumerate(outlines(image)):
        assert outline.name == image.objects[place]
        points = np.array([float(n) for n in re.findall(r"[\d.]+", outline.path)]).reshape(-1, 2)
        x0, y0, x1, y1 = (100 * v for v in box(5, place))
        expected = [x0 / WIDTH, y0 / HEIGHT, x1 / WIDTH, y1 / HEIGHT]
        assert [*points.min(axis=0), *points.max(axis=0)] == pytest.approx(expected, abs=2.5)
        assert len(points) > 5


@pytest.mark.parametrize("cached", [True, False])
def test_a_mask_may_be_a_link_of_a_cache_and_none_that_came_later(
    many_retriever: Retriever, tmp_path: Path, cached: bool
) -> None:
    known = many_retriever.image(5)
    assert known.mask is not None
    real = tmp_path / "blobs" / "0a1b"
    real.parent.mkdir()
    real.write_bytes(known.mask.read_bytes())
    link = tmp_path / "pack" / "mask.png"
    link.parent.mkdir()
    link.symlink_to(real)
    mask = link.resolve() if cached else link
    drawn = outlines(replace(known, mask=mask))
    assert (drawn == outlines(known)) is cached
    assert [outline.name for outline in drawn] == list(known.objects)


def test_a_mask_of_noise_is_drawn_soon_and_in_short(
    many_retriever: Retriever, tmp_path: Path
) -> None:
    known = many_retriever.image(5)
    assert known.truth is not None
    noise = np.random.default_rng(0).integers(0, 251, (2000, 2000), np.uint8)
    Image.fromarray(noise).save(tmp_path / "mask.png")
    truth = replace(known.truth, objects=known.truth.objects[:1] * 250)
    started = time.process_time()
    drawn = outlines(replace(known, truth=truth, mask=tmp_path / "mask.png"))
    assert time.process_time() - started < 5
    assert sum(len(outline.path) for outline in drawn) < 250 * 20_100


def test_the_meter_waits_answers_and_explains() -> None:
    assert "counting wins" in view.meter(Reading(progress="counting wins"), captioned=True)
    result = Collapse(3, 1000, 5000, (0.5, 0.3, 0.2), 0.42, 0.1, 200)
    drawn = view.meter(Reading(result=result), captioned=True)
    assert result.verdict in drawn
    for number in (
        "0.42",
        "0.10",
        "50.0 %",
        "30.0 %",
        "20.0 %",
        "1,000 pictures",
        "5,000 captions",
    ):
        assert number in drawn
    bare = Collapse(3, 1000, 0, None, 0.42, None, 0)
    assert "this collection has none" in view.meter(Reading(result=bare), captioned=False)


def test_a_caption_knows_what_it_mentions(many_retriever: Retriever) -> None:
    both, second = many_retriever.image(5).captions
    assert look(many_retriever, 5, "pvse", f"  {both} ").mentioned == {0, 1}
    assert look(many_retriever, 5, "pvse", second).mentioned == {1}
    assert look(many_retriever, 6, "pvse", both).mentioned == frozenset()
    assert look(many_retriever, GREY, "pvse", both).mentioned == frozenset()
