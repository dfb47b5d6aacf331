"""The header, the Search tab and the Models tab as HTML: text stays text, numbers their place."""

from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from app.blocks.tabs import html
from app.blocks.tabs.fetching import fetching
from app.blocks.tabs.images import Listed
from app.blocks.tabs.models import view as models
from app.blocks.tabs.search import view as search
from app.blocks.tabs.search.view import Layer, Result
from app.blocks.tabs.sharing import link
from app.blocks.tabs.start import view as start
from app.packs.description import describe
from app.packs.jobs import Step
from app.search.answers import Answer
from app.search.filters import Filters
from app.search.hits import CaptionHit, Found
from app.search.query import Term
from app.search.questions import Question
from app.search.retriever import Retriever
from tests.app.conftest import HOSTILE, IMAGES
from tests.app.markup import Page, stays_text


def _listed(caption: str) -> Listed:
    return Listed("b.webp", (caption,), Path("/t/a b.webp"))


_LAYER = Layer(HOSTILE, HOSTILE, HOSTILE, Image.new("RGB", (4, 4)), won=True)
_RESULT = Result(7, _listed(HOSTILE), "m", 3, 0.25, 1, several=True, satisfies=True)
NONE_REFUSED = {"refused_count": 0, "refused": []}
NO_COPIES = {"copies_count": 0, "copies": []}
REFUSED = {"refused_count": 1, "refused": [{"file": HOSTILE, "reason": HOSTILE}]}
COPIES = {"copies_count": 1, "copies": [{"file": HOSTILE, "same_as": HOSTILE}]}
_NOTHING, _TERM = Found([], [], {}, (), 0), Term(HOSTILE)


@pytest.mark.parametrize(
    "piece",
    [
        html.text(HOSTILE),
        html.line(HOSTILE, HOSTILE),
        html.problem(HOSTILE),
        start.left_out(REFUSED | NO_COPIES),
        start.left_out(NONE_REFUSED | COPIES),
        fetching(Step(1, 2, HOSTILE, 3.0)),
        search.head(HOSTILE, [HOSTILE]),
        search.history([Question("words", HOSTILE)]),
        link(HOSTILE, HOSTILE, HOSTILE),
        search.tiles([_RESULT]),
        search.layers({HOSTILE: [_LAYER], "b": [_LAYER]}, HOSTILE),
        search.captions(HOSTILE, [HOSTILE]),
        search.captions(HOSTILE, [CaptionHit(HOSTILE, 0, 0.5, 0, 1)]),
        search.legend(HOSTILE),
        search.answer_line(
            Answer(Question(), HOSTILE, (HOSTILE,), _NOTHING, Filters(), 1, (_TERM, _TERM))
        ),
    ],
)
def test_text_from_outside_stays_text(piece: str) -> None:
    assert stays_text(piece)


def test_line_breaks_of_a_template_are_no_spaces_between_tags() -> None:
    assert html.line("a", "", "b") == (
        '<p class="pv-line" role="status"><strong>a</strong><span>b</span></p>'
    )


def test_the_pack_card_says_what_is_in_use(retriever: Retriever) -> None:
    card = models.pack_card(describe(retriever))
    assert "Shapes &lt;b&gt;" in card
    assert "CPUExecutionProvider" in card
    assert f"{IMAGES} pictures ready" in card


def test_a_method_card_shows_metrics_with_their_command(retriever: Retriever) -> None:
    info = describe(retriever)
    assert models.method_cards(info).count("Not measured yet.") == 2
    info["methods"]["vsepp"]["metrics"] = {
        "split": "test",
        "command": "python -m training.evaluate --all",
        "hardware": "2 cores",
        "seed": 1,
        "values": {"i2t_r1": 61.04, "t2i_r1": 47.5, "i2t_new": 3.0, "rsum": 432.16},
    }
    cards = models.method_cards(info)
    assert "python -m training.evaluate --all" in cards
    assert "2 cores, seed 1</p>" in cards
    assert "rsum 432.2" in cards
    assert "<th></th><th>picture to text</th><th>text to picture</th>" in cards
    assert "<th>R@1</th><td>61.0</td><td>47.5</td>" in cards
    assert "<th>new</th><td>3.0</td><td></td>" in cards


@pytest.mark.parametrize(
    ("state", "mark"), [("ready", "24 pictures"), ("pictures", "pv-busy"), ("failed", "pv-bad")]
)
def test_the_header_follows_the_gallery(retriever: Retriever, state: str, mark: str) -> None:
    info: dict[str, Any] = describe(retriever)
    info["gallery"]["state"] = state
    assert mark in start.header(info, "")


def test_a_tile_says_rank_score_view_and_truth() -> None:
    page = Page(search.tiles([_RESULT, Result(7, _listed("a dog"), "m", 4, -0.125, 1)]))
    names = [attributes["alt"] for tag, attributes in page.elements if tag == "img"]
    assert names == [
        f"3 · 0.250 · {HOSTILE}, view 2 won, satisfies the caption",
        "4 · -0.125 · a dog",
    ]
    assert page.text.count("view 2") == 1
    assert page.text.count("✓") == 1
    tabs = [attributes["tabindex"] for tag, attributes in page.elements if tag == "button"]
    assert tabs == ["0", "-1"]  # one stop for the Tab key; arrow keys move within


def test_a_sample_has_no_ranks() -> None:
    page = Page(search.tiles([Result(7, _listed("a dog"))]))
    assert page.text == "a dog"


def test_nothing_found_is_said() -> None:
    assert "take one of them away" in Page(search.tiles([])).text


def test_the_chosen_map_is_the_checked_one() -> None:
    small = Image.new("RGB", (4, 4))
    maps = [Layer(f"m:{i}", *search.view_names(6, i), small, won=i == 2) for i in range(6)]
    page = Page(search.layers({"M": maps}, "m:4"))
    radios = [attributes for tag, attributes in page.elements if tag == "input"]
    assert [radio["value"] for radio in radios if "checked" in radio] == ["m:4"]
    assert radios[2]["aria-label"] == "View 3, the winner"
    assert page.text == "Choose a map123456"


def test_a_link_that_cannot_be_is_no_button() -> None:
    [_, (_, button), _] = Page(link("search", "", "why not")).elements
    assert "disabled" in button
    assert button["title"] == "why not"
    [(_, holder), (_, button), _] = Page(link("search", "q=a&k=3", "")).elements
    assert holder["data-link"] == "q=a&k=3"
    assert "disabled" not in button
