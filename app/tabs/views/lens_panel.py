"""The view lens as HTML: a switch and a weight for each view, and what is found."""

from __future__ import annotations

from app.lens import LensHit, Ranking
from app.panels import text
from app.retriever import Retriever
from app.tabs.views.panel import note, thumbnail


def lens(method_key: str, count: int) -> str:
    """A switch and a weight for each view.

    Args:
        method_key: changes whenever the switches belong to something else, and so begin anew.
        count: of views.
    """
    if count == 1:
        return note("This method makes one view of a picture; there is none to switch off.")
    rows = "".join(
        f'<div class="pv-v-lens-view" data-view="{view}"><label><input type="checkbox" checked>'
        f"View {view + 1}</label>"
        f'<input type="range" min="0" max="1" step="0.05" value="1" '
        f'aria-label="Weight of view {view + 1}"><output>1.00</output>'
        f'<button type="button" data-only aria-label="Only view {view + 1}">only</button></div>'
        for view in range(count)
    )
    return (
        f'<div class="pv-v-lens" data-for="{text(method_key)}">{rows}</div>'
        '<button type="button" class="pv-v-plain" data-all>All views on</button>'
    )


def ranking(retriever: Retriever, found: Ranking, subject: int | None, views: int) -> str:
    """What the lens finds, and how each picture moved."""
    facts = []
    if views > 1:
        facts.append(f"{found.stayed} of the first {len(found.hits)} are there without the lens")
    if subject is not None and subject in found.ranks:
        now, before = found.ranks[subject]
        was = "" if now == before else f", without the lens {before:,}"
        facts.append(f"the picture above has rank {now:,} of {found.searched:,}{was}")
    said = "; ".join(facts)
    items = "".join(_lens_hit(retriever, hit, views) for hit in found.hits)
    return (note(f"{said}.") if said else "") + f'<ol class="pv-v-lens-hits">{items}</ol>'


def _lens_hit(retriever: Retriever, found: LensHit, views: int) -> str:
    hit = found.hit
    if found.moved > 0:
        moved = f'<span class="pv-v-up" title="was {found.before}">▲ {found.moved:,}</span>'
    elif found.moved < 0:
        moved = f'<span class="pv-v-down" title="was {found.before}">▼ {-found.moved:,}</span>'
    else:
        moved = '<span class="pv-v-same" title="did not move">=</span>'
    view = f"<span>view {hit.view + 1}</span>" if views > 1 and hit.view is not None else ""
    return (
        f'<li><button type="button" data-picture="{hit.image_id}" '
        f'title="Look at this picture">{thumbnail(retriever, hit.image_id)}</button>'
        f'<p><strong>{hit.rank}</strong>{moved}</p><p class="pv-v-small">{hit.score:.3f} {view}</p>'
        "</li>"
    )
