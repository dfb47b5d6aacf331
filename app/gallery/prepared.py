"""Precomputed views of a bundled pack's own images: `python -m app.gallery.prepared`.

Encoding a thousand images takes seconds, which would delay the first query. The app
comes with the file written here and reads it instead. The file records the checksum of its pack; it
is not used with another pack or other images. Values are in half precision, which changes scores by
less than 0.001.

If a pack reads the frames of clips as sets, the views are those of windows, and a second file has
the features of all frames, from which the best frame of a hit is computed.
"""

import argparse
import logging
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from pathlib import Path
from threading import Event
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from polyview.app.gallery.encode import Encoder
from polyview.app.gallery.scan import Collection, from_pack
from polyview.app.gallery.video import Clips
from polyview.app.gallery.video_decoder import Moment
from polyview.export.pack.schema import PackInfo
from polyview.export.runtime import Runtime
from polyview.models.checkpoint import load_tensors, save_tensors

SCENES = Path(__file__).parents[1] / "bundled" / "scenes"

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Prepared:
    """Precomputed data of a pack's own images.

    Attributes:
        ids: the ids of N rows of views (for clips, of windows), in the order of the images.
        views: (N, V, D) float32 by method.
        clips: the moments of each clip's frames, by its id.
        file: the file of the frames' features.
        starts: the first row in `file` of each image of the collection, and the end.
    """

    ids: list[int]
    views: dict[str, Tensor]
    clips: Clips
    file: Path
    starts: list[int]

    def features(self, encoder: str | None, image_ids: Sequence[int]) -> dict[int, Tensor]:
        """The features (n, d) of images by id, read from disk."""
        with safe_open(self.file, framework="pt") as file:
            rows = file.get_slice(str(encoder))
            places = [divmod(image_id, len(self.starts) - 1) for image_id in image_ids]
            at = [self.starts[file_id] + frame for frame, file_id in places]
            return {i: rows[row].float() for i, row in zip(image_ids, at, strict=True)}


def place(info: PackInfo, kind: str = "views") -> Path:
    """The path of a pack's precomputed file, beside its folder (pack.json lists what is inside)."""
    return info.folder.parent / f"{info.folder.name}.{kind}.safetensors"


def load(info: PackInfo, collection: Collection) -> Prepared | None:
    """Loads the data for `collection`, a pack's own images; None if no file matches."""
    if not place(info).is_file():
        return None
    try:
        tensors, metadata = load_tensors(place(info))
        if metadata.get("checksum") != info.checksum:
            return None
        clips = Clips(collection, info.image_encoder.frames)
        for clip, moments in metadata.get("clips", {}).items():
            clips[int(clip)] = tuple(Moment(*values) for values in moments)
    except (SafetensorError, ValueError, TypeError, OSError) as error:
        _log.warning("the images are encoded again: %s", error)
        return None
    ids = [row for image in collection.images for row in clips.rows(image.image_id)]
    if {len(tensor) for tensor in tensors.values()} != {len(ids)}:
        return None
    counts = (len(clips.get(image.image_id, ())) or 1 for image in collection.images)
    views = {name: tensor.float() for name, tensor in tensors.items()}
    return Prepared(ids, views, clips, place(info, "features"), [*accumulate(counts, initial=0)])


def write(runtime: Runtime, collection: Collection) -> list[Path]:
    """Encodes every image of a pack's gallery and writes the results beside the pack.

    Raises:
        ValueError: an image cannot be used.
    """
    info, metadata = runtime.info, dict[str, Any]()
    with tempfile.TemporaryDirectory() as cache:
        encoder = Encoder(runtime, collection, Path(cache))
        readings = list(chain.from_iterable(encoder.read(collection.images, Event())))
        if refusals := [reading.refusal for reading in readings if reading.refusal]:
            raise ValueError(refusals[0])
        rows = [row for reading in readings for row in encoder.rows(reading)]
        made = encoder.views(rows, list(runtime.methods))
        if clips := {r.image.image_id: r.moments for r in readings if r.moments}:
            metadata["clips"] = {str(clip): moments for clip, moments in clips.items()}
            frames = [frame for row in rows for frame in row.frames]
            features = {}
            for name in runtime.methods:
                read = encoder.features(frames, name)  # (n, d) by id
                features[str(runtime.image_encoder_of(name))] = torch.stack(
                    [read[frame.image_id] for frame in frames]
                ).half()
            save_tensors(place(info, "features"), features, {})  # before the views that use it
        encoder.store.close()
    views = {name: values.half() for name, values in made.items()}
    save_tensors(place(info), views, {"checksum": info.checksum, **metadata})
    return [place(info), place(info, "features")] if clips else [place(info)]


def main(argv: Sequence[str]) -> int:
    """Writes the files of a bundled pack."""
    parser = argparse.ArgumentParser(prog="python -m app.gallery.prepared")
    parser.add_argument("--pack", type=Path, default=SCENES, help="the pack's folder")
    folder = parser.parse_args(argv).pack
    try:
        paths = write(Runtime.load(folder, "cpu"), from_pack(folder))
    except (ValueError, OSError) as error:
        print(f"polyview: {error}", file=sys.stderr)
        return 1
    for path in paths:
        print(f"{path}: {path.stat().st_size / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
