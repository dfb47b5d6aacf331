"""Sequences of images that are decoded on access."""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Lock

import numpy as np
from PIL import Image, ImageOps, ImageSequence

_MILLISECONDS = 100.0  # of a frame without a duration
_CACHED_CLIPS = 3


class ImageFiles(Sequence[Image.Image]):
    """Images in files, of any size and mode.

    Args:
        paths: the files.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths = paths

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Image.Image:  # type: ignore[override]
        """Opens and decodes an image.

        Raises:
            ValueError: the file holds no image, or a damaged one.
            OSError: the file cannot be read.
        """
        path = self.paths[index]
        try:
            with path.open("rb") as file, Image.open(file) as image:
                image.load()
                return image
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
            # PIL raises all of these for files that it cannot decode
            if isinstance(error, OSError) and error.errno is not None:
                raise
            reason = str(error).replace(f" {str(file)!r}", "")
            raise ValueError(f"{path} is not a readable image: {reason}") from error


class Crops(Sequence[Image.Image]):
    """Another look at each of some images: a random crop, mirrored in half of all cases.

    Args:
        images: of any size.
        number: which look; the same number always gives the same crops.
        smallest: area of the smallest crop, as a share of the image.
    """

    def __init__(self, images: Sequence[Image.Image], number: int, smallest: float = 0.5) -> None:
        self.images, self.number, self.smallest = images, number, smallest

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> Image.Image:  # type: ignore[override]
        """Opens an image and crops it; see `ImageFiles.__getitem__` for errors."""
        random = np.random.default_rng([self.number, index])
        image = ImageOps.exif_transpose(self.images[index])
        area, tilt = random.uniform(self.smallest, 1.0), np.exp(random.uniform(-0.3, 0.3))
        width = round(image.width * min(1.0, np.sqrt(area * tilt)))
        height = round(image.height * min(1.0, np.sqrt(area / tilt)))
        left = int(random.integers(image.width - width + 1))
        top = int(random.integers(image.height - height + 1))
        crop = image.crop((left, top, left + max(1, width), top + max(1, height)))
        return ImageOps.mirror(crop) if random.random() < 0.5 else crop


class ImageArrays(Sequence[Image.Image]):
    """Images in one array.

    Args:
        pixels: (N, H, W, 3) uint8.
    """

    def __init__(self, pixels: np.ndarray) -> None:
        self.pixels = pixels

    def __len__(self) -> int:
        return len(self.pixels)

    def __getitem__(self, index: int) -> Image.Image:  # type: ignore[override]
        return Image.fromarray(self.pixels[index])


class Frames(Sequence[Image.Image]):
    """The frames of clips, one clip after the other; frame f of clip i is item i * frames + f.

    Args:
        read: gives all frames of a clip by its number.
        clips: number of clips.
        frames: number of frames of each.
    """

    def __init__(self, read: Callable[[int], list[Image.Image]], clips: int, frames: int) -> None:
        self._read, self._clips, self._frames = read, clips, frames
        self._cached: OrderedDict[int, list[Image.Image]] = OrderedDict()
        self._lock = Lock()  # several threads ask for frames of one clip

    def __len__(self) -> int:
        return self._clips * self._frames

    def __getitem__(self, row: int) -> Image.Image:  # type: ignore[override]
        clip, frame = divmod(range(len(self))[row], self._frames)
        with self._lock:
            if clip not in self._cached:
                self._cached[clip] = self._read(clip)
                if len(self._cached) > _CACHED_CLIPS:
                    self._cached.popitem(last=False)
            return self._cached[clip][frame]


def read_frames(path: Path, count: int) -> list[Image.Image]:
    """Frames of an animated image (WebP, GIF, PNG), visible in the middle of `count` equal times.

    Frames that are equal are often stored as one with a longer duration, so that time counts.

    Raises:
        ValueError: the file holds no image, or a damaged one.
        OSError: the file cannot be read.
    """
    try:
        with path.open("rb") as file, Image.open(file) as image:
            frames, durations = list[Image.Image](), list[float]()
            for frame in ImageSequence.Iterator(image):
                frames.append(frame.convert("RGB"))
                durations.append(float(frame.info.get("duration", 0)) or _MILLISECONDS)
    except (SyntaxError, EOFError, Image.DecompressionBombError) as error:
        raise ValueError(f"{path} is not a readable clip: {error}") from error
    ends = np.cumsum(durations)
    middles = (np.arange(count) + 0.5) * ends[-1] / count
    return [frames[number] for number in np.searchsorted(ends, middles, side="right").tolist()]
