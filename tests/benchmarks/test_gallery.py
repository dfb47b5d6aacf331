"""The gallery benchmark measures stores that hold the same, and finds what there is to find."""

import json
from pathlib import Path

import numpy as np
import pytest

from benchmarks import gallery


def test_stores_see_the_same_images(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "rows.json"
    asked = ["--sizes", "600", "--rules", "max", "sinkhorn", "--queries", "3", "--out", str(out)]
    drawn = tmp_path / "curve.svg"
    assert gallery.main([*asked, "--qdrant-up-to", "600", "--plot", str(drawn)]) == 0
    assert "<svg" in drawn.read_text()
    rows = json.loads(out.read_text())
    stores = [(row["rule"], row["store"]) for row in rows]
    assert stores == [
        ("max", "numpy"),
        ("max", "polyview"),
        ("max", "qdrant"),
        ("sinkhorn", "score all"),
        ("sinkhorn", "polyview"),
    ]
    for row in rows:
        assert row["recall"] == 1.0
        assert 0 < row["p50"] <= row["p95"]
        assert row["memory"] >= 600 * 4 * 512
    printed = capsys.readouterr().out.splitlines()
    assert len([line for line in printed if line.startswith(("max", "sinkhorn"))]) == len(rows)


def test_images_lie_in_clusters() -> None:
    images = gallery.draw(1000, 2, 64, seed=1)
    np.testing.assert_allclose(np.linalg.norm(images, axis=-1), 1.0, rtol=1e-5)
    cosines = images[:, 0] @ images[:, 0].T
    near = (cosines > 0.3).sum(axis=1) - 1
    assert near.mean() == pytest.approx(gallery.IMAGES_OF_CENTRE, rel=0.4)
    assert np.abs(np.median(cosines)) < 0.1


def test_recall_is_the_share_of_the_truth() -> None:
    assert gallery.recall([[1, 2, 3, 4], [5, 6, 7, 8]], [[4, 3, 2, 9], [8, 7, 6, 5]]) == 0.875
