"""A CLIP trained from random weights: it learns, resumes, and becomes a pack that scores alike."""

import json
from pathlib import Path

import pytest
import torch
from PIL import Image
from tokenizers import Tokenizer

from polyview.export.clip import build_clip
from polyview.export.runtime import Runtime
from polyview.models.preprocess import Preprocess
from polyview.training import train
from polyview.training.loop.clip import ClipTraining
from polyview.training.loop.config import TrainConfig, load_recipe
from polyview.training.loop.loop import read_rows
from tests.export.conftest import LABELS
from tests.training.conftest import check_resume
from tests.training.photographs import write_photographs

SMALL = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2}


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> TrainConfig:
    """The recipe of the shipped one, for photographs of one colour each."""
    data = write_photographs(tmp_path_factory.mktemp("data"), {"train": 16, "val": 8})
    recipe = load_recipe(TrainConfig, "scenes/clip_tiny")
    network = {"projection_dim": 24} | {
        side: {**recipe.network[side], **SMALL} for side in ("vision_config", "text_config")
    }
    rates = recipe.optimizer.changed(warmup_steps=0)
    small = {"data": str(data), "network": network, "optimizer": rates, "precision": "fp32"}
    return recipe.changed(**small, batch_size=20, epochs=2)


@pytest.fixture(scope="module")
def run(config: TrainConfig, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "whole"
    ClipTraining(config, folder, resume=False).fit()
    return folder


def test_it_learns_and_resumes_bit_for_bit(config: TrainConfig, run: Path, tmp_path: Path) -> None:
    losses = [float(row["contrastive"]) for row in read_rows(run / "log.csv")]
    assert losses[1] < losses[0]
    check_resume(ClipTraining, config, run, tmp_path)


def test_its_pack_scores_as_transformers_does(run: Path, tmp_path: Path) -> None:
    from transformers import CLIPModel

    model = run / "model"
    build_clip(tmp_path / "pack", str(model), LABELS)
    assert read_rows(tmp_path / "pack/training/clip/log.csv")
    runtime = Runtime.load(tmp_path / "pack", "cpu")
    assert runtime.preprocess == Preprocess(128)  # as in training
    image, texts = Image.new("RGB", (60, 40), (200, 40, 30)), ["a red field", "A Blue Field, 3."]
    features = runtime.image_features([image])
    scores = runtime.methods["clip"].score(
        runtime.image_views(features, "clip"), runtime.text_views(texts, "clip")
    )
    tokenizer = Tokenizer.from_file(str(model / "tokenizer.json"))
    tokenizer.enable_padding()
    ids = torch.tensor([encoding.ids for encoding in tokenizer.encode_batch(texts)])
    pixels = torch.from_numpy(runtime.preprocess([image]))
    with torch.inference_mode():
        theirs = CLIPModel.from_pretrained(model).eval()(ids, pixels)
    cosines = theirs.image_embeds @ theirs.text_embeds.T
    torch.testing.assert_close(scores, cosines, rtol=0, atol=5e-3)  # weights are halved
    assert json.loads((model / "config.json").read_text())["text_config"]["eos_token_id"] > 2


def test_a_network_needs_its_method(tmp_path: Path) -> None:
    message = 'network describes a CLIP; set method="clip"'
    with pytest.raises(SystemExit, match=message):
        train.main(
            ["--recipe", "scenes/clip_tiny", "--set", "method=pvse", "--out", str(tmp_path / "a")]
        )
