"""Regions of a gallery's images: maps, boxes, and refusals."""

import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from polyview.export.pack.gallery import MAP_GRID, Regions, regions_of, write_regions
from polyview.export.pack.reading import load_info
from polyview.export.pack.schema import REGIONS, parse_info
from polyview.export.pack.validation import PackError
from tests.training.conftest import shared_world

RANDOM = np.random.default_rng(0)
FEATURES = RANDOM.normal(size=(3, 4, 6)).astype(np.float32)
# the upper left quarter, the whole image, a line, and a box with edges inside cells
BOXES = np.array([[0, 0, 0.5, 0.5], [0, 0, 1, 1], [0.7, 1, 0.7, 1], [0.26, 0.11, 0.63, 0.9]])


def test_shares_are_spread_over_boxes_and_add_up(tmp_path: Path) -> None:
    write_regions(tmp_path, FEATURES, np.stack([BOXES] * 3))
    regions, (rows, columns) = Regions(tmp_path / REGIONS), MAP_GRID
    quarter, whole, line, odd = torch.eye(4)
    upper_left = np.zeros(MAP_GRID)
    upper_left[: rows // 2, : columns // 2] = 4 / (rows * columns)
    np.testing.assert_allclose(regions.sum_map(0, quarter), upper_left, atol=1e-7)
    np.testing.assert_allclose(regions.sum_map(0, whole), np.full(MAP_GRID, 1 / 256), atol=1e-7)
    drawn = regions.sum_map(0, line)
    assert drawn.sum() == pytest.approx(1)
    assert drawn[-1, int(0.7 * columns)] == drawn.max()
    values = torch.from_numpy(RANDOM.normal(size=(2, 3, 4)).astype(np.float32))
    maps = regions.sum_map(1, values)
    assert maps.shape == (2, 3, *MAP_GRID)
    torch.testing.assert_close(maps.sum(dim=(-2, -1)), values.sum(dim=-1))
    near, far = (0.26 * columns, 0.63 * columns)
    share = min(int(near) + 1, far) - near  # of the leftmost column inside the box
    across = regions.sum_map(0, odd).sum(dim=0)
    assert float(across[int(near)]) == pytest.approx(share / (far - near), abs=1e-5)


def test_regions_without_boxes_are_everywhere(tmp_path: Path) -> None:
    write_regions(tmp_path, FEATURES, None)
    regions = Regions(tmp_path / REGIONS)
    values = torch.tensor([0.1, 0.2, 0.3, -0.1])
    assert regions.grid == (1, 1)
    assert regions.sum_map(0, values).tolist() == [[pytest.approx(0.5)]]
    assert regions.max_map(0, values).tolist() == [[pytest.approx(0.3)]]


def test_what_cannot_be_regions(tmp_path: Path) -> None:
    features = torch.zeros(1, 2, 3)
    wrong: list[tuple[dict[str, torch.Tensor], str]] = [
        ({"boxes": torch.zeros(1, 2, 4)}, "must hold features and boxes"),
        ({"features": features, "more": torch.zeros(1)}, "must hold features and"),
        ({"features": torch.zeros(1, 2)}, "images, regions, d"),
        ({"features": torch.zeros(1, 0, 3)}, "images, regions, d"),
        ({"features": features, "boxes": torch.zeros(1, 3, 4)}, r"boxes must be \(1, 2"),
        ({"features": features, "boxes": torch.full((1, 2, 4), 9.0)}, "relative xyxy"),
    ]
    for tensors, sentence in wrong:
        save_file(tensors, tmp_path / REGIONS)
        with pytest.raises(PackError, match=sentence):
            Regions(tmp_path / REGIONS)


def test_another_gallery(tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    pack = shutil.copytree(shared_world(tmp_path_factory) / "pack", tmp_path / "pack")
    info = load_info(pack)
    assert regions_of(info) is not None
    write_regions(pack / "gallery", FEATURES, None)
    with pytest.raises(PackError, match="3 images and width 6, not 20"):
        regions_of(info)
    with_encoder = info.to_json()
    with_encoder["image_encoder"]["file"] = with_encoder["tokenizer"]["file"]
    for values in (with_encoder, info.to_json() | {"gallery": None}):
        with pytest.raises(PackError, match="without an image encoder"):
            parse_info(values, pack)
