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


@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_loads(name: str) -> None:
    kind = KINDS.get(name, TrainConfig)
    config = load_recipe(kind, name)
    assert check(kind, to_values(config)) == config


def test_settings_are_replaced_by_dotted_name() -> None:
    rates = ["optimizer.learning_rate=1", "optimizer.learning_rate=3e-4"]
    config = load_recipe(TrainConfig, "scenes/vse_infty", ["epochs=3", "data=there", *rates])
    assert (config.epochs, config.optimizer.learning_rate, config.data) == (3, 3e-4, "there")


@pytest.mark.parametrize("method", sorted(OBJECTIVES))
@pytest.mark.parametrize("recipe", ["yours/vse_infty", "scenes/pvse"])
def test_another_method_resets_arguments_and_objective(recipe: str, method: str) -> None:
    before = load_recipe(TrainConfig, recipe)
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
    ("change", "name", "wrong"),
    [
        ("epochs=0", "epochs", "not 0"),
        ("epochs=many", "epochs", "a valid integer, not 'many'"),
        ("epochs=true", "epochs", "a valid integer, not True"),
        ("optimizer=3", "optimizer", "3"),
        ("optimizer.learning_rate=nan", "optimizer.learning_rate", "a finite number, not nan"),
        ("optimizer.decay_epochs=['a']", "optimizer.decay_epochs[0]", "a valid integer, not 'a'"),
        ("text.unknown_rate=1.0", "text.unknown_rate", "not 1.0"),
        ("text.source=there", "text: unknown_rate", "left out beside text.source, not 0.02"),
        ("precision=int4", "precision", "'fp32' or 'bf16', not 'int4'"),
        ("validate_every=7", "validate_every", "1 to patience (6), not 7"),
        ("objective.margin=abc", "objective: margin", "a valid number, not 'abc'"),
        ("objective.warmup_epochs=0.5", "objective: warmup_epochs", "a valid integer, not 0.5"),
        ("text.frozen=no", "text.frozen", "a valid boolean, not 'no'"),
    ],
)
def test_a_wrong_value_is_refused(change: str, name: str, wrong: str) -> None:
    with pytest.raises(ValueError, match=re.escape(f"scenes/vse_infty: {name} must")) as refused:
        load_recipe(TrainConfig, "scenes/vse_infty", [change])
    assert wrong in str(refused.value)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ("batch=3", "unknown key 'batch'; known: method, arguments, objective"),
        ("optimizer.rate=3", "optimizer has an unknown key 'rate'; known: learning_rate"),
        ("epochs", '--set needs name=value, for example "epochs=3", not "epochs"'),
        ("epochs.x=1", '"epochs" is a single value'),
        ("method=clip", 'method "clip" has no objective, so it cannot be trained'),
        (
            "method=psve",
            'no method "psve"; did you mean "pvse"? Choose one of\n  vsepp\n  vse_infty',
        ),
    ],
)
def test_an_unknown_name_is_refused(change: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=re.escape(sentence)):
        load_recipe(TrainConfig, "scenes/vse_infty", [change])


def test_an_unknown_recipe_is_answered_by_the_nearest_and_a_list() -> None:
    with pytest.raises(FileNotFoundError) as refused:
        load_recipe(TrainConfig, "scenes/vse_infinity")
    first, *names = str(refused.value).splitlines()
    assert first == (
        'there is no recipe "scenes/vse_infinity"; did you mean "scenes/vse_infty"? Choose one of'
    )
    assert [name.strip() for name in names] == recipe_names()


@pytest.mark.parametrize("pack", ["scenes", "photos"])
def test_settings_that_packs_ship_are_understood(pack: str) -> None:
    paths = sorted((BUNDLED / pack / "training").glob("*/config.toml"))
    known = [path for path in paths if path.parent.name in METHODS]
    assert len(known) >= 7
    for path in known:
        check(TrainConfig, tomllib.loads(path.read_text("utf-8")))


@pytest.mark.parametrize("kind", [TrainConfig, PretrainConfig, DistillConfig, *OBJECTIVES.values()])
def test_every_setting_is_described(kind: type[Settings]) -> None:
    lines = "\n".join(describe(kind)).splitlines()
    inherited = inspect.getdoc(kind.__base__) or ""
    for name in kind.model_fields:
        described = [*lines, *inherited.splitlines()]
        assert any(line.startswith(f"    {name}: ") for line in described), name
        assert any(line.startswith(f"{name}: {{") for line in lines)
