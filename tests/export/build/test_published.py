"""Packs of published encoders compute and rank as torch and `transformers` do."""

import json
import re
import string
import unicodedata
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from tokenizers import Tokenizer
from tokenizers.models import Unigram
from torch import Tensor

from polyview.export import clip
from polyview.export.encoders.sources import load_image_source, load_text_source
from polyview.export.runtime import Runtime
from polyview.export.to_onnx import export_runs
from tests import published as twins
from tests.export.conftest import LABELS, write_gallery, write_run

GRID = (twins.SIZE // twins.PATCH, twins.SIZE // twins.PATCH)
CASES = {  # image encoder -> text encoder, method, grid
    "mobilenet_v2": ("bigru", "vse_infty", (2, 2)),
    "resnet": ("frozen bert", "mv_vse", (2, 2)),
    "vit": ("trained bert", "base_cls", GRID),
    "clip": ("frozen clip", "mvam", GRID),
}


@pytest.mark.parametrize("kind", CASES)
def test_a_published_encoder_goes_into_a_pack(kind: str, tmp_path: Path) -> None:
    text, method, grid = CASES[kind]
    images = tmp_path / "images"
    twins.save_clip(images) if kind == "clip" else twins.save_image_model(images, kind)
    texts = None
    if text != "bigru":
        source = images if "clip" in text else twins.save_bert(tmp_path / "texts")
        texts = load_text_source(source, rounded=False)
        if text.startswith("trained"):
            del texts[2]["source"], texts[2]["sha256"]
    image_dim = load_image_source(images)[0].dim
    run = write_run(tmp_path / "run", method, images, image_dim=image_dim, texts=texts)
    gallery = write_gallery(tmp_path / "gallery")
    info = export_runs(tmp_path / "pack", images, [run], LABELS, gallery)
    assert getattr(info.methods[method].parity, "ranking", False)
    assert info.image_encoder.grid == grid
    shared = info.methods[method].text_encoder.startswith("text_encoder-")
    assert shared == text.startswith("frozen")
    runtime = Runtime.load(tmp_path / "pack", "cpu")
    assert len(runtime.boxes) == grid[0] * grid[1] + info.image_encoder.summary_token
    if text == "frozen bert":
        config = tmp_path / "texts" / "config.json"
        config.write_text(config.read_text().replace("1e-12", "1e-5"))
        with pytest.raises(ValueError, match=r"the text encoder .* has changed since"):
            export_runs(tmp_path / "other", images, [run], LABELS)
        assert not (tmp_path / "other").exists()


TEXTS = [
    "a red dog on the beach",
    "Two cars, a plate of food!",
    "the cat",
    "a chair",
    "zebras  &  don't",
    " ".join(["a plate of food on the beach"] * 20),
]
ODD_TEXTS = ["A Red-Dog!", "  two\tcars ", "chairs on the beach", "ﬁsh №1", "ünïcode", "a ▁b"]


@pytest.mark.parametrize("layout", [twins.FIRST, twins.SHARDS, twins.SIGLIP, twins.SIGLIP_2])
def test_scores_and_ranking_are_those_of_transformers(layout: str, tmp_path: Path) -> None:
    from transformers import AutoImageProcessor, CLIPModel, SiglipModel

    source, pack = twins.save_clip(tmp_path / "source", layout, 224), tmp_path / "pack"
    assert clip.main(["--from", str(source), "--out", str(pack), "--licence", "MIT"]) == 0
    runtime = Runtime.load(pack, "cpu")
    if layout == twins.SIGLIP:
        for text in ODD_TEXTS:
            assert runtime.reader.read(text).ids == _pieces(text), text
        assert runtime.reader.read("a zoo").words == ["a", "▁", "z", "o", "o", "</s>"]
    noise = np.random.default_rng(0).integers(0, 256, (24, 6, 5, 3), np.uint8)
    images = [Image.fromarray(coarse).resize((300, 260)) for coarse in noise]
    own = runtime.image_views(runtime.image_features(images), "clip")
    scores = runtime.methods["clip"].score(own, runtime.text_views(TEXTS, "clip"))
    assert scores.std(0).min() > 0.02  # of images, so that a ranking says something
    kind = SiglipModel if layout in (twins.SIGLIP, twins.SIGLIP_2) else CLIPModel
    network: Any = kind.from_pretrained(source).half().float().eval()  # rounded as packs ship them
    ids = _ids(layout, source)
    processor = AutoImageProcessor.from_pretrained(source, backend="pil")
    processed = processor(images=images, return_tensors="pt")["pixel_values"]
    for pixels, drift in ((torch.from_numpy(runtime.preprocess(images)), 2e-4), (processed, 5e-3)):
        with torch.no_grad():
            output = network(pixel_values=pixels, **ids)
        reference = output.image_embeds @ output.text_embeds.T
        torch.testing.assert_close(scores, reference, rtol=0, atol=drift)
        ranked = reference.gather(0, scores.argsort(0, descending=True))
        assert bool((ranked[:-1] - ranked[1:] >= -2 * drift).all())


def test_a_siglip_without_a_head_or_an_end_mark_is_refused(tmp_path: Path) -> None:
    source = twins.save_clip(tmp_path / "source", twins.SIGLIP)
    config = json.loads((source / "config.json").read_text())
    tokenizer = json.loads((source / "tokenizer.json").read_text())
    tokenizer["model"]["vocab"][1][0] = "<end>"
    twins.write(source / "tokenizer.json", tokenizer)
    with pytest.raises(ValueError, match="no </s>"):
        clip.build_clip(tmp_path / "pack", str(source), LABELS)
    config["vision_config"]["vision_use_head"] = False
    twins.write(source / "config.json", config)
    with pytest.raises(ValueError, match="no pooling head"):
        clip.build_clip(tmp_path / "pack", str(source), LABELS)
    assert not (tmp_path / "pack").exists()


def _ids(layout: str, source: Path) -> dict[str, Tensor]:
    """Returns the token ids of `TEXTS` by the authors' rules, padded as in training."""
    if layout == twins.SIGLIP:
        rows, padding = [_pieces(text) for text in TEXTS], 1
    elif layout == twins.SIGLIP_2:
        encoded = [twins.gemma().encode(text.lower()).ids for text in TEXTS]
        rows, padding = [[*ids[:-1][:63], 1] for ids in encoded], 0
    else:
        from transformers import CLIPTokenizer

        read = CLIPTokenizer.from_pretrained(source)
        return dict(read(TEXTS, padding=True, truncation=True, max_length=77, return_tensors="pt"))
    return {"input_ids": torch.tensor([[*row, *[padding] * (64 - len(row))] for row in rows])}


def _pieces(text: str) -> list[int]:
    """Tokenizes a text by SigLIP's rules: canonical form, then the most probable pieces."""
    text = text.lower().translate(str.maketrans("", "", string.punctuation))
    text = unicodedata.normalize("NFKC", text)
    text = "▁" + re.sub(r"\s+", " ", text).strip().replace(" ", "▁")
    return [*Tokenizer(Unigram(twins.unigram_pieces(), 2)).encode(text).ids[:63], 1]
