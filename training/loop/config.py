"""What a training is told: settings with their ranges, read from TOML recipes.

A recipe is `training/recipes/<name>.toml`. With `extends = "<name>"` it says only what differs from
another one. Any value can be replaced on the command line by its dotted name:
`--set optimizer.learning_rate=3e-4`.
"""

import math
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

from pydantic import Field, model_validator

from training.data.texts import TextConfig
from training.objectives import build_objective
from training.settings import Settings, apply_change, from_values, with_new_names

RECIPES = Path(__file__).parents[1] / "recipes"

S = TypeVar("S", bound=Settings)


class OptimizerConfig(Settings):
    """AdamW, and how its learning rate falls from the base rate.

    Attributes:
        learning_rate: base rate of AdamW.
        weight_decay: AdamW's decoupled weight decay.
        clip_norm: largest norm of the whole gradient (2.0 in the releases of the five papers).
        schedule: "step" multiplies the rate by `decay` after each epoch of `decay_epochs`; "cosine"
            lets it fall to 0 over all steps; "plateau" multiplies it by `decay` whenever the
            validation rsum has not risen for more than `plateau_epochs`, as in PyTorch.
        decay_epochs: after how many epochs the rate drops.
        decay: the factor of each drop.
        plateau_epochs: see `schedule`.
        warmup_steps: steps over which the rate rises linearly from 0.
        amsgrad: keep the largest second moment (Reddi et al., ICLR 2018); with weight decay 0 this
            is PVSE's optimizer.
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
    """One method's training.

    Attributes:
        method: a key of `models.METHODS`.
        arguments: the method's own arguments (see its class).
        objective: the objective's own arguments (see `training/objectives/`).
        data: folder with the splits `train` and `val`, see `training/data/split.py`.
        also: further folders of captioned photographs, whose `train` is learned from, too.
        frames: the most frames of a clip that are looked at: spread evenly over it, and in training
            a random run of them, close or apart; 0 for all (PVSE: 8).
        backbone: source of the image encoder, see `export/hub/sources.py`; not read where `data`
            holds features.
        backbone_frozen: leave the image encoder as it is; its features are then computed once.
            Otherwise it is trained along, on images that are decoded as they are needed; batch
            norms keep the statistics they came with.
        backbone_lr_scale: learning rate of an image encoder that is trained, as a share of the base
            rate (VSE-infinity trains a CNN with 0.1, one that has seen billions of tags with 0.01).
        init: run folder whose best weights training starts from; empty for none, see
            `training/loop/start.py`.
        text: tokenizer and text encoder.
        optimizer: AdamW and its schedule.
        epochs: passes over all captions.
        batch_size: image-text pairs in a step, over all processes.
        captions_per_image: captions of an image, or of images that are alike (`Split.alike`:
            clips that differ in the order of what happens), that stand in a batch together, an
            image encoded once for all of them; 1 draws pairs one by one.
        exchange_halves: learn from clips of the moving world a second time, the halves of each
            exchanged, with the captions that are then true (`training/data/split.py`; ours).
        order_epochs: first epochs, of as many steps as the others, that learn from captions of
            order alone (`Split.kinds`); ours, where order is not learned beside everything else.
        size_augmentation: share of set elements dropped on both sides (VSE-infinity: 0.2).
        feature_dropout: dropout on the image encoder's features.
        feature_copies: looks at each training photograph whose features are kept: itself, and
            random crops, half of them mirrored; a batch draws one of them. 1 for itself alone.
        patience: stop after so many epochs without a better validation rsum.
        validate_every: epochs from one validation to the next; the last epoch always has one.
        precision: "fp32", "bf16", which needs a GPU or a CPU that computes in it, or "fp16", which
            needs a GPU.
        seed: of weights, batches and augmentation.
        projection_init: "xavier" draws the linear maps of image features as VSE++'s and
            VSE-infinity's releases do, uniformly within sqrt(6 / (d + D)), and starts their biases
            at 0; "torch" as torch does.
        train_images: use only the first so many training images; 0 for all.
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
    validate_every: int = Field(default=1, ge=1)
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    seed: int = 0
    projection_init: Literal["torch", "xavier"] = "torch"
    train_images: int = Field(default=0, ge=0)

    @model_validator(mode="after")
    def _refuse_what_does_not_go_together(self) -> Self:
        if self.validate_every > self.patience:
            raise ValueError(
                f"validate_every must be 1 to patience ({self.patience}), not {self.validate_every}"
            )
        if self.feature_copies > 1 and not self.backbone_frozen:
            raise ValueError(
                f"feature_copies must be 1 beside backbone_frozen=false, not {self.feature_copies}"
            )
        if not self.backbone_frozen and not self.backbone:
            raise ValueError("backbone must be named where backbone_frozen is false")
        build_objective(self.method, self.objective)
        return self


class BackboneConfig(Settings):
    """What the trainings of an image encoder share.

    Attributes:
        widths: channels of SceneNet's stem and stages.
        blocks: residual blocks of each stage.
        data: folder with the splits `train` and `val`.
        epochs: passes over the training images.
        batch_size: images in a step.
        learning_rate: peak rate of AdamW, after a linear warm-up.
        schedule: "cosine" lets the rate fall to 0 over all steps; with "constant", a run that is
            stopped is what a shorter one would have been.
        weight_decay: AdamW's decoupled weight decay.
        warmup_steps: steps of linear warm-up.
        precision: "fp32" or "bf16" (autocast; a CPU needs its instructions).
        seed: of weights, order and augmentation.
    """

    widths: tuple[int, ...]
    blocks: tuple[int, ...]
    data: str
    epochs: int = Field(ge=1)
    batch_size: int = Field(default=64, ge=2)
    learning_rate: float = Field(default=2e-3, gt=0, lt=1)
    schedule: Literal["cosine", "constant"] = "cosine"
    weight_decay: float = Field(default=0.02, ge=0, lt=1)
    warmup_steps: int = Field(default=300, ge=0)
    precision: Literal["fp32", "bf16"] = "fp32"
    seed: int = 0

    @property
    def optimizer(self) -> OptimizerConfig:
        """AdamW and its schedule."""
        return OptimizerConfig(
            learning_rate=self.learning_rate,
            weight_decay=self.weight_decay,
            warmup_steps=self.warmup_steps,
            schedule="cosine" if self.schedule == "cosine" else "step",
            decay_epochs=(),
            clip_norm=math.inf,
        )


class PretrainConfig(BackboneConfig):
    """Pretraining of the scenes' image encoder on object, setting, time and weather labels.

    Attributes:
        cell_weight: weight of the per-cell object loss beside the image-level one.
    """

    widths: tuple[int, ...] = (48, 64, 128, 256)
    blocks: tuple[int, ...] = (1, 1, 2)
    data: str = "data/scenes"
    epochs: int = Field(default=16, ge=1)
    batch_size: int = Field(default=64, ge=1)
    cell_weight: float = Field(default=1.0, ge=0)


def load_recipe(kind: type[S], name: str, changes: Sequence[str] | None = None) -> S:
    """Reads a recipe and applies changes.

    Args:
        kind: which settings the recipe holds.
        name: a recipe below `training/recipes` without its ending, or the path of a TOML file.
        changes: "dotted.name=value" strings; values are read as TOML, else as plain text.

    Raises:
        FileNotFoundError: there is no such recipe; the sentence lists those there are.
        ValueError: an unknown name or a value that does not fit.
    """
    values = _read(name, ())
    for change in changes or []:
        apply_change(values, change)
    return from_values(kind, values, f"recipe {name}")


def _read(name: str, by: tuple[str, ...]) -> dict[str, Any]:
    """A recipe's values, those of the recipe that it extends below them; `by` extend this one."""
    if name in by:
        raise ValueError(f"recipes extend each other in a circle: {' -> '.join([*by, name])}")
    path = Path(name) if name.endswith(".toml") else RECIPES / f"{name}.toml"
    if not path.is_file():
        there = ", ".join(recipe_names())
        raise FileNotFoundError(f'there is no recipe "{name}"; choose one of {there}')
    values = with_new_names(tomllib.loads(path.read_text("utf-8")))
    base = values.pop("extends", None)
    return values if base is None else _joined(_read(str(base), (*by, name)), values)


def _joined(base: dict[str, Any], values: dict[str, Any]) -> dict[str, Any]:
    """Nested dictionaries as one; the values of the second one win."""
    deeper = {
        key: _joined(base[key], value)
        for key, value in values.items()
        if isinstance(value, dict) and isinstance(base.get(key), dict)
    }
    return {**base, **values, **deeper}


def recipe_names() -> list[str]:
    """The recipes there are, by alphabet."""
    return sorted(
        p.relative_to(RECIPES).with_suffix("").as_posix() for p in RECIPES.rglob("*.toml")
    )
