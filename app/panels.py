"""The app's own pieces of HTML. Whatever comes from outside passes through `text` first."""

from __future__ import annotations

import html
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import numpy as np

from app.heatmaps import colour
from app.retriever import CaptionHit

THUMBNAILS = "thumbnails"  # where the app serves them
# Besides HTML's own characters, those that the template languages of gr.HTML give a meaning.
TEMPLATE_SIGNS = str.maketrans(
    {"{": "&#123;", "}": "&#125;", "$": "&#36;", "`": "&#96;", "\\": "&#92;"}
)

_DIRECTIONS = {"i2t_": "picture to text", "t2i_": "text to picture"}
_METRICS = {
    "r1": "R@1",
    "r5": "R@5",
    "r10": "R@10",
    "medr": "median rank",
    "nmr": "median rank, of the gallery",
    "meanr": "mean rank",
    "rprecision": "R-precision",
    "map_at_r": "mAP@R",
}
_OF_BOTH = {
    "rsum": ("rsum", ""),
    "pointing": ("the winning view points at a mentioned object for", " % of captions"),
    "pointing_chance": ("by chance for", " %"),
    "view_cosine": ("mean cosine between the views of a picture", ""),
}
_MARK = (
    '<svg viewBox="0 0 32 32" width="30" height="30" aria-hidden="true">'
    '<rect x="2" y="9" width="15" height="15" rx="4" fill="#0f766e"/>'
    '<rect x="8" y="4" width="15" height="15" rx="4" fill="#14b8a6" fill-opacity=".8"/>'
    '<rect x="14" y="12" width="15" height="15" rx="4" fill="#f5b942" fill-opacity=".85"/></svg>'
)


def text(value: object) -> str:
    """A value as text that cannot be anything but text.

    >>> text("<b>{{x}}</b>")
    '&lt;b&gt;&#123;&#123;x&#125;&#125;&lt;/b&gt;'
    """
    return html.escape(str(value)).translate(TEMPLATE_SIGNS)


def thumbnail_address(thumbnail: Path) -> str:
    """Where a browser fetches a thumbnail; relative to the page, it also holds behind a proxy."""
    return f"{THUMBNAILS}/{quote(thumbnail.name)}"


def header(info: dict[str, Any]) -> str:
    """The top line: the product, the pack, and how far its gallery is."""
    gallery = info["gallery"]
    facts = f"{text(info['pack']['title'])} · {text(info['device'].upper())}"
    state = gallery["state"]
    if state == "ready":
        return _top(facts, f'<span class="pv-dot"></span>{gallery["searchable"]:,} pictures')
    dot = {"failed": "pv-bad", "stopped": "pv-rest"}.get(state, "pv-busy")
    return _top(facts, f'<span class="pv-dot {dot}"></span>{text(gallery["progress"])}')


def _top(facts: str, state: str) -> str:
    return (
        f'<header class="pv-top"><div class="pv-brand">{_MARK}<h1>Polyview</h1></div>'
        f'<div class="pv-facts"><span>{facts}</span>'
        f'<span class="pv-pill" role="status">{state}</span></div></header>'
    )


def line(main: str, *details: str) -> str:
    """What is shown below: a main statement and smaller details, all plain text."""
    small = "".join(f"<span>{text(detail)}</span>" for detail in details if detail)
    return f'<p class="pv-line" role="status"><strong>{text(main)}</strong>{small}</p>'


def problem(sentence: str) -> str:
    """A sentence about what went wrong and how to mend it."""
    first = sentence.split(maxsplit=1)[0] if sentence.strip() else ""
    named = "." in first or "/" in first  # a file's name, or a repository's
    shown = sentence if named else sentence[:1].upper() + sentence[1:]
    return f'<p class="pv-problem" role="alert">{text(shown)}</p>'


def caption_hits(hits: Sequence[CaptionHit]) -> str:
    """Found captions, best first, with their scores."""
    if not hits:
        return ""
    rows = "".join(
        f'<li><span class="pv-score">{hit.score:.3f}</span>{text(hit.text)}</li>' for hit in hits
    )
    return f'<section class="pv-captions"><h3>Captions that fit</h3><ol>{rows}</ol></section>'


def invitation() -> str:
    """What the panel says before a picture was chosen."""
    return (
        f'<div class="pv-invite">{_MARK}<h3>Look inside</h3>'
        "<p>Choose a picture to see which parts of it the method's embedding is made of.</p></div>"
    )


def legend(label: str) -> str:
    """The colour scale and the sentence that says what the map is."""
    stops = ", ".join(f"rgb{tuple(rgb)}" for rgb in colour(np.linspace(0, 1, 8)).tolist())
    return (
        '<div class="pv-legend"><div class="pv-scale"><span>none</span>'
        f'<i style="background:linear-gradient(90deg, {stops})"></i><span>most</span></div>'
        f"<p>{text(label)}</p>"
        "<p>It shows what the embedding is made of, not where an object is.</p></div>"
    )


def own_captions(captions: Sequence[str]) -> str:
    """The captions that were written for one picture."""
    if not captions:
        return ""
    rows = "".join(f"<li>{text(caption)}</li>" for caption in captions)
    return f'<section class="pv-captions"><h3>Its captions</h3><ul>{rows}</ul></section>'


def pack_card(info: dict[str, Any]) -> str:
    """The pack: what it is, who made it, and where it runs."""
    pack, encoder, gallery = info["pack"], info["image_encoder"], info["gallery"]
    rows, columns = encoder["grid"]
    size = encoder["size"]
    came = pack["from"]
    known = {} if came is None else {"From the Hub": f"{came['repository']}@{came['commit']}"}
    facts = {
        **known,
        "Licence": pack["licence"],
        "Credits": pack["credits"],
        "Size": megabytes(pack["bytes"]),
        "Image encoder": f"{size} x {size} pixels to {rows} x {columns} cells of "
        f"{encoder['dim']} numbers, {megabytes(encoder['bytes'])}",
        "Pictures": f"{gallery['title']}: {gallery['progress']}",
        "Device in use": info["device"],
        "ONNX providers in use": ", ".join(info["providers"]),
    }
    rows_html = "".join(f"<dt>{text(k)}</dt><dd>{text(v)}</dd>" for k, v in facts.items())
    return (
        f'<section class="pv-card"><h2>{text(pack["title"])}</h2>'
        f"<p>{text(pack['description'])}</p><dl>{rows_html}</dl></section>"
    )


def method_cards(info: dict[str, Any]) -> str:
    """One card for each method of the pack."""
    cards = "".join(_method_card(name, method) for name, method in info["methods"].items())
    return f'<div class="pv-cards">{cards}</div>'


def left_out(gallery: dict[str, Any]) -> str:
    """The files that were skipped, and why, and copies; nothing where there are none."""
    reasons = [refusal["reason"] for refusal in gallery["refused"]]
    copies = [f"{copy['file']} is the same as {copy['same_as']}" for copy in gallery["copies"]]
    skipped, same = gallery["refused_count"], gallery["copies_count"]
    return _files("One file was skipped", f"{skipped:,} files were skipped", skipped, reasons) + (
        _files("One copy is left out", f"{same:,} copies are left out", same, copies)
    )


def megabytes(size: int) -> str:
    """A size in bytes for people.

    >>> megabytes(1_234_567)
    '1.2 MB'
    """
    return f"{size / 1e6:.1f} MB" if size >= 100_000 else f"{size / 1e3:.1f} kB"


def _files(one: str, many: str, count: int, sentences: Sequence[str]) -> str:
    if not count:
        return ""
    rows = "".join(f"<li>{text(sentence)}</li>" for sentence in sentences)
    return (
        f'<details class="pv-card pv-refused"><summary>{one if count == 1 else many}</summary>'
        f"<ul>{rows}</ul></details>"
    )


def _method_card(name: str, method: dict[str, Any]) -> str:
    views = method["views"]
    shape = f"{views} x {method['dim']}" if views else "not known before a picture is read"
    facts = {
        "Name in the API": name,
        "Views x dimensions": shape,
        "Parameters of the heads": f"{method['head_parameters']:,}",
        "Text encoder": megabytes(method["text_encoder_bytes"]),
        "Heads": megabytes(method["head_bytes"]),
        "Search": method["search"]["caveat"] or "exact",
        "Embeddings": f"{method['search']['kept_as']}, {megabytes(method['search']['bytes'])}",
        "ONNX against torch": _parity(method["parity"]),
    }
    rows = "".join(f"<dt>{text(k)}</dt><dd>{text(v)}</dd>" for k, v in facts.items())
    return (
        f'<section class="pv-card"><h3>{text(method["title"])}</h3>'
        f'<p class="pv-paper">{text(method["paper"])}</p><dl>{rows}</dl>'
        f"{_metrics(method['metrics'])}</section>"
    )


def _parity(parity: dict[str, float | bool]) -> str:
    """How exact the export was, see `export/parity.py`."""
    ranking = "same ranking" if parity["ranking"] else "different ranking"
    same_first = f"{parity['fp16_ranking']:.1%}".replace("%", " %")
    return (
        f"at most {_short(parity['numbers'])} apart, {ranking}; "
        f"rounding to fp16 kept the first hit of {same_first} of the queries"
    )


def _metrics(metrics: dict[str, Any] | None) -> str:
    if metrics is None:
        return '<p class="pv-none">Not measured yet.</p>'
    seed = "of unknown seed" if metrics["seed"] is None else f"seed {metrics['seed']}"
    return (
        f"<h4>Measured on its {text(metrics['split'])} split</h4>"
        f"{_metric_table(metrics['values'])}"
        f"<p><code>{text(metrics['command'])}</code></p>"
        f'<p class="pv-paper">{text(metrics["hardware"])}, {text(seed)}</p>'
    )


def _metric_table(values: dict[str, float]) -> str:
    """A column for each direction of retrieval, and what belongs to both below."""
    measured = dict.fromkeys(
        key.removeprefix(direction)
        for direction in _DIRECTIONS
        for key in values
        if key.startswith(direction)
    )
    head = "".join(f"<th>{title}</th>" for title in _DIRECTIONS.values())
    body = "".join(
        f"<tr><th>{text(_METRICS.get(key, key))}</th>"
        + "".join(f"<td>{_reached(values.get(way + key), key)}</td>" for way in _DIRECTIONS)
        + "</tr>"
        for key in measured
    )
    both = ", ".join(
        f"{title} {_reached(values[key], key)}{unit}"
        for key, (title, unit) in _OF_BOTH.items()
        if key in values
    )
    return (
        f'<table class="pv-numbers"><tr><th></th>{head}</tr>{body}</table>'
        f'<p class="pv-both">{both}</p>'
    )


def _reached(value: float | None, key: str = "") -> str:
    if value is None:
        return ""
    if key == "nmr":
        return f"{value:.2%}".replace("%", " %")
    return f"{value:.3f}" if key == "view_cosine" else f"{value:.1f}"


def _short(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.1e}" if 0 < abs(value) < 1e-3 else f"{value:.4g}"
    return str(value)
