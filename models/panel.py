"""What a method shows of itself, in forms that anybody can draw: matrices, curves and numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

Setting = str | int
Settings = Mapping[str, Setting]


@dataclass(frozen=True)
class Panel:
    """One thing to show of how a method reads an image and a text.

    Attributes:
        kind: "matrix", "curve" (one line for each row) or "number".
        title: a few words.
        meaning: what it is and how to read it, with the paper's section, in sentences.
        values: (R, C) for a matrix or curves, () for a number.
        rows: R names; none for a number.
        columns: C names; none for a number.
        marks: the cells, (row, column), that decide.
        limits: the ends of the colour scale, or of the curves' axis; None for those of the values.
    """

    kind: Literal["matrix", "curve", "number"]
    title: str
    meaning: str
    values: Tensor
    rows: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    marks: tuple[tuple[int, int], ...] = ()
    limits: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        """Refuses values that the names do not fit."""
        named = () if self.kind == "number" else (len(self.rows), len(self.columns))
        if tuple(self.values.shape) != named:
            raise ValueError(
                f'the panel "{self.title}" names {named} values but holds '
                f"{tuple(self.values.shape)}"
            )


@dataclass(frozen=True)
class Knob:
    """Something about a panel that a reader may change, without a change to the method.

    Attributes:
        name: its key in the settings.
        title: for people.
        default: what the method itself does.
        options: the choices; none where it is a whole number.
        low: the lowest number.
        high: the highest number.
    """

    name: str
    title: str
    default: str | int
    options: tuple[str, ...] = ()
    low: int = 0
    high: int = 0

    def read(self, settings: Settings) -> Setting:
        """Its value in the settings, or the default where they do not name it.

        Raises:
            ValueError: it is none of the options, or no whole number of the range.

        >>> Knob("iterations", "Iterations", 20, low=1, high=50).read({"iterations": 5})
        5
        """
        value = settings.get(self.name, self.default)
        if self.options and value not in self.options:
            raise ValueError(f'{self.name} must be one of {", ".join(self.options)}, not "{value}"')
        whole = isinstance(value, int) and not isinstance(value, bool)
        if not self.options and not (whole and self.low <= int(value) <= self.high):
            raise ValueError(
                f"{self.name} must be a whole number from {self.low} to {self.high}, not {value!r}"
            )
        return value


def view_names(count: int, item: str = "view") -> tuple[str, ...]:
    """Names of views as people count them.

    >>> view_names(2)
    ('view 1', 'view 2')
    """
    return tuple(f"{item} {place + 1}" for place in range(count))
