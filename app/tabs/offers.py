"""What loading from the Hub will fetch, and how far it is, as HTML."""

from __future__ import annotations

from app.obtaining import Fetched
from app.panels import line, megabytes, text
from export.offer import VSE_INFTY, Offer, Part

_BECOMES = {
    "pack": "It is a pack already, and is kept in the Hub client's cache.",
    "clip": "It is converted once, which takes minutes; the pack is kept and loads offline.",
    "vse_infty": (
        "It is converted once, which takes minutes and about 4 GB of memory; "
        "the pack is kept and loads offline."
    ),
}


def offer_card(offer: Offer) -> str:
    """What would be fetched: from where, how much, under which licence."""
    sources = "".join(_source(offer, part) for part in offer.parts)
    listed = "".join(
        f"<li>{text(part.repo_id)}: {text(name)}<span>{_size(size)}"
        f"{', here already' if name in part.here else ''}</span></li>"
        for part in offer.parts
        for name, size in sorted(part.files.items())
    )
    count = sum(len(part.files) for part in offer.parts)
    return (
        '<section class="pv-card pv-offer" role="status">'
        f"{line(f'To download: {amount(offer)}')}"
        f'<dl>{sources}</dl><p class="pv-paper">{_BECOMES[offer.kind]}</p>'
        f"<details><summary>{'One file' if count == 1 else f'{count} files'}</summary>"
        f"<ul>{listed}</ul></details></section>"
    )


def amount(offer: Offer) -> str:
    """How much is to be fetched, in words."""
    if not offer.missing_bytes and not offer.unknown:
        return "nothing, all is here"
    files = "one file" if offer.unknown == 1 else f"{offer.unknown} files"
    more = f"and {files} of unknown size" if offer.unknown else ""
    known = megabytes(offer.missing_bytes) if offer.missing_bytes else ""
    if not known:
        return f"{files} of unknown size"
    return f"{'at most ' if offer.at_most else ''}{known} {more}".strip()


def button(offer: Offer) -> str:
    """What stands on the button that takes the offer."""
    if not offer.missing_bytes:
        return "Download and load" if offer.unknown else "Load"
    return f"Download {megabytes(offer.missing_bytes)}"


def fetching(sign: Fetched) -> str:
    """How far the work is."""
    share = 100 * sign.done // max(1, sign.total)
    known = f"{megabytes(sign.done)} of {megabytes(sign.total)}" if sign.total else ""
    bar = (
        '<div class="pv-bar" role="progressbar" aria-label="Download" aria-valuemin="0" '
        f'aria-valuemax="100" aria-valuenow="{share}"><i style="width:{share}%"></i></div>'
    )
    said = line(f"{sign.doing} …", known, f"{sign.seconds:.0f} s")
    return f'<section class="pv-card pv-offer">{said}{bar if sign.total else ""}</section>'


def _source(offer: Offer, part: Part) -> str:
    held = "" if part is offer.parts[0] else _second(offer.kind)
    revision = part.revision or "main"
    facts = {
        "From": f"{part.repo_id}, {revision}, commit {part.commit[:8]}{held}",
        "Licence": part.licence or "unknown: its card states none",
    }
    return "".join(f"<dt>{key}</dt><dd>{text(value)}</dd>" for key, value in facts.items())


def _second(kind: str) -> str:
    return ", the word pieces that its text encoder reads" if kind == VSE_INFTY else ""


def _size(size: int | None) -> str:
    return "size unknown" if size is None else megabytes(size)
