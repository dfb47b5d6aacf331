"""/search_text, /search_image and /compare."""

from collections.abc import Callable
from dataclasses import asdict
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec

from app.blocks.server.uploads import named
from app.packs.columns import Columns
from app.packs.open_packs import OpenPacks
from app.search.answers import NOTHING_ASKED, Answer, answer
from app.search.comparison import as_json
from app.search.filters import Filters
from app.search.hits import Hit
from app.search.query import checked, describe, parse
from app.search.questions import Question
from app.search.retriever import Retriever

_LONGEST = 2000  # characters of a sentence, which may repeat what was sent
_P = ParamSpec("_P")


def endpoints(opened: OpenPacks) -> list[Callable[..., dict[str, Any]]]:
    """The functions behind the endpoints; see `app.blocks.api.endpoints`."""
    retriever = opened.first
    default = retriever.methods.best

    @sentences
    def search_text(
        query: str, method: str = default, k: int = 10, filters: dict[str, list[str]] | None = None
    ) -> dict[str, Any]:
        """Finds the pictures that fit words best.

        Args:
            query: a sentence, up to 10,000 characters; or several terms, "2: dog + beach - people",
                whose scores are multiplied by their weights and added. Signs have spaces around
                them, a weight stands before a colon.
            method: one of the pack's methods, see /info; or several joined by "+", whose scores are
                averaged.
            k: how many pictures, at least 1; more than 1,000 are not returned.
            filters: for each fact the values wanted, such as {"setting": ["beach", "sea"]}; only
                pictures that satisfy all facts are ranked. /info lists facts and values.

        Returns:
            hits, best first, each with the view that won, from 0 (the page shows them from 1), or
            null where no single one did;
            of a clip its best frame alone is one, shown at `seconds`, the clip's `frame` from 0:
            its `image_id` is that frame's, also for /explain; both are null for still pictures.
            Where the method reads a clip as a whole, it is the frame that adds most to the score.
            `satisfies` says whether it is known to satisfy the query, where that is a caption of
            the gallery. `probability` says how probable a hit is to satisfy the query, and
            `matches` whether anything does; null for several terms and methods, and where the
            pack cannot tell. `unknown` names words that the pack does not know, each with the known
            one that it is `read_as`, or null and those that are spelled alike. `terms` and
            `read_as` say how the query was read, `searched` how many pictures were ranked, `exact`
            whether none that scores more can be missing.
        """
        wanted = None if filters is None else Filters.of(retriever.collection, filters)
        found = answer(retriever, Question("words", words=query), method, k, wanted)
        right = found.satisfying
        hits = [
            hit_json(retriever, hit)
            | {"probability": probability}
            | ({"satisfies": retriever.collection.file_id(hit.image_id) in right} if right else {})
            for hit, probability in zip(found.hits, found.probabilities, strict=True)
        ]
        caveat = found.found.caveat
        remarks = (caveat if found.found.terms else NOTHING_ASKED, found.remark)
        return {
            "query": query,
            **_asked(found, method),
            "terms": [{"words": term.words, "weight": term.weight} for term in found.asked],
            "exact": not caveat,
            "matches": found.matches,
            "unknown": [asdict(word) for word in found.unknown],
            "hits": hits,
            "remark": " ".join(filter(None, remarks)),
        }

    @sentences
    def search_image(
        image: dict | str,
        method: str = default,
        k: int = 10,
        words: str = "",
        weight: float = 1.0,
        filters: dict[str, list[str]] | None = None,
    ) -> dict[str, Any]:
        """Finds the captions and the pictures that fit a picture best, or a picture and words.

        Args:
            image: an uploaded picture; with gradio_client, `handle_file(path)`. Or the picture
                itself as a data URI, "data:image/png;base64,...", of at most 1 MB.
            method: one of the pack's methods, see /info; or several joined by "+".
            k: how many of each, at least 1; more than 1,000 are not returned.
            words: read as by /search_text and added to the picture's scores; may be empty.
            weight: what the picture's scores are multiplied by where there are words.
            filters: as for /search_text; captions are not filtered.

        Returns:
            images, and captions where a picture alone was asked about; `unfamiliar` says whether
            the picture is unlike those that the pack was trained on, null where it cannot tell.
        """
        path, name = named(image)
        wanted = None if filters is None else Filters.of(retriever.collection, filters)
        question = Question("upload", words, str(path), weight=weight, name=name)
        found = answer(retriever, question, method, k, wanted)
        return {
            **_asked(found, method),
            "unfamiliar": found.unfamiliar,
            "captions": [asdict(caption) for caption in found.found.captions[: found.k]],
            "images": [hit_json(retriever, hit) for hit in found.hits],
        }

    @sentences
    def compare(query: str, methods: list[str], k: int = 10) -> dict[str, Any]:
        """Ranks the pictures for one query by several methods and says how far they agree.

        Answers with the columns (each with its hits, the rank of every right picture where the
        query is a caption of the gallery, and milliseconds), overlap@k and Kendall's tau-b between
        all columns, and the pictures that one column alone found.

        Args:
            query: words, a sentence or several terms such as "2: dog + beach - people".
            methods: 2 to 8 methods of the pack, see /info; "a+b" averages the scores of two or
                more, and "pack/a" is a method of another open pack over the same pictures.
            k: how many pictures each column lists, 1 to 100.
        """
        columns = Columns(opened, "")
        comparison = columns.ask(parse(checked(query)), methods, k)
        images = {image_id: columns.home.image(image_id) for image_id in comparison.ranks}
        known = {
            image_id: {"file": image.file, "captions": list(image.captions)}
            | (asdict(image.moment) if image.moment else {})
            for image_id, image in images.items()
        }
        return as_json(comparison, known)

    return [search_text, search_image, compare]


def hit_json(retriever: Retriever, hit: Hit) -> dict[str, Any]:
    """A hit with what is known about its image."""
    image = retriever.image(hit.image_id)
    known = {"captions": list(image.captions), "objects": list(image.objects)}
    return {**vars(hit), **{key: value for key, value in known.items() if value}}


def sentences(function: Callable[_P, dict[str, Any]]) -> Callable[_P, dict[str, Any]]:
    """Turns the refusals of `function` into {"error": sentence}."""

    @wraps(function)
    def answer(*args: _P.args, **kwargs: _P.kwargs) -> dict[str, Any]:
        try:
            return function(*args, **kwargs)
        except ValueError as error:
            return {"error": str(error)[:_LONGEST]}
        except FileNotFoundError as error:
            return {"error": gone(error)}

    return answer


def gone(error: FileNotFoundError) -> str:
    """What is said of a file that is missing; the error's own words say where it was."""
    return f"{Path(error.filename or 'a file').name} is not there any more"


def _asked(found: Answer, method: str) -> dict[str, Any]:
    """What both searches say of how they were understood."""
    return {
        "read_as": ", ".join(describe(found.asked, found.image)),
        "method": method,
        "k": found.k,
        "filters": found.filters.wanted,
        "searched": found.found.searched,
        "ms": round(found.ms, 1),
    }
