"""The Search tab's HTML: text from outside stays text, and what is shown is what was found."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

import pytest
from PIL import Image

from app.asking import Answer
from app.tabs.search import panel
from app.tabs.sharing import link
from tests.app.conftest import HOSTILE

_LAYER = panel.Layer(HOSTILE, HOSTILE, HOSTILE, Image.new("RGB", (4, 4)), won=True)
_TILE = panel.Tile(7, Path("/t/a b.webp"), HOSTILE, 3, 0.25, 1, satisfies=True)


class Page(HTMLParser):
    """The elements of a piece of HTML, with their attributes, and its text."""

    def __init__(self, piece: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(piece)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Notes an element."""
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        """Notes text."""
        self.text += data


@pytest.mark.parametrize(
    "piece",
    [
        panel.head(HOSTILE, [HOSTILE]),
        panel.history({HOSTILE: HOSTILE}),
        link(HOSTILE, HOSTILE, HOSTILE),
        panel.tiles([_TILE]),
        panel.layers({HOSTILE: [_LAYER], "b": [_LAYER]}, HOSTILE),
        panel.answer_line(Answer(HOSTILE, (HOSTILE,), [], reading=(HOSTILE,))),
    ],
)
def test_text_from_outside_stays_text(piece: str) -> None:
    page = Page(piece)
    assert HOSTILE in page.text or HOSTILE in {
        value for _, attributes in page.elements for value in attributes.values()
    }
    assert {name for _, attributes in page.elements for name in attributes}.isdisjoint({"onerror"})
    assert "{{" not in piece
    assert "${" not in piece
    sources = [attributes["src"] for tag, attributes in page.elements if tag == "img"]
    assert all(str(source).startswith(("data:", "thumbnails/a%20b")) for source in sources)


def test_a_tile_says_rank_score_view_and_truth() -> None:
    page = Page(panel.tiles([_TILE, panel.Tile(7, Path("/t/b.webp"), "a dog", 4, -0.125)]))
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
    page = Page(panel.tiles([panel.Tile(7, Path("/t/b.webp"), "a dog")]))
    assert page.text == "a dog"


def test_nothing_found_is_said() -> None:
    assert "take one of them away" in Page(panel.tiles([])).text


def test_the_chosen_map_is_the_checked_one() -> None:
    small = Image.new("RGB", (4, 4))
    maps = [panel.Layer(f"m:{i}", *panel.view_names(6, i), small, won=i == 2) for i in range(6)]
    page = Page(panel.layers({"M": maps}, "m:4"))
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
