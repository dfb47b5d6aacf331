"""Golden files: numbers made by the authors' code, or by float64 readings of their equations.

Every size, margin, weight and K is read from the file, so that these tests hold for any file of the
same name and keys. Keys with `official` are outputs of unmodified official modules, `paper` and
`ref` ones follow the equations.
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from polyview.models.gpo import GPO

FOLDER = Path(__file__).parent
TOLERANCE = 1e-5
# names in the released GPO and here
GPO_NAMES = {"linear.": "score."}


def load(name: str, folder: Path = FOLDER) -> dict[str, Tensor]:
    with np.load(folder / f"{name}.npz", allow_pickle=False) as file:
        return {key: torch.from_numpy(np.asarray(file[key])) for key in file.files}


def double(data: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same arrays with floating-point ones as float64."""
    return {k: v.double() if v.is_floating_point() else v for k, v in data.items()}


def worst(got: Tensor, want: Tensor) -> float:
    """The largest difference, relative to the larger of 1 and the largest expected magnitude."""
    assert got.shape == want.shape, (got.shape, want.shape)
    got, want = got.detach().double(), want.double()
    return float((got - want).abs().max() / max(1.0, float(want.abs().max())))


def check(got: Tensor, want: Tensor, tolerance: float = TOLERANCE) -> None:
    """Fails where `worst` exceeds the tolerance."""
    difference = worst(got, want)
    assert difference <= tolerance, f"largest difference {difference:.2e} > {tolerance:.0e}"


def renamed(
    data: Mapping[str, Tensor], prefix: str, names: Mapping[str, str], to: str = ""
) -> dict[str, Tensor]:
    """The arrays below a prefix, which is cut off, under our names, which begin with `to`.

    `names` are beginnings of the rest and what to replace them with; others stay.
    """
    out = {}
    for key in (key for key in data if key.startswith(prefix)):
        rest = key.removeprefix(prefix)
        theirs = next((name for name in names if rest.startswith(name)), "")
        out[to + names.get(theirs, "") + rest.removeprefix(theirs)] = data[key]
    return out


def grad(tensor: Tensor) -> Tensor:
    """The gradient that reached a tensor; without one the test fails."""
    assert tensor.grad is not None
    return tensor.grad


def load_weights(module: nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Copies weights; a missing, unknown or misshapen one fails."""
    module.load_state_dict(dict(weights), strict=True)


def check_gradients(module: nn.Module, expected: Mapping[str, Tensor]) -> None:
    """Compares the gradients of a module's parameters; none may be left out."""
    parameters = dict(module.named_parameters())
    assert parameters.keys() == expected.keys()
    for name, want in expected.items():
        check(grad(parameters[name]), want)


def released_gpo(data: Mapping[str, Tensor], prefix: str) -> GPO:
    """The official operator with a file's sizes and weights."""
    positions, hidden = (data[f"{prefix}gru.weight_{k}h_l0"].shape[1] for k in "ih")
    built = GPO(positions, hidden, released=True)
    load_weights(built, renamed(data, prefix, GPO_NAMES))
    return built
