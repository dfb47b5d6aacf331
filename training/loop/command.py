"""What the command lines of training share."""

import argparse
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch


def parse(
    description: str,
    argv: Sequence[str] | None,
    *,
    recipe: str | None = None,
    cache: Path | None = None,
) -> argparse.Namespace:
    """Reads the command line of a training, and sets the number of threads.

    Args:
        description: what is trained.
        argv: the arguments; None takes the program's.
        recipe: the recipe where none is named; without it one must be.
        cache: offers `--cache`, with this default.
    """
    parser = argparse.ArgumentParser(description=description)
    add = parser.add_argument
    what = f"for example {recipe or 'scenes/vse_infty'}, or a TOML file"
    add("--recipe", required=recipe is None, default=recipe, help=what)
    add("--out", type=Path, required=True, help="run folder")
    add("--set", action="append", metavar="NAME=VALUE", help="replace a setting, e.g. epochs=3")
    add("--resume", action="store_true", help="go on with the run in --out")
    if cache is not None:
        what = f"folder of cached features of photographs and captions; {cache} without it"
        add("--cache", type=Path, default=cache, help=what)
    add("--threads", type=int, default=0, help="CPU threads; 0 leaves it to torch")
    options = parser.parse_args(argv)
    if options.threads:
        torch.set_num_threads(options.threads)
    return options


@contextmanager
def refusals_end() -> Iterator[None]:
    """Ends the program with the sentence of an error that the user can mend."""
    try:
        yield
    except (ValueError, OSError) as error:
        raise SystemExit(f"{error}") from error
