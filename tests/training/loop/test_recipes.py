"""Every recipe trains."""

from pathlib import Path

import numpy as np
import pytest
import torch

from polyview.models.encoders.bigru import BiGRUTextEncoder
from polyview.training.data.features import Extraction
from polyview.training.data.split import Split
from polyview.training.loop.config import TrainConfig, load_recipe, recipe_names
from polyview.training.loop.trainer import Trainer, build_trainer
from polyview.training.settings import to_values
from tests.clips import write_clips
from tests.published import save_bert

NAMES = [
    name
    for name in recipe_names()
    if "backbone" not in name
    and not name.endswith("mvam_stage1")  # see tests/export/build/test_trained_backbones.py
    and name != "scenes/clip_tiny"  # see test_clip.py
]
# Image encoders that are trained along: see `tests/training/data/test_extraction.py`.
ALONG = [name for name in NAMES if not load_recipe(TrainConfig, name).backbone_frozen]
CLIPS = ("tgif/pvse", "mrw/pvse", "msrvtt/vse_infty", "vatex/vse_infty")
COCO = [name for name in NAMES if "coco" in name]
PAIRS, WIDTH = 8, 24
SIZES = {"embed_dim": WIDTH, "mlp_dim": 8, "block_dim": 8}


def small(name: str) -> TrainConfig:
    """A recipe with sizes at which a step takes milliseconds."""
    recipe = load_recipe(TrainConfig, name)
    changes = [f"batch_size={PAIRS}", "optimizer.warmup_steps=0", "feature_copies=1"]
    changes += ["exchange_halves=false", "order_epochs=0"]
    changes += [f"arguments.{key}={SIZES[key]}" for key in recipe.arguments if key in SIZES]
    if "contextual_image" in recipe.arguments:
        changes += ["arguments.contextual_layers=1", f"arguments.contextual_width={WIDTH}"]
    if not recipe.text.source:
        changes += ["text.min_count=1", f"text.word_dim={WIDTH}", f"text.hidden_dim={WIDTH}"]
    return load_recipe(TrainConfig, name, changes)


@pytest.mark.parametrize("name", [n for n in NAMES if n not in [*COCO, *ALONG, *CLIPS]])
def test_every_recipe_takes_a_step(name: str, tmp_path: Path) -> None:
    config, vectors = small(name), tmp_path / "vectors.txt"
    vectors.write_text(f"dog{' 0.5' * WIDTH}\n")
    text = to_values(config.text)
    if config.text.source:
        text["source"] = str(save_bert(tmp_path / "bert"))
    if config.text.vectors:
        text["vectors"] = str(vectors)
    config = config.changed(text=text)
    features = np.random.default_rng(0).normal(size=(PAIRS, 5, 12)).astype(np.float16)
    captions = [f"a dog sees thing {letter} on the beach" for letter in "abcdefgh"]
    data = Split(captions, np.arange(PAIRS), features=features, summary_token=name[-4:] == "_vit")
    trainer = Trainer(config, data, data, tmp_path / "run", extraction=Extraction(tmp_path))
    if config.text.vectors:
        row = trainer.texts.tokenizer.token_to_id("dog")
        encoder = trainer.model.text_encoder
        assert isinstance(encoder, BiGRUTextEncoder)
        assert (encoder.embed.weight[row] == 0.5).all()
    before = {name: p.detach().clone() for name, p in trainer.model.named_parameters()}
    trainer.step(next(iter(trainer.batches(9))), 9)
    after = dict(trainer.model.named_parameters())
    assert all(bool(torch.isfinite(p).all()) for p in after.values())
    assert sum(not torch.equal(before[n], p) for n, p in after.items()) > len(after) / 2


@pytest.mark.parametrize("name", CLIPS)
def test_every_recipe_of_clips_takes_a_step(name: str, tmp_path: Path) -> None:
    data = write_clips(tmp_path / "data", name.partition("/")[0])
    text = {**to_values(small(name))["text"], "vectors": ""}
    config = small(name).changed(data=str(data), text=text)
    trainer = build_trainer(config, tmp_path / "run", resume=False, extraction=Extraction(tmp_path))
    assert trainer.train.lengths is not None
    seen = [min(3 * i + 1, config.frames or 99) for i in range(PAIRS)]
    assert sorted(trainer.train.lengths.tolist()) == seen
    trainer.step(next(iter(trainer.batches(9))), 9)
    assert all(bool(torch.isfinite(p).all()) for p in trainer.model.parameters())
    images, texts = trainer.validation_views()
    assert torch.isfinite(trainer.model.method.score(images, texts)).all()
