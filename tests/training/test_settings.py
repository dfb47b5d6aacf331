"""Settings: recipes, changes on the command line, and the messages for wrong names and values."""

import inspect
import re
import tomllib
from pathlib import Path

import pytest

from polyview.export.pack.validation import check
from polyview.models import METHODS
from polyview.training.distill import DistillConfig
from polyview.training.loop.config import TrainConfig, load_recipe, recipe_names
from polyview.training.objectives import OBJECTIVES
from polyview.training.pretrain import PretrainConfig
from polyview.training.settings import Settings, describe, to_values

KINDS: dict[str, type[Settings]] = {
    "scenes/backbone": PretrainConfig,
    "flickr8k/backbone": DistillConfig,
    "photos/backbone": DistillConfig,
    "photos/backbone_first": DistillConfig,
}
BUNDLED = Path(__file__).parents[2] / "app" / "bundled"


def test_every_recipe_and_what_packs_ship_is_understood() -> None:
    for name in recipe_names():
        kind = KINDS.get(name, TrainConfig)
        config = load_recipe(kind, name)
        assert check(kind, to_values(config)) == config
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


def test_a_recipe_drops_tables_and_values_of_the_one_it_extends(tmp_path: Path) -> None:
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
            "feature_copies must be 1 beside backbone_frozen=false, not 2",
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
def test_a_wrong_name_or_value_is_refused(change: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence)) as refused:
        load_recipe(TrainConfig, "scenes/vse_infty", change.split())
    if " must " in sentence:
        assert str(refused.value).startswith("recipe scenes/vse_infty: ")


def test_an_unknown_recipe_is_answered_by_the_nearest_and_a_list() -> None:
    first = (
        'there is no recipe "scenes/vse_infinity"; did you mean "scenes/vse_infty"? Choose one of'
    )
    with pytest.raises(FileNotFoundError) as refused:
        load_recipe(TrainConfig, "scenes/vse_infinity")
    assert str(refused.value).split("\n  ") == [first, *recipe_names()]


def test_every_setting_is_described() -> None:
    kinds: list[type[Settings]] = [TrainConfig, PretrainConfig, DistillConfig]
    for kind in [*kinds, *OBJECTIVES.values()]:
        lines = "\n".join(describe(kind)).splitlines()
        inherited = inspect.getdoc(kind.__base__) or ""
        for name in kind.model_fields:
            described = [*lines, *inherited.splitlines()]
            assert any(line.startswith(f"    {name}: ") for line in described), name
            assert any(line.startswith(f"{name}: {{") for line in lines)
