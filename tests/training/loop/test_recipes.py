"""The papers' recipes: each trains, and holds what its paper says."""

from dataclasses import replace
from pathlib import Path
from typing import Any

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
from tests.published import save_bert, save_clip, save_image_model
from tests.training.photographs import write_photographs

NAMES = [
    name
    for name in recipe_names()
    if "backbone" not in name
    and not name.endswith("mvam_stage1")  # see tests/export/build/test_trained_backbones.py
    and name != "scenes/clip_tiny"  # see test_clip.py
]
ALONG = [name for name in NAMES if not load_recipe(TrainConfig, name).backbone_frozen]
CLIPS = ("tgif/pvse", "mrw/pvse", "msrvtt/vse_infty", "vatex/vse_infty")
COCO = [name for name in NAMES if "coco" in name]
PAIRS = 8
PAPERS = ("flickr30k", "coco")
# section by section: MV-VSE 4.2, PVSE 3.5, AVSE 4.2, MVAM 4.3 and 4.4, VSE-infinity 3.3
SAID: dict[str, dict[str, Any]] = {
    "vsepp": {"epochs": 30, "batch_size": 128, "margin": 0.2, "learning_rate": 2e-4},
    "vse_infty": {"epochs": 25, "size_augmentation": 0.2, "margin": 0.2, "learning_rate": 5e-4},
    "mv_vse": {"views": 3, "lam": 0.7, "embed_dim": 1024},
    "pvse": {"epochs": 50, "batch_size": 128, "amsgrad": True, "decay": 0.5, "word_dim": 300},
    "avse": {"views": 2, "block_dim": 512, "iterations": 20, "off_diagonal": 0.0051, "epochs": 25},
    "mvam": {"views": 16, "diversity": 10.0, "batch_size": 1024, "learning_rate": 5e-5},
    "base_attn": {"embed_dim": 1024, "batch_size": 1024, "epochs": 20},
}
CLIP_PVSE = {"frames": 8, "batch_size": 128, "epochs": 50, "image_global": "states"}
CLIP_PVSE |= {"learning_rate": 2e-4, "amsgrad": True}  # PVSE, sections 3.1, 3.5 and 5.3
CLIP_INFTY = {"frames": 0, "size_augmentation": 0.2, "mlp_dim": 0, "pad_statistics": False}
SAID_OF: dict[str, dict[str, Any]] = {
    **{f"{data}/{method}": said for data in PAPERS for method, said in SAID.items()},
    "tgif/pvse": {**CLIP_PVSE, "views": 3},
    "mrw/pvse": {**CLIP_PVSE, "views": 5},
    "msrvtt/vse_infty": CLIP_INFTY,
    "vatex/vse_infty": CLIP_INFTY,
}


def stand_in() -> Split:
    """Eight images of five small elements, a caption each."""
    features = np.random.default_rng(0).normal(size=(PAIRS, 5, 12)).astype(np.float16)
    captions = [f"a dog sees thing {'abcdefgh'[i]} on the beach" for i in range(PAIRS)]
    return Split(captions, np.arange(PAIRS), features=features)


@pytest.mark.parametrize("name", [n for n in NAMES if n not in [*COCO, *ALONG, *CLIPS]])
def test_every_recipe_takes_a_step(name: str, tmp_path: Path) -> None:
    changes = [f"batch_size={PAIRS}", "exchange_halves=false", "order_epochs=0"]
    changes += ["optimizer.warmup_steps=0", "feature_copies=1"]
    if load_recipe(TrainConfig, name).text.source:
        changes.append(f"text.source={save_bert(tmp_path / 'bert')}")
    else:
        changes.append("text.min_count=1")
    if load_recipe(TrainConfig, name).text.vectors:
        vectors = tmp_path / "vectors.txt"
        vectors.write_text(f"dog{' 0.5' * 300}\n")
        changes.append(f"text.vectors={vectors}")
    if "contextual_image" in load_recipe(TrainConfig, name).arguments:
        changes += ["arguments.contextual_layers=1", "arguments.contextual_width=24"]
    config = load_recipe(TrainConfig, name, changes)
    data = replace(stand_in(), summary_token=name.endswith("_vit"))
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
    changes = [f"data={data}", f"batch_size={PAIRS}", "text.vectors=", "text.min_count=1"]
    config = load_recipe(TrainConfig, name, changes)
    trainer = build_trainer(config, tmp_path / "run", resume=False, extraction=Extraction(tmp_path))
    assert trainer.train.lengths is not None
    seen = [min(3 * i + 1, config.frames or 99) for i in range(PAIRS)]
    assert sorted(trainer.train.lengths.tolist()) == seen
    trainer.step(next(iter(trainer.batches(9))), 9)
    assert all(bool(torch.isfinite(p).all()) for p in trainer.model.parameters())
    images, texts = trainer.validation_views()
    assert torch.isfinite(trainer.model.method.score(images, texts)).all()


@pytest.mark.parametrize("name", [name for name in ALONG if name not in COCO])
def test_an_image_encoder_is_trained_along(name: str, tmp_path: Path) -> None:
    config = load_recipe(TrainConfig, name)
    if clip := config.text.arch == "clip_text":
        source = f"{save_clip(tmp_path / 'eye')}#projected"
    else:
        source = str(save_image_model(tmp_path / "eye", "resnet"))
    photographs = write_photographs(tmp_path / "photographs", {"train": PAIRS, "val": 4})
    text = {**to_values(config)["text"], "vectors": "", "min_count": 1}
    if config.text.source:
        text["source"] = source if clip else str(save_bert(tmp_path / "bert"))
    small = {"data": str(photographs), "backbone": source, "batch_size": PAIRS, "text": text}
    tiny = config.changed(**small, init="", epochs=1, patience=1)
    trainer = build_trainer(tiny, tmp_path / "run", resume=False, extraction=Extraction(tmp_path))
    encoder = trainer.model.image_encoder
    assert encoder is not None
    before = {key: p.detach().clone() for key, p in encoder.named_parameters()}
    trainer.step(next(iter(trainer.batches(9))), 9)
    assert any(not torch.equal(before[key], p) for key, p in encoder.named_parameters())


@pytest.mark.parametrize("name", SAID_OF)
def test_recipes_hold_what_the_papers_say(name: str) -> None:
    (data, method), config = name.split("/"), load_recipe(TrainConfig, name)
    assert config.method == method
    assert config.data.startswith(f"data/{data}")
    assert not (data in PAPERS and config.backbone)
    values = to_values(config)
    flat = {**values, **values["arguments"], **values["objective"], **values["optimizer"]}
    flat |= values["text"]
    assert {name: flat[name] for name in SAID_OF[name]} == SAID_OF[name]
