"""The one place that imports `transformers`, and only when a published network is asked for."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from huggingface_hub.errors import StrictDataclassError
from torch import nn


def build_network(
    name: str, config: dict[str, Any], *, add_pooling_layer: bool | None = None
) -> Any:
    """A network with random weights.

    Args:
        name: its class in `transformers`, or "AutoModel", which goes by the model type.
        config: its configuration as JSON; `model_type` says which one it is.
        add_pooling_layer: for classes that ask; a set of features has no use for a pooled one.

    Raises:
        ValueError: there is no such model type, or the configuration makes no sense.
    """
    transformers = import_transformers()
    settings = {k: v for k, v in config.items() if k not in ("model_type", "transformers_version")}
    try:
        full = transformers.AutoConfig.for_model(config["model_type"], **settings)
        kind = getattr(transformers, name)
        build = kind.from_config if name == "AutoModel" else kind
        asked = {} if add_pooling_layer is None else {"add_pooling_layer": add_pooling_layer}
        network: nn.Module = build(full, **asked)
    except (KeyError, TypeError, ValueError, StrictDataclassError) as error:
        raise ValueError(
            f"{config.get('model_type', 'a network')} cannot be built from its configuration: "
            f"{error}"
        ) from error
    return network


def import_transformers() -> Any:
    """The library, with a sentence where it is not installed."""
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
    """Keeps `transformers` from drawing bars and tables of weights, which are checked here."""
    logging = import_transformers().utils.logging
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
