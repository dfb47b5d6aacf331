"""What the encoder hands on from one step to the next; see `app/gallery/encoder.py`."""

from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy as np

from app.gallery.collection import CollectionImage
from app.gallery.embedding_cache import Key
from app.gallery.image_files import Contents, ImageError, NotNowError, Refusal
from app.gallery.sampling import Moment
from models import Views

Rows = dict[str, dict[Key, np.ndarray]]  # by space and key


@dataclass(frozen=True)
class Encoded:
    """Pictures, the key of each, their views by method, and the refused files.

    A clip is a picture for each of its windows, see `app/gallery/clip_frames.py`; `clips` has the
    moments of all its frames, by the clip's id.
    """

    images: list[CollectionImage]
    keys: list[bytes]
    views: dict[str, Views]
    refused: list[Refusal]
    clips: dict[int, tuple[Moment, ...]] = field(default_factory=dict)


@dataclass(frozen=True)
class Looked:
    """Pictures with what is in their files, the refused ones, and the known rows.

    Of `clips`, the windows are among `images` once their frames are known: `spread` has these by
    SHA-256, `parts` their keys by that of their window. What has no parts is its own.
    """

    images: list[tuple[CollectionImage, Contents]]
    refused: list[Refusal]
    clips: list[tuple[CollectionImage, Contents]] = field(default_factory=list)
    spread: dict[bytes, tuple[Moment, ...]] = field(default_factory=dict)
    parts: dict[bytes, list[bytes]] = field(default_factory=dict)
    unusable: dict[bytes, Refusal] = field(default_factory=dict)
    found: Rows = field(default_factory=dict)


@dataclass
class Read:
    """What came of opening some files.

    Attributes:
        features: (N, d) by space and key.
        not_now: the refused by the SHA-256 of their files, which may be otherwise next time.
        unusable: those that are refused for good.
        clips: the frames that were chosen, by the SHA-256 of the file.
        stopped: some were left, because somebody stopped it.
    """

    features: Rows = field(default_factory=dict)
    not_now: dict[bytes, Refusal] = field(default_factory=dict)
    unusable: dict[bytes, Refusal] = field(default_factory=dict)
    clips: dict[bytes, tuple[Moment, ...]] = field(default_factory=dict)
    stopped: bool = False

    def refuse(self, key: bytes, file: str, error: ImageError) -> None:
        """Notes why a file cannot be used."""
        lasts = not isinstance(error, NotNowError)
        (self.unusable if lasts else self.not_now)[key] = Refusal(file, str(error))


@dataclass(frozen=True)
class Underway:
    """What was looked at, and what is being opened and encoded of it."""

    looked: Looked
    reading: list[Future[Read]]
