"""What is fetched, as several tabs show it: the packs that a press obtains, and how far one is."""

from collections.abc import Sequence

from markupsafe import Markup

from app.blocks.tabs.html import line, render
from app.packs.jobs import Step
from app.packs.presets import Preset


def stronger(presets: Sequence[tuple[Preset, bool]]) -> Markup:
    """Packs that find more, each with its size, licence and time, and a button.

    Args:
        presets: see `app.packs.presets.offered`.
    """
    return render("stronger", presets=presets)


def fetching(sign: Step) -> Markup:
    """How far the work is."""
    known = f"{megabytes(sign.done)} of {megabytes(sign.total)}" if sign.total else ""
    headline = line(f"{sign.doing} …", known, f"{sign.seconds:.0f} s")
    share = sign.percent if sign.total else None
    return render("fetching", headline=headline, label="Download", share=share)


def megabytes(size: int) -> str:
    """A size in bytes for people.

    >>> megabytes(1_234_567)
    '1.2 MB'
    """
    return f"{size / 1e6:.1f} MB" if size >= 100_000 else f"{size / 1e3:.1f} kB"
