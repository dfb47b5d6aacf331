"""Settings: values that make no sense are refused by name, and old names go on working."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from training.loop.config import RECIPES, TrainConfig, load_recipe
from training.loop.runs import CONFIG, RunFolder
from training.loop.teacher import DistillConfig
from training.objectives import build_objective
from training.pretrain import PretrainConfig
from training.settings import RENAMED, Settings, from_values, to_values, with_old_names

KINDS: dict[str, type[Settings]] = {
    "scenes/backbone": PretrainConfig,
    "flickr8k/backbone": DistillConfig,
    "photos/backbone": DistillConfig,
    "photos/backbone_first": DistillConfig,
}
BUNDLED = Path(__file__).parents[2] / "app" / "bundled"


@pytest.mark.parametrize(
    "name",
    sorted(p.relative_to(RECIPES).with_suffix("").as_posix() for p in RECIPES.rglob("*.toml")),
)
def test_every_recipe_loads(name: str) -> None:
    kind = KINDS.get(name, TrainConfig)
    config = load_recipe(kind, name)
    assert from_values(kind, to_values(config)) == config


def test_settings_are_replaced_by_dotted_name() -> None:
    rates = ["optimizer.learning_rate=1", "optimizer.learning_rate=3e-4"]
    config = load_recipe(TrainConfig, "scenes/vse_infty", ["epochs=3", "data=there", *rates])
    assert (config.epochs, config.optimizer.learning_rate, config.data) == (3, 3e-4, "there")


@pytest.mark.parametrize(
    ("change", "name", "wrong"),
    [
        ("epochs=0", "epochs", "not 0"),
        ("epochs=many", "epochs", "a whole number, not 'many'"),
        ("epochs=true", "epochs", "a whole number, not True"),
        ("optimizer=3", "optimizer", "3"),
        ("optimizer.learning_rate=5", "optimizer.learning_rate", "not 5"),
        ("optimizer.learning_rate=nan", "optimizer.learning_rate", "a number, not nan"),
        ("optimizer.decay_epochs=['a']", "optimizer.decay_epochs[0]", "a whole number, not 'a'"),
        ("optimizer.plateau_epochs=0", "optimizer.plateau_epochs", "not 0"),
        (
            "optimizer.schedule=plan",
            "optimizer.schedule",
            "'step', 'cosine' or 'plateau', not 'plan'",
        ),
        ("text.unknown_rate=1.0", "text.unknown_rate", "not 1.0"),
        ("text.directions=3", "text.directions", "0, 1 or 2, not 3"),
        ("text.source=there", "text: unknown_rate", "left out beside text.source, not 0.02"),
        ("precision=int4", "precision", "'fp32', 'bf16' or 'fp16', not 'int4'"),
        ("validate_every=0", "validate_every", "not 0"),
        ("validate_every=7", "validate_every", "1 to patience (6), not 7"),
        ("backbone_rate=2", "backbone_lr_scale", "not 2"),
        ("objective.margin=abc", "objective: margin", "a number, not 'abc'"),
        ("objective.temperature=true", "objective: temperature", "a number, not True"),
        ("objective.summed_epochs=0.5", "objective: warmup_epochs", "a whole number, not 0.5"),
        ("text.frozen=no", "text.frozen", "true or false, not 'no'"),
    ],
)
def test_a_value_that_makes_no_sense_is_refused(change: str, name: str, wrong: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"scenes/vse_infty: {name} must")) as refused:
        load_recipe(TrainConfig, "scenes/vse_infty", [change])
    assert wrong in str(refused.value)


def test_a_word_is_no_true_or_false_for_an_objective() -> None:
    said = r"recipe scenes/pvse: objective: hardest must be true or false, not 'no'"
    with pytest.raises(ValueError, match=said):
        load_recipe(TrainConfig, "scenes/pvse", ["objective.hardest=no"])


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ("batch=3", "unknown key 'batch'; known: method, arguments, objective"),
        ("optimizer.rate=3", "optimizer has an unknown key 'rate'; known: learning_rate"),
        ("epochs", '--set needs name=value, for example "epochs=3", not "epochs"'),
        ("epochs.x=1", '"epochs" is a single value'),
        ("method=clip", 'method "clip" has no objective, so it cannot be trained'),
        ("method=unheard_of", 'method "unheard_of" has no objective'),
    ],
)
def test_a_name_that_is_none_is_refused(change: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence)):
        load_recipe(TrainConfig, "scenes/vse_infty", [change])


@pytest.mark.parametrize(
    ("values", "sentence"),
    [
        ({"smallest": 0.0}, "smallest must be above 0.0, not 0.0"),
        ({"retrieval_epochs": 9, "epochs": 3}, "retrieval_epochs must be 0 to epochs (3), not 9"),
        ({"precision": "fp16"}, "precision must be 'fp32' or 'bf16', not 'fp16'"),
    ],
)
def test_a_student_s_settings_are_refused_likewise(values: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence)):
        from_values(DistillConfig, values)


@pytest.mark.parametrize(
    ("method", "name", "value"),
    [
        ("vse_infty", "margin", 0),
        ("vsepp", "cost", "hinge"),
        ("avse", "temperature", 0),
        ("mv_vse", "loss", "min"),
        ("mv_vse", "lam", 1.5),
        ("pvse", "diversity", -1),
        ("pvse", "gamma", 0),
        ("pvse", "hardest", "no"),
        ("avse", "regulariser", -1),
        ("mvam", "temperature", 0),
        ("mvam", "diversity", -1),
    ],
)
def test_an_objective_refuses_what_makes_no_sense(method: str, name: str, value: Any) -> None:
    with pytest.raises(ValueError, match=f"objective: {name} must .*, not {value!r}"):
        build_objective(method, {name: value})
    with pytest.raises(ValueError, match="objective has an unknown key 'lambda'; known: "):
        build_objective(method, {"lambda": value})


def test_unknown_recipe_lists_the_known_ones() -> None:
    with pytest.raises(FileNotFoundError, match=r"choose one of .*scenes/vse_infty"):
        load_recipe(TrainConfig, "scenes/vse_infinity")


OLD = """
backbone_rate = 0.5
captions_together = 2
[objective]
summed_epochs = 3
[text]
rate = 0.25
"""


def test_recipes_changes_and_runs_with_old_names_go_on_working(tmp_path: Path) -> None:
    recipe = tmp_path / "old.toml"
    recipe.write_text(OLD)
    config = load_recipe(TrainConfig, str(recipe))
    assert (config.backbone_lr_scale, config.captions_per_image, config.text.lr_scale) == (
        0.5,
        2,
        0.25,
    )
    assert config.objective == {"warmup_epochs": 3}
    changes = [f"{name}={value}" for name, value in zip(RENAMED, (0.1, 5, 1, 0.75), strict=True)]
    other = load_recipe(TrainConfig, str(recipe), changes)
    assert (other.backbone_lr_scale, other.captions_per_image, other.text.lr_scale) == (
        0.1,
        5,
        0.75,
    )
    assert other.objective == {"warmup_epochs": 1}

    old = with_old_names(to_values(config))
    assert {name: old[name] for name in ("backbone_rate", "captions_together", "objective")} == {
        "backbone_rate": 0.5,
        "captions_together": 2,
        "objective": {"summed_epochs": 3},
    }
    (tmp_path / "last.safetensors").touch()
    (tmp_path / CONFIG).write_text(OLD)
    RunFolder(tmp_path, config, resume=True)
    with pytest.raises(ValueError, match='"captions_per_image" was 2 there and is 3 now'):
        RunFolder(tmp_path, config.changed(captions_per_image=3), resume=True)


def test_a_setting_under_both_names_is_refused() -> None:
    with pytest.raises(ValueError, match='"backbone_rate" and "backbone_lr_scale" are one'):
        from_values(TrainConfig, {"backbone_rate": 0.1, "backbone_lr_scale": 0.1})


@pytest.mark.parametrize("pack", ["scenes", "photos"])
def test_settings_that_packs_ship_are_understood(pack: str) -> None:
    logs = sorted((BUNDLED / pack / "training").glob("*/config.toml"))
    assert len(logs) >= 7
    for path in logs:
        if not path.parent.name.startswith("backbone"):
            from_values(TrainConfig, tomllib.loads(path.read_text("utf-8")))
