"""Networks are refused in a sentence, whatever they are called."""

from pathlib import Path

import pytest

from export.pack.validation import PackError
from export.pack.weights import check_weights


@pytest.mark.parametrize("name", [b"Unique", b"Un\xffque"])
def test_unknown_operators_are_refused_even_with_names_that_are_no_text(
    name: bytes, tmp_path: Path
) -> None:
    node = b"\x0a\x01x\x12\x01y\x22" + bytes([len(name)]) + name  # input, output, op_type
    graph = b"\x0a" + bytes([len(node)]) + node
    path = tmp_path / "network.onnx"
    path.write_bytes(b"\x08\x08\x3a" + bytes([len(graph)]) + graph)
    with pytest.raises(PackError, match="no encoder needs"):
        check_weights(path)
