"""A frozen image encoder as a graph of onnxruntime, which computes it faster on CPUs than torch."""

import tempfile
import warnings
from pathlib import Path

import onnxruntime as ort
import torch
from torch import Tensor, nn


class GraphEncoder(nn.Module):
    """What an image encoder computes, on as many threads as torch has, without gradients.

    Args:
        encoder: pixels (B, 3, S, S) to features (B, N, d); put in eval mode.
        side: S.
    """

    def __init__(self, encoder: nn.Module, side: int) -> None:
        super().__init__()
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the tracing exporter, which is deprecated
            graph = Path(folder) / "encoder.onnx"
            torch.onnx.export(
                encoder.eval(),
                (torch.zeros(2, 3, side, side),),
                graph,
                input_names=["pixels"],
                dynamic_axes={"pixels": {0: "B"}},
                dynamo=False,
            )
            options = ort.SessionOptions()
            options.intra_op_num_threads = torch.get_num_threads()
            self.session = ort.InferenceSession(graph, options, ["CPUExecutionProvider"])

    def forward(self, pixels: Tensor) -> Tensor:
        """Pixels (B, 3, S, S) -> features (B, N, d), float32."""
        return torch.from_numpy(self.session.run(None, {"pixels": pixels.numpy()})[0])
