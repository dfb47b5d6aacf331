"""/views and /lens."""

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from app.blocks.api.search import hit_json, sentences
from app.explain.lens import rank
from app.explain.look import look
from app.packs.open_packs import OpenPacks
from app.search.answers import remark
from app.search.retriever import Retriever
from models.panel import Panel

_DIGITS = 5


def endpoints(opened: OpenPacks) -> list[Callable[..., dict[str, Any]]]:
    """The functions behind the endpoints."""
    retriever = opened.first
    default = retriever.methods.best

    @sentences
    def views(image_id: int, method: str = default, text: str = "") -> dict[str, Any]:
        """Looks inside one picture: every view's map, and with a text every view's score.

        Args:
            image_id: a picture of the gallery, counted from 0.
            method: one of the pack's methods, see /info.
            text: a sentence to look at beside it, or none.
        """
        return _views(retriever, image_id, method, text)

    @sentences
    def lens(query: str, method: str, weights: list[float], k: int = 10) -> dict[str, Any]:
        """Finds pictures while some of their views count less, or not at all.

        Args:
            query: a sentence, up to 10,000 characters.
            method: one of the pack's methods, see /info.
            weights: one number from 0 (off) to 1 for each view of a picture, not all 0.
            k: how many pictures, at least 1; more than 1,000 are not returned.
        """
        start = time.perf_counter()
        found = rank(retriever, query, method, weights, k)
        hits = [{**hit_json(retriever, hit.hit), "before": hit.before} for hit in found.hits]
        return {
            "query": query,
            "method": method,
            "weights": list(weights),
            "searched": len(found.ids),
            "stayed": found.stayed,
            "hits": hits,
            "remark": remark(retriever, query),
            "ms": _milliseconds(start),
        }

    return [views, lens]


def _views(retriever: Retriever, image_id: Any, name: str, text: str) -> dict[str, Any]:
    start = time.perf_counter()
    whole = isinstance(image_id, int) or (isinstance(image_id, float) and image_id.is_integer())
    if isinstance(image_id, bool) or not whole:
        raise ValueError(f"image_id must be a whole number, not {image_id!r:.80}")
    if not isinstance(text, str):
        raise ValueError(f"the text must be a text, not {type(text).__name__}")
    method, image = retriever.methods.one(name), retriever.image(int(image_id))
    seen = look(retriever, image.image_id, name, text)
    maps = [None] * len(seen.similarity) if seen.maps is None else [_list(m) for m in seen.maps]
    views: list[dict[str, Any]] = [{"view": v, "attention": m} for v, m in enumerate(maps)]
    answer: dict[str, Any] = {
        "image_id": image.image_id,
        "file": image.file,
        "method": name,
        "grid": list(retriever.grid if seen.maps is None else seen.maps.shape[1:]),
        "attention_is": method.attention_is,
        "attention_sums_to_one": method.attention_sums_to_one,
        "views": views,
        "similarity": _list(seen.similarity),
        "inside": [_panel(panel) for panel in seen.panels],
    }
    if seen.view_scores is not None:
        for view, score in zip(views, seen.view_scores.tolist(), strict=True):
            view["score"] = round(score, _DIGITS)
        answer |= {
            "text": text,
            "score": round(seen.score or 0.0, _DIGITS),
            "view_scores_are": method.view_scores_are,
            "winner": seen.winner,
            "words": list(seen.words),
            "word_attention": None if seen.word_maps is None else _list(seen.word_maps),
            "text_similarity": _list(seen.text_similarity),
            "mentioned": sorted(seen.mentioned),
            "remark": remark(retriever, text),
        }
    return {**answer, "ms": _milliseconds(start)}


def _panel(panel: Panel) -> dict[str, Any]:
    """A panel as JSON; see `Panel` for what the keys mean."""
    return {
        "kind": panel.kind,
        "title": panel.title,
        "meaning": panel.meaning,
        "values": _list(panel.values.float().cpu().numpy()),
        "rows": list(panel.rows),
        "columns": list(panel.columns),
        "marks": [list(mark) for mark in panel.marks],
    }


def _list(values: np.ndarray | None) -> Any:
    """Numbers as nested lists, rounded."""
    return None if values is None else np.round(values.astype(np.float64), _DIGITS).tolist()


def _milliseconds(start: float) -> float:
    """Milliseconds since a reading of `time.perf_counter`, to a tenth."""
    return round((time.perf_counter() - start) * 1000, 1)
