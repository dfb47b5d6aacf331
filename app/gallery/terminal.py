"""What the terminal shows while a gallery is read."""

from typing import TextIO

from tqdm import tqdm

from app.gallery.indexing import Progress


class ProgressBar:
    """Follows an index; call it with each step. One bar for pictures, one for captions.

    Args:
        out: where the last line goes, by default to stdout; the bars go to stderr.
    """

    def __init__(self, out: TextIO | None = None) -> None:
        self._out = out
        self._bar: tqdm | None = None

    def __call__(self, progress: Progress) -> None:
        """Draws one step."""
        resting = progress.finished or progress.stage == "stopped"
        if self._bar is not None and (resting or self._bar.desc != progress.stage):
            self._bar.close()
            self._bar = None
        if resting:
            print(f"polyview: {progress}", file=self._out, flush=True)
            return
        if self._bar is None:
            self._bar = tqdm(
                total=progress.total, desc=progress.stage, initial=progress.done, mininterval=0.5
            )
        self._bar.update(progress.done - self._bar.n)
