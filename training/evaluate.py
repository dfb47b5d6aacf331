"""Measures a pack, or a run before its export; `--help` explains every option.

`python -m polyview evaluate --pack app/bundled/scenes --method vse_infty --split test`
`python -m polyview evaluate --pack PACK --split test --data DIR`
`python -m polyview evaluate --run RUN --split val`

Metrics over all right images of a caption need scenes; photographs are also searched with everyday
questions (`everyday_truth`): P@5 is the share of right hits among the first five. Of runs only
recalls are measured, in torch, on the data of the run's training; several, such as two seeds of a
recipe, have a row each and one for the average of their scores. Methods over ready-made region
features are measured on a folder of such features: `--run RUN --split testall --folds 5`, or
`--pack PACK --data DIR`. `docs/evidence.md` explains `--evidence`, `--calibrate` and `--maps`.
"""

import argparse
import json
import shlex
import sys
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch

from polyview.export.hub.packs import resolve
from polyview.export.pack.reading import update_metrics
from polyview.export.pack.schema import MANIFEST
from polyview.export.runtime import Runtime
from polyview.export.sessions import hardware
from polyview.models import Views
from polyview.models.files import sha256_of, write_whole
from polyview.training.data.features import CACHE, Extraction
from polyview.training.data.open_split import from_pack, open_split
from polyview.training.data.split import Split
from polyview.training.evaluation.calibration import calibrate_pack
from polyview.training.evaluation.evidence import evidence_metrics, moment_metrics, named_places
from polyview.training.evaluation.faithfulness import mentioned_cells, view_metrics
from polyview.training.evaluation.kinds import (
    foil_metrics,
    kind_differences,
    print_foils,
    print_kinds,
    score_metrics,
)
from polyview.training.evaluation.maps import measure_maps
from polyview.training.evaluation.metrics import (
    SEED,
    bootstrap_difference,
    check_folds,
    everyday_metrics,
    everyday_truth,
    print_questions,
)
from polyview.training.evaluation.mistakes import print_mistakes
from polyview.training.evaluation.normalization import measure_normalization, store_normalization
from polyview.training.evaluation.questions import half
from polyview.training.evaluation.report import (
    COLUMNS,
    print_certainty,
    print_difference,
    print_evidence,
    print_maps,
    print_metrics,
    print_normalization,
    print_views,
    write_maps,
    write_scores,
    write_trec,
)
from polyview.training.evaluation.scoring import (
    as_read,
    compared_pairs,
    ensemble_parts,
    ensemble_scores,
    image_features,
    score_matrix,
    split_views,
)
from polyview.training.loop.loop import BEST
from polyview.training.loop.trainer import run_views
from polyview.training.settings import refusals_end

_Rows = dict[str, dict[str, float]]  # metrics of each row of the table
_RUN_OPTIONS = {
    "run", "data", "split", "folds", "json", "cache", "device", "compare", "scores", "trec",
    "mistakes", "k", "csv"
}  # fmt: skip


def main(argv: Sequence[str] | None = None) -> None:
    """Reads the command line, measures, prints."""
    options = _parser().parse_args(argv)
    with refusals_end():
        words = shlex.join(sys.argv[1:] if argv is None else argv)
        record = {
            "command": f"python -m polyview evaluate {words}",
            "split": options.split,
            "seed": SEED,
            "hardware": hardware(),
        }
        if options.run:
            measured = _measure_runs(options)
        else:
            pack = resolve(options.pack)
            sources = {str(pack): sha256_of(pack / MANIFEST)}
            runtime = Runtime.load(pack, options.device)
            certainty = options.calibrate or options.calibration
            others = ((_normalization, options.nnn), (_certainty, certainty), (_maps, options.maps))
            measure = next((each for each, chosen in others if chosen), _measure_pack)
            measured = {"sources": sources, **measure(options, runtime)}
        if options.json:
            write_whole(options.json, json.dumps(record | measured, indent=2) + "\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m polyview evaluate", description="Measure a pack or a run."
    )
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--pack", help="folder or Hub id of a pack")
    what = "run folder of a method; may be repeated, for the average of their scores, too"
    source.add_argument("--run", type=Path, action="append", help=what)
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--method", help="one of the pack's methods; all without it")
    which.add_argument("--all", action="store_true", help="every method of the pack")
    add = parser.add_argument
    again: dict[str, Any] = {"action": "append", "default": []}
    what = "also the average of these methods' scores; may be repeated"
    add("--ensemble", metavar="A+B", help=what, **again)
    what = "95%% interval of the rsum difference of two methods, ensembles or runs; may be repeated"
    add("--compare", metavar="A,B", help=what, **again)
    what = (
        "captions that A finds and B misses; a method, ensemble, run, or run file of TREC's format"
    )
    add("--mistakes", nargs=2, metavar=("A", "B"), help=what)
    add(
        "--k", type=int, default=1, help="of --mistakes: found is what ranks within k; 1 without it"
    )
    for flag, what in (
        ("views", "also how often each view wins, and its attention to mentioned objects"),
        ("evidence", "also whether evidence is on the objects of words, and matters to the score"),
        ("foils", "also whether true captions of scenes score above false ones"),
        ("nnn", "measure Nearest Neighbor Normalization; with --write, store it in CLIP's packs"),
        ("calibrate", "fit the probabilities of each method's hits, and store them in the pack"),
        ("calibration", "measure these, instead of recalls"),
        ("halves", "photographs of one split: fit on one half of them and measure on the other"),
        ("write", "store the metrics in the pack, those of ensembles excepted"),
    ):
        add(f"--{flag}", action="store_true", help=what)
    what = (
        "instead of recalls, whose map of CLIP or SigLIP points right: exact rows, attention "
        "rollout, Grad-ECLIP, LeGrad; FROM has the weights that the pack was made of"
    )
    add("--maps", nargs="?", const=True, metavar="FROM", help=what)
    add("--split", default="test", help="test without it")
    what = "photographs with captions, scenes, or ready-made features; without it a pack's own "
    add("--data", type=Path, help=what + "gallery, or what a run was trained on")
    what = "rank only the first captions of each image, at most so many; default: all"
    add("--captions", type=int, default=0, metavar="N", help=what)
    add("--folds", type=int, default=1, help="number of folds to average over")
    for name, metavar, what in (
        ("csv", "OUT", "--mistakes' captions with their ranks, or --maps' table, to this file"),
        ("json", "OUT", "metrics, differences, command and checksums to this file"),
        ("scores", "OUT.npz", "score matrices and ranks to this NumPy archive"),
        ("trec", "DIR", "rankings in TREC's format, a file a method and direction"),
    ):
        add(f"--{name}", type=Path, metavar=metavar, help=f"also write {what}")
    what = f"of a run: folder of cached features; {CACHE} without it"
    add("--cache", type=Path, default=CACHE, help=what)
    add("--device", default="auto", choices=("auto", "cpu", "cuda"))
    return parser


def _measure_runs(options: argparse.Namespace) -> dict[str, Any]:
    used = {name for name, value in vars(options).items() if value}
    if more := sorted(used - _RUN_OPTIONS):
        raise ValueError(f"--{more[0]} measures packs; export the run, or leave it out")
    if len({folder.resolve() for folder in options.run}) < len(options.run):
        raise ValueError("--run names a folder twice; name each run once")
    extraction = Extraction(options.cache, device=options.device)
    scores: dict[str, np.ndarray] = {}
    for folder in options.run:
        run = run_views(folder, options.split, extraction, options.data)
        name, method, images, texts, data = run
        matrix = score_matrix(method, images, texts)
        check_folds(len(matrix), options.folds)
        if not scores:
            first = data
        elif data.captions != first.captions or not np.array_equal(data.image_of, first.image_of):
            raise ValueError(
                f"{folder} and {options.run[0]} were trained on different data; say with --data "
                "what to measure all of them on"
            )
        scores[name if len(options.run) == 1 else str(folder)] = matrix
    if len(scores) > 1:
        scores["average"] = np.mean(list(scores.values()), axis=0)
    pairs = compared_pairs(options.compare, scores, "run")
    rows = {name: score_metrics(matrix, first, options.folds) for name, matrix in scores.items()}
    _print_rows(rows, first, options)
    ensemble_parts([n for n in options.mistakes or () if not Path(n).is_file()], scores, "run")
    sources = {str(folder): sha256_of(folder / BEST) for folder in options.run}
    return {"sources": sources, **_compare_and_export(options, rows, pairs, scores, first)}


def _measure_pack(options: argparse.Namespace, runtime: Runtime) -> dict[str, Any]:
    data, known = as_read(runtime, _open_data(options, runtime)), list(runtime.info.methods)
    check_folds(data.image_count, options.folds)
    names = [*([options.method] if options.method else known), *options.ensemble]
    pairs = compared_pairs(options.compare, known, "method")
    also = [name for name in options.mistakes or () if not Path(name).is_file()]
    parts = ensemble_parts([*names, *chain.from_iterable(pairs), *also], known, "method")
    photographs = options.data is not None and data.relevant is None
    truth = everyday_truth(data.captions, data.image_of) if photographs else {}
    covered = mentioned_cells(runtime, data) if options.views or options.evidence else None
    places = named_places(runtime, data) if options.evidence else []
    readers = {runtime.image_encoder_of(part): part for part in parts}
    features = {file: image_features(runtime, data, part) for file, part in readers.items()}
    scores, everyday, more = dict[str, np.ndarray](), dict[str, np.ndarray](), _Rows()
    for part in parts:
        read, method = features[runtime.image_encoder_of(part)], runtime.methods[part]
        views = split_views(runtime, part, data, read, options.views)
        scores[part] = score_matrix(method, *views)
        if truth:
            questions = runtime.text_views(list(truth), part)
            everyday[part] = score_matrix(method, views[0], questions)  # (N_img, Q)
        if part in names:
            more[part] = _measure_more(options, runtime, part, data, read, views, covered, places)
    scores |= {name: ensemble_scores(scores, name) for name in names}
    rows: _Rows = {}
    for name in names:
        rows[name] = score_metrics(scores[name], data, options.folds)
        if truth:
            rows[name] |= everyday_metrics(ensemble_scores(everyday, name), list(truth.values()))
        rows[name] |= more.get(name, {})
    _print_rows(rows, data, options)
    if photographs:
        print_questions(len(truth))
    tables = {"views": print_views, "evidence": print_evidence, "foils": print_foils}
    for option in [option for option in tables if getattr(options, option)]:
        tables[option](more)
    for name in set(names) & set(parts) if options.write else ():
        record = {"split": options.split, "command": _command(options, name)}
        metrics = {**record, "hardware": hardware(), "values": rows[name]}
        update_metrics(runtime.info.folder, name, metrics)
    return _compare_and_export(options, rows, pairs, scores, data)


def _measure_more(
    options: argparse.Namespace,
    runtime: Runtime,
    part: str,
    data: Split,
    features: torch.Tensor | np.ndarray,
    views: tuple[Views, Views],
    *truth: Any,
) -> dict[str, float]:
    """The measurements of one method, besides recalls, that the options select."""
    values = view_metrics(runtime, part, data, views, truth[0]) if options.views else {}
    if options.evidence:  # in space, or over the time of clips
        assert isinstance(features, torch.Tensor)  # `named_places` refuses packs of regions
        if data.frames > 1:
            values |= moment_metrics(runtime, part, data, features)
        else:
            values |= evidence_metrics(runtime, part, data, features, *truth)
    if options.foils and data.foils is not None:
        values |= foil_metrics(runtime, part, views[0], data.foils())
    return values


def _print_rows(rows: _Rows, data: Split, options: argparse.Namespace) -> None:
    print_metrics("method", COLUMNS, rows)
    print_kinds(rows, list(dict.fromkeys(data.kinds)) if options.folds == 1 else [])


def _compare_and_export(
    options: argparse.Namespace,
    rows: _Rows,
    pairs: list[tuple[str, str]],
    scores: dict[str, np.ndarray],
    data: Split,
) -> dict[str, Any]:
    """Prints the rsum differences of pairs, of all captions and by kind, and writes the files."""
    differences: list[dict[str, Any]] = []
    for a, b in pairs:
        first, second = (ensemble_scores(scores, name) for name in (a, b))
        whole = bootstrap_difference(first, second, data.image_of, alike=data.alike)
        for kind, values in {"": whole, **kind_differences(first, second, data)}.items():
            print_difference(a, b, values, kind)
            differences.append({"first": a, "second": b, "kind": kind, **values})
    table = {name: scores[name] for name in rows}
    for path, write in ((options.scores, write_scores), (options.trec, write_trec)):
        if path:
            write(path, table, data)
    if options.csv and not options.mistakes:
        raise ValueError("--csv lists the captions of --mistakes; add --mistakes A B")
    more = {"mistakes": print_mistakes(options, scores, data)} if options.mistakes else {}
    return {"methods": rows, "differences": differences, **more}


def _open_data(options: argparse.Namespace, runtime: Runtime) -> Split:
    """The split to measure a pack on."""
    pack, part = runtime.info.folder, options.split
    data = open_split(options.data, part) if options.data else from_pack(pack, part)
    if options.foils and data.foils is None:
        raise ValueError(
            f"{data.folder} has captions alone; true and false ones are made of rendered scenes "
            "(python -m polyview scenes)"
        )
    return data.captions_each(options.captions)


def _certainty(options: argparse.Namespace, runtime: Runtime) -> dict[str, Any]:
    """Fits the calibrations of a pack, or measures them."""
    data, known = _open_data(options, runtime), list(runtime.info.methods)
    split = options.split
    if options.halves:
        data, split = half(data, 0 if options.calibrate else 1), f"half of {split}"
    parts = ensemble_parts([options.method] if options.method else known, known, "method")
    record = {part: {"split": split, "command": _command(options, part)} for part in parts}
    rows = calibrate_pack(runtime, data, record, refit=options.calibrate, write=options.write)
    print_certainty(rows)
    return {"methods": rows}


def _maps(options: argparse.Namespace, runtime: Runtime) -> dict[str, Any]:
    """Compares the maps of a transformer; see `training/evaluation/maps.py`."""
    source = None if options.maps is True else options.maps
    rows = measure_maps(runtime, _open_data(options, runtime), options.method, source)
    print_maps(rows)
    if options.csv:
        write_maps(options.csv, rows)
    return {"maps": rows}


def _normalization(options: argparse.Namespace, runtime: Runtime) -> dict[str, Any]:
    """Measures methods with Nearest Neighbor Normalization."""
    names = [options.method] if options.method else list(runtime.info.methods)
    if options.write:
        rows = {name: store_normalization(runtime, name, options.data) for name in names}
    else:
        rows = measure_normalization(runtime, names, options.data, options.split, options.halves)
    print_normalization(rows)
    return {"methods": rows}


def _command(options: argparse.Namespace, name: str) -> str:
    """The command line that measures a method, or fits its calibration, again."""
    data = f" --data {_named(str(options.data))}" if options.data else ""
    folds = f" --captions {options.captions}" if options.captions else ""
    folds += f" --folds {options.folds}" if options.folds > 1 else ""
    flags = ("views", "evidence", "foils", "calibrate", "calibration", "halves")
    chosen = "".join(f" --{flag}" for flag in flags if getattr(options, flag))
    return (
        f"python -m polyview evaluate --pack {_named(options.pack)} --method {name}{data} "
        f"--split {options.split}{folds}{chosen}"
    )


def _named(path: str) -> str:
    """A path as typed; only the name of an absolute path, since packs are shared."""
    return Path(path).name if Path(path).is_absolute() else path


if __name__ == "__main__":
    main()
