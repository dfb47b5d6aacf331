"""The curves of a run for TensorBoard, where that package is installed."""

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

FOLDER = "tensorboard"


def refuse_without_tensorboard() -> None:
    """Refuses `--tensorboard` where the package is missing.

    Raises:
        ValueError: it is missing; the sentence says how to install it.
    """
    if find_spec("tensorboard") is None:
        raise ValueError(
            "--tensorboard needs the package: pip install tensorboard; without it, "
            "python -m training.plot draws the same curves"
        )


class Board:
    """Writes what the logs hold as TensorBoard's events.

    Args:
        run: the run folder.
        done: steps that are behind the run; what is there of later ones is taken back.
    """

    def __init__(self, run: Path, done: int) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.writer = SummaryWriter(run / FOLDER, purge_step=done + 1)

    def add(self, group: str, values: Mapping[str, float], step: int) -> None:
        """Notes named values of a step."""
        for name, value in values.items():
            self.writer.add_scalar(f"{group}/{name}", value, step)
        self.writer.flush()
