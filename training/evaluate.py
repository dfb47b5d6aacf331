"""Measures a pack as it ships, or a run as training left it.

`python -m training.evaluate --pack app/bundled/scenes --method vse_infty --split test`
`python -m training.evaluate --pack PACK --split test --data DIR`
`python -m training.evaluate --run RUN --split val`

With `--data` the images of DIR are encoded: captioned ones (`training/data/photographs.py`)
or rendered scenes. What needs to know every image that a caption is true of is measured on scenes;
photographs are also asked the everyday questions of `training/evaluation/everyday.py`, "a dog in
the snow", of which P@5 is the share of right hits among the first five. `--judgements FILE`
compares scores with people's ratings. `--ensemble a+b` adds the average of two methods' scores,
`--compare a,b` says how sure a difference in rsum is, `--views` what each view does and whether it
looks at what a caption mentions, and `--foils` whether true captions of scenes score above false
ones that differ little. `--calibrate` fits how sure each method may be of its hits and
keeps it in the pack, `--calibration` measures whether that is true (docs/calibration.md).
With `--run` recalls alone are measured, in torch, of the data that the run was trained on; several
runs, such as two seeds of a recipe, are a row each, and their scores' average a last one.

Methods over ready-made features of regions (`training/data/precomputed.py`) are measured on a
folder of those: `--run RUN --split testall --folds 5`, or `--pack PACK --data DIR`.
"""

import argparse
import json
import math
import sys
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch

from export.hub.resolve import resolve
from export.pack.calibration import Calibration
from export.pack.domain import Domain
from export.pack.reading import load_info
from export.pack.schema import Metrics
from export.pack.validation import check
from export.pack.writing import update_metrics, write_info
from export.runtime import Runtime
from export.sessions import hardware
from models import Views
from models.files import write_whole
from training.data.extraction import CACHE
from training.data.features import Extraction
from training.data.open_split import open_split
from training.data.pack_gallery import from_pack
from training.data.split import Split
from training.evaluation.beyond_recalls import BeyondRecalls
from training.evaluation.calibration import ask, fit, measure
from training.evaluation.evaluator import (
    CAPTIONS_AT_ONCE,
    IMAGES_AT_ONCE,
    as_read,
    image_features,
    score_metrics,
    split_views,
)
from training.evaluation.everyday import everyday_metrics, true_images
from training.evaluation.foils import print_foils
from training.evaluation.judgements import read_judgements
from training.evaluation.kinds import kind_differences, print_kinds
from training.evaluation.metrics import check_folds
from training.evaluation.questions import half, make_questions, read_texts
from training.evaluation.report import (
    print_certainty,
    print_difference,
    print_evidence,
    print_table,
    print_views,
)
from training.evaluation.scoring import ensemble_scores, score_matrix
from training.evaluation.statistics import bootstrap_difference
from training.loop.command import refusals_end
from training.loop.trained_run import run_scores

_SEED = 0  # of the questions by which calibrations are fitted and measured


class _Steps:
    """Tells how far the measurement is, on stderr, if it was asked to: one JSON object a line.

    {"done": 33, "total": 53, "doing": "vsepp"}: steps done, of how many, and whose the last one was
    ("pictures", or what a row of the table is called).
    """

    def __init__(self, asked: bool, total: int) -> None:
        self.asked, self.total, self.done = asked, total, 0

    def __call__(self, doing: str) -> None:
        self.done += 1
        step = {"done": self.done, "total": self.total, "doing": doing}
        if self.asked:
            print(json.dumps(step), file=sys.stderr, flush=True)


def main(argv: Sequence[str] | None = None) -> None:
    """Reads the command line, measures, prints."""
    options = _parser().parse_args(argv)
    with refusals_end():
        if options.run:
            rows = _measure_runs(options)
        else:
            certain = options.calibrate or options.calibration
            rows = _certainty(options) if certain else _measure(options)
    if options.json:
        write_whole(options.json, json.dumps(rows, indent=2) + "\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m training.evaluate", description="Measure a pack or a run."
    )
    of = parser.add_mutually_exclusive_group(required=True)
    of.add_argument("--pack", help="folder or Hub id of a pack")
    what = "run folder of a method; may be repeated, for the average of their scores, too"
    of.add_argument("--run", type=Path, action="append", help=what)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--method", help="one of the pack's methods; all without it")
    which.add_argument("--all", action="store_true", help="every method of the pack")
    again: dict[str, Any] = {"action": "append", "default": []}
    what = "also the average of these methods' scores; may be repeated"
    parser.add_argument("--ensemble", metavar="A+B", help=what, **again)
    what = "95%% interval of the rsum difference, without folds; ensembles too; may be repeated"
    parser.add_argument("--compare", metavar="A,B", help=what, **again)
    what = "also how often each view wins and whether it looks at what captions mention"
    parser.add_argument("--views", action="store_true", help=what)
    what = "also whether what a score is made of lies where words say, and matters to the score"
    parser.add_argument("--evidence", action="store_true", help=what)
    what = "also whether true captions score above false ones that differ little; of scenes"
    parser.add_argument("--foils", action="store_true", help=what)
    what = "fit how sure each method may be, and keep it in the pack"
    parser.add_argument("--calibrate", action="store_true", help=what)
    what = "measure how true that is, instead of recalls"
    parser.add_argument("--calibration", action="store_true", help=what)
    what = "photographs of one split: fit on one half of them and measure on the other"
    parser.add_argument("--halves", action="store_true", help=what)
    what = "also Kendall's tau-c with people's ratings: Flickr8k's ExpertAnnotations.txt"
    parser.add_argument("--judgements", type=Path, metavar="FILE", help=what)
    parser.add_argument("--split", default="test")
    what = "photographs with captions, scenes, or ready-made features; without it a pack's own "
    what += "gallery, or what a run was trained on"
    parser.add_argument("--data", type=Path, help=what)
    parser.add_argument("--folds", type=int, default=1, help="average over so many folds")
    parser.add_argument("--json", type=Path, help="also write the metrics to this file")
    what = "store the metrics in the pack, those of ensembles excepted"
    parser.add_argument("--write", action="store_true", help=what)
    what = "say on stderr, one JSON object a line, how far it is"
    parser.add_argument("--progress", action="store_true", help=what)
    what = f"of a run: folder of cached features; {CACHE} without it"
    parser.add_argument("--cache", type=Path, default=CACHE, help=what)
    parser.add_argument("--device", default="auto", choices=("auto", "cpu", "cuda"))
    return parser


def _measure_runs(options: argparse.Namespace) -> dict[str, dict[str, float]]:
    asked = {name for name, value in vars(options).items() if value}
    if more := sorted(asked - {"run", "data", "split", "folds", "json", "cache", "device"}):
        raise ValueError(f"--{more[0]} measures packs; export the run, or leave it out")
    if len({folder.resolve() for folder in options.run}) < len(options.run):
        raise ValueError(
            "--run names a folder twice; the average of a run with itself says nothing"
        )
    extraction = Extraction(options.cache, device=options.device)
    rows: dict[str, dict[str, float]] = {}
    for folder in options.run:
        name, scores, data = run_scores(folder, options.split, extraction, options.data)
        check_folds(len(scores), options.folds)
        if not rows:
            together, first = np.zeros_like(scores), data
        elif data.captions != first.captions or not np.array_equal(data.image_of, first.image_of):
            raise ValueError(
                f"{folder} and {options.run[0]} were trained on different data; say with --data "
                "what to measure all of them on"
            )
        together += scores / len(options.run)
        rows[name if len(options.run) == 1 else str(folder)] = score_metrics(
            scores, data, options.folds
        )
    if len(rows) > 1:
        rows["average"] = score_metrics(together, data, options.folds)
    print_table(rows)
    print_kinds(rows, list(dict.fromkeys(data.kinds)) if options.folds == 1 else [])
    return rows


def _measure(options: argparse.Namespace) -> dict[str, dict[str, float]]:
    pack, split = resolve(options.pack), options.split
    data = open_split(options.data, split) if options.data else from_pack(pack, split)
    check_folds(data.image_count, options.folds)
    people = read_judgements(options.judgements, data) if options.judgements else None
    runtime = Runtime.load(pack, options.device)
    data = as_read(runtime, data)
    names = [*([options.method] if options.method else runtime.info.methods), *options.ensemble]
    pairs = [_pair(text) for text in options.compare]
    asked = [*names, *chain.from_iterable(pairs)]
    parts = _parts(asked, pack, list(runtime.info.methods))
    readers = {runtime.image_encoder_of(part): part for part in parts}
    batches = len(readers) * math.ceil(len(data.images) / IMAGES_AT_ONCE)
    each = math.ceil(len(data.captions) / CAPTIONS_AT_ONCE) + 1  # one more for the scores
    split_up = sum(part in names for part in parts) if options.evidence else 0
    beyond = BeyondRecalls(
        data, runtime, views=options.views, evidence=options.evidence, foils=options.foils
    )
    tell = _Steps(options.progress, batches + len(parts) * each + len(names) + split_up)
    watch = tell if options.progress else None
    features = {file: image_features(runtime, data, watch, part) for file, part in readers.items()}
    truth = _everyday_truth(options, data)
    scores, everyday = dict[str, np.ndarray](), dict[str, np.ndarray]()
    more = dict[str, dict[str, float]]()
    for part in parts:
        read = features[runtime.image_encoder_of(part)]
        views = split_views(runtime, part, data, read, options.views, tell)
        scores[part] = score_matrix(runtime.methods[part], *views)
        everyday[part] = _everyday_scores(runtime, part, views[0], list(truth))
        tell(part)
        if part in names:
            more[part] = beyond.measure(part, read, views)
        if options.evidence and part in names:
            tell(part)
    for matrices in (scores, everyday):
        matrices |= {name: ensemble_scores(matrices, name) for name in asked}
    rows = {}
    for name in names:
        found = score_metrics(scores[name], data, options.folds)
        found |= everyday_metrics(everyday[name], list(truth.values()))
        found |= people.agreement(scores[name]) if people else {}
        rows[name] = found | more.get(name, {})
        tell(name)
    print_table(rows)
    print_kinds(rows, list(dict.fromkeys(data.kinds)) if options.folds == 1 else [])
    if options.views:
        print_views(more)
    if options.evidence:
        print_evidence(more)
    if options.foils:
        print_foils(more)
    _print_differences(pairs, scores, data)
    if options.write:
        _write(pack, options, {name: rows[name] for name in names if name in parts})
    return rows


def _print_differences(
    pairs: list[tuple[str, str]], scores: dict[str, np.ndarray], data: Split
) -> None:
    for a, b in pairs:
        found = bootstrap_difference(scores[a], scores[b], data.image_of, alike=data.alike)
        print_difference(a, b, found)
        for kind, found in kind_differences(scores[a], scores[b], data).items():
            print_difference(a, b, found, kind)


def _everyday_truth(options: argparse.Namespace, data: Split) -> dict[str, np.ndarray]:
    """Everyday questions and the photographs they are right for; none where captions do not say."""
    if options.data is None or data.relevant is not None:
        return {}
    return true_images(data.captions, data.image_of)


def _everyday_scores(
    runtime: Runtime, method: str, images: Views, questions: list[str]
) -> np.ndarray:
    """Scores (N_img, Q) of questions; Q may be 0."""
    if not questions:
        return np.empty((len(images), 0), np.float32)
    return score_matrix(runtime.methods[method], images, runtime.text_views(questions, method))


def _certainty(options: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Fits the calibrations of a pack, or measures them."""
    pack, split = resolve(options.pack), options.split
    data = open_split(options.data, split) if options.data else from_pack(pack, split)
    if options.halves:
        data, split = half(data, 0 if options.calibrate else 1), f"half of {split}"
    runtime = Runtime.load(pack, options.device)
    data = as_read(runtime, data)
    known = list(runtime.info.methods)
    parts = _parts([options.method] if options.method else known, pack, known)
    questions = make_questions(data, runtime, _SEED)
    facts = read_texts(runtime, questions.texts)
    asked = replace(data, captions=questions.texts, image_of=np.zeros(len(questions.texts), int))
    readers = {runtime.image_encoder_of(part): part for part in parts}
    features = {file: image_features(runtime, data, None, part) for file, part in readers.items()}
    changes: dict[str, dict[str, Any]] = {}
    rows = {}
    for part in parts:
        views = split_views(runtime, part, asked, features[runtime.image_encoder_of(part)])
        scores = score_matrix(runtime.methods[part], *views)
        about = {
            "split": split,
            "command": _command(options, part),
            "hardware": hardware(),
            "seed": _SEED,
        }
        if options.calibrate:
            fitted = fit(questions, scores, facts, _SEED)._asdict()
            found = check(Calibration, {**fitted, **about})
            changes[part] = {"calibration": found, "calibration_metrics": None}
        elif (made := runtime.info.methods[part].calibration) is None:
            raise ValueError(f"{pack} has no calibration of {part}; make one with --calibrate")
        else:
            rows[part] = measure(made, ask(questions, scores, *facts))
            measured = check(Metrics, {**about, "values": rows[part]})
            changes[part] = {"calibration_metrics": measured}
    if options.calibrate or options.write:
        info = load_info(pack, verify=False)
        entries = {
            name: replace(entry, **changes.get(name, {})) for name, entry in info.methods.items()
        }
        own = features.get(info.image_encoder.file) if options.calibrate else None
        # of ready-made features there is no image that could be unlike them
        fitted_to = Domain.fit(own.cpu().numpy()) if isinstance(own, torch.Tensor) else info.domain
        write_info(replace(info, methods=entries, domain=fitted_to))
    print_certainty(rows)
    return rows


def _parts(names: list[str], pack: Path, known: list[str]) -> list[str]:
    """The methods that methods and ensembles (`a+b`) are made of, each once."""
    for name in names:
        if len(set(each := name.split("+"))) < len(each):
            raise ValueError(f'the ensemble "{name}" names a method twice; name each once')
    parts = list(dict.fromkeys(part for name in names for part in name.split("+")))
    for part in parts:
        if part not in known:
            raise ValueError(f'{pack} has no method "{part}"; choose one of {", ".join(known)}')
    return parts


def _pair(text: str) -> tuple[str, str]:
    first, _, second = text.partition(",")
    if not second or "," in second:
        raise ValueError(f'--compare takes two names as in "a,b", not "{text}"')
    return first, second


def _write(pack: Path, options: argparse.Namespace, rows: dict[str, dict[str, float]]) -> None:
    for name, values in rows.items():
        about = {"split": options.split, "command": _command(options, name)}
        update_metrics(pack, name, {**about, "hardware": hardware(), "values": values})


def _command(options: argparse.Namespace, name: str) -> str:
    """The command line that measures a method, or fits its calibration, again."""
    data = f" --data {_named(str(options.data))}" if options.data else ""
    folds = f" --folds {options.folds}" if options.folds > 1 else ""
    flags = ("views", "evidence", "foils", "calibrate", "calibration", "halves")
    asked = "".join(f" --{flag}" for flag in flags if getattr(options, flag))
    return (
        f"python -m training.evaluate --pack {_named(options.pack)} --method {name}{data} "
        f"--split {options.split}{folds}{asked}"
    )


def _named(path: str) -> str:
    """A path as typed, unless that tells where it lies on this machine."""
    return Path(path).name if Path(path).is_absolute() else path


if __name__ == "__main__":
    main()
