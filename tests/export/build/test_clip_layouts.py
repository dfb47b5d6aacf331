"""Published layouts of CLIP, converted: the scores and the ranking are those of `transformers`."""

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
from polyview.export.runtime import Runtime
from tests.export.conftest import LABELS
from tests.published import FIRST, SHARDS, SIGLIP, SIGLIP_2, gemma, save_clip, unigram_pieces, write

TEXTS = [
    "a red dog on the beach",
    "Two cars, a plate of food!",
    "the cat",
    "a chair",
    "zebras  &  don't",
    " ".join(["a plate of food on the beach"] * 20),
]
ODD_TEXTS = ["A Red-Dog!", "  two\tcars ", "chairs on the beach", "ﬁsh №1", "ünïcode", "a ▁b"]


@pytest.mark.parametrize("layout", [FIRST, SHARDS, SIGLIP, SIGLIP_2])
def test_scores_and_ranking_are_those_of_transformers(layout: str, tmp_path: Path) -> None:
    from transformers import AutoImageProcessor, CLIPModel, SiglipModel

    source, pack = save_clip(tmp_path / "source", layout, 224), tmp_path / "pack"
    assert clip.main(["--from", str(source), "--out", str(pack), "--licence", "MIT"]) == 0
    runtime = Runtime.load(pack, "cpu")
    if layout == SIGLIP:
        for text in ODD_TEXTS:
            assert runtime.tokenize(text).ids == _pieces(text), text
        assert runtime.tokenize("a zoo").words == ["a", "▁", "z", "o", "o", "</s>"]
    noise = np.random.default_rng(0).integers(0, 256, (24, 6, 5, 3), np.uint8)
    images = [Image.fromarray(coarse).resize((300, 260)) for coarse in noise]
    own = runtime.image_views(runtime.image_features(images), "clip")
    scores = runtime.methods["clip"].score(own, runtime.text_views(TEXTS, "clip"))
    assert scores.std(0).min() > 0.02  # of images, so that a ranking says something
    kind = SiglipModel if layout in (SIGLIP, SIGLIP_2) else CLIPModel
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
    source = save_clip(tmp_path / "source", SIGLIP)
    config = json.loads((source / "config.json").read_text())
    tokenizer = json.loads((source / "tokenizer.json").read_text())
    tokenizer["model"]["vocab"][1][0] = "<end>"
    write(source / "tokenizer.json", tokenizer)
    with pytest.raises(ValueError, match="no </s>"):
        clip.build_clip(tmp_path / "pack", str(source), LABELS)
    config["vision_config"]["vision_use_head"] = False
    write(source / "config.json", config)
    with pytest.raises(ValueError, match="no pooling head"):
        clip.build_clip(tmp_path / "pack", str(source), LABELS)
    assert not (tmp_path / "pack").exists()


def _ids(layout: str, source: Path) -> dict[str, Tensor]:
    """The texts as the authors' code reads them, padded as the networks were trained."""
    if layout == SIGLIP:
        rows, padding = [_pieces(text) for text in TEXTS], 1
    elif layout == SIGLIP_2:
        encoded = [gemma().encode(text.lower()).ids for text in TEXTS]
        rows, padding = [[*ids[:-1][:63], 1] for ids in encoded], 0
    else:
        from transformers import CLIPTokenizer

        read = CLIPTokenizer.from_pretrained(source)
        return dict(read(TEXTS, padding=True, truncation=True, max_length=77, return_tensors="pt"))
    return {"input_ids": torch.tensor([[*row, *[padding] * (64 - len(row))] for row in rows])}


def _pieces(text: str) -> list[int]:
    """SigLIP's reading, step by step: canonical form, then the likeliest pieces."""
    text = text.lower().translate(str.maketrans("", "", string.punctuation))
    text = unicodedata.normalize("NFKC", text)
    text = "▁" + re.sub(r"\s+", " ", text).strip().replace(" ", "▁")
    return [*Tokenizer(Unigram(unigram_pieces(), 2)).encode(text).ids[:63], 1]
