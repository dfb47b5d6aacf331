"""What the endpoints share: refusals as sentences, uploads, hits as JSON."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import asdict
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, cast

import gradio as gr
from gradio import processing_utils

from app.retriever import Hit, Retriever

MODEL_QUEUE = "model"  # the concurrency group of every event that runs a model
_P = ParamSpec("_P")


def hit_json(retriever: Retriever, hit: Hit) -> dict[str, Any]:
    """A hit with what is known about its picture."""
    picture = retriever.picture(hit.image_id)
    known = {"captions": list(picture.captions), "objects": list(picture.objects)}
    return {**asdict(hit), **{key: value for key, value in known.items() if value}}


def sentences(function: Callable[_P, dict[str, Any]]) -> Callable[_P, dict[str, Any]]:
    """Turns the refusals of `function` into {"error": sentence}."""

    @wraps(function)
    def answer(*args: _P.args, **kwargs: _P.kwargs) -> dict[str, Any]:
        try:
            return function(*args, **kwargs)
        except ValueError as error:
            return {"error": str(error)}
        except FileNotFoundError as error:  # whose own words say where it was
            return {"error": f"{Path(error.filename or 'a file').name} is not there any more"}

    return answer


def uploaded(image: Any) -> tuple[Path, str]:
    """The path of an uploaded file and the name it had; nothing else on this machine is opened."""
    if not isinstance(image, dict) or not isinstance(image.get("path"), str):
        raise ValueError("there is no picture; upload one, with gradio_client by handle_file(path)")
    try:
        processing_utils.check_all_files_in_cache(cast(Any, image))
    except gr.Error as error:
        raise ValueError("the picture was not uploaded; upload it first") from error
    path = Path(image["path"])
    return path, Path(str(image.get("orig_name") or path.name)).name


def milliseconds(start: float) -> float:
    """Milliseconds since a reading of `time.perf_counter`, to a tenth."""
    return round((time.perf_counter() - start) * 1000, 1)
