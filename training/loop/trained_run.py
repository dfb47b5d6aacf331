"""Views of a trained run, computed in torch without an export."""

import tomllib
from pathlib import Path

from tokenizers import Tokenizer

from polyview.export.build.trained import describe_run, load_run
from polyview.export.encoders.sources import describe_image_source
from polyview.export.pack.validation import check
from polyview.models import Method, Views
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
from polyview.training.loop.runs import CONFIG
from polyview.training.loop.trainer import DualEncoder, encode_split


def run_views(
    folder: Path, part: str, extraction: Extraction, data: Path | None = None
) -> tuple[str, Method, Views, Views, Split]:
    """Encodes a split with the best weights of a run.

    Args:
        folder: the run.
        part: the split, see `open_split`.
        extraction: how image features that are not cached are computed.
        data: folder of the split; None for the run's training data.

    Returns:
        The method's name, the method, views of N_img images and N_txt texts, and the split.

    Raises:
        FileNotFoundError: the folder holds no run, or an encoder or the data are missing.
        ValueError: the folder is not a run, or an encoder has changed since its training.
    """
    about = describe_run(folder)
    config = check(TrainConfig, tomllib.loads((folder / CONFIG).read_text("utf-8")))
    split = open_split(data or Path(config.data), part)
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
    for source, setting in (
        (config.backbone if reads_images else "", "backbone"),
        (about.text_encoder.source or "", "text.source"),
    ):
        refuse_missing(source, setting)
    encoder_about = describe_image_source(config.backbone) if reads_images else {}
    run = load_run(folder, None, encoder_about, rounded=True)
    if about.image_encoder is not None:
        split = read_pixels(split, load_image_side(config.backbone))
    elif reads_images:
        split = read_features(split, config.backbone, extraction)
    else:
        split = split.with_frames(config.frames)
    split = split.captions_each(config.ranked_captions)
    parts, table = run.parts, TokenTable(Tokenizer.from_str(run.tokenizer), split.captions)
    model = DualEncoder(parts.head, parts.text_encoder, config, image_encoder=parts.image_encoder)
    device = extraction.torch_device
    views = encode_split(model.to(device).eval(), split, table, device)
    return config.method, parts.head, *views, split
