"""Builds networks and reads preprocessing with `transformers`, which it imports on first use."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from huggingface_hub.errors import StrictDataclassError
from PIL import Image

from polyview.models.preprocess import Preprocess


def build_network(name: str, config: dict[str, Any], **options: Any) -> Any:
    """Builds a network with random weights from its JSON configuration, `config`.

    `config` must have the key `model_type`. `name` is a class of `transformers`; "AutoModel"
    selects the class by `model_type`. `options` are arguments of the class. Raises ValueError if
    the model type is unknown or the configuration is not valid.
    """
    transformers = import_transformers()
    settings = {k: v for k, v in config.items() if k not in ("model_type", "transformers_version")}
    try:
        network_config = transformers.AutoConfig.for_model(config["model_type"], **settings)
        network_class = getattr(transformers, name)
        build = network_class.from_config if name == "AutoModel" else network_class
        return build(network_config, **options)
    except (KeyError, TypeError, ValueError, StrictDataclassError) as error:
        raise ValueError(
            f"{config.get('model_type', 'a network')} cannot be built from its configuration: "
            f"{error}"
        ) from error


def import_transformers() -> Any:
    """Imports `transformers`; raises ValueError with installation advice if it is missing."""
    try:
        import transformers
    except ImportError as error:
        raise ValueError(
            "published backbones need the package transformers; "
            "install it with: pip install -r requirements.txt"
        ) from error
    return transformers


@contextmanager
def quiet() -> Iterator[None]:
    """Silences progress bars, warnings and reports of `transformers` in a `with` block."""
    logging = import_transformers().utils.logging
    level, shows_bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if shows_bars:
            logging.enable_progress_bar()


def read_preprocess(folder: Path, name: str) -> Preprocess:
    """Reads a folder's `preprocessor_config.json` and the defaults of its processor class.

    `name` is the model's name in error messages. Raises FileNotFoundError if the folder has no such
    file, ValueError if the file is not readable or `Preprocess` cannot express its settings.
    """
    if not (folder / "preprocessor_config.json").is_file():
        raise FileNotFoundError(
            f"{name} has no preprocessor_config.json, which defines its preprocessing; "
            "fetch it from the model's page"
        )
    try:
        with quiet():
            auto = import_transformers().AutoImageProcessor
            settings = auto.from_pretrained(folder, backend="pil", local_files_only=True).to_dict()
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{name}: preprocessor_config.json cannot be read: {error}") from error
    return _to_preprocess(settings, name)


def _to_preprocess(settings: dict[str, Any], name: str) -> Preprocess:
    """Converts a processor's settings; raises ValueError if `Preprocess` cannot express them."""
    size = settings.get("size") or {}
    shortest_edge, height, width = (size.get(k) for k in ("shortest_edge", "height", "width"))
    crop_size = settings.get("crop_size") or {}
    resampling = Image.Resampling(settings.get("resample", Image.Resampling.BILINEAR))
    common: dict[str, Any] = {"filter": resampling.name.lower(), **_statistics(settings)}
    crops = bool(settings.get("do_center_crop"))
    if not settings.get("do_resize", True) or size.get("longest_edge"):
        raise ValueError(f"{name}: its processor makes images of several sizes; use another model")
    if settings.get("crop_pct") and shortest_edge and not crops:
        # ConvNeXT's processor, also used for ResNets, crops only images of fewer than 384 pixels
        crops = shortest_edge < 384
        crop_size = {"height": shortest_edge, "width": shortest_edge}
        height = width = shortest_edge
        shortest_edge = int(shortest_edge / settings["crop_pct"]) if crops else None
    if shortest_edge and crops:
        side = _square_side(crop_size.get("height"), crop_size.get("width"), name)
        return Preprocess(size=side, fit="crop", resize=shortest_edge, **common)
    side = _square_side(height, width, name)
    if crops and (crop_size.get("height"), crop_size.get("width")) != (height, width):
        raise ValueError(f"{name}: its processor stretches and crops images; choose another model")
    return Preprocess(size=side, fit="stretch", **common)


def _square_side(height: object, width: object, name: str) -> int:
    """Returns the side of a square; raises ValueError if height and width differ or are missing."""
    if not isinstance(height, int) or height != width:
        raise ValueError(
            f"{name}: its processor makes images of {width} x {height} pixels, not "
            "squares; choose another model"
        )
    return height


def _statistics(settings: dict[str, Any]) -> dict[str, tuple[float, ...]]:
    """Returns mean and std for pixels in 0..1; both account for `rescale_factor`."""
    scale = 255.0 * settings["rescale_factor"] if settings.get("do_rescale", True) else 255.0
    if not settings.get("do_normalize", True):
        return {"mean": (0.0,) * 3, "std": (1 / scale,) * 3}
    return {name: tuple(v / scale for v in settings[f"image_{name}"]) for name in ("mean", "std")}
