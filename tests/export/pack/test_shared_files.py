"""Packs side by side share a file: one holds it, and all that others do with a pack stays whole."""

import shutil
from pathlib import Path

import pytest
from PIL import Image

from export.build.merge import merge_methods
from export.hub import transfer as hub
from export.pack.reading import list_files, load_info
from export.pack.validation import PackError
from export.runtime import Runtime
from tests.export.conftest import SIZE
from tests.export.editing import relist
from tests.export.hub_server import WRITER, HubState

SHARED = "image_encoder.onnx"


@pytest.fixture
def lean(small_pack: Path, tmp_path: Path) -> Path:
    """A pack without its image encoder, beside one that holds it."""
    shutil.copytree(small_pack, tmp_path / "whole")
    lean = Path(shutil.copytree(small_pack, tmp_path / "lean"))
    (lean / SHARED).unlink()
    return lean


def test_it_computes_what_the_whole_pack_computes(small_pack: Path, lean: Path) -> None:
    red = [Image.new("RGB", (SIZE, SIZE), "red")]
    ours, whole = (Runtime.load(pack, "cpu", threads=1) for pack in (lean, small_pack))
    assert ours.image_features(red).equal(whole.image_features(red))
    assert load_info(lean).files == load_info(small_pack).files
    assert list_files(load_info(lean)) == list_files(load_info(small_pack))


def test_without_the_other_it_says_what_it_lacks(lean: Path) -> None:
    (lean.parent / "whole" / SHARED).rename(lean.parent / SHARED)  # in no pack
    with pytest.raises(FileNotFoundError, match=rf"lean lacks {SHARED}; fetch or export it again"):
        load_info(lean)


def test_another_encoder_of_that_name_and_size_is_not_taken(lean: Path) -> None:
    encoder = lean.parent / "whole" / SHARED
    data = bytearray(encoder.read_bytes())
    data[-1] ^= 1
    encoder.write_bytes(data)
    relist(lean.parent / "whole", SHARED)  # its own pack is content
    with pytest.raises(FileNotFoundError, match=f"lacks {SHARED}"):
        Runtime.load(lean, "cpu")


def test_a_file_of_its_own_is_never_passed_over(lean: Path) -> None:
    size = (lean.parent / "whole" / SHARED).stat().st_size
    (lean / SHARED).write_bytes(b"x" * size)
    with pytest.raises(PackError, match="SHA-256"):
        load_info(lean)


def test_methods_merged_into_it_make_it_whole(lean: Path) -> None:
    merge_methods(lean, lean.parent / "whole")
    shutil.rmtree(lean.parent / "whole")
    info = load_info(lean)
    assert {path.relative_to(lean).as_posix() for path in lean.rglob("*") if path.is_file()} == set(
        list_files(info)
    )


@pytest.mark.network
def test_what_is_pushed_is_whole(server: HubState, lean: Path, tmp_path: Path) -> None:
    hub.push(lean, "owner/lean", token=WRITER)
    pulled = hub.pull("owner/lean", cache_dir=tmp_path / "elsewhere" / "cache")
    encoder = lean.parent / "whole" / SHARED
    assert (pulled / SHARED).read_bytes() == encoder.read_bytes()
    assert not (lean / SHARED).exists()
    assert len(server.repos) == 1
