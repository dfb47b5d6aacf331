"""The command line that all training commands share."""

import argparse
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import torch

from polyview.training.data.features import CACHE
from polyview.training.loop.config import load_recipe, recipe_lines
from polyview.training.loop.loop import CONFIG, Loop
from polyview.training.settings import Settings, describe, exit_on_error

S = TypeVar("S", bound=Settings)


def run_command(
    argv: Sequence[str] | None,
    command: str,
    settings_class: type[S],
    build: Callable[..., Loop[Any, Any]],
    *,
    recipe: str = "",
    describe_settings: Callable[[], Iterable[str]] | None = None,
    use_cache: bool = False,
) -> None:
    """Runs the command line of `python -m polyview COMMAND`: trains and prints the best metric.

    `build(settings, out, resume=...)` creates the loop from an instance of `settings_class`.
    Without a default `recipe`, a new run needs `--recipe`. `describe_settings` returns the lines of
    `--help-settings`, by default those of `settings_class`. `use_cache` adds the options `--cache`
    and `--skip-damaged`, which `build` receives as `cache` and `skip_damaged`.
    """
    purpose = "Starts or resumes a run; --list names the recipes, --help-settings the settings."
    parser = argparse.ArgumentParser(prog=f"python -m polyview {command}", description=purpose)
    add = parser.add_argument
    help_text = f"recipe (see --list), for example {recipe or 'scenes/vse_infty'}, or a TOML file"
    add("--recipe", help=help_text)
    add("--out", type=Path, help="run folder")
    add("--set", action="append", metavar="NAME=VALUE", help="replace a setting, e.g. epochs=3")
    help_text = "continue the run in --out with its settings; --set epochs=N extends it"
    add("--resume", action="store_true", help=help_text)
    if use_cache:
        help_text = f"folder of stored features of images and texts (default: {CACHE})"
        add("--cache", type=Path, default=CACHE, help=help_text)
        add("--skip-damaged", action="store_true", help="leave out images that cannot be read")
    add("--threads", type=int, default=0, help="CPU threads (default: 0, torch's default)")
    add("--list", action="store_true", help="list the recipes and exit")
    add("--help-settings", action="store_true", help="print every setting with its range, and exit")
    options = parser.parse_args(argv)
    if options.list or options.help_settings:
        lines: Iterable[str] = recipe_lines(settings_class)
        if not options.list:
            lines = describe_settings() if describe_settings else describe(settings_class)
        print("\n".join(lines))
        return
    if options.out is None:
        parser.error("name the run folder with --out")
    if options.threads < 0:
        parser.error(f"--threads must be 0 or more, not {options.threads}")
    if options.threads:
        torch.set_num_threads(options.threads)
    with exit_on_error("continue with the same command and --resume"):
        if options.resume and not options.recipe:
            recipe = str(options.out / CONFIG)
            if not Path(recipe).is_file():
                advice = "start one with --recipe"
                raise FileNotFoundError(f"{options.out} holds no run to continue; {advice}")
        if not (options.recipe or recipe):
            example = "for example --recipe scenes/vse_infty"
            raise ValueError(f"choose a recipe, {example}; --list names all")
        config = load_recipe(settings_class, options.recipe or recipe, options.set)
        names = ("resume", "cache", "skip_damaged") if use_cache else ("resume",)
        loop = build(config, options.out, **{name: getattr(options, name) for name in names})
        best = loop.fit().get(loop.selection_metric)
        result = f"{loop.selection_metric} {best:.1f}, " if best is not None else ""
        print(f"best val {result}weights in {options.out}")
