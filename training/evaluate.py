"""Measures a pack, or a run before its export; `--help` describes the options.

`python -m polyview evaluate --pack app/bundled/scenes --method vse_infty --split test`

Metrics over all relevant images of a caption need rendered scenes. Runs are measured in torch, by
default on a split of their training folder. Several runs, such as two seeds of a recipe, are
measured separately and by the average of their scores. Methods over precomputed region features are
measured on a folder of features: `--run RUN --split testall --folds 5`, or `--pack PACK --data
DIR`. `docs/evidence.md` explains `--evidence`, `--calibrate` and `--maps`.
"""

import argparse
import json
import shlex
import sys
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np

from polyview.export.hub.packs import resolve
from polyview.export.pack.reading import update_metrics
from polyview.export.pack.schema import MANIFEST
from polyview.export.runtime import Runtime
from polyview.export.sessions import hardware
from polyview.models.files import atomic_write, sha256_of
from polyview.training.data.features import CACHE, Extraction
from polyview.training.data.open_split import open_pack_gallery, open_split
from polyview.training.data.split import Split
from polyview.training.evaluation import (
    calibration,
    evidence,
    kinds,
    maps,
    metrics,
    report,
    scoring,
)
from polyview.training.evaluation.views import mentioned_cells, print_views, view_metrics
from polyview.training.loop.loop import BEST
from polyview.training.loop.trainer import run_views
from polyview.training.settings import exit_on_error, positive_int

_PRINTERS = {"views": print_views, "evidence": evidence.print_evidence, "foils": kinds.print_foils}
_RUN_OPTIONS = {  # options that apply to --run
    "run", "data", "split", "folds", "json", "cache", "device", "compare", "scores", "trec",
    "mistakes", "k", "csv"
}  # fmt: skip


def main(argv: Sequence[str] | None = None) -> None:
    """Measures the pack or the runs named on the command line, and prints the results."""
    options = _build_parser().parse_args(argv)
    with exit_on_error():
        arguments = shlex.join(sys.argv[1:] if argv is None else argv)
        results = _measure_runs(options) if options.run else _measure_pack(options)
        if options.json:
            record = {"command": f"python -m polyview evaluate {arguments}", "split": options.split}
            record |= {"seed": metrics.SEED, "hardware": hardware()}
            atomic_write(options.json, json.dumps(record | results, indent=2) + "\n")


def _build_parser() -> argparse.ArgumentParser:
    description = "Measure the methods of a pack, or runs."
    parser = argparse.ArgumentParser("python -m polyview evaluate", description=description)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--pack", help="folder or Hub id of a pack")
    help_text = "run folder of a method; repeatable: also measures the mean score of the runs"
    source.add_argument("--run", type=Path, action="append", help=help_text)
    method_group = parser.add_mutually_exclusive_group()
    method_group.add_argument("--method", help="a method of the pack (default: all)")
    method_group.add_argument("--all", action="store_true", help="all methods of a pack (default)")
    add = parser.add_argument
    repeated: dict[str, Any] = {"action": "append", "default": []}
    help_text = "also measure the mean score of these methods; repeatable"
    add("--ensemble", metavar="A+B", help=help_text, **repeated)
    help_text = "also print the rsum difference of two methods, ensembles or runs; repeatable"
    add("--compare", metavar="A,B", help=help_text, **repeated)
    help_text = "also compare hits of A and B, each a method, an ensemble, a run or a TREC run file"
    add("--mistakes", nargs=2, metavar=("A", "B"), help=help_text, default=())
    help_text = "rank up to which --mistakes counts an image as found (default: 1)"
    add("--k", type=positive_int, default=1, help=help_text)
    for flag, help_text in (
        ("views", "also measure how often each view wins and attends to mentioned objects"),
        ("evidence", "also measure whether evidence lies on named objects and changes the score"),
        ("foils", "also measure whether true captions of scenes score above false ones"),
        ("calibrate", "fit the probabilities of each method's hits, and store them in the pack"),
        ("calibration", "measure the stored probabilities of hits instead of recalls"),
        ("halves", "use one half of the images for --calibrate and the other for --calibration"),
        ("write", "store the metrics in the pack, except those of ensembles"),
    ):
        add(f"--{flag}", action="store_true", help=help_text)
    help_text = "only compare explanation maps of CLIP; FROM is the source of the pack's weights"
    add("--maps", nargs="?", const=True, metavar="FROM", help=help_text)
    add("--split", default="test", help="split to measure (default: test)")
    help_text = "folder of images or features (default: the pack's gallery, or the run's data)"
    add("--data", type=Path, help=help_text)
    add("--folds", type=positive_int, default=1, help="average over this many folds (default: 1)")
    for name, metavar, help_text in (
        ("csv", "OUT", "the captions and ranks of --mistakes, or the table of --maps, as CSV"),
        ("json", "OUT", "metrics, differences, command and checksums as JSON"),
        ("scores", "OUT.npz", "score matrices and ranks as a NumPy archive"),
        ("trec", "DIR", "rankings in TREC's format, one file per method and direction"),
    ):
        add(f"--{name}", type=Path, metavar=metavar, help=f"also write {help_text}")
    help_text = f"folder of image features that --run stores and reuses (default: {CACHE})"
    add("--cache", type=Path, default=CACHE, help=help_text)
    help_text = "where encoders and methods run (default: auto, a GPU if there is one)"
    add("--device", default="auto", choices=("auto", "cpu", "cuda"), help=help_text)
    return parser


def _measure_runs(options: argparse.Namespace) -> dict[str, Any]:
    option_names = {name for name, value in vars(options).items() if value}
    if unsupported := sorted(option_names - _RUN_OPTIONS):
        raise ValueError(f"--{unsupported[0]} measures packs; leave it out, or export the run")
    if len({folder.resolve() for folder in options.run}) < len(options.run):
        raise ValueError("--run names a folder twice; name each run once")
    extraction = Extraction(options.cache, device=options.device)
    scores: dict[str, np.ndarray] = {}
    for folder in options.run:
        name, method, *sides, data = run_views(folder, options.split, extraction, options.data)
        matrix = scoring.score_matrix(method, *sides)
        metrics.check_folds(len(matrix), options.folds)
        if not scores:
            split = data
        elif data.captions != split.captions or not np.array_equal(data.image_of, split.image_of):
            reason = f"{folder} and {options.run[0]} were trained on different data"
            raise ValueError(f"{reason}; name one folder for all runs with --data")
        scores[name if len(options.run) == 1 else str(folder)] = matrix
    if len(scores) > 1:
        scores["average"] = np.mean(list(scores.values()), axis=0)
    _list_names(options, [], scores, "run")  # refuses unknown names
    rows = {name: kinds.score_metrics(s, split, options.folds) for name, s in scores.items()}
    sources = {str(folder): sha256_of(folder / BEST) for folder in options.run}
    report.print_metrics("method", report.COLUMNS, rows)
    kinds.print_kinds(rows, split.kinds if options.folds == 1 else ())
    return {"sources": sources, **_compare(options, rows, scores, split)}


def _measure_pack(options: argparse.Namespace) -> dict[str, Any]:
    if options.halves and not (options.calibrate or options.calibration):
        raise ValueError("--halves divides the images of --calibrate or --calibration; add one")
    pack = resolve(options.pack)
    results: dict[str, Any] = {"sources": {str(pack): sha256_of(pack / MANIFEST)}}
    runtime = Runtime.load(pack, options.device)
    known = list(runtime.info.methods)
    names = [options.method] if options.method else known
    all_names = _list_names(options, [*names, *options.ensemble], known, "method")
    split, folder = options.split, options.data
    data = open_split(folder, split) if folder else open_pack_gallery(pack, split)
    data = scoring.limit_frames(runtime, data)
    if options.calibrate or options.calibration:
        if options.halves:
            data, split = scoring.draw_half(data, 0 if options.calibrate else 1), f"half of {split}"
        methods = scoring.ensemble_members(names, known, "method")
        records = {name: {"split": split, "command": _command(options, name)} for name in methods}
        rows = calibration.calibrate_pack(
            runtime, data, records, refit=options.calibrate, write=options.write
        )
        return results | {"methods": rows}
    if options.maps:
        source = None if options.maps is True else options.maps
        rows = maps.measure_maps(runtime, data, options.method, source)
        maps.print_maps(rows, options.csv)
        return results | {"maps": rows}
    metrics.check_folds(data.image_count, options.folds)
    return results | _measure_methods(options, runtime, data, names, all_names)


def _list_names(
    options: argparse.Namespace, names: Iterable[str], known: Iterable[str], kind: str
) -> list[str]:
    """Lists methods or runs of `names`, `--compare` and `--mistakes`; splits ensembles."""
    pairs = [text.split(",") for text in options.compare]
    for text, pair in zip(options.compare, pairs, strict=True):
        if len(pair) != 2 or not pair[1]:
            raise ValueError(f'--compare takes two names as in "a,b", not "{text}"')
    mistakes = [name for name in options.mistakes if not Path(name).is_file()]
    return scoring.ensemble_members([*names, *chain.from_iterable(pairs), *mistakes], known, kind)


def _measure_methods(
    options: argparse.Namespace,
    runtime: Runtime,
    data: Split,
    names: Sequence[str],
    all_names: Sequence[str],
) -> dict[str, Any]:
    """Measures the methods `names` and `--ensemble`; `all_names` also has members of ensembles."""
    if options.foils and data.foils is None:
        reason = f"--foils needs rendered scenes, and {data.folder} has none"
        raise ValueError(f"{reason}; render them with python -m polyview scenes")
    object_cells = mentioned_cells(runtime, data) if options.views or options.evidence else None
    mentions = evidence.find_mentions(runtime, data) if options.evidence else []
    foils = data.foils() if options.foils and data.foils else []
    features = scoring.features_by_method(runtime, data, all_names)
    scores, extra_metrics = dict[str, np.ndarray](), dict[str, dict[str, float]]()
    for name in all_names:
        sides = scoring.split_views(runtime, name, data, features[name], options.views)
        scores[name] = scoring.score_matrix(runtime.methods[name], *sides)
        if name not in names:
            continue
        extra = extra_metrics[name] = {}
        if options.views:
            extra |= view_metrics(runtime, name, data, sides, object_cells)
        if options.evidence:
            inputs = features[name], object_cells, mentions
            extra |= evidence.evidence_metrics(runtime, name, data, *inputs)
        if foils:
            extra |= kinds.foil_metrics(runtime, name, sides[0], foils)
    names = [*names, *options.ensemble]
    scores |= {name: scoring.ensemble_scores(scores, name) for name in names}
    rows = {name: kinds.score_metrics(scores[name], data, options.folds) for name in names}
    for name, values in extra_metrics.items():
        rows[name] |= values
    report.print_metrics("method", report.COLUMNS, rows)
    kinds.print_kinds(rows, data.kinds if options.folds == 1 else ())
    for print_table in [_PRINTERS[name] for name in _PRINTERS if getattr(options, name)]:
        print_table(extra_metrics)
    for name in extra_metrics if options.write else ():
        record: dict[str, Any] = {"split": options.split, "command": _command(options, name)}
        record |= {"hardware": hardware(), "values": rows[name]}
        update_metrics(runtime.info.folder, name, record)
    return _compare(options, rows, scores, data)


def _compare(
    options: argparse.Namespace, rows: report.Rows, scores: dict[str, np.ndarray], data: Split
) -> dict[str, Any]:
    """Prints comparisons and mistakes, and writes files; returns the results for `--json`."""
    results: dict[str, Any] = {"methods": rows, "differences": []}
    for a, b in (pair.split(",") for pair in options.compare):
        first, second = (scoring.ensemble_scores(scores, name) for name in (a, b))
        for kind, values in kinds.rsum_differences(first, second, data).items():
            print(
                f"{a} - {b}{f', {kind}' if kind else ''}: rsum {values['difference']:+.1f}, 95 % "
                f"interval [{values['low']:+.1f}, {values['high']:+.1f}], above 0 in "
                f"{100 * values['share_above']:.1f} % of the bootstrap samples"
            )
            results["differences"].append({"first": a, "second": b, "kind": kind, **values})
    table = {name: scores[name] for name in rows}
    if options.scores:
        report.write_scores(options.scores, table, data)
    if options.trec:
        report.write_trec(options.trec, table, data)
    if options.csv and not options.mistakes:
        raise ValueError("--csv writes the captions of --mistakes; add --mistakes A B")
    if options.mistakes:
        a, b = options.mistakes
        matrices = dict(scores)
        for name in (a, b):
            if Path(name).is_file():
                matrices[name] = report.read_run(Path(name), data, options.k)
            else:
                matrices[name] = scoring.ensemble_scores(scores, name)
        results["mistakes"] = report.print_mistakes(a, b, matrices, data, options.k, options.csv)
    return results


def _command(options: argparse.Namespace, name: str) -> str:
    """Returns the command that reproduces a method's metrics or its calibration."""
    command = f"python -m polyview evaluate --pack {_without_folders(options.pack)} --method {name}"
    command += f" --data {_without_folders(str(options.data))}" if options.data else ""
    command += f" --split {options.split}"
    command += f" --folds {options.folds}" if options.folds > 1 else ""
    flags = ("views", "evidence", "foils", "calibrate", "calibration", "halves")
    return command + "".join(f" --{flag}" for flag in flags if getattr(options, flag))


def _without_folders(path: str) -> str:
    """Removes the folders of an absolute path, because packs are shared."""
    return Path(path).name if Path(path).is_absolute() else path


if __name__ == "__main__":
    main()
