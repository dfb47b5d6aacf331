"""A folder of precomputed region features, runs trained on it, and a pack of these runs."""

from pathlib import Path

import numpy as np
import pytest

from polyview.export import to_onnx
from polyview.training.data import precomputed
from tests.once import made_once
from tests.training.conftest import make_features, run_training, write_regions

RECIPE = """
method = "{method}"
epochs = 2
batch_size = 24
data = "data"
backbone = ""
arguments = {{ embed_dim = 12 }}
text = {{ word_dim = 8, hidden_dim = 8 }}
"""
LABELS = ("--licence", "research only")


def shared_world(factory: pytest.TempPathFactory) -> Path:
    """Returns the read-only folder of `write_world`, made once for all processes."""
    return made_once(factory, "regions", write_world)


def write_world(root: Path) -> None:
    """Writes `data`, `runs/vsepp_0`, `runs/vsepp_1` (another seed), `runs/mv_vse_0` and `pack`.

    The pack contains all runs, the second as `vsepp_2`; its gallery is the test split. The split
    `testall` has five equal rows for each image, as COCO's.
    """
    write_regions(root / "data")
    split = make_features(20, 7)
    np.save(root / "data" / "testall_ims.npy", np.repeat(split.features[:], 5, axis=0))
    captions = [line for line in split.captions[::2] for _ in range(5)]
    (root / "data" / "testall_caps.txt").write_text("\n".join(captions))
    corners = np.random.default_rng(5).uniform(size=(20, 5, 2, 2)).astype(np.float32)
    boxes = np.concatenate([corners.min(axis=2), corners.max(axis=2)], axis=-1)
    np.save(root / "data" / "test_boxes.npy", boxes)  # (20, 5, 4)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(root)
        for method, seed in (("vsepp", 0), ("vsepp", 1), ("mv_vse", 0)):
            Path(f"{method}.toml").write_text(RECIPE.format(method=method))
            run_training(f"{method}.toml", Path(f"runs/{method}_{seed}"), f"seed={seed}")
        precomputed.main(["--data", "data", "--split", "test", "--out", "gallery"])
        runs = ["runs/vsepp_0", "vsepp_2=runs/vsepp_1", "runs/mv_vse_0"]
        values = [option for run in runs for option in ("--run", run)]
        assert to_onnx.main([*values, "--gallery", "gallery", "--out", "pack", *LABELS]) == 0
