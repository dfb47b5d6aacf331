"""Measures a pack again on this machine, and says whether its stated numbers come out.

The evaluation is the command that the pack records, `python -m training.evaluate`, in a process of
its own: the app imports nothing of `training/`. Only its form is taken from the pack, never the
text: a pack may come from anywhere, and what it holds is not run.
"""

import shlex
import sys
import tempfile
from collections.abc import Generator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from app.packs.jobs import ROOT, FailedError, Job, JobError, Step
from app.packs.measured import COLUMNS
from export.pack.schema import Metrics, PackInfo
from export.pack.validation import read_json

_FORM = ("python", "-m", "training.evaluate", "--pack", None, "--method", None, "--split", None)
_EXTRA = {"--views", "--evidence", "--foils"}  # what a recorded command may have beyond its form
_DIGITS = {column.key: column.digits for column in COLUMNS}
_FINE = 4  # digits of shares of the gallery


@dataclass(frozen=True)
class Outcome:
    """What was measured: values by method, and how many seconds it took."""

    values: dict[str, dict[str, float]]
    seconds: float


@dataclass(frozen=True)
class Pair:
    """A number as the pack states it and as it came out here; `digits` are shown of both."""

    key: str
    stated: float
    here: float
    digits: int

    @property
    def equal(self) -> bool:
        """Whether both are shown as the same number."""
        return self.show(self.stated) == self.show(self.here)

    def show(self, value: float) -> str:
        """A value to the precision that is compared."""
        return f"{value:.{self.digits}f}"

    @property
    def difference(self) -> str:
        """By how much the number here is more than the stated one, with a digit to spare."""
        return f"{self.here - self.stated:+.{self.digits + 1}f}"


def compare(stated: Mapping[str, float], here: Mapping[str, float]) -> list[Pair]:
    """Every stated number beside the one measured here.

    Raises:
        JobError: one was not measured.
    """
    missing = [key for key in stated if key not in here]
    if missing:
        raise JobError(f"the evaluation gave no {missing[0]}, which the pack states")
    return [Pair(key, stated[key], here[key], _digits(key)) for key in stated]


def obstacle(info: PackInfo, root: Path = ROOT) -> str:
    """Why a pack's numbers cannot be measured again here; empty where they can be."""
    if not (root / "training" / "evaluate.py").is_file():
        return (
            f"the training folder is missing in {root.name}, and with it the evaluation; "
            "take the whole repository to run it"
        )
    if info.gallery is None:
        return f"{info.title} comes without pictures; there is nothing to measure it on"
    if not measured_methods(info):
        return f"{info.title} states no numbers that its own gallery could give again"
    return ""


def measured_methods(info: PackInfo) -> list[str]:
    """The methods whose stated numbers were measured on the pack's own gallery."""
    return [
        name
        for name, method in info.methods.items()
        if info.gallery is not None
        and method.metrics is not None
        and method.metrics.split == info.gallery.split
        and _options(method.metrics) is not None
    ]


class Runner:
    """Runs one evaluation at a time, whoever asks.

    Args:
        root: the folder that holds `training/`.
    """

    def __init__(self, root: Path = ROOT) -> None:
        self._root = root
        self._job = Job()

    def run(
        self, info: PackInfo, methods: list[str], device: torch.device, owner: str
    ) -> Generator[Step | Outcome, None, None]:
        """Evaluates; closing the iterator before its end kills the process.

        Args:
            info: a pack with its own gallery.
            methods: some of `measured_methods`.
            device: where to compute.
            owner: who may cancel it.

        Yields:
            Steps, at least one in a second, then the outcome.

        Raises:
            JobError: another one is running, or the evaluation failed.
            CancelledError: it was cancelled.
        """
        reason = obstacle(info, self._root)
        if reason:
            raise JobError(reason)
        if unknown := [name for name in methods if name not in measured_methods(info)]:
            raise JobError(f'{info.title} states no numbers of a method "{unknown[0]}"')
        busy = (
            f"an evaluation is running already ({self._job.last.percent} % done), and there can be "
            "only one at a time; try again when it has ended"
        )
        with tempfile.TemporaryDirectory() as folder:
            result = Path(folder) / "metrics.json"
            command = _command(info, methods, device, result)
            try:
                yield from self._job.run(command, self._root, owner, busy)
            except FailedError as error:
                raise JobError(
                    f"the evaluation ended with status {error.status}: {error}"
                ) from error
            yield Outcome(_values(result, methods), self._job.last.seconds)

    def cancel(self, owner: str) -> bool:
        """Ends the evaluation that `owner` started; False where there is none."""
        return self._job.cancel(owner)


def _command(info: PackInfo, methods: list[str], device: torch.device, result: Path) -> list[str]:
    """The command that a pack records, with this Python and telling its steps."""
    recorded = [metrics for name in methods if (metrics := info.methods[name].metrics)]
    which = ["--method", methods[0]] if len(methods) == 1 else ["--all"]
    options = sorted({option for metrics in recorded for option in _options(metrics) or ()})
    return [
        *(sys.executable, "-m", "training.evaluate", "--pack", str(info.folder.resolve())),
        *(*which, "--split", recorded[0].split, *options),
        *("--device", device.type, "--progress", "--json", str(result)),
    ]


def _options(metrics: Metrics | None) -> list[str] | None:
    """What the recorded command has beyond its form, None where it is of another form."""
    try:
        words = shlex.split(metrics.command) if metrics else []
    except ValueError:
        return None
    form, extra = words[: len(_FORM)], words[len(_FORM) :]
    fits = len(form) == len(_FORM) and all(
        wanted in (None, word) for wanted, word in zip(_FORM, form, strict=True)
    )
    return extra if fits and set(extra) <= _EXTRA else None


def _values(result: Path, methods: list[str]) -> dict[str, dict[str, float]]:
    try:
        rows: dict[str, Any] = read_json(result)["methods"]
        return {name: {k: float(v) for k, v in rows[name].items()} for name in methods}
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise JobError(f"the evaluation wrote no numbers that can be read: {error}") from error


def _digits(key: str) -> int:
    """How many digits of a metric count."""
    return _FINE if key.endswith("nmr") else _DIGITS.get(key, 1)
