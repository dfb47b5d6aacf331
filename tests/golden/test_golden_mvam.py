"""MVAM against a float64 reading of its equations; there is no release."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from models import Views
from models.mvam import MVAM, ViewCodes
from models.views import lengths_to_mask
from tests.golden.loading import check, double, load
from training.objectives.losses import info_nce
from training.objectives.mvam import attention_overlap


class Case:
    """The file's inputs through two sets of view codes."""

    def __init__(self, data: dict[str, Tensor]) -> None:
        self.views: dict[str, Tensor] = {}
        self.attention: dict[str, Tensor] = {}
        self.inputs: dict[str, Tensor] = {}
        masks = {"image": torch.ones(data["image_hidden"].shape[:2]).bool()}
        masks["text"] = lengths_to_mask(data["text_lengths"], data["text_hidden"].shape[1])
        for side, mask in masks.items():
            codes = ViewCodes(*data[f"{side}_codes"].shape)
            codes.codes.data = data[f"{side}_codes"].clone()
            hidden = data[f"{side}_hidden"].requires_grad_()
            self.views[side], self.attention[side] = codes(hidden, mask)
            self.inputs |= {f"{side}_hidden": hidden, f"{side}_codes": codes.codes}
        m, dim = data["image_codes"].shape
        joined = {s: v / v.flatten(1).norm(dim=1)[:, None, None] for s, v in self.views.items()}
        self.cosine = MVAM(4, 4, dim, m).score(Views(joined["image"]), Views(joined["text"]))


@pytest.mark.parametrize(("precision", "tolerance"), [("float64", 1e-9), ("float32", 1e-5)])
def test_golden_views(precision: str, tolerance: float) -> None:
    data = double(load("mvam_reference"))
    given = (
        data
        if precision == "float64"
        else {k: v.float() if v.is_floating_point() else v for k, v in data.items()}
    )
    case = Case(given)
    for side in ("image", "text"):
        check(case.attention[side], data[f"{side}_attention"], tolerance)
        check(case.views[side], data[f"{side}_views"], tolerance)
        check(case.views[side].flatten(1), data[f"{side}_repr"], tolerance)
    check(case.cosine, data["cosine"], tolerance)
    own = torch.eye(len(case.cosine), dtype=torch.bool)
    check(info_nce(case.cosine, own), data["loss_cl"], tolerance)
    check((data["loss_i2t"] + data["loss_t2i"]) / 2, data["loss_cl"], 1e-12)


@pytest.mark.parametrize("kind", ["base", "sqrt"])
def test_golden_diversity_and_totals(kind: str) -> None:
    data = double(load("mvam_reference"))
    case = Case(data)
    root = kind == "sqrt"
    for side in ("image", "text"):
        for row, expected in enumerate(data[f"div_{kind}_{side}_per_instance"]):
            one = case.attention[side][row : row + 1]
            check(attention_overlap(one, square_root=root), expected, 1e-9)
    sides = [attention_overlap(a, square_root=root) for a in case.attention.values()]
    diversity = sides[0] + sides[1]
    check(diversity, data[f"div_{kind}"], 1e-9)
    own = torch.eye(len(case.cosine), dtype=torch.bool)
    total = info_nce(case.cosine, own) + float(data["beta"]) * diversity
    check(total, data[f"loss_total_{kind}"], 1e-9)
    total.backward()
    for name, tensor in case.inputs.items():
        assert tensor.grad is not None
        check(tensor.grad, data[f"grad_{name}_{kind}"], 1e-9)
