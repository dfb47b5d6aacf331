"""The images of the grid, from the hits of an answer."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from app.blocks.tabs.images import listed
from app.blocks.tabs.search import view
from app.blocks.tabs.search.question import has_several_views, looked_for
from app.blocks.tabs.search.view import Result
from app.explain.collapse import Meters
from app.search import links
from app.search.answers import Answer, answer
from app.search.filters import Filters
from app.search.questions import Question, instead
from app.search.retriever import MAX_HITS, Retriever

_NARROWEST, _WIDEST = 0.56, 3.0  # width / height of an image's place


def results(
    retriever: Retriever,
    meters: Meters,
    answered: Answer,
    places: Sequence[int],
    method: str,
    before: Sequence[Result] = (),
) -> tuple[list[Result], str]:
    """The hits in some places of an answer; images that are gone are left out.

    Args:
        retriever: of the pack.
        meters: tell whether the views of an image differ.
        answered: the answer.
        places: of its hits.
        method: that found them.
        before: what is shown already, of which some may be nearly the same.

    Returns:
        Also what is wrong with the disk, where images are missing because of it.
    """
    hits = [answered.hits[place] for place in places]
    images, trouble = listed(retriever, [hit.image_id for hit in hits])
    several = has_several_views(retriever, method) and not meters.collapsed(retriever, method)
    found, words = [], looked_for(answered.question)
    captions = retriever.best_captions(words, [hit.image_id for hit in hits], method)
    for place, hit in zip(places, hits, strict=True):
        image = images[hit.image_id]
        if image.thumbnail is None:
            continue
        result = Result(
            hit.image_id,
            replace(image, best=captions.get(hit.image_id, "")),
            method,
            hit.rank,
            hit.score,
            hit.view,
            several,
            retriever.collection.file_id(hit.image_id) in answered.satisfying,
            answered.terms,
            {name: tuple(won[:, place].tolist()) for name, won in answered.winners.items()},
            words,
            answered.question,
            ratio=round(min(max(image.size[0] / image.size[1], _NARROWEST), _WIDEST), 3),
            probability=answered.probabilities[place],
        )
        found.append(result)
    return view.folded(before, found), trouble


def result_of(
    retriever: Retriever, meters: Meters, answered: Answer, method: str, image_id: int | None
) -> Result | None:
    """An image among the hits, however far down it is; None where it is no hit."""
    if image_id is None:
        return None
    file_id = retriever.collection.file_id  # of a clip, another method may find another frame
    if all(file_id(hit.image_id) != file_id(image_id) for hit in answered.hits):
        answered = answer(retriever, answered.question, method, MAX_HITS, answered.filters)
    places = [
        i for i, hit in enumerate(answered.hits) if file_id(hit.image_id) == file_id(image_id)
    ]
    return next(iter(results(retriever, meters, answered, places, method)[0]), None)


def chosen_of(shown: Sequence[Result], picked: Any) -> list[Result]:
    """Those of the images that were picked, in their order; `picked` is anything from the page."""
    return [one for one in shown if isinstance(picked, list) and one.image_id in picked]


def has_more(answered: Answer) -> bool:
    """Whether more images than these can be shown."""
    return len(answered.hits) < min(answered.found.searched, MAX_HITS) and bool(answered.asked)


def meant(
    question: Question, method: str, wanted: Filters, answered: Answer
) -> list[tuple[str, str]]:
    """Known words that unknown ones may stand for, and the address that asks with each."""
    return [
        (known, f"?{query}")
        for unknown in answered.unknown
        for known in unknown.nearest
        if (query := links.write(instead(question, unknown.word, known), method, wanted))
    ]
