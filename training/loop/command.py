"""What the command lines of training share."""

import argparse
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch

from training.data.extraction import CACHE
from training.loop.board import Board, refuse_without_tensorboard
from training.loop.config import load_recipe
from training.loop.loop import Loop, is_first_process
from training.loop.reference import recipe_lines, settings_lines
from training.loop.runs import CONFIG
from training.settings import Settings

S = TypeVar("S", bound=Settings)


class Command:
    """The command line of a training.

    Args:
        name: of the module below `training`.
        description: what is trained.
        kind: its settings.
        recipe: the recipe where none is named; without it one must be.
        cache: offers `--cache`.
    """

    def __init__(
        self,
        name: str,
        description: str,
        kind: type[Settings],
        recipe: str = "",
        *,
        cache: bool = False,
    ) -> None:
        self.name, self.recipe = name, recipe
        program = f"python -m training.{name}"
        self.parser = argparse.ArgumentParser(prog=program, description=description)
        add = self.parser.add_argument
        what = f"for example {recipe or 'scenes/vse_infty'}, or a TOML file; --list names all"
        add("--recipe", help=what)
        add("--out", type=Path, required=True, help="run folder")
        add("--set", action="append", metavar="NAME=VALUE", help="replace a setting, e.g. epochs=3")
        add("--resume", action="store_true", help="go on with the run in --out and its settings")
        if cache:
            what = f"folder of cached features of photographs and captions; {CACHE} without it"
            add("--cache", type=Path, default=CACHE, help=what)
        add("--threads", type=int, default=0, help="CPU threads; 0 leaves it to torch")
        add("--tensorboard", action="store_true", help="also write TensorBoard's events into --out")
        add("--list", action=_Print, lines=lambda: recipe_lines(kind), help="name the recipes")
        what = "every setting: its type, range and default, and what it does"
        add("--help-settings", action=_Print, lines=lambda: settings_lines(name, kind), help=what)

    def read(self, argv: Sequence[str] | None) -> argparse.Namespace:
        """Reads the arguments, the program's for None, and sets the number of threads."""
        options = self.parser.parse_args(argv)
        if options.threads:
            torch.set_num_threads(options.threads)
        return options

    def settings(self, kind: type[S], options: argparse.Namespace) -> S:
        """The settings that the arguments name: a recipe's, or those of the run to go on with.

        Raises:
            FileNotFoundError, ValueError: there are none, or they make no sense.
        """
        recipe, written = options.recipe or self.recipe, options.out / CONFIG
        if options.resume and not options.recipe:
            if not written.is_file():
                raise FileNotFoundError(
                    f"{options.out} holds no run to go on with; begin one with --recipe"
                )
            recipe = str(written)
        if not recipe:
            raise ValueError(
                "name what to train with --recipe, for example scenes/vse_infty; --list names all"
            )
        return load_recipe(kind, recipe, options.set)

    @contextmanager
    def ends(self, options: argparse.Namespace) -> Iterator[None]:
        """Ends the program with a sentence where it is refused or interrupted."""

        def again() -> str:
            if not (options.out / CONFIG).is_file():
                return "nothing was begun yet"
            parts = [self.parser.prog, "--resume", "--out", shlex.quote(str(options.out))]
            for option in ("cache", "threads"):
                value = getattr(options, option, None)
                if value != self.parser.get_default(option):
                    parts += [f"--{option}", shlex.quote(str(value))]
            parts += ["--tensorboard"] if options.tensorboard else []
            return f"go on with {' '.join(parts)}"

        with refusals_end(again):
            if options.tensorboard:
                refuse_without_tensorboard()
            yield


def fit(loop: Loop[Any, Any], options: argparse.Namespace) -> dict[str, float]:
    """Trains to the end, and says what was reached; of several processes one does."""
    if options.tensorboard and is_first_process():
        loop.board = Board(options.out, loop.progress["step"])
    metrics = loop.fit()
    if is_first_process():
        best = f"{loop.best_by} {metrics[loop.best_by]:.1f}, " if loop.best_by in metrics else ""
        print(f"best val {best}weights in {options.out}")
    return metrics


class _Print(argparse.Action):
    """Prints lines and ends the program, as --help does."""

    def __init__(self, lines: Callable[[], Sequence[str]], **given: Any) -> None:
        super().__init__(nargs=0, **given)
        self.lines = lines

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        print("\n".join(self.lines()))
        parser.exit()


@contextmanager
def refusals_end(again: Callable[[], str] = lambda: "run the same command again") -> Iterator[None]:
    """Ends the program with the sentence of an error that the user can mend.

    Args:
        again: how to go on after Ctrl-C, in words.
    """
    try:
        yield
    except (ValueError, OSError) as error:
        raise SystemExit(f"{error}") from error
    except KeyboardInterrupt:
        if is_first_process():
            print(f"\nstopped; {again()}", file=sys.stderr)
        raise SystemExit(130) from None  # what a shell gives for SIGINT
