"""A clip that is open: where it plays, and how its score goes over time."""

import json
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple
from urllib.parse import urlencode

from markupsafe import Markup

from app.blocks.tabs.evidence import split
from app.blocks.tabs.html import render
from app.blocks.tabs.images import Listed, clock, listed
from app.blocks.tabs.search.view import Result
from app.search.retriever import Retriever

_CLIPS = "api/v1/clip"  # where the app sends them, from the page on
_TOP, _BOTTOM = 12.0, 92.0  # of 100, where the highest and the lowest score lie


class Frame(NamedTuple):
    """A frame that was looked at.

    Attributes:
        image_id: of the collection.
        seconds: when it is shown.
        score: its own, or what it brings to that of the clip.
        words: of that, what it brings to each word, as the evidence beside the hits has them.
        address: of its thumbnail, where it is shown in the clip's place.
    """

    image_id: int
    seconds: float
    score: float
    words: tuple[float, ...] = ()
    address: str = ""


class Point(NamedTuple):
    """Where a frame lies on the timeline, per cent from the left and from the top."""

    x: float
    y: float


@dataclass(frozen=True)
class Clip:
    """What the panel of a clip is drawn from.

    Attributes:
        image: the frame by which it was found.
        address: where a browser fetches the clip; empty where it is not sent.
        image_id: of that frame.
        video: a browser can go to any second of it, unlike of an animation.
        frames: all that were looked at, in the order they are shown; none where nothing was asked.
        as_set: frames have no scores of their own.
    """

    image: Listed
    address: str
    image_id: int
    video: bool
    frames: tuple[Frame, ...] = ()
    as_set: bool = False

    @property
    def best(self) -> int:
        """The place of the frame by which it was found."""
        return next((i for i, one in enumerate(self.frames) if one.image_id == self.image_id), 0)

    @property
    def end(self) -> float:
        """Seconds that the timeline shows: half a step beyond the last frame."""
        first, last = self.frames[0].seconds, self.frames[-1].seconds
        return last + max((last - first) / max(1, len(self.frames) - 1) / 2, 0.05)

    def points(self) -> list[Point]:
        """Where each frame lies on the timeline."""
        scores = [frame.score for frame in self.frames]
        low, high = min(scores), max(scores)
        return [
            Point(
                round(100 * frame.seconds / self.end, 2),
                round(_BOTTOM - (_BOTTOM - _TOP) * (frame.score - low) / ((high - low) or 1), 2),
            )
            for frame in self.frames
        ]


def of(key: str, retriever: Retriever, found: Result, sent: bool) -> Clip:
    """The clip whose frame was found.

    Args:
        key: of the open pack; in the address, as another one's clip may have the same id.
        retriever: of that pack.
        found: the frame.
        sent: whether the app sends the clip, see `OpenPacks.sends_files`.

    Raises:
        ValueError: its question cannot be asked again.
    """
    frames: tuple[Frame, ...] = ()
    if found.rank and retriever.reads_sets:
        frames = _of_sets(retriever, found)
    elif found.rank:
        scores = retriever.timeline(found.image_id, found.question.terms(retriever), found.spec)
        frames = tuple(Frame(hit.image_id, hit.seconds or 0.0, hit.score) for hit in scores)
    where = f"{_CLIPS}/{found.image_id}" + (f"?{urlencode({'pack': key})}" if key else "")
    video = retriever.image(found.image_id).is_video
    address = where if sent else ""
    return Clip(found.image, address, found.image_id, video, frames, retriever.reads_sets)


def _of_sets(retriever: Retriever, found: Result) -> tuple[Frame, ...]:
    """The frames of all windows of a clip with their evidence; none where there is none."""
    rows = retriever.index.clips.rows(retriever.collection.file_id(found.image_id))
    try:
        seen = split(retriever, found.question.terms(retriever), found.spec, rows).over_time()
    except ValueError:  # the score cannot be split, or the terms cancel out
        return ()
    ids = [retriever.index.clips.read_with(row) for row in rows]
    images, _ = listed(retriever, list(chain(*ids)))
    frames = []
    for window, own in enumerate(ids):
        for place, image_id in enumerate(own):
            total, *words = (float(one[0, place]) for one in seen.maps(window))
            image = images[image_id]
            seconds = image.moment.seconds if image.moment else 0.0
            frames.append(Frame(image_id, seconds, total, tuple(words), image.address))
    return tuple(frames)


def panel(clip: Clip) -> Markup:
    """The player, and under it the timeline; see `clip.js`."""
    width, height = clip.image.size
    frames = clip.frames
    scores = [frame.score for frame in frames] or [0.0]
    return render(
        "search/clip",
        clip=clip,
        ratio=f"{width}/{height}",
        points=clip.points() if frames else [],
        facts=json.dumps(
            [
                (one.image_id, round(one.seconds, 3), round(one.score, 4), one.address)
                for one in frames
            ]
        ),
        words=json.dumps([[round(word, 4) for word in one.words] for one in frames]),
        scores=(min(scores), max(scores)),
        ends=f"{clip.end:.1f} s" if frames and clip.end < 60 else clock(clip.end if frames else 0),
    )
