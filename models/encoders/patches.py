"""The grid of a vision transformer's patches."""

from typing import Any


def patches(config: Any, size: int) -> tuple[int, int]:
    """Rows and columns of the patches of a size x size image.

    Args:
        config: of the network in `transformers`.
        size: of the image, in pixels.

    Raises:
        ValueError: the network reads images of another size.
    """
    if size != config.image_size:
        raise ValueError(
            f"this transformer reads {config.image_size} x {config.image_size} pixels, not "
            f"{size} x {size}; take the preprocessing that came with it"
        )
    side = size // config.patch_size
    return side, side
