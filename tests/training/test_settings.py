"""Settings and their error messages; recipes train, and have the values of their papers."""

import inspect
import re
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from polyview.__main__ import main
from polyview.export.pack.validation import check
from polyview.models import METHODS
from polyview.models.encoders.bigru import BiGRUTextEncoder
from polyview.training.data.features import Extraction
from polyview.training.data.split import Clips, Split
from polyview.training.distill import DistillConfig
from polyview.training.loop.config import TrainConfig, load_recipe, recipe_names
from polyview.training.loop.trainer import Trainer
from polyview.training.objectives import OBJECTIVES
from polyview.training.pretrain import PretrainConfig
from polyview.training.settings import Settings, describe
from tests.published import save_bert

KINDS: dict[str, type[Settings]] = {
    "scenes/backbone": PretrainConfig,
    "flickr8k/backbone": DistillConfig,
    "photos/backbone": DistillConfig,
    "photos/backbone_first": DistillConfig,
}
BUNDLED = Path(__file__).parents[2] / "app" / "bundled"


def test_recipes_and_settings_in_packs_are_valid() -> None:
    for name in recipe_names():
        kind = KINDS.get(name, TrainConfig)
        config = load_recipe(kind, name)
        assert check(kind, config.model_dump(mode="json")) == config
    for pack in ("scenes", "photos"):
        paths = sorted((BUNDLED / pack / "training").glob("*/config.toml"))
        known = [path for path in paths if path.parent.name in METHODS]
        assert len(known) >= 7
        for path in known:
            check(TrainConfig, tomllib.loads(path.read_text("utf-8")))


@pytest.mark.parametrize("recipe", ["yours/vse_infty", "scenes/pvse"])
def test_another_method_resets_arguments_and_objective(recipe: str) -> None:
    before = load_recipe(TrainConfig, recipe)
    for method in OBJECTIVES:
        config = load_recipe(TrainConfig, recipe, ["arguments.embed_dim=8", f"method={method}"])
        if method == before.method:
            assert config.arguments == {**before.arguments, "embed_dim": 8}
            assert config.objective == before.objective
        else:
            assert (config.arguments, config.objective) == ({"embed_dim": 8}, {})
        assert config.optimizer == before.optimizer


def test_a_recipe_drops_tables_and_values_of_its_base(tmp_path: Path) -> None:
    recipe = tmp_path / "mine.toml"
    lines = ['extends = "yours/vse_infty"', 'drop = ["objective", "text.dropout"]']
    recipe.write_text("\n".join([*lines, 'method = "pvse"', "[arguments]", "embed_dim = 8"]))
    config = load_recipe(TrainConfig, str(recipe), ["arguments.released_gpo=true"])
    assert config.objective == {}
    assert config.arguments == {"embed_dim": 8, "released_gpo": True}
    assert config.text.dropout == 0
    assert config.text.word_dim == load_recipe(TrainConfig, "yours/vse_infty").text.word_dim
    recipe.write_text('extends = "yours/vse_infty"\ndrop = ["objective.lam"]')
    with pytest.raises(ValueError, match=r'drops "objective.lam", which yours/vse_infty does not'):
        load_recipe(TrainConfig, str(recipe))
    recipe.write_text(f'extends = "{recipe}"')
    with pytest.raises(ValueError, match="a recipe cannot extend itself"):
        load_recipe(TrainConfig, str(recipe))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ("epochs=0", "epochs must be greater than or equal to 1, not 0"),
        ("epochs=many", "epochs must be a valid integer, not 'many'"),
        ("epochs=true", "epochs must be a valid integer, not True"),
        ("optimizer=3", "optimizer must be an object, not 3"),
        ("optimizer.learning_rate=nan", "optimizer.learning_rate must be a finite number, not nan"),
        ("optimizer.decay_epochs=['a']", "optimizer.decay_epochs[0] must be a valid integer"),
        ("text.source=there", "text: unknown_rate=0.02 has no effect with text.source; leave"),
        ("precision=int4", "precision must be 'fp32' or 'bf16', not 'int4'"),
        ("validate_every=7", "validate_every must be 1 to patience (6), not 7"),
        (
            "backbone_frozen=false feature_copies=2",
            "feature_copies must be 1 if backbone_frozen=false, not 2",
        ),
        ("objective.margin=abc", "objective: margin must be a valid number, not 'abc'"),
        ("text.frozen=no", "text.frozen must be a valid boolean, not 'no'"),
        ("batch=3", "unknown key 'batch'; known: method, arguments, objective"),
        ("optimizer.rate=3", "optimizer has an unknown key 'rate'; known: learning_rate"),
        ("epochs", '--set needs name=value, for example "epochs=3", not "epochs"'),
        ("epochs.x=1", '"epochs" is a single value'),
        ("method=clip", 'method "clip" has no objective, so it cannot be trained'),
        ("network={a=1}", 'network describes a CLIP; set method="clip", not "vse_infty"'),
        ("method=psve", 'no method "psve"; did you mean "pvse"? Choose one of\n  vsepp\n'),
    ],
)
def test_wrong_names_and_values_are_refused(change: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence)) as refused:
        load_recipe(TrainConfig, "scenes/vse_infty", change.split())
    if " must " in sentence:
        assert str(refused.value).startswith("recipe scenes/vse_infty: ")


COUNTS = (
    "sweep --jobs",
    "sweep --threads",
    "scenes --count",
    "scenes --workers",
    "gallery --count",
)


@pytest.mark.parametrize(
    "option", [*COUNTS, "region-gallery --count", "evaluate --k", "evaluate --folds"]
)
def test_counts_below_1_are_refused(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main([*option.split(), "0"])
    assert f"{option.split()[1]}: must be 1 or more, not 0" in capsys.readouterr().err


def test_an_unknown_recipe_is_answered_by_the_nearest_name_and_a_list() -> None:
    first = 'there is no recipe "scenes/vse_infinity"; did you mean "scenes/vse_infty"? Choose one'
    with pytest.raises(FileNotFoundError) as refused:
        load_recipe(TrainConfig, "scenes/vse_infinity")
    assert str(refused.value).split("\n  ") == [f"{first} of", *recipe_names()]


def test_every_setting_is_described() -> None:
    kinds: list[type[Settings]] = [TrainConfig, PretrainConfig, DistillConfig]
    for kind in [*kinds, *OBJECTIVES.values()]:
        lines = "\n".join(describe(kind)).splitlines()
        inherited = inspect.getdoc(kind.__base__) or ""
        for name in kind.model_fields:
            described = [*lines, *inherited.splitlines()]
            assert any(line.startswith(f"    {name}: ") for line in described), name
            assert any(line.startswith(f"{name}: {{") for line in lines)


# other recipes: loop/test_command.py and tests/export/build/test_trained_backbones.py
NAMES = [n for n in recipe_names() if not re.search("backbone|mvam_stage1$|scenes/clip_tiny", n)]
# recipes that also train the image encoder: tests/training/data/test_extraction.py
ALONG = [name for name in NAMES if not load_recipe(TrainConfig, name).backbone_frozen]
CLIPS = ("tgif/pvse", "mrw/pvse", "msrvtt/vse_infty", "vatex/vse_infty")
COCO = [name for name in NAMES if "coco" in name]
PAIRS, WIDTH = 8, 24
# sections: MV-VSE 4.2, PVSE 3.5, AVSE 4.2, MVAM 4.3 and 4.4, VSE-infinity 3.3
STATED: dict[str, dict[str, Any]] = {
    "vsepp": {"epochs": 30, "batch_size": 128, "margin": 0.2, "learning_rate": 2e-4},
    "vse_infty": {"epochs": 25, "size_augmentation": 0.2, "margin": 0.2, "learning_rate": 5e-4},
    "mv_vse": {"views": 3, "lam": 0.7, "embed_dim": 1024},
    "pvse": {"epochs": 50, "batch_size": 128, "amsgrad": True, "decay": 0.5, "word_dim": 300},
    "avse": {"views": 2, "block_dim": 512, "iterations": 20, "off_diagonal": 0.0051, "epochs": 25},
    "mvam": {"views": 16, "diversity": 10.0, "batch_size": 1024, "learning_rate": 5e-5},
    "base_attn": {"embed_dim": 1024, "batch_size": 1024, "epochs": 20},
}
# PVSE, sections 3.1, 3.5 and 5.3
CLIP_PVSE = {"frames": 8, "batch_size": 128, "epochs": 50, "image_global": "states"}
CLIP_PVSE |= {"learning_rate": 2e-4, "amsgrad": True}
CLIP_INFTY = {"frames": 0, "size_augmentation": 0.2, "mlp_dim": 0, "pad_statistics": False}
STATED_BY_RECIPE = {f"{data}/{m}": STATED[m] for data in ("flickr30k", "coco") for m in STATED}
STATED_BY_RECIPE |= {"tgif/pvse": {**CLIP_PVSE, "views": 3}, "mrw/pvse": {**CLIP_PVSE, "views": 5}}
STATED_BY_RECIPE |= {"msrvtt/vse_infty": CLIP_INFTY, "vatex/vse_infty": CLIP_INFTY}
SIZES = {"embed_dim": WIDTH, "mlp_dim": 8, "block_dim": 8}


def small(name: str) -> TrainConfig:
    """Loads a recipe with sizes at which a step takes milliseconds."""
    recipe = load_recipe(TrainConfig, name)
    changes = [f"batch_size={PAIRS}", "optimizer.warmup_steps=0", "feature_copies=1"]
    changes += ["exchange_halves=false", "order_epochs=0"]
    changes += [f"arguments.{key}={SIZES[key]}" for key in recipe.arguments if key in SIZES]
    if "contextual_image" in recipe.arguments:
        changes += ["arguments.contextual_layers=1", f"arguments.contextual_width={WIDTH}"]
    if not recipe.text.source:
        changes += ["text.min_count=1", f"text.word_dim={WIDTH}", f"text.hidden_dim={WIDTH}"]
    return load_recipe(TrainConfig, name, changes)


@pytest.mark.parametrize("name", [n for n in NAMES if n not in [*COCO, *ALONG]])
def test_every_recipe_takes_a_step(name: str, tmp_path: Path) -> None:
    config, vectors = small(name), tmp_path / "vectors.txt"
    vectors.write_text(f"dog{' 0.5' * WIDTH}\n")
    text = config.text.model_dump(mode="json")
    if config.text.source:
        text["source"] = str(save_bert(tmp_path / "bert"))
    if config.text.vectors:
        text["vectors"] = str(vectors)
    config = check(TrainConfig, {**config.model_dump(mode="json"), "text": text})
    features = np.random.default_rng(0).normal(size=(PAIRS, 22, 12)).astype(np.float16)
    captions = [f"a dog sees thing {letter} on the beach" for letter in "abcdefgh"]
    has_summary = name.endswith("_vit")
    data = Split(captions, np.arange(PAIRS), features=features[:, :5], summary_token=has_summary)
    if name in CLIPS:  # clip i has 3 i + 1 frames
        paths = [tmp_path / f"{i}.npy" for i in range(PAIRS)]
        for i, path in enumerate(paths):
            np.save(path, features[i, : 3 * i + 1])
        clips = Clips(paths)
        data = replace(data, features=clips, lengths=clips.lengths)
    trainer = Trainer(config, data, data, tmp_path / "run", extraction=Extraction(tmp_path))
    if name in CLIPS:
        lengths = [min(3 * i + 1, config.frames or 99) for i in range(PAIRS)]
        assert trainer.train.lengths is not None
        assert trainer.train.lengths.tolist() == lengths
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


def test_recipes_have_the_values_of_the_papers() -> None:
    for name, stated in STATED_BY_RECIPE.items():
        config = load_recipe(TrainConfig, name)
        values = config.model_dump(mode="json")
        flat = {**values, **values["arguments"], **values["objective"], **values["optimizer"]}
        flat |= values["text"]
        assert config.method == name.split("/")[1]
        assert {key: flat[key] for key in stated} == stated, name
