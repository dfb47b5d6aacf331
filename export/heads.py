"""The heads of a pack's methods, from their weights (torch)."""

import torch

import models
from export.pack.schema import PackInfo
from export.pack.validation import PackError
from models import Method
from models.checkpoint import check_fit, load_strict, load_tensors


def load_head(info: PackInfo, name: str) -> Method:
    """A method of a pack, in eval mode, with its weights.

    Raises:
        PackError: its sizes or weights do not fit.
    """
    entry = info.methods[name]
    try:
        tensors, _ = load_tensors(info.path(entry.head))
        key, sizes = entry.method or name, (entry.image_dim, entry.text_dim)
        arguments = models.stored_arguments(key, entry.arguments)
        with torch.device("meta"):  # sizes from a file cost memory only once its weights have them
            method = models.build(key, *sizes, arguments)
        check_fit(method, tensors, entry.head)
        method = models.build(key, *sizes, arguments)
        load_strict(method, tensors, entry.head)
    except (TypeError, ValueError) as error:
        raise PackError(f"the pack {info.folder} does not load: {error}") from error
    if entry.title is not None:
        method.title = entry.title  # type: ignore[misc]  # of this one
    return method.eval().requires_grad_(False)
