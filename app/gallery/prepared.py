"""Views of a bundled pack's own pictures, computed ahead: `python -m app.gallery.prepared`.

A thousand pictures take several seconds to encode, and a first question would have to wait for
them. The file made here comes with the app and is read instead, in milliseconds. It names the
checksum of the pack it was made with; with any other pack, or other pictures, it is not used.
Numbers are kept in half precision, as the pack's own weights are: scores move by less than 0.001.

Of a pack that reads the frames of clips as sets, views are of the clips' windows
(`app/gallery/clip_frames.py`), and the features of all frames lie in a second file: which frame a
hit owes its score to is computed from them, of the hits alone.
"""

import argparse
import logging
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass
from itertools import accumulate, groupby
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from app.gallery.clip_frames import Clips
from app.gallery.collection import Collection, from_pack
from app.gallery.encoder import Encoder
from app.gallery.sampling import Moment
from export.pack.schema import PackInfo
from export.runtime import Runtime
from models import Views
from models.checkpoint import load_tensors, save_tensors

SCENES = Path(__file__).parents[1] / "bundled" / "scenes"
_AT_ONCE = 64  # pictures

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Prepared:
    """What comes with a pack of its own images.

    Attributes:
        ids: of N rows of views, in the order of the images; of clips, of their windows.
        views: (N, V, D) by method.
        clips: the moments of each clip's frames, by its id.
        file: where features of frames lie.
        starts: for each image of the collection, its first row there.
    """

    ids: list[int]
    views: dict[str, Views]
    clips: dict[int, tuple[Moment, ...]]
    file: Path
    starts: list[int]

    def features(self, encoder: str | None, image_ids: Sequence[int]) -> dict[int, Tensor]:
        """What an image encoder of the pack makes of images: (n, d) by id, from the disk."""
        places = [divmod(image_id, len(self.starts)) for image_id in image_ids]
        rows = [self.starts[file_id] + frame for frame, file_id in places]
        parts = []
        with safe_open(self.file, framework="pt") as file:
            every = file.get_slice(str(encoder))
            for _, run in groupby(enumerate(rows), lambda one: one[1] - one[0]):  # of rows in a row
                (_, first), *rest = run
                parts.append(every[first : first + 1 + len(rest)].float())
        return dict(zip(image_ids, torch.cat(parts), strict=True))


def place(info: PackInfo, kind: str = "views") -> Path:
    """Where a pack's file is: beside its folder, within which pack.json lists every file."""
    return info.folder.parent / f"{info.folder.name}.{kind}.safetensors"


def load(info: PackInfo, collection: Collection) -> Prepared | None:
    """What comes with a pack of its own images; None where no file fits.

    Args:
        info: a pack.
        collection: its own images.
    """
    if not place(info).is_file():
        return None
    try:
        tensors, about = load_tensors(place(info))
        if about.get("checksum") != info.checksum or tensors.keys() != info.methods.keys():
            return None
        listed = about.get("clips", {}).items()
        clips = {int(clip): tuple(Moment(*one) for one in found) for clip, found in listed}
        known = Clips(collection, info.image_encoder.frames)
        known.note(clips)
        ids = [one for image in collection.images for one in known.rows(image.image_id)]
        *starts, count = _starts(collection, clips)
        features = place(info, "features")
        if any(len(rows) != len(ids) for rows in tensors.values()):
            return None
        if clips and any(rows != count for rows in _rows(features)):
            return None
    except (SafetensorError, ValueError, TypeError, OSError) as error:
        _log.warning("the pictures are encoded again: %s", error)
        return None
    views = {name: Views(rows.float()) for name, rows in tensors.items()}
    return Prepared(ids, views, clips, features, starts)


def write(runtime: Runtime, collection: Collection) -> list[Path]:
    """Encodes every picture of a pack's gallery and writes what came of it beside the pack.

    Raises:
        ValueError: a picture cannot be used.
    """
    info, images = runtime.info, collection.images
    with tempfile.TemporaryDirectory() as cache:
        encoder = Encoder(runtime, collection, Path(cache))
        starts = range(0, len(images), _AT_ONCE)
        made = [encoder.encode_images(images[start : start + _AT_ONCE]) for start in starts]
        if refused := [one for part in made for one in part.refused]:
            raise ValueError(refused[0].reason)
        clips = {clip: moments for part in made for clip, moments in part.clips.items()}
        frames = [
            collection.frame(image, at, moment) if moment else image
            for image in images
            for at, moment in enumerate(clips.get(image.image_id, (None,)))
        ]
        features = {
            str(file): torch.stack(list(encoder.features(frames, name)[0].values())).half()
            for file, name in encoder.readers.items()
            if clips
        }  # (frames, n, d)
        encoder.close()
    about: dict[str, Any] = {"checksum": info.checksum}
    if clips:
        about["clips"] = {str(clip): [astuple(one) for one in m] for clip, m in clips.items()}
        save_tensors(place(info, "features"), features, {})  # first: they count with the views
    rows = {
        name: torch.cat([part.views[name].embeddings for part in made]).half()
        for name in runtime.methods
    }  # (N, V, D)
    save_tensors(place(info), rows, about)
    return [place(info), place(info, "features")] if clips else [place(info)]


def _starts(collection: Collection, clips: Mapping[int, tuple[Moment, ...]]) -> list[int]:
    """How many frames come before each image, a still one being a frame; and how many in all."""
    counts = (len(clips.get(image.image_id, ())) or 1 for image in collection.images)
    return list(accumulate(counts, initial=0))


def _rows(file: Path) -> list[int]:
    """How many rows each of a file's tensors has."""
    with safe_open(file, framework="pt") as opened:
        return [opened.get_slice(name).get_shape()[0] for name in opened.keys()]  # noqa: SIM118


def main(argv: Sequence[str]) -> int:
    """Writes the files of one bundled pack."""
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
