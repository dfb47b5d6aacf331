"""The pieces of HTML: text from outside stays text."""

from __future__ import annotations

import re
from typing import Any

import pytest

from app import panels
from app.description import describe
from app.retriever import CaptionHit, Retriever
from tests.app.conftest import HOSTILE, PICTURES

REFUSED = {"refused_count": 1, "refused": [{"file": HOSTILE, "reason": HOSTILE}]}
COPIES = {"copies_count": 1, "copies": [{"file": HOSTILE, "same_as": HOSTILE}]}
_OWN_TAGS = re.compile(
    r"</?(section|h[1-4]|ol|ul|li|span|p|div|details|summary|code|dl|dt|dd|i|strong)\b"
)


@pytest.mark.parametrize(
    "piece",
    [
        panels.line(HOSTILE, HOSTILE),
        panels.problem(HOSTILE),
        panels.caption_hits([CaptionHit(HOSTILE, 0, 0.5, 0, 1)]),
        panels.legend(HOSTILE),
        panels.own_captions([HOSTILE]),
        panels.left_out(REFUSED | {"copies_count": 0, "copies": []}),
        panels.left_out({"refused_count": 0, "refused": []} | COPIES),
    ],
)
def test_text_from_outside_stays_text(piece: str) -> None:
    assert "<img" not in piece
    assert "<b>" not in piece
    assert "{{" not in piece
    assert "${" not in piece
    assert "&lt;img" in piece or "&lt;Img" in piece
    left = _OWN_TAGS.sub("", piece)
    assert "<" not in left.replace("<i style", "")


def test_the_pack_card_says_what_is_in_use(retriever: Retriever) -> None:
    card = panels.pack_card(describe(retriever))
    assert "Shapes &lt;b&gt;" in card
    assert "CPUExecutionProvider" in card
    assert f"{PICTURES} pictures ready" in card


def test_a_method_card_shows_metrics_with_their_command(retriever: Retriever) -> None:
    info = describe(retriever)
    assert panels.method_cards(info).count("Not measured yet.") == 2
    info["methods"]["vsepp"]["metrics"] = {
        "split": "test",
        "command": "python -m training.evaluate --all",
        "hardware": "2 cores",
        "seed": 1,
        "values": {"i2t_r1": 61.04, "t2i_r1": 47.5, "i2t_new": 3.0, "rsum": 432.16},
    }
    cards = panels.method_cards(info)
    assert "python -m training.evaluate --all" in cards
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
    assert mark in panels.header(info)
