"""/search_text, /search_image and /info."""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any

import gradio as gr

from app.api.replies import MODEL_QUEUE, hit_json, milliseconds, sentences, uploaded
from app.description import describe
from app.pictures import open_picture
from app.shelf import Shelf


def add(shelf: Shelf) -> None:
    """Adds the endpoints to the Blocks being built."""
    retriever = shelf.first
    default = retriever.default_method

    @sentences
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
            "ms": milliseconds(start),
        }

    @sentences
    def search_image(image: dict, method: str = default, k: int = 10) -> dict[str, Any]:
        """Finds the captions and the pictures that fit a picture best.

        Args:
            image: an uploaded picture; with gradio_client, `handle_file(path)`.
            method: one of the pack's methods, see /info.
            k: how many of each, at least 1; more than 1,000 are not returned.
        """
        start = time.perf_counter()
        path, name = uploaded(image)
        query = retriever.image_query(open_picture(path, name), method)
        captions = retriever.captions_for(query, method, k)
        images = retriever.images_for(query, method, k)
        return {
            "method": method,
            "k": int(k),
            "captions": [asdict(caption) for caption in captions],
            "images": [hit_json(retriever, hit) for hit in images],
            "ms": milliseconds(start),
        }

    def info() -> dict[str, Any]:
        """Says what is being searched: pack, methods, gallery, device and providers in use."""
        return describe(retriever)

    for function in (search_text, search_image):
        gr.api(function, api_name=function.__name__, concurrency_id=MODEL_QUEUE)
    gr.api(info, api_name="info")
