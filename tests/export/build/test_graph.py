"""ONNX files have half the size and the same weights."""

from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, numpy_helper

from polyview.export.build.graph import export_text_encoder
from polyview.models.checkpoint import round_to_half
from polyview.models.encoders.bigru import BiGRUTextEncoder


def test_weights_in_half_equal_those_of_torch(tmp_path: Path) -> None:
    encoder = BiGRUTextEncoder(vocab_size=60, word_dim=20, hidden_dim=16).eval()
    encoder.load_state_dict(round_to_half(encoder.state_dict(), "test"))
    export_text_encoder(encoder, tmp_path / "text.onnx")
    stored = {t.name: t for t in onnx.load(tmp_path / "text.onnx").graph.initializer}
    weights = stored["embed.weight.half"]
    assert weights.data_type == TensorProto.FLOAT16
    expected = encoder.state_dict()["embed.weight"].numpy()
    np.testing.assert_array_equal(numpy_helper.to_array(weights).astype(np.float32), expected)
    single = sum(p.numel() * 4 for p in encoder.parameters())
    halves = [t for t in stored.values() if t.data_type == TensorProto.FLOAT16]
    assert sum(np.prod(t.dims) * 2 for t in halves) == single // 2


def test_weights_beyond_half_are_refused() -> None:
    with pytest.raises(ValueError, match=r"run: w holds 7e\+04, more than half precision"):
        round_to_half({"w": torch.tensor([70_000.0])}, "run")
