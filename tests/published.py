"""Tiny random networks of the published classes, saved as their authors save them."""

import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

from tests.export.conftest import settle

SIZE, PATCH = 64, 16
WORDS = ["a", "red", "blue", "dog", "cat", "car", "on", "the", "beach", "and", "two", "##s"]
_LAYERS: dict[str, Any] = {
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
}
_PROCESSOR: dict[str, Any] = {
    "do_resize": True,
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_normalize": True,
    "image_mean": [0.48, 0.46, 0.41],
    "image_std": [0.27, 0.26, 0.28],
}
STRETCH = {"size": {"height": SIZE, "width": SIZE}, "resample": 2}
CROP = {
    "size": {"shortest_edge": SIZE + 4},
    "do_center_crop": True,
    "crop_size": {"height": SIZE, "width": SIZE},
    "resample": 3,
}
CROP_SHARE = {"size": {"shortest_edge": SIZE}, "crop_pct": 0.875, "resample": 3}


def save_image_model(folder: Path, kind: str) -> Path:
    """A vision network in the Hub's format: mobilenet_v2, resnet or vit."""
    import transformers

    torch.manual_seed(1)
    model: Any
    if kind == "mobilenet_v2":
        small = transformers.MobileNetV2Config(
            depth_multiplier=0.25, image_size=SIZE, finegrained_output=False
        )
        model = transformers.MobileNetV2ForImageClassification(small)
        save_processor(folder, "MobileNetV2ImageProcessor", CROP)
    elif kind == "resnet":
        model = transformers.ResNetForImageClassification(
            transformers.ResNetConfig(
                embedding_size=8, hidden_sizes=[8, 16, 16, 24], depths=[1, 1, 1, 1]
            )
        )
        save_processor(folder, "ConvNextImageProcessor", CROP_SHARE)
    else:
        config = transformers.ViTConfig(image_size=SIZE, patch_size=PATCH, **_LAYERS)
        model = transformers.ViTForImageClassification(config)
        save_processor(folder, "ViTImageProcessor", STRETCH)
    settle(model)
    model.save_pretrained(folder)
    return folder


def save_clip(folder: Path) -> Path:
    """A whole CLIP, with processor and tokenizer."""
    import transformers

    torch.manual_seed(2)
    tokenizer = clip_tokenizer()
    ends = int(tokenizer.get_vocab()["<|endoftext|>"])
    text: dict[str, Any] = {
        **_LAYERS,
        "vocab_size": tokenizer.get_vocab_size(),
        "max_position_embeddings": 12,
    }
    marks = {"bos_token_id": ends - 1, "eos_token_id": ends, "pad_token_id": ends}
    vision = {**_LAYERS, "image_size": SIZE, "patch_size": PATCH}
    config = transformers.CLIPConfig(
        text_config={**text, **marks}, vision_config=vision, projection_dim=10
    )
    transformers.CLIPModel(config).save_pretrained(folder)
    save_processor(folder, "CLIPImageProcessor", CROP)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def save_bert(folder: Path, kind: str = "bert") -> Path:
    """A text network of BERT's kin in the Hub's format, with its tokenizer."""
    import transformers

    torch.manual_seed(3)
    tokenizer = word_pieces()
    sizes: dict[str, Any] = {
        "vocab_size": tokenizer.get_vocab_size(),
        "max_position_embeddings": 16,
    }
    if kind == "distilbert":
        config = transformers.DistilBertConfig(
            dim=16, hidden_dim=24, n_layers=2, n_heads=2, **sizes
        )
        transformers.DistilBertForMaskedLM(config).save_pretrained(folder)
    elif kind == "roberta":
        roberta = transformers.RobertaConfig(**_LAYERS, **sizes, pad_token_id=0)
        transformers.RobertaForMaskedLM(roberta).save_pretrained(folder)
    elif kind == "electra":
        electra = transformers.ElectraConfig(**_LAYERS, **sizes, embedding_size=8)
        transformers.ElectraForPreTraining(electra).save_pretrained(folder)
    else:
        transformers.BertModel(transformers.BertConfig(**_LAYERS, **sizes)).save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def save_processor(folder: Path, kind: str, values: dict[str, Any]) -> None:
    """How a network's pictures are prepared, as the Hub has it."""
    folder.mkdir(parents=True, exist_ok=True)
    settings = {"image_processor_type": kind, **_PROCESSOR, **values}
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))


def word_pieces() -> Tokenizer:
    """BERT's tokenizer over a dozen pieces."""
    vocabulary = {w: i for i, w in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", *WORDS])}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.add_special_tokens(["[PAD]", "[UNK]", "[CLS]", "[SEP]"])
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer.enable_padding(length=16)  # as some come, which must not matter
    return tokenizer


def clip_tokenizer() -> Tokenizer:
    """CLIP's tokenizer in its simplest form: words, between its two marks."""
    marks = ["<|startoftext|>", "<|endoftext|>"]
    vocabulary = {w: i for i, w in enumerate([*WORDS, "[UNK]", *marks])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.add_special_tokens(marks)
    ids = [(mark, vocabulary[mark]) for mark in marks]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{marks[0]} $A {marks[1]}", special_tokens=ids
    )
    return tokenizer
