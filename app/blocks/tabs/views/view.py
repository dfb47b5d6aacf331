"""What the Views tab's templates get: maps over an image, words, the lens and the meter."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from markupsafe import Markup
from PIL import Image

from app.blocks.tabs.html import percent, problem, render, scale
from app.blocks.tabs.images import listed
from app.blocks.tabs.views.charts import matrix, note
from app.blocks.tabs.views.outlines import Outline
from app.explain import heatmaps
from app.explain.collapse import Collapse, Reading
from app.explain.lens import Ranking
from app.explain.look import Look
from app.search.retriever import Retriever
from models import Method
from models.panel import Knob, Panel, Settings, view_names
from models.preprocess import Box

_FEW, _SOME = 4, 9  # views: so many are drawn large, so many smaller
_FEW_TEXT_VIEWS = 3  # views of a text that are written out
IMAGE_SIDE = 448  # pixels of the image under the maps


@dataclass(frozen=True)
class Shown:
    """The image under the maps.

    Attributes:
        image: RGB, any size.
        name: what visitors call it.
        seen: the part of it that the encoder sees, relative xyxy.
        outlines: what it is known to show.
        smooth: see `app.explain.maps.Under`.
    """

    image: Image.Image
    name: str
    seen: Box
    outlines: tuple[Outline, ...] = ()
    smooth: bool = True


def strip(retriever: Retriever, image_ids: Sequence[int], chosen: int | None) -> Markup:
    """Small images to choose from, as buttons."""
    images, trouble = listed(retriever, image_ids)
    return render("views/strip", images=images, chosen=chosen, trouble=trouble)


def maps(look: Look, method: Method, shown: Shown, *, alike: bool = False) -> Markup:
    """Every view's map over the image, with its score, and the mean and the maximum of all.

    Args:
        look: what there is to see.
        method: that was looked with.
        shown: the image.
        alike: the views are one, so that it says nothing which of them wins.
    """
    count = 0 if look.maps is None else len(look.maps)
    under = shown.image.copy()
    under.thumbnail((IMAGE_SIDE, IMAGE_SIDE))
    return render(
        "views/maps",
        maps=list(_maps(look, method, shown, alike)),
        size="few" if count <= _FEW else "some" if count <= _SOME else "many",
        under=heatmaps.data_uri(under, "WEBP"),
        shown=shown,
        mentioned=look.mentioned,
        named=dict.fromkeys(o.name for i, o in enumerate(shown.outlines) if i in look.mentioned),
        levels=[percent(level, 0) for level in heatmaps.LEVELS],
        scale=scale("0" if method.attention_sums_to_one else "0 or less",
                    "the highest cell of each map"),
        method=method,
        drawn_as=look.drawn_as,
        scored=look.view_scores is not None and count > 1,
    )  # fmt: skip


def _maps(look: Look, method: Method, shown: Shown, alike: bool) -> Iterator[dict[str, Any]]:
    """What is drawn of each map, and its label for those who do not see it."""
    if look.maps is None:
        return
    count, scores = len(look.maps), look.view_scores
    for view, values in enumerate(look.maps):
        name = "Map" if count == 1 else f"View {view + 1}"
        won = count > 1 and view == look.winner and not alike
        score = None if scores is None else float(scores[view])
        yield _map(name, values, shown, method, score, _verb(method) if won else "")
    if count > 1:
        yield _map("Mean of all views", look.maps.mean(0), shown, method)
        yield _map("Maximum of all views", look.maps.max(0), shown, method)


def _map(
    name: str,
    values: np.ndarray,
    shown: Shown,
    method: Method,
    score: float | None = None,
    wins: str = "",
) -> dict[str, Any]:
    row, column = divmod(int(values.argmax()), values.shape[1])
    peak = amount(float(values[row, column]), method)
    label = f"{name}: the highest of its cells, {peak}, is in row {row + 1}, column {column + 1}"
    label += "" if score is None else f"; score {score:.3f}"
    left, top, right, bottom = shown.seen
    return {
        "name": name,
        "label": f"{label}, it {wins}" if wins else label,
        "peak": peak,
        "score": score,
        "wins": wins,
        "box": f"left:{left:.2%};top:{top:.2%};width:{right - left:.2%};height:{bottom - top:.2%}",
        "smooth": heatmaps.data_uri(heatmaps.tile(values, smooth=shown.smooth)),
        "raw": heatmaps.data_uri(heatmaps.tile(values, smooth=False)),
        "lines": heatmaps.isolines(values),
    }


def amount(value: float, method: Method) -> str:
    """A value of a map, as what it is: a share or a cosine."""
    return percent(value) if method.attention_sums_to_one else f"{value:.2f}"


def winner(look: Look, method: Method) -> str:
    """Which view won, in words; nothing where there was none to win against."""
    if look.winner is None or len(look.similarity) == 1:
        return ""
    return f"view {look.winner + 1} of {len(look.similarity)} {_verb(method)}"


def knobs(known: Sequence[Knob], settings: Settings) -> Markup:
    """What a reader may change about the panels below; nothing where there is nothing."""
    read = [(knob, knob.read(settings)) for knob in known]
    return render("views/knobs", knobs=read) if known else Markup()


def words(look: Look, method: Method) -> Markup:
    """What each view of the text is made of: bars below the words, or a table of many views."""
    if not look.text.strip():
        return note("Type a sentence above to see which of its words count.")
    if look.word_maps is None:
        return note("This method has no attention over words to show.")
    count = len(look.word_maps)
    shares = method.attention_sums_to_one
    numbers = "shares of 1" if shares else "cosines of word and text"
    if count > _FEW_TEXT_VIEWS:
        panel = Panel(
            "matrix",
            "Words and text views",
            "",
            torch.from_numpy(look.word_maps.T),  # (M, W)
            look.words,
            view_names(count, "text view"),
            limits=(0.0 if shares else -1.0, 1.0),
        )
        return render("views/words", table=matrix(panel, name_rows=True), count=count, are=numbers)
    rows = [
        (
            f"text view {view + 1}" if count > 1 else "text",
            [
                (word, amount(value, method), share)
                for word, value, share in zip(
                    look.words, values.tolist(), heatmaps.relative(values[None])[0], strict=True
                )
            ],
        )
        for view, values in enumerate(look.word_maps)
    ]
    return render("views/words", table=None, rows=rows, are=numbers)


def lens(method_key: str, count: int) -> Markup:
    """A switch and a weight for each view.

    Args:
        method_key: changes whenever the switches belong to something else, and so begin anew.
        count: of views.
    """
    if count == 1:
        return note("This method makes one view of a picture; there is none to switch off.")
    return render("views/lens", method_key=method_key, count=count)


def ranking(retriever: Retriever, found: Ranking, subject: int | None, views: int) -> Markup:
    """What the lens finds, and how each image moved.

    Args:
        retriever: that was asked.
        found: what was found.
        subject: the image being looked at; None for an uploaded one.
        views: how many an image has.
    """
    facts = []
    if views > 1:
        facts.append(f"{found.stayed} of the first {len(found.hits)} are there without the lens")
    if subject is not None:  # of a clip, the lens may rank another frame
        files = retriever.index.files
        subject = next(iter(found.ids[found.ids % files == subject % files].tolist()), None)
    if ranks := found.ranks(subject):
        now, before = ranks
        was = "" if now == before else f", without the lens {before:,}"
        facts.append(f"the picture above has rank {now:,} of {len(found.ids):,}{was}")
    images, _ = listed(retriever, [hit.hit.image_id for hit in found.hits])
    remark = note(f"{'; '.join(facts)}.") if facts else ""
    return render("views/ranking", remark=remark, hits=found.hits, images=images, views=views)


def meter(reading: Reading, captioned: bool) -> Markup:
    """The view-collapse meter.

    Args:
        reading: what it says at the moment.
        captioned: whether the gallery has captions.
    """
    if reading.problem:
        return problem(reading.problem)
    result = reading.result
    no_wins = note(
        "Which views win is counted over captions written for the pictures, and "
        + (
            "none of its captions belongs to a picture that can be searched"
            if captioned
            else "this collection has none"
        )
        + ". Similarity and overlap need none."
    )
    return render(
        "views/meter",
        progress=reading.progress,
        result=result,
        gauges=() if result is None else tuple(_gauges(result)),
        many=result is not None and result.wins is not None and len(result.wins) > _FEW,
        no_wins=no_wins,
    )


def _gauges(result: Collapse) -> Iterator[tuple[str, float, str]]:
    """Numbers from 0 to 1, each with its name and what it is."""
    if result.similarity is not None:
        pairs = f"mean cosine between two views of a picture, over {result.images:,} pictures"
        yield "Similarity", result.similarity, pairs
        if result.overlap is not None:
            cells = "how much of two views' maps lies on the same cells, over "
            yield "Map overlap", result.overlap, f"{cells}{result.maps:,} pictures"


def _verb(method: Method) -> str:
    return "adds most" if method.views_add_up else "wins"
