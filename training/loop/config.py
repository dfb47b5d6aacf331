"""Training settings and their ranges, read from TOML recipes.

A recipe is `training/recipes/<name>.toml`. A recipe with `extends = "<name>"` states only its
differences from another recipe; `drop = ["objective"]` removes inherited tables or values. The
command line can replace each value by its dotted name: `--set optimizer.learning_rate=3e-4`.
"""

import functools
import itertools
import math
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

from pydantic import Field, model_validator

from polyview.export.pack.validation import check
from polyview.models.preprocess import Preprocess
from polyview.training.data.texts import TextConfig
from polyview.training.objectives import build_objective
from polyview.training.settings import Settings, apply_change, unknown_name_message

RECIPES = Path(__file__).parents[1] / "recipes"

S = TypeVar("S", bound=Settings)


class OptimizerConfig(Settings):
    """AdamW and its learning-rate schedule.

    Attributes:
        learning_rate: base rate of AdamW.
        weight_decay: AdamW's decoupled weight decay.
        clip_norm: maximum norm of the gradient of all weights (2.0 in the five papers' releases).
        schedule: "step" multiplies the rate by `decay` after each epoch of `decay_epochs`; "cosine"
            lowers it to 0 over all steps; "plateau" multiplies it by `decay` whenever the
            validation rsum has not risen for more than `plateau_epochs` (ReduceLROnPlateau).
        decay_epochs: epochs after which the rate drops.
        decay: factor of each drop.
        plateau_epochs: see `schedule`.
        warmup_steps: steps over which the rate rises linearly from 0.
        amsgrad: use the largest second moment so far (Reddi et al., ICLR 2018); with a weight decay
            of 0 this is PVSE's optimizer.
    """

    learning_rate: float = Field(default=5e-4, gt=0, lt=1)
    weight_decay: float = Field(default=1e-4, ge=0, lt=1)
    clip_norm: float = Field(default=2.0, gt=0, allow_inf_nan=True)
    schedule: Literal["step", "cosine", "plateau"] = "step"
    decay_epochs: tuple[int, ...] = (15,)
    decay: float = Field(default=0.1, gt=0, le=1)
    plateau_epochs: int = Field(default=10, ge=1)
    warmup_steps: int = Field(default=0, ge=0)
    amsgrad: bool = False


class TrainConfig(Settings):
    """The training of one method.

    Attributes:
        method: a key of `models.METHODS`.
        arguments: arguments of the method (see its class).
        objective: arguments of the objective (see `training/objectives/`).
        data: folder with the splits `train` and `val`, see `training/data/open_split.py`.
        also: further folders of captioned photographs; their training splits join that of `data`.
        frames: maximum number of frames per clip; 0 for all (PVSE: 8). Training samples them with a
            random start and stride; evaluation reads evenly spaced frames.
        backbone: source of the image encoder (`export/encoders/`), unless `data` holds features.
        backbone_frozen: keep the image encoder fixed and compute its features once. Otherwise the
            encoder is trained on images decoded in each epoch; batch norms keep their statistics.
        backbone_lr_scale: learning rate of a trained image encoder as a share of the base rate
            (VSE-infinity: 0.1 for a CNN, 0.01 for a CNN pretrained on billions of tags).
        network: a `CLIPConfig` of transformers, to train a CLIP from random weights with method
            "clip" (`training/loop/clip.py`, which names the settings that apply).
        init: run folder; training starts from the run's best weights. Empty for random weights.
        text: tokenizer and text encoder.
        optimizer: AdamW and its schedule.
        epochs: passes over all captions.
        batch_size: image-text pairs per step.
        captions_per_image: number of captions of one image, or of alike images (`Split.alike`),
            that share a batch, so that the image is encoded once. 1 draws pairs independently.
        exchange_halves: also train on a copy of each clip of the moving world. The halves of
            the copy are exchanged; its captions fit (`training/data/split.py`; not in the papers).
        order_epochs: number of epochs at the start that use only captions of kind "order".
            They have as many steps as the other epochs. Not in the papers.
        size_augmentation: share of set elements dropped on both sides (VSE-infinity: 0.2).
        feature_dropout: dropout on the image encoder's features.
        feature_copies: number of cached versions of each training photograph: the photograph and
            random crops, half of them mirrored. Each batch draws one version.
        patience: stop after this many epochs without a better validation rsum.
        ranked_captions: validation and evaluation rank only the first captions of each image, up to
            this number; 0 for all (PVSE ranks one of three for each test clip of TGIF).
        validate_every: epochs between two validations; the last epoch is always validated.
        precision: "fp32", or "bf16", which needs a GPU or CPU with bf16 instructions.
        seed: random seed of weights, batches and augmentation.
        projection_init: initial linear maps of image features: "torch" for torch's default, or
            "xavier" as in the releases of VSE++ and VSE-infinity. Xavier's weights are uniform
            within sqrt(6 / (d + D)) of 0, biases are 0; d and D are the widths of input and output.
        train_images: train on the first images only, up to this number; 0 for all.
    """

    method: str = "vse_infty"
    arguments: dict[str, Any] = Field(default_factory=dict)
    objective: dict[str, Any] = Field(default_factory=dict)
    data: str = "data/scenes"
    also: tuple[str, ...] = ()
    frames: int = Field(default=0, ge=0)
    backbone: str = "runs/backbone"
    backbone_frozen: bool = True
    backbone_lr_scale: float = Field(default=1.0, gt=0, le=1)
    network: dict[str, Any] = Field(default_factory=dict)
    init: str = ""
    text: TextConfig = TextConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    epochs: int = Field(default=25, ge=1)
    batch_size: int = Field(default=128, ge=2)
    captions_per_image: int = Field(default=1, ge=1)
    exchange_halves: bool = False
    order_epochs: int = Field(default=0, ge=0)
    size_augmentation: float = Field(default=0.2, ge=0, lt=1)
    feature_dropout: float = Field(default=0.0, ge=0, lt=1)
    feature_copies: int = Field(default=1, ge=1)
    patience: int = Field(default=5, ge=1)
    ranked_captions: int = Field(default=0, ge=0)
    validate_every: int = Field(default=1, ge=1)
    precision: Literal["fp32", "bf16"] = "fp32"
    seed: int = 0
    projection_init: Literal["torch", "xavier"] = "torch"
    train_images: int = Field(default=0, ge=0)

    @model_validator(mode="after")
    def _check_combinations(self) -> Self:
        if self.validate_every > self.patience:
            span = f"1 to patience ({self.patience})"
            raise ValueError(f"validate_every must be {span}, not {self.validate_every}")
        if self.feature_copies > 1 and not self.backbone_frozen:
            limit = "1 if backbone_frozen=false"
            raise ValueError(f"feature_copies must be {limit}, not {self.feature_copies}")
        if not self.network:
            build_objective(self.method, self.objective)
        elif self.method != "clip":
            raise ValueError(f'network describes a CLIP; set method="clip", not "{self.method}"')
        return self


class BackboneConfig(Settings):
    """Settings that `pretrain` and `distill` share.

    Attributes:
        widths: channels of SceneNet's stem and stages.
        blocks: residual blocks of each stage.
        data: folder with the splits `train` and `val`.
        epochs: passes over the training images.
        batch_size: images per step.
        learning_rate: peak rate of AdamW, between a linear warm-up and a cosine decay to 0.
        weight_decay: AdamW's decoupled weight decay.
        warmup_steps: steps of linear warm-up.
        precision: "fp32", or "bf16", which needs a GPU or CPU with bf16 instructions.
        seed: random seed of weights, order and augmentation.
    """

    widths: tuple[int, ...]
    blocks: tuple[int, ...]
    data: str
    epochs: int = Field(ge=1)
    batch_size: int = Field(default=64, ge=2)
    learning_rate: float = Field(default=2e-3, gt=0, lt=1)
    weight_decay: float = Field(default=0.02, ge=0, lt=1)
    warmup_steps: int = Field(default=300, ge=0)
    precision: Literal["fp32", "bf16"] = "fp32"
    seed: int = 0

    @property
    def optimizer(self) -> OptimizerConfig:
        """AdamW and its schedule."""
        shared = self.model_dump(include={"learning_rate", "weight_decay", "warmup_steps"})
        return OptimizerConfig(**shared, schedule="cosine", clip_norm=math.inf)

    def describe(self, preprocess: Preprocess, data: dict[str, Any]) -> dict[str, Any]:
        """Returns the metadata of SceneNet weights; `data` has the fields of `describe_data`."""
        return {
            "kind": "image_backbone",
            "arch": "scene_net",
            "arguments": {"widths": list(self.widths), "blocks": list(self.blocks)},
            "preprocess": preprocess.to_json(),
            "data": data,
        }


def load_recipe(settings_class: type[S], name: str, changes: Sequence[str] | None = None) -> S:
    """Reads a recipe, given its name below `training/recipes` or the path of a TOML file.

    Changes are "dotted.name=value", see `apply_change`. A change of `method` is applied first,
    because it removes the recipe's `arguments` and `objective`.

    Raises FileNotFoundError, which lists all recipes, if the recipe does not exist, and ValueError
    for an unknown setting or an invalid value.
    """
    values = _read_recipe(name)
    for change in sorted(changes or [], key=lambda c: c.partition("=")[0].strip() != "method"):
        apply_change(values, change)
    return check(settings_class, values, f"recipe {name}")


def _read_recipe(name: str, extended_by: tuple[str, ...] = ()) -> dict[str, Any]:
    """Reads a recipe, merged over its base recipe; `extended_by` has the recipes that extend it."""
    if name in extended_by:
        cycle = " extends ".join((*extended_by, name))
        raise ValueError(f"recipe {cycle}: a recipe cannot extend itself")
    path = Path(name) if name.endswith(".toml") else RECIPES / f"{name}.toml"
    if not path.is_file():
        raise FileNotFoundError(unknown_name_message("recipe", name, recipe_names()))
    values = tomllib.loads(path.read_text("utf-8"))
    base, drop_names = values.pop("extends", None), values.pop("drop", [])
    if base is None:
        return values
    inherited = _read_recipe(str(base), (*extended_by, name))
    for setting in drop_names:
        *parents, last = setting.split(".")
        table = functools.reduce(lambda part, key: part.get(key, {}), parents, inherited)
        if last not in table:
            raise ValueError(f'recipe {name} drops "{setting}", which {base} does not have')
        del table[last]
    return _merge(inherited, values)


def _merge(base: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    """Merges nested dictionaries; `values` override `base`."""
    nested = {
        key: _merge(base[key], value)
        for key, value in values.items()
        if isinstance(value, dict) and isinstance(base.get(key), dict)
    }
    return {**base, **values, **nested}


def recipe_names() -> list[str]:
    """Returns the names of all recipes, sorted, without the sweeps of `training/sweep.py`."""
    names = (p.relative_to(RECIPES).with_suffix("").as_posix() for p in RECIPES.rglob("*.toml"))
    return sorted(name for name in names if not name.startswith("sweeps/"))


def recipe_lines(settings_class: type[Settings]) -> list[str]:
    """Lists the recipes of a settings class, each with the first clause of its first comment."""
    lines = []
    for name in recipe_names():
        if _read_recipe(name).keys() <= settings_class.model_fields.keys():
            text = (RECIPES / f"{name}.toml").read_text("utf-8")
            comment = itertools.takewhile(lambda line: line.startswith("#"), text.splitlines())
            words = " ".join(line.removeprefix("#").strip() for line in comment)
            lines.append(f"{name}: {re.split(r'[.:;]( |$)', words)[0]}")
    return lines
