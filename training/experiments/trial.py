"""A trial: one configuration trained to its end, once, and measured on the validation split."""

import csv
import functools
import hashlib
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from export.hub.sources import SourceError, describe_image_source
from models import Method, Views
from models.checkpoint import load_strict, load_tensors
from models.files import replacing, write_whole
from models.gpo import RankPooling
from training.data.features import Extraction, load_features, refuse_missing
from training.data.split import Split
from training.evaluation.metrics import retrieval_metrics
from training.evaluation.scoring import score_matrix, view_score_matrices
from training.evaluation.statistics import caption_cosines, choice_of_views, view_statistics
from training.loop.config import TrainConfig
from training.loop.logs import LOG
from training.loop.runs import BEST
from training.loop.trained_run import run_scores, run_views
from training.loop.trainer import Trainer, build_trainer
from training.settings import to_values

MEASURED, SCORES = "measured.json", "scores.npy"
TEXTS_TIMED = 30


def trial_folder(config: TrainConfig, out: Path) -> Path:
    """Where a configuration's trial lies: its own folder, and another one after any change.

    Settings at their defaults do not count, so that a new one does not make every trial a new one.
    """
    settings = _beyond(to_values(config), to_values(TrainConfig()))
    settings["backbone_sha256"] = _checksum(config.backbone)
    key = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()
    return out / f"{config.method}-{key[:12]}"


def _checksum(backbone: str) -> str:
    """Of an image encoder; nothing where there is none, which training itself complains about."""
    try:
        refuse_missing(backbone, "backbone")
        return str(describe_image_source(backbone)["sha256"]) if backbone else ""
    except (FileNotFoundError, SourceError):
        return ""


def _beyond(values: dict[str, Any], defaults: dict[str, Any]) -> dict[str, Any]:
    """What nested dictionaries hold beyond their defaults."""
    found = {}
    for key, value in values.items():
        changed, default = value, defaults.get(key)
        if isinstance(value, dict) and isinstance(default, dict):
            changed = _beyond(value, default) or default
        if changed != default:
            found[key] = changed
    return found


def run_trial(config: TrainConfig, out: Path, *, keep_scores: bool = False) -> dict[str, Any]:
    """Trains and measures a configuration, or returns what was measured before.

    An interrupted training goes on where it was.

    Args:
        config: what to train.
        out: folder of all trials.
        keep_scores: also keep the validation scores, for `trial_scores`.

    Returns:
        See `measure`.
    """
    folder = trial_folder(config, out)
    measured, scores = folder / MEASURED, folder / SCORES
    if not measured.is_file() or (keep_scores and not scores.is_file()):
        trainer = build_trainer(config, folder, resume=True, load=_load_once)
        trainer.fit()
        load_strict(trainer.model, load_tensors(folder / BEST)[0], str(folder / BEST))
        values, matrix = measure(trainer)
        if keep_scores:
            np.save(scores, matrix)
        write_whole(measured, json.dumps(values, indent=2) + "\n")
    return json.loads(measured.read_text("utf-8"))


def split_scores(config: TrainConfig, out: Path, split: str) -> np.ndarray:
    """The scores (N_img, N_txt) of a trial that was run, on any split; kept beside it."""
    folder = trial_folder(config, out)
    path = folder / f"scores_{split}.npy"
    if not path.is_file():
        scores = run_scores(folder, split, Extraction())[1]
        with replacing(path) as draft, draft.open("wb") as file:
            np.save(file, scores)
    return np.load(path)


def split_views(config: TrainConfig, out: Path, split: str) -> dict[str, float]:
    """What the views of a trial that was run are like on a split; kept beside it.

    Returns:
        `views`, V, and `dim`, D; `choice_of_views`; `view_statistics`; and `wins_top`, see
        `measure`.
    """
    path = trial_folder(config, out) / f"views_{split}.json"
    if not path.is_file():
        _, method, images, texts, data = run_views(path.parent, split, Extraction())
        _, count, dim = images.embeddings.shape
        found: dict[str, float] = {"views": count, "dim": dim}
        found |= choice_of_views(view_score_matrices(method, images, texts), data.image_of)
        found |= _with_busiest(view_statistics(method, images, texts, data.image_of))
        write_whole(path, json.dumps(found, indent=2) + "\n")
    return json.loads(path.read_text("utf-8"))


def trial_minutes(config: TrainConfig, out: Path) -> float:
    """How long a trial's training took, validations included."""
    with (trial_folder(config, out) / LOG).open(newline="", encoding="utf-8") as log:
        return sum(float(line["seconds"]) for line in csv.DictReader(log)) / 60


def trial_scores(config: TrainConfig, out: Path) -> np.ndarray:
    """The validation scores (N_img, N_txt) that `run_trial` kept."""
    return np.load(trial_folder(config, out) / SCORES)


def validation_images(config: TrainConfig) -> np.ndarray:
    """(N_txt,) row of each validation caption's image."""
    return _load_once(Path(config.data), "val", config.backbone).image_of


def measure(trainer: Trainer) -> tuple[dict[str, Any], np.ndarray]:
    """What a trained pair does; its weights are no longer those that were measured afterwards.

    Returns:
        `retrieval_metrics`, `view_statistics` and `caption_cosines` of the validation split,
        `wins_top` (the largest share of wins), `temperature` (of the contrastive loss, where it is
        learned), `parameters` (of the heads), `step_ms` and `score_ms` (see
        `training/experiments/ablation.py`), and `curves`, the coefficients of each learned pooling
        for a set of the usual size; and the scores.
    """
    method, rows = trainer.model.method, trainer.val.image_of
    images, texts = trainer.validation_views()
    scores = score_matrix(method, images, texts)
    views = view_statistics(method, images, texts, rows)
    learned = method.contrastive_temperature()
    values: dict[str, Any] = {
        **retrieval_metrics(scores, rows),
        **_with_busiest(views),
        **caption_cosines(texts, rows),
        "parameters": sum(p.numel() for p in method.parameters()),
        "curves": _curves(trainer),
        "score_ms": _score_milliseconds(method, images, texts),
    }
    if learned is not None:
        values["temperature"] = learned.item()
    values["step_ms"] = trainer.step_milliseconds()
    return values, scores


def _with_busiest(views: dict[str, float]) -> dict[str, float]:
    """`view_statistics` with `wins_top`, the largest share of wins."""
    shares = [v for k, v in views.items() if k.removeprefix("wins_").isdecimal()]
    return {**views, "wins_top": max(shares)}


@torch.inference_mode()
def _score_milliseconds(method: Method, images: Views, texts: Views) -> float:
    clock = time.perf_counter if images.embeddings.is_cuda else time.process_time
    spans = []
    for text in range(min(TEXTS_TIMED, len(texts))):
        began = clock()
        method.score(images, texts[text : text + 1]).amax().item()
        spans.append(clock() - began)
    return 1000 * float(np.median(spans))


@torch.inference_mode()
def _curves(trainer: Trainer) -> dict[str, list[float]]:
    """Coefficients of the learned poolings: over an image's cells, over a text's typical length."""
    words = int(np.median(trainer.texts.tables[1].lengths))
    curves = {}
    for name, module in trainer.model.method.named_modules():
        if isinstance(module, RankPooling) and list(module.parameters()):
            size = words if "text" in name else trainer.image_elements
            sizes = torch.tensor([size], device=trainer.device)
            curves[name] = [round(x, 5) for x in module.coefficients(sizes)[0].tolist()]
    return curves


@functools.lru_cache(maxsize=4)
def _load_once(
    data: Path, name: str, backbone: str, copies: int = 1, also: tuple[str, ...] = ()
) -> Split:
    return load_features(data, name, backbone, copies=copies, also=also)
