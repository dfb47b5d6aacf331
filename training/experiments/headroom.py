"""Headroom: what several views of an image could gain over one vector, and what they do gain.

A figure is `training/experiments/headrooms/<name>.toml`. It takes rows of a study, each at the
setting that the study's trials choose, and trains them on the trials' small budget with vectors of
many widths. Beside models of several views stand separately seeded models whose scores are
averaged, as wide and as many: what these reach, and what the best choice among them would, owes
nothing to views.
"""

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from export.pack.validation import check
from export.sessions import hardware
from training.data.open_split import open_split
from training.evaluation.metrics import recall_sum, retrieval_ranks
from training.evaluation.statistics import bootstrap_difference, choice_of_views
from training.experiments.results import table_lines
from training.experiments.runner import Row, settings_given
from training.experiments.study import Study, load_study
from training.experiments.trial import split_scores, split_views, trial_folder, trial_minutes
from training.loop.config import TrainConfig
from training.settings import Settings

FOLDER = Path(__file__).parent / "headrooms"
ABOVE = "above one vector of as many numbers"
COLUMNS = {
    "curve": "of",
    "models": "models",
    "views": "views",
    "dim": "numbers a view",
    "total": "numbers an image",
    "rsum": "rsum",
    "best_view": "best view alone",
    "mean_of_views": "mean of views",
    "max_of_views": "maximum",
    "oracle_view": "oracle view",
    "view_cosine": "cosine of two views",
    "wins_top": "wins of the busiest, %",
    "above_total": ABOVE,
    "low": "low",
    "high": "high",
    "above_view": "above one vector as wide as a view",
}
"""What is known of a model or an ensemble: a column of the table each, with its heading."""
_DIGITS = {"view_cosine": 3}  # one, of the others
_COUNTS = ("curve", "models", "views", "dim", "total")


class Curve(Settings):
    """One method at several widths.

    Attributes:
        label: what it is, in words.
        row: label of the study's row that is trained.
        points: what is trained: "dotted.name=value" settings, a space between them.
        seeds: one model for each; of several the first two, three and so on are averaged.
    """

    label: str
    row: str
    points: tuple[str, ...] = Field(min_length=1)
    seeds: tuple[int, ...] = (0,)


class Headroom(Settings):
    """A figure.

    Attributes:
        name: the file's.
        study: whose rows, settings, trials and split it has.
        about: what is drawn, and how long it takes.
        curves: in order; the first is that of one vector, with which all are compared.
        here: what came out; empty before it was run.
    """

    name: str
    study: str
    about: str
    curves: tuple[Curve, ...] = Field(min_length=1)
    here: str = ""

    @property
    def key(self) -> str:
        """What its files, and its part of the results page, are called."""
        return f"headroom_{self.name}"

    def tried(self) -> Study:
        """The part of the study whose trials choose the settings."""
        return load_study(self.study).only([curve.row for curve in self.curves])

    def rows(self, changes: Sequence[str], chosen: Mapping[str, Mapping[str, float]]) -> list[Row]:
        """What is trained, one row for each point; `chosen` as `Study.chosen` gives it."""
        study = self.tried()
        rows = {row.label: row for row in study.rows}
        best = {label: next(iter(each), "").split() for label, each in chosen.items()}
        return [
            Row(
                f"{curve.label}, {point}",
                tuple(
                    (study.config(rows[curve.row], given, changes).changed(seed=seed),)
                    for seed in curve.seeds
                ),
            )
            for curve in self.curves
            for point in curve.points
            for given in [(*study.trial, *best[curve.row], *point.split())]
        ]


def load_headroom(name: str) -> Headroom:
    """Reads a figure's definition.

    Args:
        name: a file of `training/experiments/headrooms` without its ending.

    Raises:
        ValueError: there is none, or something in its file makes no sense.
    """
    path = FOLDER / f"{name}.toml"
    if not path.is_file():
        known = ", ".join(sorted(p.stem for p in FOLDER.glob("*.toml")))
        raise ValueError(f'there is no headroom figure of "{name}"; choose one of {known}')
    values = tomllib.loads(path.read_text("utf-8"))
    return check(Headroom, {**values, "name": name}, f"headroom {name}")


def result_of(headroom: Headroom, changes: Sequence[str], out: Path) -> dict[str, Any]:
    """Everything that the figure shows, as its JSON file holds it; all was trained before."""
    study = headroom.tried()
    chosen = study.chosen(changes, out)
    rows = headroom.rows(changes, chosen)
    measured = _Measured(out, study.split, Path(rows[0].trainings[0][0].data))
    curves = iter(rows)
    found = [
        {"curve": curve.label, **values}
        for curve in headroom.curves
        for _ in curve.points
        for values in measured.of([config for (config,) in next(curves).trainings])
    ]
    configs = {trial_folder(c, out): c for row in rows for (c,) in row.trainings}
    spent = sum(trial_minutes(config, out) for config in configs.values())
    return {
        "name": headroom.key,
        **{key: getattr(headroom, key) for key in ("study", "about", "here")},
        "command": f"python -m training.headroom {headroom.name}{settings_given(changes)}",
        "hardware": hardware(),
        "split": study.split,
        "trainings": f"{len(configs)} trainings of {spent:.0f} minutes together",
        "chosen": {label: next(iter(each), "") for label, each in chosen.items()},
        "columns": list(COLUMNS.values()),
        "rows": [_rounded(values) for values in _compared(found, measured)],
    }


class _Measured:
    """What was measured of trainings on one split.

    Args:
        out: folder of the trials.
        split: on which they are measured.
        data: folder of the split.
    """

    def __init__(self, out: Path, split: str, data: Path) -> None:
        self._out, self._split = out, split
        opened = open_split(data, split)
        self.image_of, self.alike = opened.image_of, opened.alike

    def of(self, configs: Sequence[TrainConfig]) -> Iterator[dict[str, Any]]:
        """Of one model, or of the first two, three and so on of several seeds together."""
        views = split_views(configs[0], self._out, self._split)
        about = {key: int(views[key]) for key in ("views", "dim")}
        for count in range(min(2, len(configs)), len(configs) + 1):
            together = configs[:count]
            found = choice_of_views(self.each(together), self.image_of) if count > 1 else views
            rsum = recall_sum(*retrieval_ranks(self.scores(together), self.image_of))
            total = count * about["views"] * about["dim"]
            several = count * about["views"] > 1
            counts = {**about, "models": count, "total": total, "rsum": rsum, "configs": together}
            yield {**(found if several else {}), **counts}

    def each(self, configs: Sequence[TrainConfig]) -> np.ndarray:
        """(S, N_img, N_txt) scores of S models."""
        return np.stack([split_scores(config, self._out, self._split) for config in configs])

    def scores(self, configs: Sequence[TrainConfig]) -> np.ndarray:
        """(N_img, N_txt), averaged over the models."""
        return self.each(configs).mean(axis=0)


def _compared(found: list[dict[str, Any]], measured: _Measured) -> Iterator[dict[str, Any]]:
    """Beside one vector of as many numbers in all, and beside one as wide as a view."""
    single = {v["total"]: v for v in found if v["curve"] == found[0]["curve"]}
    for values in found:
        compared = {}
        alike, narrow = single.get(values["total"]), single.get(values["dim"])
        if alike is not None and alike is not values:
            here, there = (measured.scores(each["configs"]) for each in (values, alike))
            sure = bootstrap_difference(here, there, measured.image_of, alike=measured.alike)
            compared = {"above_total": sure["difference"], "low": sure["low"], "high": sure["high"]}
        if narrow is not None and narrow is not values:
            compared["above_view"] = values["rsum"] - narrow["rsum"]
        yield {**values, **compared}


def _rounded(values: Mapping[str, Any]) -> list[Any]:
    """A row of the table; None for what is not known."""
    return [
        values.get(key)
        if key in _COUNTS or key not in values
        else round(float(values[key]), _DIGITS.get(key, 1))
        for key in COLUMNS
    ]


def points_of(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The rows of a result's table by the keys of `COLUMNS`."""
    return [dict(zip(COLUMNS, row, strict=True)) for row in result["rows"]]


def headroom_lines(result: Mapping[str, Any]) -> list[str]:
    """The figure's part of the results page, as Markdown; its plot lies beside the page."""
    settings = [f"- {label}: {given}" for label, given in result["chosen"].items() if given]
    return [
        result["about"],
        "",
        f"![rsum against numbers an image and a view]({result['name']}.svg)",
        "",
        *table_lines(result["columns"], result["rows"]),
        "",
        *([result["here"], ""] if result["here"] else []),
        *(["Settings, by the trials of the study:", "", *settings, ""] if settings else []),
        f"`{result['command']}`, {result['hardware']}; {result['split']} split, "
        f"{result['trainings']}.",
    ]
