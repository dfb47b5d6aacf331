"""Views of a trained run, computed in torch without an export."""

import tomllib
from pathlib import Path

from tokenizers import Tokenizer

from polyview import models
from polyview.export.build.trained import RunAbout
from polyview.export.encoders.sources import describe_image_source, load_text_source
from polyview.export.pack.validation import check
from polyview.models import Method, Views
from polyview.models.checkpoint import load_strict, load_tensors
from polyview.models.encoders import IMAGE_ENCODERS, TEXT_ENCODERS
from polyview.models.encoders.encoder import TextEncoder
from polyview.models.files import sha256_of
from polyview.training.data.features import (
    Extraction,
    load_image_side,
    read_features,
    read_pixels,
    refuse_missing,
)
from polyview.training.data.open_split import holds_features, open_split
from polyview.training.data.split import Split
from polyview.training.data.texts import TokenTable
from polyview.training.loop.config import TrainConfig
from polyview.training.loop.runs import BEST, CONFIG, TOKENIZER, part_of
from polyview.training.loop.trainer import DualEncoder, encode_split
from polyview.training.settings import from_values


def run_views(
    folder: Path, part: str, extraction: Extraction, data: Path | None = None
) -> tuple[str, Method, Views, Views, Split]:
    """Encodes a split with the best weights of a run.

    Args:
        folder: the run.
        part: which split, see `open_split`.
        extraction: where and how image features are made that are not cached.
        data: folder of the split; None takes the one the run was trained on.

    Returns:
        The method's name, the method, views of N_img images and N_txt texts, and the split.

    Raises:
        FileNotFoundError: the folder holds no run, or an encoder or the data are missing.
        ValueError: it holds something else, or an encoder is not the one it was trained with.
    """
    path, tokenizer = folder / BEST, folder / TOKENIZER
    tensors, values = load_tensors(path)
    if values.get("kind") != "run":
        raise ValueError(f"{folder} holds an image encoder; name the run of a method over it")
    about = check(RunAbout, values, str(path))
    config = from_values(TrainConfig, tomllib.loads((folder / CONFIG).read_text("utf-8")))
    split = _read(folder, open_split(data or Path(config.data), part), config, about, extraction)
    split = split.captions_each(config.ranked_captions)
    encoder = None
    if about.image_encoder is not None:
        encoder = about.image_encoder.build(IMAGE_ENCODERS, str(path))
    method = models.build(about.method, about.image_dim, about.text_dim, about.arguments)
    model = DualEncoder(method, _text_encoder(folder, about), config, image_encoder=encoder)
    for name, module in model.named_children():
        own = part_of(tensors, f"{name}.")
        if own or name == "method":  # a frozen encoder has its weights already
            load_strict(module, own, str(path))
    if not tokenizer.is_file() or sha256_of(tokenizer) != about.tokenizer_sha256:
        raise ValueError(f"{tokenizer} is not the tokenizer that the run was trained with")
    table = TokenTable(Tokenizer.from_file(str(tokenizer)), split.captions)
    device = extraction.torch_device
    views = encode_split(model.to(device).eval(), split, table, device)
    return config.method, method, *views, split


def _read(
    folder: Path, split: Split, config: TrainConfig, about: RunAbout, extraction: Extraction
) -> Split:
    """The split with features, or with pixels where the image encoder was trained along."""
    data, reads_images = split.folder.parent, bool(about.backbone_sha256)
    if holds_features(data) == reads_images:
        reads, holds = ("images", "ready-made features")[:: 1 if reads_images else -1]
        raise ValueError(
            f"{folder} was trained on {reads}, and {data} holds {holds}; name other --data"
        )
    if not reads_images and split.features.shape[2] != about.image_dim:
        raise ValueError(
            f"{folder} reads features of {about.image_dim} numbers a region, and those in "
            f"{data} have {split.features.shape[2]}; name other --data"
        )
    if about.image_encoder is not None:
        return read_pixels(split, load_image_side(config.backbone))
    if not reads_images:
        return split.with_frames(config.frames)
    refuse_missing(config.backbone, "backbone")
    if describe_image_source(config.backbone)["sha256"] != about.backbone_sha256:
        raise ValueError(
            f"the image encoder in {config.backbone} is not the one that the run was trained over; "
            "put that one there, or train again"
        )
    return read_features(split, config.backbone, extraction)


def _text_encoder(folder: Path, about: RunAbout) -> TextEncoder:
    """The text encoder; one that was trained has random weights yet."""
    text = about.text_encoder
    if text.source is None or text.sha256 is None:
        encoder: TextEncoder = text.build(TEXT_ENCODERS, str(folder / BEST))
        return encoder
    refuse_missing(text.source, "text.source")
    frozen, _, described = load_text_source(text.source)
    if described["sha256"] != text.sha256:
        raise ValueError(
            f"the text encoder in {text.source} is not the one that {folder} was trained with; put "
            "that one there, or train again"
        )
    return frozen
