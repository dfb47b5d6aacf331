"""A published model's own preprocessing, as a `Preprocess`."""

from pathlib import Path
from typing import Any

from PIL import Image

from models.encoders.huggingface import import_transformers, quiet
from models.preprocess import Preprocess


def read_preprocess(folder: Path, name: str) -> Preprocess:
    """What the processor configuration of a Hugging Face folder says.

    Args:
        folder: holds `preprocessor_config.json`; its class's defaults fill in what it leaves out.
        name: of the source, for messages.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it prepares images in a way that `Preprocess` cannot.
    """
    if not (folder / "preprocessor_config.json").is_file():
        raise FileNotFoundError(
            f"{name} has no preprocessor_config.json, which says how it wants its pictures; "
            "fetch it from the model's page"
        )
    try:
        with quiet():
            auto = import_transformers().AutoImageProcessor
            stated = auto.from_pretrained(folder, backend="pil", local_files_only=True).to_dict()
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{name}: preprocessor_config.json cannot be read: {error}") from error
    return _translate(stated, name)


def _translate(stated: dict[str, Any], name: str) -> Preprocess:
    """A processor's values; those of a processor that only stretches, or scales and crops."""
    size = stated.get("size") or {}
    shortest, height, width = (size.get(k) for k in ("shortest_edge", "height", "width"))
    crop = stated.get("crop_size") or {}
    values: dict[str, Any] = {"filter": _filter(stated), **_statistics(stated)}
    cuts = bool(stated.get("do_center_crop"))
    if not stated.get("do_resize", True) or size.get("longest_edge"):
        raise ValueError(f"{name}: its processor does not bring pictures to one size")
    if stated.get("crop_pct") and shortest and not cuts:
        # ConvNeXT's processor, which ResNets use too: below 384 pixels it crops, else it stretches
        cuts = shortest < 384
        crop = {"height": shortest, "width": shortest}
        height = width = shortest
        shortest = int(shortest / stated["crop_pct"]) if cuts else None
    if shortest and cuts:
        side = _square(crop.get("height"), crop.get("width"), name)
        return Preprocess(size=side, fit="crop", resize=shortest, **values)
    side = _square(height, width, name)
    if cuts and (crop.get("height"), crop.get("width")) != (height, width):
        raise ValueError(f"{name}: its processor stretches pictures and then crops them")
    return Preprocess(size=side, fit="stretch", **values)


def _square(height: object, width: object, name: str) -> int:
    if not isinstance(height, int) or height != width:
        raise ValueError(
            f"{name}: its processor makes pictures of {width} x {height} pixels; only squares of "
            "one size are read here"
        )
    return height


def _filter(stated: dict[str, Any]) -> str:
    return Image.Resampling(stated.get("resample", Image.Resampling.BILINEAR)).name.lower()


def _statistics(stated: dict[str, Any]) -> dict[str, tuple[float, ...]]:
    """Mean and deviation of pixels in 0..1, with the processor's own scale folded in."""
    scale = 255.0 * stated["rescale_factor"] if stated.get("do_rescale", True) else 255.0
    if not stated.get("do_normalize", True):
        return {"mean": (0.0,) * 3, "std": (1 / scale,) * 3}
    return {
        "mean": tuple(v / scale for v in stated["image_mean"]),
        "std": tuple(v / scale for v in stated["image_std"]),
    }
