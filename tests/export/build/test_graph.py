"""ONNX files: any batch, any length, and half the size without losing anything."""

from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest
import torch
from onnx import TensorProto, numpy_helper

from export.build.graph import export_text_encoder, round_to_half
from models.encoders.bigru import BiGRUTextEncoder
from tests.export.conftest import settle


def rounded(module: torch.nn.Module) -> torch.nn.Module:
    """The module with weights that half precision can hold."""
    settle(module).load_state_dict(round_to_half(module.state_dict(), "test"))
    return module


@pytest.fixture(scope="module", params=[2, 1, 0], ids=["bigru", "gru", "words"])
def text_encoder(request: pytest.FixtureRequest) -> torch.nn.Module:
    torch.manual_seed(1)
    sizes = {"vocab_size": 60, "word_dim": 20, "hidden_dim": 16}
    return rounded(BiGRUTextEncoder(**sizes, directions=request.param))


@pytest.fixture(scope="module")
def text_file(text_encoder: torch.nn.Module, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("onnx") / "text.onnx"
    export_text_encoder(text_encoder, path)
    return path


@pytest.mark.parametrize(("batch", "length"), [(1, 1), (1, 80), (7, 3), (33, 19)])
def test_text_encoder_takes_any_batch_and_length(
    text_encoder: torch.nn.Module, text_file: Path, batch: int, length: int
) -> None:
    generator = torch.Generator().manual_seed(batch * length)
    lengths = torch.randint(1, length + 1, (batch,), generator=generator)
    lengths[0] = length
    ids = torch.randint(1, 60, (batch, length), generator=generator)
    ids[torch.arange(length) >= lengths[:, None]] = 0
    session = ort.InferenceSession(text_file, providers=["CPUExecutionProvider"])
    found = session.run(None, {"ids": ids.numpy(), "lengths": lengths.numpy()})[0]
    with torch.no_grad():
        expected = text_encoder(ids, lengths)
    torch.testing.assert_close(torch.from_numpy(found), expected, atol=1e-6, rtol=1e-5)


def test_weights_in_half_equal_those_of_torch(
    text_encoder: torch.nn.Module, text_file: Path
) -> None:
    model = onnx.load(text_file)
    stored = {t.name: t for t in model.graph.initializer}
    weights = stored["embed.weight.half"]
    assert weights.data_type == TensorProto.FLOAT16
    expected = text_encoder.state_dict()["embed.weight"].numpy()
    np.testing.assert_array_equal(numpy_helper.to_array(weights).astype(np.float32), expected)
    single = sum(p.numel() * 4 for p in text_encoder.parameters())
    halves = [t for t in stored.values() if t.data_type == TensorProto.FLOAT16]
    assert sum(np.prod(t.dims) * 2 for t in halves) == single // 2


def test_weights_beyond_half_are_refused() -> None:
    with pytest.raises(ValueError, match=r"run: w holds 7e\+04, more than half precision"):
        round_to_half({"w": torch.tensor([70_000.0])}, "run")
