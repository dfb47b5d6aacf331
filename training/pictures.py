"""Sequences of pictures that are opened when they are asked for."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

from models.preprocess import Preprocess


class PictureFiles(Sequence[Image.Image]):
    """Pictures in files, of any size and mode.

    Args:
        paths: the files.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        self.paths = paths

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, index: int) -> Image.Image:  # type: ignore[override]
        """Opens and decodes a picture.

        Raises:
            ValueError: the file holds no picture, or a damaged one.
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
            raise ValueError(f"{path} is not a readable picture: {reason}") from error


class Crops(Sequence[Image.Image]):
    """Another look at each of some pictures: a random crop, in half of all cases mirrored.

    Args:
        pictures: of any size.
        number: which look; each picture's is always the same for the same number.
        smallest: area of the smallest crop, as a share of the picture.
    """

    def __init__(self, pictures: Sequence[Image.Image], number: int, smallest: float = 0.5) -> None:
        self.pictures, self.number, self.smallest = pictures, number, smallest

    def __len__(self) -> int:
        return len(self.pictures)

    def __getitem__(self, index: int) -> Image.Image:  # type: ignore[override]
        """Opens a picture and crops it; see `PictureFiles.__getitem__` for errors."""
        random = np.random.default_rng([self.number, index])
        image = ImageOps.exif_transpose(self.pictures[index])
        area, tilt = random.uniform(self.smallest, 1.0), np.exp(random.uniform(-0.3, 0.3))
        width = round(image.width * min(1.0, np.sqrt(area * tilt)))
        height = round(image.height * min(1.0, np.sqrt(area / tilt)))
        left = int(random.integers(image.width - width + 1))
        top = int(random.integers(image.height - height + 1))
        cut = image.crop((left, top, left + max(1, width), top + max(1, height)))
        return ImageOps.mirror(cut) if random.random() < 0.5 else cut


class PictureArrays(Sequence[Image.Image]):
    """Pictures in one array.

    Args:
        pixels: (N, H, W, 3) uint8.
    """

    def __init__(self, pixels: np.ndarray) -> None:
        self.pixels = pixels

    def __len__(self) -> int:
        return len(self.pixels)

    def __getitem__(self, index: int) -> Image.Image:  # type: ignore[override]
        return Image.fromarray(self.pixels[index])


class Pixels:
    """Pictures as an image encoder reads them, decoded when they are asked for.

    Args:
        pictures: N pictures.
        preprocess: how they become pixels.

    Attributes:
        shape: (N, 3, S, S), as of an array.
    """

    def __init__(self, pictures: Sequence[Image.Image], preprocess: Preprocess) -> None:
        self.pictures, self.preprocess = pictures, preprocess
        self.shape = (len(pictures), 3, preprocess.size, preprocess.size)

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: np.ndarray | slice) -> np.ndarray:
        """Pixels (B, 3, S, S) float32 of some rows; see `PictureFiles` for what it raises."""
        wanted = np.arange(len(self))[rows].tolist()
        with ThreadPoolExecutor(os.cpu_count()) as pool:  # Pillow lets others work as it decodes
            squares = list(pool.map(self._square, wanted))
        return self.preprocess.planes(np.stack(squares))

    def _square(self, row: int) -> np.ndarray:
        return np.asarray(self.preprocess.square(self.pictures[row]), np.uint8)
