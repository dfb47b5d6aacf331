"""Sequences of images that are opened when they are asked for."""

from collections import OrderedDict
from collections.abc import Callable, Sequence
from pathlib import Path
from threading import Lock

import numpy as np
from PIL import Image, ImageOps, ImageSequence

_MILLISECONDS = 100.0  # of a frame that does not say how long it is shown
_CLIPS_KEPT = 3  # whose frames are kept for those who ask for them one by one


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
    """Another look at each of some images: a random crop, in half of all cases mirrored.

    Args:
        images: of any size.
        number: which look; each image's is always the same for the same number.
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
        cut = image.crop((left, top, left + max(1, width), top + max(1, height)))
        return ImageOps.mirror(cut) if random.random() < 0.5 else cut


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
    """The frames of clips, one clip after the other, made when they are asked for.

    Args:
        read: gives all frames of a clip by its number.
        clips: how many there are.
        frames: how many each has.
    """

    def __init__(self, read: Callable[[int], list[Image.Image]], clips: int, frames: int) -> None:
        self._read, self._clips, self._frames = read, clips, frames
        self._kept: OrderedDict[int, list[Image.Image]] = OrderedDict()
        self._lock = Lock()  # several threads want frames of one clip

    def __len__(self) -> int:
        return self._clips * self._frames

    def __getitem__(self, row: int) -> Image.Image:  # type: ignore[override]
        """Frame f of clip i is item i * frames + f."""
        clip, frame = divmod(range(len(self))[row], self._frames)
        with self._lock:
            if clip not in self._kept:
                self._kept[clip] = self._read(clip)
                if len(self._kept) > _CLIPS_KEPT:
                    self._kept.popitem(last=False)
            return self._kept[clip][frame]


def read_frames(path: Path, count: int) -> list[Image.Image]:
    """So many frames of an animated image (WebP, GIF, PNG), shown in the midst of equal times.

    Frames that are equal are often stored as one that is shown longer, so that time counts.

    Raises:
        ValueError: the file holds no image, or a damaged one.
        OSError: the file cannot be read.
    """
    try:
        with path.open("rb") as file, Image.open(file) as image:
            frames, shown = list[Image.Image](), list[float]()
            for frame in ImageSequence.Iterator(image):
                frames.append(frame.convert("RGB"))
                shown.append(float(frame.info.get("duration", 0)) or _MILLISECONDS)
    except (SyntaxError, EOFError, Image.DecompressionBombError) as error:
        raise ValueError(f"{path} is not a readable clip: {error}") from error
    ends = np.cumsum(shown)
    middles = (np.arange(count) + 0.5) * ends[-1] / count
    return [frames[number] for number in np.searchsorted(ends, middles, side="right").tolist()]
