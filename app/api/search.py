"""/search_text, /search_image and /info."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any

import gradio as gr

from app.api.replies import MODEL_QUEUE, hit_json, milliseconds, sentences, uploaded
from app.asking import NOTHING_ASKED
from app.description import describe
from app.filters import allowed, offered
from app.filters import checked as checked_filters
from app.pictures import open_picture
from app.query import Term, checked, checked_weight, parse
from app.query import describe as read_as
from app.retriever import Retriever
from app.shelf import Shelf


def add(shelf: Shelf) -> None:
    """Adds the endpoints to the Blocks being built."""
    retriever = shelf.first
    default = retriever.default_method

    @sentences
    def search_text(
        query: str,
        method: str = default,
        k: int = 10,
        filters: dict[str, list[str]] | None = None,
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
            hits, best first, each with the view that won, from 0, or null where no single one did;
            `satisfies` says whether it is known to satisfy the query, where that is a caption of
            the gallery. `terms` and `read_as` say how the query was read, `searched` how many
            pictures were ranked, `exact` whether none that scores more can be missing.
        """
        start = time.perf_counter()
        terms = parse(checked(query))
        wanted, only = _narrowed(retriever, filters)
        question = retriever.question(terms, method)
        hits = retriever.find(question, k, only).hits
        caveat = retriever.caveat(question, only)
        satisfying = retriever.satisfying(query)
        remarks = [caveat if question.terms else NOTHING_ASKED]
        remarks.append(retriever.remark(*(term.words for term in terms)))
        return {
            "query": query,
            "read_as": ", ".join(read_as(terms)),
            "terms": [{"words": term.words, "weight": term.weight} for term in terms],
            "method": method,
            "k": int(k),
            "filters": wanted,
            "searched": retriever.searchable(method, only),
            "exact": not caveat,
            "hits": [hit_json(retriever, hit) | _truth(satisfying, hit.image_id) for hit in hits],
            "remark": " ".join(filter(None, remarks)),
            "ms": milliseconds(start),
        }

    @sentences
    def search_image(
        image: dict,
        method: str = default,
        k: int = 10,
        words: str = "",
        weight: float = 1.0,
        filters: dict[str, list[str]] | None = None,
    ) -> dict[str, Any]:
        """Finds the captions and the pictures that fit a picture best, or a picture and words.

        Args:
            image: an uploaded picture; with gradio_client, `handle_file(path)`.
            method: one of the pack's methods, see /info; or several joined by "+".
            k: how many of each, at least 1; more than 1,000 are not returned.
            words: read as by /search_text and added to the picture's scores; may be empty.
            weight: what the picture's scores are multiplied by where there are words.
            filters: as for /search_text; captions are not filtered.

        Returns:
            images, and captions where a picture alone was asked about.
        """
        start = time.perf_counter()
        path, name = uploaded(image)
        wanted, only = _narrowed(retriever, filters)
        picture = open_picture(path, name)
        terms = [Term(image=picture)]
        if not isinstance(words, str) or words.strip():
            terms = [Term(image=picture, weight=checked_weight(weight)), *parse(checked(words))]
        question = retriever.question(terms, method)
        captions = retriever.find_captions(question, k) if len(terms) == 1 else []
        hits = retriever.find(question, k, only).hits
        return {
            "read_as": ", ".join(read_as(terms, name)),
            "method": method,
            "k": int(k),
            "filters": wanted,
            "searched": retriever.searchable(method, only),
            "captions": [asdict(caption) for caption in captions],
            "images": [hit_json(retriever, hit) for hit in hits],
            "ms": milliseconds(start),
        }

    def info() -> dict[str, Any]:
        """Says what is being searched: pack, methods, gallery, device and providers in use."""
        return {**describe(retriever), "facts": offered(retriever.collection)}

    for function in (search_text, search_image):
        gr.api(function, api_name=function.__name__, concurrency_id=MODEL_QUEUE)
    gr.api(info, api_name="info")


def _narrowed(
    retriever: Retriever, filters: Any
) -> tuple[dict[str, list[str]], frozenset[int] | None]:
    """Filters as they were understood, and the pictures they leave; None leaves all."""
    wanted = checked_filters(retriever.collection, filters)
    return wanted, allowed(retriever.collection, wanted)


def _truth(satisfying: frozenset[int], image_id: int) -> dict[str, bool]:
    return {"satisfies": image_id in satisfying} if satisfying else {}
