"""Recipes load, and nonsense is refused with the setting's name."""

from __future__ import annotations

import pytest

from training.config import (
    RECIPES,
    PretrainConfig,
    TrainConfig,
    from_values,
    load_recipe,
    to_values,
)
from training.objectives import build_objective
from training.teacher import DistillConfig


@pytest.mark.parametrize(
    "name",
    sorted(p.relative_to(RECIPES).with_suffix("").as_posix() for p in RECIPES.rglob("*.toml")),
)
def test_every_recipe_loads(name: str) -> None:
    if name.endswith("backbone"):
        kinds = {"scenes/backbone": PretrainConfig, "flickr8k/backbone": DistillConfig}
        loaded: PretrainConfig | DistillConfig = load_recipe(kinds[name], name)
        assert loaded.epochs > 0
        return
    config = load_recipe(TrainConfig, name)
    build_objective(config.method, config.objective)
    assert from_values(TrainConfig, to_values(config)) == config


def test_settings_are_replaced_by_dotted_name() -> None:
    changes = [
        "epochs=3",
        "optimizer.learning_rate=1",
        "optimizer.learning_rate=3e-4",
        "data=there",
    ]
    config = load_recipe(TrainConfig, "scenes/vse_infty", changes)
    assert (config.epochs, config.optimizer.learning_rate, config.data) == (3, 3e-4, "there")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("epochs=0", "epochs must be 1 or more, not 0"),
        ("epochs=many", "epochs must be int, not 'many'"),
        ("epochs=true", "epochs must be int"),
        ("batch=3", 'unknown setting "batch"'),
        ("optimizer.rate=3", 'unknown setting "optimizer.rate"'),
        ("optimizer.learning_rate=5", "optimizer.learning_rate must be 0 to 1, not 5"),
        ("text.unknown_rate=1.0", "text.unknown_rate must be 0 to 1"),
        ("text.directions=3", "text.directions must be 0, 1 or 2, not 3"),
        ("precision=int4", "precision must be fp32, bf16, fp16"),
        ("epochs", "--set needs name=value"),
        ("epochs.x=1", '"epochs" is a single value'),
    ],
)
def test_nonsense_is_refused(change: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load_recipe(TrainConfig, "scenes/vse_infty", [change])


def test_unknown_recipe_lists_the_known_ones() -> None:
    with pytest.raises(FileNotFoundError, match=r"choose one of .*scenes/vse_infty"):
        load_recipe(TrainConfig, "scenes/vse_infinity")
