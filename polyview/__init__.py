"""Polyview as a library: `load` a pack, then encode, compare and explain images and texts.

>>> import polyview
>>> model = polyview.load("scenes", "mvam")
>>> texts = model.encode_texts(["a panda", "two red cars"])  # views (B, V, D)
>>> texts.embeddings.shape
torch.Size([2, 16, 64])

In a clone, `models/`, `export/`, `training/` and `app/` are siblings of this folder, so that the
app and a Space start without installation; an installed package contains them. Their import names
start with `polyview.`, as in `polyview.models`, so that they do not collide with other packages.
"""

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from polyview.app.api.library import Library
    from polyview.core import Model, bundled, load, register

__all__ = ["Library", "Model", "bundled", "load", "register"]

_ROOT = Path(__file__).resolve().parents[1]
if (_ROOT / "models").is_dir() and (_ROOT / "app" / "main.py").is_file():
    __path__.append(str(_ROOT))


def __getattr__(name: str) -> Any:
    """Imports a public name on its first use, so that `import polyview` does not import torch."""
    if name not in __all__:
        raise AttributeError(f"module 'polyview' has no attribute {name!r}")
    module = "app.api.library" if name == "Library" else "core"
    return getattr(importlib.import_module(f"polyview.{module}"), name)
