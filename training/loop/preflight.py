"""What a training needs, looked at before anything is computed.

Data, sources of encoders, sizes, pace, room on the disk and the run folder: whatever is wrong with
them is one sentence within seconds, before the first feature is extracted.
"""

import math
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

import models
from export.hub.sources import describe_image_source
from models import Method
from models.encoders import IMAGE_ENCODERS, TEXT_ENCODERS
from models.encoders.encoder import ImageEncoder, TextEncoder
from models.encoders.scene_net import SceneNet
from models.preprocess import Preprocess
from training.data.features import (
    Extraction,
    missing_features,
    refuse_crops,
    refuse_features,
    refuse_missing,
)
from training.data.open_split import holds_features, open_split, open_training
from training.data.split import Split, refuse_without_twins
from training.data.texts import TextConfig, check_text
from training.loop.config import BackboneConfig, TrainConfig
from training.loop.loop import device_for, is_first_process, steps_in_epoch
from training.loop.runs import BEST, RunFolder
from training.loop.start import check_start
from training.loop.teacher import DistillConfig, missing_bytes
from training.scenes.store import load_scenes

# A checkpoint holds each weight with its two moments; while it is replaced there are two of them.
_COPIES = 8


def check_training(config: TrainConfig, out: Path, *, resume: bool, cache: Path) -> None:
    """Looks at what the training of a method needs, and makes its run folder.

    Args:
        config: what is to be trained.
        out: run folder.
        resume: go on with the run there.
        cache: folder of cached features.

    Raises:
        ValueError, OSError: something is missing or does not fit; the sentence says what.
    """
    device_for(config.precision)
    data = Path(config.data)
    train = open_training(data, config.also)
    refuse_crops(train, config.feature_copies)
    train.with_frames(config.frames)
    if config.exchange_halves or config.order_epochs:
        refuse_without_twins(train)
    if not config.backbone_frozen:
        refuse_features(train)
    val = open_split(data, "val")
    text, images = _text_encoder(config.text), _image_encoder(config)
    with torch.device("meta"):  # of sizes alone
        dim = train.features.shape[2] if images is None else images.dim
        method = models.build(config.method, dim, text.dim, config.arguments)
    refuse_without_summary(
        config.method, method, images is not None and images.summary_token, text.summary_token
    )
    _refuse_idle_text(config, method)
    if config.init:
        sha256 = "" if images is None else describe_image_source(config.backbone)["sha256"]
        check_start(Path(config.init), config, sha256)
    _check_pace(config, "optimizer.warmup_steps", len(train.first(config.train_images).captions))
    trained: list[nn.Module] = [method]
    trained += [text] if not (config.text.source and config.text.frozen) else []
    trained += [images] if images is not None and not config.backbone_frozen else []
    _check_room(cache, _bytes_of_features(config, [train, val], cache), "features", "--cache")
    _check_folder(config, out, trained, resume=resume)


def check_distillation(config: DistillConfig, out: Path, *, resume: bool) -> None:
    """Looks at what a student needs; see `check_training`."""
    device_for(config.precision)
    data, shown = Path(config.data), Preprocess()
    train, val = open_training(data, config.also, without_captions=True), open_split(data, "val")
    refuse_missing(config.teacher, "teacher")
    about = describe_image_source(config.teacher)
    with torch.device("meta"):
        teacher: ImageEncoder = IMAGE_ENCODERS[about["arch"]](**about["arguments"])
        student = SceneNet(config.widths, config.blocks)
    seen = math.prod(teacher.grid(shown.size)) + teacher.summary_token  # of the same crops
    drawn = math.prod(student.grid(shown.size))
    if seen != drawn:
        raise ValueError(
            f"the teacher's map has {seen} cells and the student's {drawn}; choose blocks so that "
            "they agree"
        )
    if config.init and not (Path(config.init) / BEST).is_file():
        raise FileNotFoundError(f"init: there is no weights file {Path(config.init) / BEST}")
    _check_pace(config, "warmup_steps", len(train.images))
    images = {"train": len(train.images), "val": len(val.images)}
    needed = missing_bytes(config, images, shown, seen)
    _check_room(Path(config.cache), needed, "the teacher's maps", "--set cache=DIR")
    _check_folder(config, out, [student], resume=resume)


def check_pretraining(config: BackboneConfig, out: Path, *, resume: bool) -> None:
    """Looks at what the pretraining of the scenes' image encoder needs; see `check_training`."""
    device_for(config.precision)
    train, _ = (load_scenes(Path(config.data) / name) for name in ("train", "val"))
    _check_pace(config, "warmup_steps", len(train))
    with torch.device("meta"):
        trunk = SceneNet(config.widths, config.blocks)
    _check_folder(config, out, [trunk], resume=resume)


def _image_encoder(config: TrainConfig) -> ImageEncoder | None:
    """The image encoder without its weights; None where the data are features."""
    if holds_features(Path(config.data)):
        return None
    if not config.backbone:
        raise ValueError(
            f"{config.data} holds images, so backbone must name an image encoder: "
            "--set backbone=..."
        )
    refuse_missing(config.backbone, "backbone")
    about = describe_image_source(config.backbone)
    with torch.device("meta"):
        encoder: ImageEncoder = IMAGE_ENCODERS[about["arch"]](**about["arguments"])
    return encoder


def _text_encoder(config: TextConfig) -> TextEncoder:
    """The text encoder without its weights; one that is to learn its words has none yet."""
    about = check_text(config)
    with torch.device("meta"):
        kind: Callable[..., TextEncoder] = TEXT_ENCODERS[config.arch]
        if about is None:
            sizes = config.word_dim, config.hidden_dim
            return kind(2, *sizes, directions=config.directions)
        return kind(**about["arguments"])


def refuse_without_summary(name: str, method: Method, image: bool, text: bool) -> None:
    """A method that reads a [CLS] element is no use where another element stands in its place."""
    if not method.summary_token:
        return
    lacking = [side for side, has in (("image", image), ("text", text)) if not has]
    if lacking:
        raise ValueError(
            f'method "{name}" reads the first element of a set as its summary ([CLS]), but the '
            f"{' and the '.join(lacking)} encoder puts none there; use encoders whose "
            "summary_token is True, or choose a method that pools the whole set"
        )


def _refuse_idle_text(config: TrainConfig, method: Method) -> None:
    """Texts that come from a frozen encoder and are not mapped stay where they are."""
    frozen = bool(config.text.source) and config.text.frozen
    mapped = not isinstance(getattr(method, "project_text", None), nn.Identity)
    width = config.arguments.get("embed_dim")
    if frozen and not mapped and width != 0 and "map_text" not in config.arguments:
        raise ValueError(
            f"the text encoder is frozen and its features already have embed_dim's width"
            f"{f', {width}' if width else ''}, so nothing would learn to map texts: say "
            "--set arguments.map_text=true, or text.frozen=false, or choose another embed_dim"
        )


def _check_pace(config: TrainConfig | BackboneConfig, warmup: str, items: int) -> None:
    """Refuses batches larger than the data, and a warm-up that the run does not outlive."""
    world = int(os.environ.get("WORLD_SIZE", "1"))
    if config.batch_size % world:
        raise ValueError(f"batch_size {config.batch_size} does not divide by {world} processes")
    each = steps_in_epoch(items, config.batch_size)
    steps, warm = each * config.epochs, config.optimizer.warmup_steps
    if warm and warm >= steps:
        raise ValueError(
            f"{warmup} is {warm}, but the whole run has {steps} steps ({config.epochs} x {each}), "
            f"so that the rate would never be what learning_rate says; lower it: "
            f"--set {warmup}={steps // 10}"
        )


def _bytes_of_features(config: TrainConfig, splits: list[Split], cache: Path) -> int:
    """What is still to be extracted; texts take a tenth of it and are not counted."""
    if not config.backbone_frozen or holds_features(Path(config.data)):
        return 0
    how, copies = Extraction(cache), (config.feature_copies, 1)
    missing = [
        missing_features(split, config.backbone, how, count)
        for split, count in zip(splits, copies, strict=True)
    ]
    return sum(size for files in missing for size in files.values())


def _check_folder(
    config: TrainConfig | BackboneConfig, out: Path, trained: list[nn.Module], *, resume: bool
) -> None:
    """Makes the run folder, in which checkpoints must have room."""
    RunFolder(out, config, resume=resume or not is_first_process())
    weights = sum(weight.numel() for part in trained for weight in part.parameters())
    _check_room(out, 4 * _COPIES * weights, "checkpoints", "--out")


def _check_room(folder: Path, needed: int, what: str, option: str) -> None:
    place = next((p for p in (folder, *folder.parents) if p.is_dir()), Path())
    free = shutil.disk_usage(place).free
    if needed > free:
        raise OSError(
            f"{what} need {needed / 1e9:.1f} GB, but the disk of {folder} has only "
            f"{free / 1e9:.1f} GB left; make room or name another place with {option}"
        )
