"""The view-collapse meter as HTML."""

from __future__ import annotations

from app.collapse import Collapse, Reading
from app.panels import problem, text
from app.tabs.views.panel import note

_FEW = 4  # views whose wins fit one column


def meter(reading: Reading, captioned: bool) -> str:
    """The view-collapse meter.

    Args:
        reading: what it says at the moment.
        captioned: whether the gallery has captions.
    """
    if reading.problem:
        return problem(reading.problem)
    if reading.result is None:
        return (
            '<div class="pv-v-meter pv-v-busy" role="status"><span class="pv-dot pv-busy"></span>'
            f"The views are being compared: {text(reading.progress)} …</div>"
        )
    result = reading.result
    return (
        f'<div class="pv-v-meter"><p class="pv-v-verdict" role="status">{text(result.verdict)}</p>'
        f"{_meter_numbers(result)}{_wins(result, captioned)}</div>"
    )


def _meter_numbers(result: Collapse) -> str:
    if result.similarity is None:
        return ""
    numbers = [
        (
            "Similarity",
            result.similarity,
            f"mean cosine between two views of a picture, over {result.pictures:,} pictures",
        )
    ]
    if result.overlap is not None:
        numbers.append(
            (
                "Map overlap",
                result.overlap,
                "how much of two views' maps lies on the same cells, over "
                f"{result.maps:,} pictures",
            )
        )
    return "".join(
        f'<div class="pv-v-gauge"><strong>{name}</strong><span>{value:.2f}</span>'
        f'<i style="--share:{max(0.0, min(1.0, value)):.3f}"></i><p>{said}; 1 is the same</p></div>'
        for name, value, said in numbers
    )


def _wins(result: Collapse, captioned: bool) -> str:
    if result.similarity is None:
        return ""
    if result.wins is None:
        why = (
            "none of its captions belongs to a picture that can be searched"
            if captioned
            else "this collection has none"
        )
        return note(
            f"Which views win is counted over captions written for the pictures, and {why}. "
            "Similarity and overlap need none."
        )
    highest = max(result.wins)
    bars = "".join(
        f'<li><span>view {view + 1}</span><i style="--share:{share / highest:.3f}"></i>'
        f"<span>{100 * share:.1f} %</span></li>"
        for view, share in enumerate(result.wins)
    )
    many = ' class="pv-v-columns"' if len(result.wins) > _FEW else ""
    return (
        f'<div class="pv-v-wins"><strong>Wins</strong><ul{many}>{bars}</ul>'
        f"<p>For how many of {result.captions:,} captions a view scores highest on the caption's "
        f"own picture; as evenly as {result.in_use:.1f} views would share them.</p></div>"
    )
