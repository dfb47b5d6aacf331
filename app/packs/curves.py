"""How a pack's methods were trained: what each epoch reached, from the logs that the pack brings.

`training/<method>/log.csv` has a row an epoch, as training wrote it. Epochs are counted here by
their rows: earlier versions began at 0.
"""

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from export.pack.schema import PackInfo

LOG = "log.csv"
_MOST = 2**20  # bytes of a log; that of a thousand epochs is smaller
Points = tuple[tuple[int, float], ...]


@dataclass(frozen=True)
class Training:
    """One method's training.

    Attributes:
        name: of the method.
        epochs: how many there were.
        minutes: they took together, validations included; 0 where that is not known.
        loss: (epoch, mean loss over its steps).
        rsum: (epoch, rsum on the validation split), of epochs that were validated.
    """

    name: str
    epochs: int
    minutes: float
    loss: Points
    rsum: Points


def load(info: PackInfo) -> list[Training]:
    """The trainings that a pack has whole logs of, in the order of its methods."""
    found = (_read(info.folder / "training" / name / LOG, name) for name in info.methods)
    return [training for training in found if training is not None]


def _read(path: Path, name: str) -> Training | None:
    """One log; None where there is none, or something else stands in its place."""
    try:
        with path.open("rb") as file:
            content = file.read(_MOST + 1)
        rows = list(csv.DictReader(io.StringIO(content.decode())))
    except (OSError, UnicodeDecodeError, csv.Error):
        return None
    loss, rsum = _points(rows, "loss"), _points(rows, "rsum")
    if len(content) > _MOST or not loss or not rsum:
        return None
    seconds = sum(value for _, value in _points(rows, "seconds"))
    return Training(name, len(rows), seconds / 60, loss, rsum)


def _points(rows: Sequence[Mapping[str, str]], key: str) -> Points:
    """The numbers of a column, with the epochs that have one."""
    found = []
    for epoch, row in enumerate(rows, start=1):
        try:
            value = float(row.get(key) or "nan")
        except ValueError:
            return ()
        if math.isfinite(value):
            found.append((epoch, value))
    return tuple(found)
