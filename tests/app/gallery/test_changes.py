"""After any change of its files, a folder is searched as if it was indexed anew."""

import hashlib
import io
import os
import tempfile
import time
from functools import cache
from pathlib import Path
from typing import BinaryIO
from unittest.mock import Mock

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image

from polyview.app.gallery import encode, store
from polyview.app.gallery.images import Frames, Stamp
from polyview.app.gallery.indexing import Index
from polyview.app.gallery.scan import from_folder
from tests.app.gallery.conftest import METHODS, FakeRuntime, indexed

# the last one is not UTF-8
NAMES = ("a.png", "b.jpg", "c/d.webp", "c/e.gif", "f.bmp", os.fsdecode(b"g\xe9.tiff"))
CLIP, BROKEN = 4, 5  # numbers of contents: an animation, and a text file
FRAMES = 3
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["write", "delete", "move", "copy", "index"]),
        st.sampled_from(NAMES),
        st.sampled_from(NAMES),
        st.integers(0, BROKEN),
    ),
    max_size=12,
)


@cache
def content(number: int, kind: str = "PNG") -> bytes:
    if number == BROKEN:
        return b"this is no image, whatever its name says"
    file = io.BytesIO()
    image = Image.linear_gradient("L").resize((24, 20)).rotate(90 * number)
    Image.merge("RGB", [image, image.point(lambda p: p * number // 5), image]).save(file, kind)
    if number == CLIP:
        frames = [Image.new("RGB", (24, 20), colour) for colour in ("red", "lime", "blue")]
        frames[0].save(file := io.BytesIO(), "GIF", save_all=True, append_images=frames[1:])
    return file.getvalue()


def shown(folder: Path, index: Index) -> dict[str, list[tuple[str, list[float]]]]:
    """The files and views of each method's gallery, in its order."""
    images = from_folder(folder).images
    results = {}
    for name, gallery in index.images.items():
        if len(gallery):
            ids = gallery.ids()
            rows = gallery.views(ids).embeddings.flatten(1).tolist()
            files = [images[i % len(images)].file for i in ids]
            results[name] = list(zip(files, rows, strict=True))
    return results


class Folder:
    """A folder of images that changes, its cache, and the files that the cache knows."""

    def __init__(self, root: Path) -> None:
        self.root, self.cache = root / "photos", root / "cache"
        self.root.mkdir()
        self.runtime = FakeRuntime()
        self.known: set[bytes] = set()  # contents that must not be decoded or encoded again
        self.read: dict[str, Stamp] = {}  # files that must not be read again
        self._time = 10**18

    def write(self, name: str, data: bytes) -> None:
        """Writes a file with a new modification time."""
        path = self.root / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
        self._time += 10**9
        os.utime(path, ns=(self._time, self._time))

    def change(self, step: str, name: str, other: str, number: int) -> None:
        """Applies one of `STEPS`."""
        source, target = self.root / name, self.root / other
        if step == "write":
            self.write(name, content(number))
        elif step == "delete":
            source.unlink(missing_ok=True)
        elif step == "copy" and source.is_file():
            self.write(other, source.read_bytes())
        elif step == "move" and source.is_file():
            target.parent.mkdir(exist_ok=True)
            source.replace(target)
        elif step == "index":
            self.compare()

    def index(self, runtime: FakeRuntime | None = None) -> Index:
        """Fills an index with a runtime, by default `self.runtime`."""
        return indexed(self.root, self.cache, runtime or self.runtime)

    def compare(self) -> None:
        """Fills an index, and compares it with an index over an empty cache."""
        files = {name: self.root / name for name in NAMES if (self.root / name).is_file()}
        if not files:
            return
        contents = {path.read_bytes() for path in files.values()}
        stamps = {name: Stamp.of(path) for name, path in files.items()}
        before, heads = self.runtime.encoded, self.runtime.heads
        reading, decoding = Mock(wraps=hashlib.file_digest), Mock(wraps=encode.read_frames)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(hashlib, "file_digest", reading)
            patch.setattr(encode, "read_frames", decoding)
            patch.setattr(store, "_UNSURE_NS", 0)  # so that new files count as unchanged
            index = self.index()
        new_contents = contents - self.known
        assert decoding.call_count == len(new_contents)
        frames = {content(CLIP): FRAMES, content(BROKEN): 0}
        new = sum(frames.get(data, 1) for data in new_contents)
        assert self.runtime.encoded - before == new
        assert self.runtime.heads - heads == new * len(METHODS)
        assert reading.call_count == len(stamps.items() - self.read.items())
        self.known, self.read = contents, stamps
        with tempfile.TemporaryDirectory() as fresh:
            scratch = indexed(self.root, Path(fresh), FakeRuntime())
        assert shown(self.root, index) == shown(self.root, scratch)
        for name in ("copies", "refused", "clips"):
            assert getattr(index, name) == getattr(scratch, name)
        assert len(index) + len(index.copies) + len(index.refused) == len(files)
        assert len(index) == len(contents - {content(BROKEN)})


INDEX = ("index", "", "", 0)
CLIP_STEPS = [  # a clip is read, moved, copied, deleted and written again
    ("write", "b.jpg", "", CLIP), INDEX, ("move", "b.jpg", "f.bmp", 0), INDEX,
    ("copy", "f.bmp", "c/d.webp", 0), INDEX, ("delete", "f.bmp", "", 0),
    ("delete", "c/d.webp", "", 0), INDEX, ("write", "b.jpg", "", CLIP),
]  # fmt: skip


@settings(max_examples=10, deadline=None)
@given(STEPS)
@example(CLIP_STEPS)
def test_any_sequence_of_changes(steps: list[tuple[str, str, str, int]]) -> None:
    with tempfile.TemporaryDirectory() as root:
        folder = Folder(Path(root))
        folder.write("a.png", content(0))
        for step in [*steps, INDEX]:
            folder.change(*step)


def test_same_size_and_time_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "_UNSURE_NS", 0)
    folder = Folder(tmp_path)
    before, after = content(0, "BMP"), content(1, "BMP")
    assert len(before) == len(after)
    folder.write("f.bmp", before)
    path = folder.root / "f.bmp"
    folder.index()
    times = path.stat().st_atime_ns, path.stat().st_mtime_ns
    time.sleep(0.05)  # longer than a tick of the clock of file systems
    path.write_bytes(after)
    os.utime(path, ns=times)
    for mode in (0o644, 0o600):  # a new mode changes the change time, but not the content
        path.chmod(mode)
        folder.index()
        assert folder.runtime.encoded == 2


def test_packs_share_the_features_of_one_encoder(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    for number in range(3):
        folder.write(NAMES[number], content(number))
    retrained = FakeRuntime(checksum="another pack")
    stranger = FakeRuntime(checksum="a third pack", eye="another encoder")
    for _ in range(2):  # the second time, nothing is computed
        for runtime, encoded in ((folder.runtime, 3), (retrained, 0), (stranger, 3)):
            folder.index(runtime)
            assert (runtime.encoded, runtime.heads) == (encoded, 3 * len(METHODS))


def test_a_file_that_changes_is_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = Folder(tmp_path)
    folder.write("a.png", content(0))
    honest = encode.read_frames

    def meanwhile(file: BinaryIO, name: str, frames_per_set: int) -> Frames:
        yield from honest(file, name, frames_per_set)
        folder.write("a.png", content(1))

    with monkeypatch.context() as patch:
        patch.setattr(encode, "read_frames", meanwhile)
        index = folder.index()
    assert "changed while it was read" in index.refused[0].reason
    assert folder.runtime.encoded == 0
    folder.compare()
