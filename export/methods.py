"""The methods of a pack by name, the best first, and ensembles of them."""

from collections.abc import Mapping
from itertools import combinations, islice

from export.pack.schema import PackInfo
from models import Method


class Methods(dict[str, Method]):
    """A pack's methods by name; several joined by "+" are an ensemble, whose scores are averaged.

    Attributes:
        best_first: names, the best measured first, and the last of those not measured before the
            others. Best is what finds most of the images that satisfy a text (R-precision); where
            that is not known, or equal, the higher rsum.
        best: the first of them.
    """

    def __init__(self, methods: Mapping[str, Method], info: PackInfo) -> None:
        super().__init__(methods)
        values = {name: m.metrics.values for name, m in info.methods.items() if m.metrics}
        reached = {n: (v.get("t2i_rprecision", 0), v.get("rsum", 0)) for n, v in values.items()}
        measured = sorted(reached, key=lambda name: reached[name], reverse=True)
        self.best_first = (*measured, *(n for n in reversed(info.methods) if n not in reached))
        self.best = self.best_first[0]

    def names(self, spec: str) -> tuple[str, ...]:
        """The methods of "a" or of the ensemble "a+b".

        Raises:
            ValueError: one is unknown or named twice.
        """
        names = tuple(part.strip() for part in str(spec).split("+"))
        for name in names:
            if name not in self:
                known = ", ".join(self)
                raise ValueError(
                    f'there is no method "{name[:80]}" in this pack; choose one of {known}'
                )
        if len(set(names)) < len(names):
            raise ValueError(f'the ensemble "{spec[:80]}" names a method twice; name each once')
        return names

    def one(self, name: str) -> Method:
        """A single method.

        Raises:
            ValueError: there is none of this name, or several are named.
        """
        names = self.names(name)
        if len(names) > 1:
            raise ValueError(
                f'"{name[:80]}" names {len(names)} methods; look through one at a time'
            )
        return self[names[0]]

    def title(self, spec: str) -> str:
        """What people call a method or an ensemble."""
        return " + ".join(self[name].title for name in self.names(spec))

    def ensembles(self, count: int) -> list[str]:
        """The pairs "a+b" of the methods that measured best, at most `count`."""
        return ["+".join(pair) for pair in islice(combinations(self.best_first, 2), count)]
