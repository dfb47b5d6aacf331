"""Images of a gallery as the tabs list them."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from PIL import Image

from app.gallery.sampling import Moment
from app.search.retriever import Retriever

THUMBNAILS = "thumbnails"  # where the app serves them


@dataclass(frozen=True)
class Listed:
    """What is known about an image.

    Attributes:
        file: its name.
        captions: sentences that describe it.
        thumbnail: a file that may be fetched; None where there is none.
        best: the caption that fits what was asked best; empty where nothing says which.
        moment: where it is in its clip; None for a still image.
    """

    file: str
    captions: tuple[str, ...]
    thumbnail: Path | None
    best: str = ""
    moment: Moment | None = None

    @property
    def name(self) -> str:
        """Its file's name, without folders."""
        return Path(self.file).name

    @property
    def size(self) -> tuple[int, int]:
        """Width and height of the thumbnail; of none, those of a square."""
        if self.thumbnail is None:
            return 1, 1
        with Image.open(self.thumbnail) as image:
            return image.size

    @property
    def words(self) -> str:
        """What is read aloud for it."""
        return self.best or next(iter(self.captions), self.name)

    @property
    def described(self) -> str:
        """What is read aloud where the picture stands alone; of a clip, also which frame it is."""
        return self.words if self.moment is None else f"{self.words}, clip, {at(self.moment)}"

    @property
    def clock(self) -> str:
        """When a clip's frame is shown, for the eye; empty of a still image."""
        return "" if self.moment is None else clock(self.moment.seconds)

    @property
    def address(self) -> str:
        """Where a browser fetches the thumbnail; empty where there is none.

        Relative to the page, it also holds behind a proxy.
        """
        return f"{THUMBNAILS}/{quote(self.thumbnail.name)}" if self.thumbnail else ""


def listed(retriever: Retriever, image_ids: Sequence[int]) -> tuple[dict[int, Listed], str]:
    """Images of the gallery by their ids, and what is wrong with the disk, if anything.

    Raises:
        ValueError: there is no such image.
    """
    found = [retriever.image(image_id) for image_id in image_ids]
    thumbnails, trouble = retriever.thumbnails(image_ids)
    return {
        image.image_id: Listed(
            image.file, image.captions, thumbnails.get(image.image_id), moment=image.moment
        )
        for image in found
    }, trouble


def at(moment: Moment) -> str:
    """When a frame is shown, in words.

    >>> at(Moment(3.24, 81))
    'at 3.2 seconds'
    """
    return f"at {moment.seconds:.1f} seconds"


def clock(seconds: float) -> str:
    """A time within a clip, as players show it; of the first second, tenths.

    >>> clock(0.34), clock(3.2), clock(75), clock(3661)
    ('0:00.3', '0:03', '1:15', '1:01:01')
    """
    if 0 < seconds < 1:
        return f"0:00.{int(10 * seconds)}"
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
