"""PVSE's published models of clips: converted, and compared with its forward pass spelled out."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from torch import Tensor, nn

from export.build.official.convert import main
from export.runtime import Runtime
from tests.export import releases
from tests.export.build.test_official import reference_cnn
from tests.export.releases import State

FRAMES = 5
TEXTS = ["a dog runs on the beach", "the cat"]


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(5)


def convert(content: object, out: Path, *options: str) -> Runtime:
    path = out.with_suffix(".pth")
    torch.save(content, path)
    words = releases.write_words(out.with_suffix(".json"))
    given = ["--from", "pvse", str(path), "--vocab", str(words), "--out", str(out), *options]
    assert main(given) == 0
    return Runtime.load(out, "cpu")


def under(state: State, prefix: str) -> State:
    return {k.removeprefix(prefix): v for k, v in state.items() if k.startswith(prefix)}


def embedded(state: State, frames: Tensor, legacy: bool) -> Tensor:
    """EncoderVideo's pass over one clip's frames (T, d): (K, H)."""
    inputs = frames.shape[1]
    rnn = nn.GRU(inputs, releases.EMBED // 2, bidirectional=True, batch_first=True)
    rnn.load_state_dict(under(state, "img_enc.rnn."))
    outputs, last = rnn(frames[None])
    whole = outputs[0, -1] if legacy else torch.cat([last[0, 0], last[1, 0]])
    net = under(state, "img_enc.pie_net.")
    hidden = torch.tanh(frames @ net["attention.w_1.weight"].T)
    attention = (hidden @ net["attention.w_2.weight"].T).softmax(dim=0)  # (T, K)
    residual = torch.sigmoid(attention.T @ frames @ net["fc.weight"].T + net["fc.bias"])
    scale = net["layer_norm.weight"], net["layer_norm.bias"]
    z = nn.functional.layer_norm(whole + residual, (releases.EMBED,), *scale)
    return z / z.norm(dim=1, keepdim=True)


@pytest.mark.parametrize("legacy", [True, False])
def test_clips_are_embedded_as_released(legacy: bool, tmp_path: Path) -> None:
    state = releases.pvse_clips()
    option = "--legacy-text" if legacy else "--no-legacy-text"
    runtime = convert(state, tmp_path / "pack", option)
    frames = [
        Image.fromarray(torch.randint(0, 256, (256, 256, 3), dtype=torch.uint8).numpy())
        for _ in range(FRAMES)
    ]
    features = runtime.image_features(frames)  # (T, 1, d)
    assert features.shape == (FRAMES, 1, releases.OUTPUTS[-1])
    squares = np.stack([np.asarray(runtime.preprocess.square(frame)) for frame in frames])
    pixels = torch.from_numpy(runtime.preprocess.planes(squares))
    maps = reference_cnn(under(state, "img_enc.cnn."), pixels, groups=1, caffe=False)
    torch.testing.assert_close(features[:, 0], maps.mean(dim=1), rtol=1e-4, atol=1e-4)
    clip = features.transpose(0, 1)  # (1, T, d)
    with torch.no_grad():
        expected = embedded(state, features[:, 0], legacy)
        made = runtime.image_views(clip, "pvse").embeddings[0]
        torch.testing.assert_close(made, expected, rtol=1e-4, atol=1e-5)
        alone = runtime.image_views(features[:1], "pvse").embeddings[0]
        image = embedded(state, features[0], legacy)
    torch.testing.assert_close(alone, image, rtol=1e-4, atol=1e-5)
    assert runtime.text_views(TEXTS, "pvse").embeddings.shape == (2, 2, releases.EMBED)
    about = json.loads((tmp_path / "pack" / "pack.json").read_text())["methods"]["pvse"]
    assert about["arguments"]["image_global"] == ("legacy" if legacy else "states")
    assert any("clip of one frame" in note for note in about["config"]["not_stored"])


def test_a_clip_model_that_lacks_a_gate_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = releases.pvse_clips()
    del state["img_enc.rnn.bias_hh_l0_reverse"]
    path = tmp_path / "model.pth"
    torch.save(state, path)
    words = releases.write_words(tmp_path / "words.json")
    given = ["--from", "pvse", str(path), "--vocab", str(words), "--out", str(tmp_path / "pack")]
    assert main(given) != 0
    printed = capsys.readouterr()
    assert "lacks img_enc.rnn.bias_hh_l0_reverse" in printed.out + printed.err
