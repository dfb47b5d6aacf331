"""Views of a bundled pack's own pictures, computed ahead: `python -m app.gallery.prepared`.

A thousand pictures take several seconds to encode, and a first question would have to wait for
them. The file made here comes with the app and is read instead, in milliseconds. It names the
checksum of the pack it was made with; with any other pack, or other pictures, it is not used.
Numbers are kept in half precision, as the pack's own weights are: scores move by less than 0.001.
"""

import argparse
import logging
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch

from app.gallery.collection import Collection, from_pack
from app.gallery.encoder import Encoder
from export.pack.schema import PackInfo
from export.runtime import Runtime
from models import Views
from models.checkpoint import load_tensors, save_tensors

SCENES = Path(__file__).parents[1] / "bundled" / "scenes"
_AT_ONCE = 64  # pictures

_log = logging.getLogger(__name__)


def place(info: PackInfo) -> Path:
    """Where a pack's file is: beside its folder, within which pack.json lists every file."""
    return info.folder.parent / f"{info.folder.name}.views.safetensors"


def load(info: PackInfo, count: int) -> dict[str, Views] | None:
    """The views (N, V, D) of a pack's own images by method, or None where no file fits.

    Args:
        info: a pack.
        count: N, how many images it has.
    """
    if not place(info).is_file():
        return None
    try:
        tensors, about = load_tensors(place(info))
    except (ValueError, OSError) as error:
        _log.warning("the pictures are encoded again: %s", error)
        return None
    if about.get("checksum") != info.checksum or tensors.keys() != info.methods.keys():
        return None
    if any(len(rows) != count for rows in tensors.values()):
        return None
    return {name: Views(rows.float()) for name, rows in tensors.items()}


def write(runtime: Runtime, collection: Collection) -> Path:
    """Encodes every picture of a pack's gallery and writes the views beside the pack.

    Raises:
        ValueError: a picture cannot be used.
    """
    with tempfile.TemporaryDirectory() as cache:
        encoder = Encoder(runtime, collection, Path(cache))
        images, parts = collection.images, []
        for start in range(0, len(images), _AT_ONCE):
            encoded = encoder.encode_images(images[start : start + _AT_ONCE])
            if encoded.refused:
                raise ValueError(encoded.refused[0].reason)
            parts.append(encoded.views)
        encoder.close()
    rows = {
        name: torch.cat([part[name].embeddings for part in parts]).half()
        for name in runtime.methods
    }  # (N, V, D)
    save_tensors(place(runtime.info), rows, {"checksum": runtime.info.checksum})
    return place(runtime.info)


def main(argv: Sequence[str]) -> int:
    """Writes the file of one bundled pack."""
    parser = argparse.ArgumentParser(prog="python -m app.gallery.prepared")
    parser.add_argument("--pack", type=Path, default=SCENES, help="the pack's folder")
    folder = parser.parse_args(argv).pack
    try:
        path = write(Runtime.load(folder, "cpu"), from_pack(folder))
    except (ValueError, OSError) as error:
        print(f"polyview: {error}", file=sys.stderr)
        return 1
    print(f"{path}: {path.stat().st_size / 1e6:.1f} MB")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
