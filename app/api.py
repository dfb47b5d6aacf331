"""The endpoints that answer with plain JSON, for `gradio_client`, curl and other programs.

An answer to a question that makes no sense is {"error": sentence}.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, cast

import gradio as gr
from gradio import processing_utils

from app.description import describe
from app.pictures import open_picture
from app.retriever import Hit, Retriever
from app.shelf import Shelf

MODEL_QUEUE = "model"  # the concurrency group of every event that runs a model
_P = ParamSpec("_P")


def add_endpoints(shelf: Shelf) -> None:
    """Adds /search_text, /search_image and /info to the Blocks being built.

    They search the pack the app was started with.
    """
    retriever = shelf.first
    default = retriever.default_method

    @_sentences
    def search_text(query: str, method: str = default, k: int = 10) -> dict[str, Any]:
        """Finds the pictures that fit a sentence best.

        Args:
            query: a sentence, up to 10,000 characters.
            method: one of the pack's methods, see /info.
            k: how many pictures, at least 1; more than 1,000 are not returned.
        """
        start = time.perf_counter()
        hits = retriever.search_text(query, method, k)
        return {
            "query": query,
            "method": method,
            "k": int(k),
            "hits": [hit_json(retriever, hit) for hit in hits],
            "remark": retriever.remark(query),
            "ms": _milliseconds(start),
        }

    @_sentences
    def search_image(image: dict, method: str = default, k: int = 10) -> dict[str, Any]:
        """Finds the captions and the pictures that fit a picture best.

        Args:
            image: an uploaded picture; with gradio_client, `handle_file(path)`.
            method: one of the pack's methods, see /info.
            k: how many of each, at least 1; more than 1,000 are not returned.
        """
        start = time.perf_counter()
        path, name = _uploaded(image)
        query = retriever.image_query(open_picture(path, name), method)
        captions = retriever.captions_for(query, method, k)
        images = retriever.images_for(query, method, k)
        return {
            "method": method,
            "k": int(k),
            "captions": [asdict(caption) for caption in captions],
            "images": [hit_json(retriever, hit) for hit in images],
            "ms": _milliseconds(start),
        }

    def info() -> dict[str, Any]:
        """Says what is being searched: pack, methods, gallery, device and providers in use."""
        return describe(retriever)

    for function in (search_text, search_image):
        gr.api(function, api_name=function.__name__, concurrency_id=MODEL_QUEUE)
    gr.api(info, api_name="info")


def hit_json(retriever: Retriever, hit: Hit) -> dict[str, Any]:
    """A hit with what is known about its picture."""
    picture = retriever.picture(hit.image_id)
    known = {"captions": list(picture.captions), "objects": list(picture.objects)}
    return {**asdict(hit), **{key: value for key, value in known.items() if value}}


def _sentences(function: Callable[_P, dict[str, Any]]) -> Callable[_P, dict[str, Any]]:
    """Turns the refusals of `function` into {"error": sentence}."""

    @wraps(function)
    def answer(*args: _P.args, **kwargs: _P.kwargs) -> dict[str, Any]:
        try:
            return function(*args, **kwargs)
        except (ValueError, FileNotFoundError) as error:
            return {"error": str(error)}

    return answer


def _uploaded(image: Any) -> tuple[Path, str]:
    """The path of an uploaded file and the name it had; nothing else on this machine is opened."""
    if not isinstance(image, dict) or not isinstance(image.get("path"), str):
        raise ValueError("there is no picture; upload one, with gradio_client by handle_file(path)")
    try:
        processing_utils.check_all_files_in_cache(cast(Any, image))
    except gr.Error as error:
        raise ValueError("the picture was not uploaded; upload it first") from error
    path = Path(image["path"])
    return path, Path(str(image.get("orig_name") or path.name)).name


def _milliseconds(start: float) -> float:
    return round((time.perf_counter() - start) * 1000, 1)
