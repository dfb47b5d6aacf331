"""How the time of a query grows with the images it is compared with, recorded beside a pack.

AVSE's Fig. 5. `python -m benchmarks.gallery candidates --record` measures it, with methods that the
pack does not hold, too.
"""

import logging
from pathlib import Path
from typing import Annotated, Self

from pydantic import Field, model_validator
from pydantic.dataclasses import dataclass

from export.pack.schema import PackInfo
from export.pack.validation import OPEN, Text, check, read_json

_log = logging.getLogger(__name__)
Count = Annotated[int, Field(ge=1)]
Milliseconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


@dataclass(frozen=True, config=OPEN)
class Candidates:
    """Milliseconds of a query by method and number of images.

    Attributes:
        images: how many were scored, fewest first.
        median: for each method as many times; half of the queries took no longer.
        queries: how many were timed, at most, for each.
        hardware: what it was measured on.
        command: what measured it.
    """

    images: tuple[Count, ...]
    median: dict[str, tuple[Milliseconds, ...]]
    queries: Count
    hardware: Text
    command: Text

    @model_validator(mode="after")
    def _refuse_what_is_no_curve(self) -> Self:
        if len(self.images) < 2 or list(self.images) != sorted(set(self.images)):
            raise ValueError("images must be two numbers or more, the smallest first")
        if not self.median or any(len(ms) != len(self.images) for ms in self.median.values()):
            raise ValueError(f"median must hold {len(self.images)} times for each method")
        return self


def record(pack: Path) -> Path:
    """Where the record of a pack's folder is: beside it."""
    return pack.parent / f"{pack.name}.candidates.json"


def recorded(info: PackInfo) -> Candidates | None:
    """What was measured before, None where there is no record that can be read."""
    path = record(info.folder)
    if not path.is_file():
        return None
    try:
        return check(Candidates, read_json(path), path.name)
    except (ValueError, OSError) as error:
        _log.warning("the time of a query against candidates is not shown: %s", error)
        return None
