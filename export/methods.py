"""A pack's methods: their heads with weights, their order by quality, and ensembles of them."""

import torch

from polyview import models
from polyview.export.pack.schema import PackInfo
from polyview.export.pack.validation import PackError
from polyview.models import Method
from polyview.models.checkpoint import check_fit, load_strict, load_tensors


def load_head(info: PackInfo, name: str) -> Method:
    """Loads a method of a pack in eval mode; raises PackError if its weights do not fit."""
    entry = info.methods[name]
    try:
        tensors, _ = load_tensors(info.folder / entry.head)
        key, sizes = entry.method or name, (entry.image_dim, entry.text_dim)
        with torch.device("meta"):  # allocates no memory until the weights fit the stated sizes
            method = models.build(key, *sizes, entry.arguments)
        check_fit(method, tensors, entry.head)
        method = models.build(key, *sizes, entry.arguments)
        load_strict(method, tensors, entry.head)
    except (TypeError, ValueError) as error:
        raise PackError(f"the pack {info.folder} does not load: {error}") from error
    if entry.title is not None:
        method.title = entry.title  # type: ignore[misc]  # overrides the class
    return method.eval().requires_grad_(False)


class Methods(dict[str, Method]):
    """A pack's methods by name; names joined by "+" are an ensemble, whose scores are averaged.

    An unknown name raises ValueError. `best_first` orders the names by R-precision of text-to-image
    retrieval, then by rsum; methods without metrics come last, in reverse order. `best` is the
    first name.
    """

    def __init__(self, methods: dict[str, Method], info: PackInfo) -> None:
        super().__init__(methods)
        values = {name: m.metrics.values for name, m in info.methods.items() if m.metrics}
        quality = {n: (v.get("t2i_rprecision", 0), v.get("rsum", 0)) for n, v in values.items()}
        measured = sorted(quality, key=lambda name: quality[name], reverse=True)
        self.best_first = (*measured, *(n for n in reversed(info.methods) if n not in quality))
        self.best = self.best_first[0]

    def __missing__(self, name: str) -> Method:
        name, names = str(name)[:80], ", ".join(self)
        raise ValueError(f'there is no method "{name}" in this pack; choose one of {names}')

    def names(self, spec: str) -> tuple[str, ...]:
        """Splits "a" or "a+b" into names; raises ValueError if a name is unknown or repeated."""
        names = tuple(part.strip() for part in str(spec).split("+"))
        for name in names:
            self[name]  # raises for an unknown name
        if len(set(names)) < len(names):
            raise ValueError(f'the ensemble "{spec[:80]}" names a method twice; name each once')
        return names

    def require_single(self, name: str) -> Method:
        """The method of a name; raises ValueError for an unknown name or an ensemble."""
        names = self.names(name)
        if len(names) > 1:
            raise ValueError(f'"{name[:80]}" names {len(names)} methods; choose one of them')
        return self[names[0]]

    def title(self, spec: str) -> str:
        """The display name of a method or an ensemble."""
        return " + ".join(self[name].title for name in self.names(spec))
