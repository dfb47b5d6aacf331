"""What the Compare tab knows about what it shows, and how a listed picture is drawn."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

from app.comparison import Comparison
from app.panels import text, thumbnail_address


@dataclass(frozen=True)
class Shown:
    """What is known about a listed picture.

    Attributes:
        file: its name.
        captions: sentences that describe it.
        thumbnail: a file that may be fetched; None where the picture is gone.
    """

    file: str
    captions: tuple[str, ...]
    thumbnail: Path | None

    @property
    def words(self) -> str:
        """What is read aloud for it."""
        return self.captions[0] if self.captions else Path(self.file).name

    @property
    def address(self) -> str:
        """Where a browser fetches the thumbnail, relative to the page; empty where it is gone."""
        return thumbnail_address(self.thumbnail) if self.thumbnail else ""


@dataclass(frozen=True)
class Sheet:
    """A comparison with what is known about its pictures.

    Attributes:
        comparison: what was found.
        pictures: every picture that a column lists.
        gallery: what was searched, for people.
        picture: what was asked with, small; None where it was words.
    """

    comparison: Comparison
    pictures: Mapping[int, Shown]
    gallery: str
    picture: Image.Image | None = None


def image(shown: Shown) -> str:
    """The picture in HTML, with its caption for those who do not see it."""
    if not shown.address:
        return f"<i>{text(Path(shown.file).name)} is not there any more</i>"
    return f'<img src="{text(shown.address)}" alt="{text(shown.words)}" loading="lazy">'


def number(place: int) -> str:
    """The badge by which a column is known in the tables, from its place counted from 0."""
    return f'<b class="pv-cmp-no">{place + 1}</b>'
