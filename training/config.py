"""Configurations: dataclasses that refuse nonsense, read from TOML recipes.

A recipe is `training/recipes/<name>.toml`. Any value can be replaced on the command line by its
dotted name: `--set optimizer.learning_rate=3e-4`.
"""

from __future__ import annotations

import dataclasses
import tomllib
import types
import typing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

RECIPES = Path(__file__).parent / "recipes"

C = TypeVar("C")


@dataclass(frozen=True)
class OptimizerConfig:
    """AdamW, and how its learning rate falls from the base rate.

    Attributes:
        learning_rate: base rate of AdamW.
        weight_decay: AdamW's decoupled weight decay.
        clip_norm: largest norm of the whole gradient (2.0 in the releases of the five papers).
        schedule: "step" multiplies the rate by `decay` at each epoch of `decay_epochs`; "cosine"
            lets it fall to 0 over all steps; "plateau" multiplies it by `decay` whenever the
            validation rsum has not risen for `plateau_epochs`.
        decay_epochs: epochs (counted from 0) at which the rate drops.
        decay: the factor of each drop.
        plateau_epochs: see `schedule`.
        warmup_steps: steps over which the rate rises linearly from 0.
        amsgrad: keep the largest second moment (Reddi et al., ICLR 2018); with weight decay 0 this
            is PVSE's optimizer.
    """

    learning_rate: float = 5e-4
    weight_decay: float = 1e-4
    clip_norm: float = 2.0
    schedule: str = "step"
    decay_epochs: tuple[int, ...] = (15,)
    decay: float = 0.1
    plateau_epochs: int = 10
    warmup_steps: int = 0
    amsgrad: bool = False

    def __post_init__(self) -> None:
        """Refuses rates, decays and schedules that make no sense."""
        _require(
            0 < self.learning_rate < 1, "optimizer.learning_rate", self.learning_rate, "0 to 1"
        )
        _require(0 <= self.weight_decay < 1, "optimizer.weight_decay", self.weight_decay, "0 to 1")
        _require(self.clip_norm > 0, "optimizer.clip_norm", self.clip_norm, "above 0")
        _require(0 < self.decay <= 1, "optimizer.decay", self.decay, "0 to 1")
        _require(self.warmup_steps >= 0, "optimizer.warmup_steps", self.warmup_steps, "0 or more")
        _require(
            self.plateau_epochs >= 1, "optimizer.plateau_epochs", self.plateau_epochs, "1 or more"
        )
        known = ("step", "cosine", "plateau")
        _require(self.schedule in known, "optimizer.schedule", self.schedule, ", ".join(known))


@dataclass(frozen=True)
class TextConfig:
    """The tokenizer and the text encoder.

    Attributes:
        arch: a key of `models.backbones.TEXT_ENCODERS`.
        source: of a published text encoder, see `models/sources.py`; empty for the BiGRU, whose
            settings are those below `rate`.
        frozen: leave a published encoder as it is; its token features are then computed once.
        rate: a published encoder's learning rate as a share of the base rate (VSE-infinity trains
            BERT with 0.1), where it is not frozen.
        word_dim: width of a word's embedding (300 in the papers).
        hidden_dim: width of a word's contextual feature (1,024 in the papers).
        dropout: applied to word embeddings, and to the features of a frozen encoder.
        min_count: words seen less often in the training captions become [UNK].
        unknown_rate: share of training words replaced by [UNK], so that [UNK] is learned.
        directions: 2 for the BiGRU, 1 for a forward GRU, 0 for the word embeddings alone.
        vectors: text file of pre-trained word vectors, such as GloVe's, that word embeddings start
            from (`training/vectors.py`); empty for random ones.
    """

    arch: str = "bigru"
    source: str = ""
    frozen: bool = True
    rate: float = 1.0
    word_dim: int = 300
    hidden_dim: int = 1024
    dropout: float = 0.0
    min_count: int = 1
    unknown_rate: float = 0.0
    directions: int = 2
    vectors: str = ""

    def __post_init__(self) -> None:
        """Refuses sizes below 1, rates outside [0, 1) and other numbers of directions."""
        for name in ("word_dim", "hidden_dim", "min_count"):
            _require(getattr(self, name) >= 1, f"text.{name}", getattr(self, name), "1 or more")
        for name in ("dropout", "unknown_rate"):
            _require(0 <= getattr(self, name) < 1, f"text.{name}", getattr(self, name), "0 to 1")
        _require(self.directions in (0, 1, 2), "text.directions", self.directions, "0, 1 or 2")
        _require(0 < self.rate <= 1, "text.rate", self.rate, "above 0, up to 1")
        if self.source:
            for name, empty in (("unknown_rate", 0.0), ("vectors", "")):
                value = getattr(self, name)
                _require(value == empty, f"text.{name}", value, "left out beside text.source")
            if self.arch == "bigru":
                raise ValueError(
                    'text.source names a published encoder, but text.arch is "bigru"; set it to '
                    '"bert" or "clip_text", or leave text.source out'
                )


@dataclass(frozen=True)
class TrainConfig:
    """One method's training.

    Attributes:
        method: a key of `models.METHODS`.
        arguments: the method's own arguments (see its class).
        objective: the objective's own arguments (see `training/objectives.py`).
        data: folder with the splits `train` and `val`, see `datasets.load_split`.
        backbone: source of the image encoder, see `models/sources.py`; not read where `data` holds
            features.
        backbone_frozen: leave the image encoder as it is; its features are then computed once.
            Otherwise it is trained along, on pictures that are decoded as they are needed; batch
            norms keep the statistics they came with.
        backbone_rate: learning rate of an image encoder that is trained, as a share of the base
            rate (VSE-infinity trains its CNN with 0.1).
        init: run folder whose best weights training starts from; empty for none, see
            `training/start.py`.
        text: tokenizer and text encoder.
        optimizer: AdamW and its schedule.
        epochs: passes over all captions.
        batch_size: image-text pairs in a step, over all processes.
        captions_together: captions of an image that stand in a batch together, the image encoded
            once for all of them; 1 draws pairs one by one.
        size_augmentation: share of set elements dropped on both sides (VSE-infinity: 0.2).
        feature_dropout: dropout on the image encoder's features.
        feature_copies: looks at each training photograph whose features are kept: itself, and
            random crops, half of them mirrored; a batch draws one of them. 1 for itself alone.
        patience: stop after so many epochs without a better validation rsum.
        validate_every: epochs from one validation to the next; the last epoch always has one.
        precision: "fp32", "bf16" (a gain on GPUs, and on CPUs that compute in it) or "fp16", which
            needs a GPU.
        seed: of weights, batches and augmentation.
        train_images: use only the first so many training images; 0 for all.
    """

    method: str = "vse_infty"
    arguments: dict[str, Any] = field(default_factory=dict)
    objective: dict[str, Any] = field(default_factory=dict)
    data: str = "data/scenes"
    backbone: str = "runs/backbone"
    backbone_frozen: bool = True
    backbone_rate: float = 1.0
    init: str = ""
    text: TextConfig = field(default_factory=TextConfig)
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    epochs: int = 25
    batch_size: int = 128
    captions_together: int = 1
    size_augmentation: float = 0.2
    feature_dropout: float = 0.0
    feature_copies: int = 1
    patience: int = 5
    validate_every: int = 1
    precision: str = "fp32"
    seed: int = 0
    train_images: int = 0

    def __post_init__(self) -> None:
        """Refuses values outside their ranges."""
        _require(self.epochs >= 1, "epochs", self.epochs, "1 or more")
        _require(self.batch_size >= 2, "batch_size", self.batch_size, "2 or more")
        together = self.captions_together
        _require(together >= 1, "captions_together", together, "1 or more")
        copies, frozen = self.feature_copies, self.backbone_frozen
        _require(copies >= 1, "feature_copies", copies, "1 or more")
        _require(copies == 1 or frozen, "feature_copies", copies, "1 beside backbone_frozen=false")
        _require(self.patience >= 1, "patience", self.patience, "1 or more")
        rare = 1 <= self.validate_every <= self.patience
        _require(rare, "validate_every", self.validate_every, f"1 to patience ({self.patience})")
        _require(self.train_images >= 0, "train_images", self.train_images, "0 or more")
        _require(0 < self.backbone_rate <= 1, "backbone_rate", self.backbone_rate, "above 0 to 1")
        named = self.backbone_frozen or bool(self.backbone)
        _require(named, "backbone", '""', "named where backbone_frozen is false")
        for name in ("size_augmentation", "feature_dropout"):
            _require(0 <= getattr(self, name) < 1, name, getattr(self, name), "0 to 1")
        known = ("fp32", "bf16", "fp16")
        _require(self.precision in known, "precision", self.precision, ", ".join(known))


@dataclass(frozen=True)
class PretrainConfig:
    """Pretraining of the scenes' image encoder on object, setting, time and weather labels.

    Attributes:
        widths: channels of SceneNet's stem and stages.
        blocks: residual blocks of each stage.
        data: folder with the splits `train` and `val`.
        epochs: passes over the training images.
        batch_size: images in a step.
        learning_rate: peak rate of AdamW; linear warm-up, then a cosine to 0.
        weight_decay: AdamW's decoupled weight decay.
        warmup_steps: steps of linear warm-up.
        cell_weight: weight of the per-cell object loss beside the image-level one.
        precision: "fp32" or "bf16" (autocast; on CPUs without its instructions ten times slower).
        seed: of weights, order and augmentation.
    """

    widths: tuple[int, ...] = (48, 64, 128, 256)
    blocks: tuple[int, ...] = (1, 1, 2)
    data: str = "data/scenes"
    epochs: int = 16
    batch_size: int = 64
    learning_rate: float = 2e-3
    weight_decay: float = 0.02
    warmup_steps: int = 300
    cell_weight: float = 1.0
    precision: str = "fp32"
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuses values outside their ranges."""
        _require(self.epochs >= 1, "epochs", self.epochs, "1 or more")
        _require(self.batch_size >= 1, "batch_size", self.batch_size, "1 or more")
        _require(0 < self.learning_rate < 1, "learning_rate", self.learning_rate, "0 to 1")
        _require(self.cell_weight >= 0, "cell_weight", self.cell_weight, "0 or more")
        _require(self.precision in ("fp32", "bf16"), "precision", self.precision, "fp32 or bf16")


def load_recipe(kind: type[C], name: str, changes: list[str] | None = None) -> C:
    """Reads a recipe and applies changes.

    Args:
        kind: the configuration's dataclass.
        name: a recipe below `training/recipes` without its ending, or the path of a TOML file.
        changes: "dotted.name=value" strings; values are read as TOML, else as plain text.

    Raises:
        FileNotFoundError: there is no such recipe; the sentence lists those there are.
        ValueError: an unknown key or a value that the configuration refuses.
    """
    path = Path(name) if name.endswith(".toml") else RECIPES / f"{name}.toml"
    if not path.is_file():
        there = sorted(
            p.relative_to(RECIPES).with_suffix("").as_posix() for p in RECIPES.rglob("*.toml")
        )
        raise FileNotFoundError(f'there is no recipe "{name}"; choose one of {", ".join(there)}')
    values = tomllib.loads(path.read_text("utf-8"))
    for change in changes or []:
        apply_change(values, change)
    return from_values(kind, values)


def from_values(kind: type[C], values: dict[str, Any], prefix: str = "") -> C:
    """Builds a configuration from nested dictionaries; unknown keys and wrong types are refused."""
    hints = typing.get_type_hints(kind)
    unknown = sorted(set(values) - set(hints))
    if unknown:
        raise ValueError(
            f'unknown setting "{prefix}{unknown[0]}"; known: {", ".join(sorted(hints))}'
        )
    return kind(**{k: _convert(hints[k], v, f"{prefix}{k}") for k, v in values.items()})


def to_values(config: Any) -> dict[str, Any]:
    """A configuration as nested dictionaries of JSON and TOML types."""
    values = dataclasses.asdict(config)
    return typing.cast("dict[str, Any]", _listed(values))


def _listed(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _listed(v) for k, v in value.items()}
    return [_listed(v) for v in value] if isinstance(value, list | tuple) else value


def _convert(hint: Any, value: Any, name: str) -> Any:
    if dataclasses.is_dataclass(hint) and isinstance(value, dict):
        return from_values(typing.cast("type[Any]", hint), value, f"{name}.")
    origin = typing.get_origin(hint) or hint
    if origin is tuple and isinstance(value, list | tuple):
        return tuple(value)
    if origin is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(origin, types.UnionType) or not isinstance(origin, type):
        return value
    if not isinstance(value, origin) or (origin is int and isinstance(value, bool)):
        raise ValueError(f"{name} must be {origin.__name__}, not {value!r}")
    return value


def apply_change(values: dict[str, Any], change: str) -> None:
    """Replaces one value of nested dictionaries, in place.

    Args:
        values: what a recipe holds.
        change: "dotted.name=value", see `load_recipe`.

    Raises:
        ValueError: it is not of that form, or goes into a single value.
    """
    name, equals, text = change.partition("=")
    if not equals or not name.strip():
        raise ValueError(f'--set needs name=value, for example "epochs=3", not "{change}"')
    try:
        value = tomllib.loads(f"v = {text}")["v"]
    except tomllib.TOMLDecodeError:
        value = text
    *parents, last = name.strip().split(".")
    for parent in parents:
        values = values.setdefault(parent, {})
        if not isinstance(values, dict):
            raise ValueError(f'--set {name}: "{parent}" is a single value, not a group of settings')
    values[last] = value


def _require(holds: bool, name: str, value: object, range_: str) -> None:
    if not holds:
        raise ValueError(f"{name} must be {range_}, not {value}")
