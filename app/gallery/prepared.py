"""Precomputed views of a bundled pack's own images: `python -m app.gallery.prepared --pack DIR`.

Encoding a thousand images would delay the first query by seconds. The file records the checksum of
its pack and is not used with another pack or other images. Values are in half precision, which
changes scores by less than 0.001.

A clip has views for each of its windows (see `Clips`). If there are clips, a second file has the
features of all F frames, which are compared to choose the best frame of a hit. For an image encoder
NAME, the tensor NAME has U distinct features (U, n, d), and NAME.rows (F,) has each frame's row.
"""

import argparse
import logging
import sys
import tempfile
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from threading import Event
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError
from torch import Tensor

from polyview.app.gallery.encode import Encoder
from polyview.app.gallery.index import Clips
from polyview.app.gallery.scan import Collection, from_pack
from polyview.app.gallery.video import Moment
from polyview.export.pack.schema import PackInfo
from polyview.export.runtime import Runtime
from polyview.models.checkpoint import load_tensors, save_tensors

_log = logging.getLogger(__name__)
_ROWS = ".rows"


class Prepared(NamedTuple):
    """Precomputed data of a pack's own images."""

    clips: Clips
    views: dict[str, Tensor]  # (N, V, D) float32 by method; N still images and windows of clips
    features: dict[str, Tensor]  # (F, n, d) float16 of F frames by encoder; empty without clips


def prepared_path(info: PackInfo, kind: str = "views") -> Path:
    """Returns the path of the file of `kind` "views" or "features", next to the pack's folder."""
    return info.folder.parent / f"{info.folder.name}.{kind}.safetensors"


def load(info: PackInfo, collection: Collection) -> Prepared | None:
    """Loads precomputed data; returns None if it is missing, damaged, or not of these images."""
    if not prepared_path(info).is_file():
        return None
    clips, features = Clips(collection, info.image_encoder.frames), dict[str, Tensor]()
    try:
        tensors, metadata = load_tensors(prepared_path(info))
        if metadata.get("checksum") != info.checksum:
            return None
        for clip, moments in metadata.get("clips", {}).items():
            clips[int(clip)] = tuple(Moment(*values) for values in moments)
        if clips:
            stored, _ = load_tensors(prepared_path(info, "features"))
            for encoder_name in [name for name in stored if not name.endswith(_ROWS)]:
                features[encoder_name] = stored[encoder_name][stored[encoder_name + _ROWS]]
    except (SafetensorError, LookupError, ValueError, TypeError, OSError) as error:
        message = "cannot read the precomputed views of %s (%s); encoding the images again"
        _log.warning(message, info.name, error)
        return None
    windows = clips.windows()
    item_counts = {len(views) for views in tensors.values()}
    frame_count = sum(map(len, windows))
    if item_counts != {len(windows)} or any(len(f) != frame_count for f in features.values()):
        return None
    return Prepared(clips, {name: tensor.float() for name, tensor in tensors.items()}, features)


def write(runtime: Runtime, collection: Collection) -> list[Path]:
    """Encodes a pack's own images and writes the results next to the pack's folder.

    Returns the written files. Raises ValueError if an image cannot be used.
    """
    info, clips = runtime.info, Clips(collection, runtime.info.image_encoder.frames)
    metadata: dict[str, Any] = {"checksum": info.checksum}
    with tempfile.TemporaryDirectory() as cache:
        encoder = Encoder(runtime, collection, Path(cache))
        for image, content in chain.from_iterable(encoder.read(collection.images, Event())):
            if content.refusal:
                raise ValueError(image.file + content.refusal)
            if content.moments:
                clips[image.image_id] = content.moments
        windows = [[clips.image(i) for i in window] for window in clips.windows()]
        views = encoder.views(windows)
        if clips:
            metadata["clips"] = {str(clip): moments for clip, moments in clips.items()}
            frames, features = list(chain.from_iterable(windows)), dict[str, Tensor]()
            for name in runtime.methods:
                arrays = encoder.features(frames, name).values()  # (n, d) each
                stack = torch.stack([*arrays]).half()  # (F, n, d)
                unique_features, rows = torch.unique(stack.float(), dim=0, return_inverse=True)
                encoder_name = str(runtime.image_encoder_of(name))
                features |= {encoder_name: unique_features.half(), encoder_name + _ROWS: rows}
            save_tensors(prepared_path(info, "features"), features, {})
        encoder.store.close()
    path, half_views = prepared_path(info), {name: tensor.half() for name, tensor in views.items()}
    save_tensors(path, half_views, metadata)  # last: if it exists, `load` reads both
    return [path, prepared_path(info, "features")] if clips else [path]


def main(argv: Sequence[str]) -> int:
    """Writes the precomputed files of a pack; prints the path and size of each."""
    parser = argparse.ArgumentParser(prog="python -m app.gallery.prepared")
    parser.add_argument("--pack", type=Path, required=True, help="the pack's folder")
    folder = parser.parse_args(argv).pack
    for path in write(Runtime.load(folder, "cpu"), from_pack(folder)):
        print(f"{path}: {path.stat().st_size / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
