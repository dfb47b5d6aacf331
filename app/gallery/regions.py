"""Views of a pack's own images where their features are ready-made and come with its gallery."""

import hashlib
import threading
from collections.abc import Generator, Iterable, Sequence
from pathlib import Path

from torch import Tensor

from app.gallery.collection import Collection, CollectionImage
from app.gallery.encoder import Encoder
from app.gallery.encoding_steps import Encoded
from app.gallery.image_files import Refusal, StoppedError
from export.pack.regions import Regions
from export.runtime import Runtime


class RegionEncoder(Encoder):
    """As `Encoder`, but no image is read and nothing of it is kept: heads alone take milliseconds.

    Args:
        runtime: the loaded pack.
        collection: its own gallery.
        cache: the user's cache folder.
        regions: of the gallery's images.
    """

    def __init__(
        self, runtime: Runtime, collection: Collection, cache: Path, regions: Regions
    ) -> None:
        super().__init__(runtime, collection, cache)
        self._regions = regions

    def encode_each(
        self,
        chunks: Iterable[Sequence[CollectionImage]],
        methods: Iterable[str] | None = None,
        stop: threading.Event | None = None,
    ) -> Generator[Encoded]:
        """See `Encoder.encode_each`."""
        names = list(self._runtime.methods if methods is None else methods)
        for images in chunks:
            if stop is not None and stop.is_set():
                raise StoppedError
            features = self._regions.features([image.image_id for image in images])  # (B, n, d)
            views = {name: self._runtime.image_views(features, name) for name in names}
            yield Encoded(list(images), [self._digest(image) for image in images], views, [])

    def features(
        self,
        images: Sequence[CollectionImage],
        method: str,  # noqa: ARG002
        *,
        at_hand: bool = False,  # noqa: ARG002
    ) -> tuple[dict[int, Tensor], list[Refusal]]:
        """See `Encoder.features`; all methods read the same."""
        ids = [image.image_id for image in images]
        return dict(zip(ids, self._regions.features(ids), strict=True)), []

    def _digest(self, image: CollectionImage) -> bytes:
        """What tells the image's features from all others."""
        about = f"{self._runtime.info.checksum} {image.image_id}"
        return hashlib.sha256(about.encode()).digest()
