"""Cached features: a frozen image encoder reads every picture of a split once."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tqdm import tqdm

from models.backbones import IMAGE_ENCODERS
from models.checkpoint import load_strict, load_tensors
from models.preprocess import Preprocess
from training.runs import BEST


def file_sha256(path: Path) -> str:
    """Hexadecimal sha256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def load_backbone(folder: Path) -> tuple[torch.nn.Module, dict[str, Any]]:
    """The frozen image encoder of a run folder, in eval mode, and its description.

    Weights are rounded to half precision, as the pack ships them, so that heads train on the
    features that people will search with.

    Raises:
        FileNotFoundError: the folder holds no encoder.
        ValueError: it holds something else.
    """
    tensors, about = load_tensors(folder / BEST)
    if about.get("kind") != "image_backbone" or about.get("arch") not in IMAGE_ENCODERS:
        raise ValueError(
            f"{folder / BEST} is not an image encoder; make one with training.pretrain"
        )
    encoder = IMAGE_ENCODERS[about["arch"]](**about["arguments"])
    rounded = {k: v.half().float() if v.is_floating_point() else v for k, v in tensors.items()}
    load_strict(encoder, rounded, str(folder / BEST))
    return encoder.eval(), about


def has_summary(backbone: Path) -> bool:
    """Whether the features of a run folder's image encoder begin with a summary ([CLS])."""
    _, about = load_tensors(backbone / BEST)
    return IMAGE_ENCODERS[about["arch"]].summary_token


def cached_features(split: Path, backbone: Path) -> np.ndarray:
    """Features of a split's pictures, computed once for each image encoder and kept beside them.

    Args:
        split: folder with `images.npy`, uint8 (N, S, S, 3).
        backbone: run folder of the frozen image encoder.

    Returns:
        (N, n, d) float16, memory-mapped.
    """
    key = file_sha256(backbone / BEST)[:12]
    path = split / f"features-{key}.npy"
    if not path.is_file():
        _extract(split, backbone, path)
    features: np.ndarray = np.load(path, mmap_mode="r")
    return features


@torch.inference_mode()
def _extract(split: Path, backbone: Path, path: Path) -> None:
    encoder, about = load_backbone(backbone)
    preprocess = Preprocess.from_json(about["preprocess"])
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    encoder.to(device)
    images = np.load(split / "images.npy", mmap_mode="r")
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    out: np.memmap[Any, np.dtype[np.float16]] | None = None
    try:
        for start in tqdm(
            range(0, len(images), 64), desc=f"features of {split.name}", mininterval=2
        ):
            pixels = torch.from_numpy(preprocess.normalize(images[start : start + 64]))
            features = encoder(pixels.to(device)).half().cpu().numpy()  # (b, n, d)
            if out is None:
                shape = (len(images), *features.shape[1:])
                out = np.lib.format.open_memmap(partial, "w+", np.float16, shape)
            out[start : start + 64] = features
        if out is None:
            raise ValueError(f"{split} holds no pictures")
        out.flush()
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
