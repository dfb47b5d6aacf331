"""Golden files: numbers of the authors' code, or of their equations computed in float64.

All sizes, margins, weights and numbers of views are read from the file. Keys with `official` are
outputs of unmodified official modules; keys with `paper` and `ref` follow the equations.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from polyview.models.gpo import GPO

TOLERANCE = 1e-5
# names in the released GPO -> names in this code
GPO_NAMES = {"linear.": "score."}


def load(name: str, folder: Path = Path(__file__).parent) -> dict[str, Tensor]:
    with np.load(folder / f"{name}.npz", allow_pickle=False) as file:
        return {key: torch.from_numpy(np.asarray(file[key])) for key in file.files}


def double(data: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Converts floating-point arrays to float64; integers stay."""
    return {k: v.double() if v.is_floating_point() else v for k, v in data.items()}


def check(got: Tensor, want: Tensor, tolerance: float = TOLERANCE) -> None:
    """Fails if a difference exceeds the tolerance times max(1, largest expected magnitude)."""
    largest = tolerance * max(1.0, float(want.abs().max()))
    torch.testing.assert_close(got.double(), want.double(), rtol=0, atol=largest)


def renamed(
    data: Mapping[str, Tensor], prefix: str, names: Mapping[str, str], to: str = ""
) -> dict[str, Tensor]:
    """Returns the arrays whose keys start with `prefix`, under the names of this code.

    The prefix is removed, the first matching start in `names` is replaced, and `to` is prepended.
    """
    out = {}
    for key in (key for key in data if key.startswith(prefix)):
        name = key.removeprefix(prefix)
        start = next((start for start in names if name.startswith(start)), "")
        out[to + names.get(start, "") + name.removeprefix(start)] = data[key]
    return out


def grad(tensor: Tensor) -> Tensor:
    """Returns the gradient of a tensor; fails without one."""
    assert tensor.grad is not None
    return tensor.grad


def check_gradients(module: nn.Module, expected: Mapping[str, Tensor]) -> None:
    """Compares the gradients of all parameters of a module."""
    parameters = dict(module.named_parameters())
    assert parameters.keys() == expected.keys()
    for name, want in expected.items():
        check(grad(parameters[name]), want)


def released_gpo(data: Mapping[str, Tensor], prefix: str) -> GPO:
    """Builds the released GPO with the sizes and weights of a golden file."""
    positions, hidden = (data[f"{prefix}gru.weight_{k}h_l0"].shape[1] for k in "ih")
    built = GPO(positions, hidden, released=True)
    built.load_state_dict(renamed(data, prefix, GPO_NAMES))
    return built
