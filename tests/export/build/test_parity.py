"""ONNX files have the same weights in half the size; parity detects other rankings."""

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, numpy_helper

from polyview.export.build.pack import check_parity, export_text_encoder, same_ranking
from polyview.export.encoders.sources import load_image_source
from polyview.export.runtime import Runtime
from polyview.export.to_onnx import load_run
from polyview.models import Views
from polyview.models.checkpoint import round_to_half
from polyview.models.encoders.bigru import BiGRUTextEncoder
from tests.export.conftest import NAME


def test_other_numbers_or_another_ranking_are_drift(
    runs: Path, pack: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encoder, _, about = load_image_source(runs / "backbone")
    parts = load_run(runs / NAME, encoder, about).parts
    for module in (parts.image_encoder, parts.text_encoder, parts.head):
        assert module is not None
        module.load_state_dict(round_to_half(module.state_dict(), NAME))
    runtime = Runtime.load(pack, "cpu", threads=1)
    weight = next(iter(runtime.methods[NAME].parameters()))
    weight[0] += 0.5
    with pytest.raises(ValueError, match=f"{NAME}: .* differ from torch by .*more than 0.0001"):
        check_parity(runtime, NAME, parts, parts)
    weight[0] -= 0.5

    def expected(images: Views, texts: Views) -> torch.Tensor:
        """Scores closer together than the tolerance, but not so close that they are ties."""
        return torch.arange(len(images))[:, None].expand(-1, len(texts)) * 3e-5

    def shipped(images: Views, texts: Views) -> torch.Tensor:
        swapped = torch.arange(len(images)).remainder(2)[:, None] * -8e-5
        return expected(images, texts) + swapped

    monkeypatch.setattr(parts.head, "score", expected)
    monkeypatch.setattr(runtime.methods[NAME], "score", shipped)
    with pytest.raises(ValueError, match="ranks differently"):
        check_parity(runtime, NAME, parts, parts)


@pytest.mark.parametrize(
    ("shipped", "reference", "same"),
    [
        ([[2.8, 1.2], [1.4, 1.6]], [[0.9, 0.1], [0.2, 0.3]], True),
        ([[0.1, 0.9], [0.2, 0.3]], [[0.9, 0.1], [0.2, 0.3]], False),
        ([[0.9, 0.5], [0.2, 0.3]], [[0.9, 0.1], [0.2, 0.3]], False),  # of a column
        ([[0.5, 0.4, 0.6, 0.1]], [[0.5, 0.5 + 4e-6, 0.5 - 4e-6, 0.1]], True),  # of ties
        ([[0.4, 0.5, 0.1]], [[0.5, 0.5 - 4e-5, 0.1]], False),
    ],
)
def test_same_ranking_lets_only_ties_swap(
    shipped: list[list[float]], reference: list[list[float]], same: bool
) -> None:
    assert same_ranking(torch.tensor(shipped), torch.tensor(reference)) == same


def test_weights_in_half_equal_those_of_torch(tmp_path: Path) -> None:
    encoder = BiGRUTextEncoder(vocab_size=60, word_dim=20, hidden_dim=16).eval()
    encoder.load_state_dict(round_to_half(encoder.state_dict(), "test"))
    export_text_encoder(encoder, tmp_path / "text.onnx")
    stored = {t.name: t for t in onnx.load(tmp_path / "text.onnx").graph.initializer}
    weights = stored["embed.weight.half"]
    assert weights.data_type == TensorProto.FLOAT16
    expected = encoder.state_dict()["embed.weight"].numpy()
    np.testing.assert_array_equal(numpy_helper.to_array(weights).astype(np.float32), expected)
    halves = [t for t in stored.values() if t.data_type == TensorProto.FLOAT16]
    assert sum(np.prod(t.dims) for t in halves) == sum(p.numel() for p in encoder.parameters())
    with pytest.raises(ValueError, match=r"run: w holds 7e\+04, more than half precision"):
        round_to_half({"w": torch.tensor([70_000.0])}, "run")
