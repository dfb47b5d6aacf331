"""Parity sees wrong numbers and wrong rankings, and nothing where there is nothing."""

import copy
from pathlib import Path

import pytest
import torch

from polyview.export.build.parity import MethodParts, check_parity, same_ranking
from polyview.export.build.trained import load_run
from polyview.export.encoders.sources import load_image_source
from polyview.export.runtime import Runtime
from polyview.models import Views
from polyview.models.checkpoint import round_to_half
from tests.export.conftest import NAME


@pytest.fixture(scope="module")
def modules(runs: Path) -> tuple[MethodParts, MethodParts]:
    encoder, _, about = load_image_source(runs / "backbone", rounded=False)
    original = load_run(runs / NAME, encoder, about).parts
    rounded = copy.deepcopy(original)
    for module in rounded.modules:
        module.load_state_dict(round_to_half(module.state_dict(), NAME))
    return rounded, original


@pytest.fixture
def runtime(pack: Path) -> Runtime:
    return Runtime.load(pack, "cpu", threads=1)


def test_a_corrupted_row_is_drift(
    runtime: Runtime, modules: tuple[MethodParts, MethodParts]
) -> None:
    weight = next(iter(runtime.methods[NAME].parameters()))
    weight[0] += 0.5
    with pytest.raises(ValueError, match=f"{NAME}: .* differ from torch by .*tolerance 0.0001"):
        check_parity(runtime, NAME, *modules)


def test_close_numbers_with_another_ranking_are_drift(
    runtime: Runtime, modules: tuple[MethodParts, MethodParts], monkeypatch: pytest.MonkeyPatch
) -> None:
    def expected(images: Views, texts: Views) -> torch.Tensor:
        """Scores closer together than the tolerance, but not so close that they are ties."""
        return torch.arange(len(images))[:, None].expand(-1, len(texts)) * 3e-5

    def shipped(images: Views, texts: Views) -> torch.Tensor:
        swapped = torch.arange(len(images)).remainder(2)[:, None] * -8e-5
        return expected(images, texts) + swapped

    monkeypatch.setattr(modules[0].head, "score", expected)
    monkeypatch.setattr(runtime.methods[NAME], "score", shipped)
    with pytest.raises(ValueError, match="ranks differently"):
        check_parity(runtime, NAME, *modules)


def test_same_ranking_looks_at_rows_and_columns() -> None:
    reference = torch.tensor([[0.9, 0.1], [0.2, 0.3]])
    assert same_ranking(reference * 2 + 1, reference)
    assert not same_ranking(torch.tensor([[0.1, 0.9], [0.2, 0.3]]), reference)
    columns_only = torch.tensor([[0.9, 0.5], [0.2, 0.3]])
    assert not same_ranking(columns_only, reference)


def test_same_ranking_lets_only_ties_swap() -> None:
    reference = torch.tensor([[0.5, 0.5 + 4e-6, 0.5 - 4e-6, 0.1]])
    assert same_ranking(torch.tensor([[0.5, 0.4, 0.6, 0.1]]), reference)
    reference = torch.tensor([[0.5, 0.5 - 4e-5, 0.1]])
    assert not same_ranking(torch.tensor([[0.4, 0.5, 0.1]]), reference)
