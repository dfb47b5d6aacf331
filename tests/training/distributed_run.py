"""Started by torchrun from a test: short runs without chance in them, to be compared."""

import sys
from pathlib import Path

from tests.training.conftest import make_features
from training.loop.config import TrainConfig
from training.loop.trainer import Trainer
from training.settings import from_values

ARGUMENTS = {"vse_infty": {"embed_dim": 16}, "avse": {"embed_dim": 16, "train_share": 1.0}}
VALUES = {
    "text": {"word_dim": 8, "hidden_dim": 16},
    "optimizer": {"learning_rate": 1e-3, "schedule": "cosine"},
    "epochs": 1,
    "batch_size": 24,
    "size_augmentation": 0.0,
}


def run(out: Path) -> None:
    """Trains each method into a folder of its name."""
    for method, arguments in ARGUMENTS.items():
        config = from_values(TrainConfig, {**VALUES, "method": method, "arguments": arguments})
        Trainer(config, make_features(60, 0), make_features(20, 1), out / method).fit()


if __name__ == "__main__":
    run(Path(sys.argv[1]))
