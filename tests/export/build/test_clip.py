"""Zero-shot CLIP as a pack: the numbers of CLIP itself, from images and words."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from export.build import clip
from export.runtime import Runtime
from tests.published import save_clip, save_image_model

TEXTS = ["a red dog on the beach", "two blue cars", "the cat"]


def test_scores_are_those_of_clip(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from transformers import AutoImageProcessor, CLIPModel

    source, pack = save_clip(tmp_path / "source"), tmp_path / "pack"
    assert clip.main(["--from", str(source), "--out", str(pack), "--licence", "MIT"]) == 0
    assert "ranking identical" in capsys.readouterr().out
    runtime = Runtime.load(pack, "cpu", threads=1)
    random = np.random.default_rng(0)
    pictures = [Image.fromarray(random.integers(0, 256, (70, 90, 3), np.uint8)) for _ in range(4)]
    images = runtime.image_views(runtime.image_features(pictures), "clip", attention=True)
    texts = runtime.text_views(TEXTS, "clip", attention=True)
    scores = runtime.methods["clip"].score(images, texts)

    network = CLIPModel.from_pretrained(source).eval()
    processor = AutoImageProcessor.from_pretrained(source, backend="pil")
    pixels = processor(images=pictures, return_tensors="pt")["pixel_values"]
    for column, text in enumerate(TEXTS):
        ids = torch.tensor([runtime.tokenize(text).ids])
        with torch.no_grad():
            output = network(input_ids=ids, pixel_values=pixels)
        expected = output.image_embeds @ output.text_embeds[0]
        torch.testing.assert_close(scores[:, column], expected, rtol=0, atol=5e-3)
    assert images.attention is not None
    maps = runtime.on_grid(images.attention)
    assert maps.shape == (4, 1, *runtime.grid)
    assert float(maps.max()) < 0.9999  # [IMG], which is the embedding itself, is left out
    long = runtime.tokenize("dog " * 40)
    assert long.truncated
    assert (len(long.ids), long.words[-1]) == (12, "<|endoftext|>")


def test_what_is_no_clip_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = save_image_model(tmp_path / "vit", "vit")
    assert clip.main(["--from", str(source), "--out", str(tmp_path / "pack")]) == 1
    assert "only CLIP has a projection" in capsys.readouterr().err
    assert not (tmp_path / "pack").exists()
