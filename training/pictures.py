"""Sequences of pictures that are opened when they are asked for."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from PIL import Image


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
