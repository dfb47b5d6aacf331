"""Evaluation of what ships: the command on a real pack, its numbers against plain loops."""

import csv
import io
import json
import re
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from export.runtime import Runtime
from tests.measuring import measure
from training.data.open_split import open_split
from training.data.pack_gallery import from_pack
from training.data.split import Split
from training.evaluate import main
from training.evaluation.metrics import retrieval_metrics

ROOT = Path(__file__).parents[3]
BUNDLED = ROOT / "app" / "bundled" / "scenes"


def test_readme_states_the_packs_numbers() -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    methods = json.loads((BUNDLED / "pack.json").read_text())["methods"]
    for name, entry in methods.items():
        row = next(line for line in readme.splitlines() if line.startswith(f"| `{name}` | ")
                   and line.count("|") > 9)  # fmt: skip
        stated = next(csv.reader(io.StringIO(row), delimiter="|"))
        rsum = f"{entry['metrics']['values']['rsum']:.1f}"
        assert rsum in {cell.strip(" *") for cell in stated}, (
            f"README states another rsum of {name}"
        )


def test_scores_go_through_onnx_and_heads() -> None:
    """A handful of pictures, encoded one by one, gives the numbers of the batched evaluation."""
    data = from_pack(BUNDLED, "test")
    runtime = Runtime.load(BUNDLED, "cpu")
    few = 12
    images = [Image.open(BUNDLED / "gallery" / "images" / p.name) for p in _paths(few)]
    features = torch.cat([runtime.image_features([image]) for image in images])
    captions = data.captions[: 5 * few]
    views = [runtime.text_views([text], "vse_infty").embeddings[0, 0] for text in captions]
    cosines = runtime.image_views(features, "vse_infty").embeddings[:, 0] @ torch.stack(views).T
    expected = retrieval_metrics(cosines.numpy(), np.repeat(np.arange(few), 5))
    part = Split(captions, np.repeat(np.arange(few), 5), images)
    measured = measure(runtime, "vse_infty", part)
    assert measured == expected


def _paths(count: int) -> list[Path]:
    return sorted((BUNDLED / "gallery" / "images").iterdir())[:count]


@pytest.mark.font
def test_a_rendered_folder_can_be_measured(scenes_folder: Path) -> None:
    data = open_split(scenes_folder, "val")
    runtime = Runtime.load(BUNDLED, "cpu")
    measured = measure(runtime, "vse_infty", data)
    assert 0 < measured["rsum"] <= 600
    assert "t2i_rprecision" in measured
    folded = measure(runtime, "vse_infty", data, folds=2)
    assert folded["rsum"] >= measured["rsum"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--method", "nothing"], 'has no method "nothing"; choose one of'),
        (["--ensemble", "pvse+pvse"], 'the ensemble "pvse+pvse" names a method twice'),
        (["--method", "vsepp", "--split", "val"], 'for "val" add --data DIR'),
        (["--method", "vsepp", "--data", "nowhere"], "nowhere"),
        (["--method", "vsepp", "--folds", "7"], "7 folds do not divide 1000 images"),
    ],
)
def test_bad_requests_get_a_sentence(arguments: list[str], message: str) -> None:
    with pytest.raises(SystemExit, match=re.escape(message)):
        main(["--pack", str(BUNDLED), *arguments])
