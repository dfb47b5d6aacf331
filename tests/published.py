"""Tiny random networks of published architectures, saved in the format of their authors."""

import json
import string
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from torch import nn

from tests.export.conftest import settle

SIZE, PATCH, CONTEXT = 64, 16, 77
# layouts of CLIP, see `save_clip`
FIRST, SHARDS, SIGLIP, SIGLIP_2 = "first upload", "shards", "SigLIP", "SigLIP 2"
WORDS = ["a", "red", "dog", "cat", "on", "the", "beach", "two", "cars", "plate", "of", "food"]
CLIP_MARKS = ["<|startoftext|>", "<|endoftext|>"]
BERT_MARKS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
_LAYERS: dict[str, Any] = {"hidden_size": 16, "intermediate_size": 24}
_LAYERS |= {"num_hidden_layers": 2, "num_attention_heads": 2}
_STATISTICS = {"image_mean": [0.48, 0.46, 0.41], "image_std": [0.27, 0.26, 0.28]}
_SQUARE = {"height": SIZE, "width": SIZE}
STRETCH = {"size": _SQUARE, "resample": 2}
CROP: dict[str, Any] = {"size": {"shortest_edge": SIZE + 4}, "resample": 3}
CROP |= {"do_center_crop": True, "crop_size": _SQUARE}
CROP_SHARE = {"size": {"shortest_edge": SIZE}, "crop_pct": 0.875, "resample": 3}
_MOBILE = {"depth_multiplier": 0.25, "image_size": SIZE, "finegrained_output": False}
_VIT = {**_LAYERS, "image_size": SIZE, "patch_size": PATCH}
_DISTILBERT = {"dim": 16, "hidden_dim": 24, "n_layers": 2, "n_heads": 2}
_RESNET = {"embedding_size": 8, "hidden_sizes": [8, 16, 16, 24], "depths": [1, 1, 1, 1]}
IMAGE_MODELS: dict[str, tuple[str, dict[str, Any], str, dict[str, Any]]] = {
    "mobilenet_v2": ("MobileNetV2", _MOBILE, "MobileNetV2ImageProcessor", CROP),
    "resnet": ("ResNet", _RESNET, "ConvNextImageProcessor", CROP_SHARE),
    "vit": ("ViT", _VIT, "ViTImageProcessor", STRETCH),
}
TEXT_MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("BertModel", _LAYERS),
    "distilbert": ("DistilBertForMaskedLM", _DISTILBERT),
    "roberta": ("RobertaForMaskedLM", {**_LAYERS, "pad_token_id": 0}),
    "electra": ("ElectraForPreTraining", {**_LAYERS, "embedding_size": 8}),
}


def save_image_model(folder: Path, kind: str) -> Path:
    """Saves a network of `IMAGE_MODELS` in the Hub's format."""
    name, settings, processor, values = IMAGE_MODELS[kind]
    settle(_build(f"{name}ForImageClassification", settings, 1)).save_pretrained(folder)
    save_processor(folder, processor, values)
    return folder


def save_bert(folder: Path, kind: str = "bert") -> Path:
    """Saves a network of `TEXT_MODELS` and its tokenizer in the Hub's format."""
    from transformers import BertTokenizer

    name, settings = TEXT_MODELS[kind]
    vocabulary = {word: i for i, word in enumerate([*BERT_MARKS, *WORDS, "##s"])}
    tokenizer = BertTokenizer(vocab=vocabulary).backend_tokenizer
    tokenizer.enable_padding(length=16)  # some published tokenizers pad; packs ignore it
    sizes = {"vocab_size": tokenizer.get_vocab_size(), "max_position_embeddings": 16}
    _build(name, {**settings, **sizes}, 3).save_pretrained(folder)
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def save_clip(folder: Path, layout: str = FIRST, size: int = SIZE, seed: int = 0) -> Path:
    """Saves a CLIP or SigLIP for images of `size` pixels in one of the published layouts.

    FIRST has a single file of weights with `position_ids`, the end mark 2 in the text settings, not
    the tokenizer's, and integer sizes in the processor. SHARDS has weights in shards, and a
    vocabulary with merges instead of `tokenizer.json`. SIGLIP has a sigmoid loss with a bias,
    attention pooling, and SentencePiece tokens. SIGLIP_2 has Gemma's tokens, with padding id 0,
    which its configuration does not state.
    """
    vision = {**_LAYERS, "image_size": size, "patch_size": PATCH}
    if layout in (SIGLIP, SIGLIP_2):
        _save_siglip(folder, gemma() if layout == SIGLIP_2 else unigram(), vision, seed)
    else:
        _save_clip(folder, layout == FIRST, vision, seed)
    return folder


def _save_clip(folder: Path, first: bool, vision: dict[str, Any], seed: int) -> None:
    from transformers import CLIPTokenizer

    vocabulary, merges = _byte_pairs()
    kind: Any = CLIPTokenizer  # accepts pairs, contrary to its annotation
    tokenizer = kind(vocab=vocabulary, merges=merges, model_max_length=CONTEXT)
    start, end = (0, 2) if first else (vocabulary[mark] for mark in CLIP_MARKS)
    text = {**_LAYERS, "bos_token_id": start, "pad_token_id": 1, "eos_token_id": end}
    text |= {"vocab_size": len(vocabulary), "max_position_embeddings": CONTEXT}
    config = {"text_config": text, "vision_config": vision, "projection_dim": 10}
    network, size = spread(_build("CLIPModel", config, seed)), vision["image_size"]
    network.save_pretrained(folder, **({} if first else {"max_shard_size": "20KB"}))
    if first:
        weights = load_file(folder / "model.safetensors")
        for part, places in (("text", CONTEXT), ("vision", (size // PATCH) ** 2 + 1)):
            weights[f"{part}_model.embeddings.position_ids"] = torch.arange(places)[None]
        save_file(weights, folder / "model.safetensors", {"format": "pt"})
        old: dict[str, Any] = dict.fromkeys(("do_resize", "do_center_crop", "do_normalize"), True)
        old |= {"feature_extractor_type": "CLIPFeatureExtractor", **_STATISTICS}
        old |= {"crop_size": size, "size": size, "resample": 3}
        write(folder / "preprocessor_config.json", old)
        tokenizer.save_pretrained(folder)
        return
    assert len(list(folder.glob("model-*.safetensors"))) > 1
    sizes = {"crop_size": {"height": size, "width": size}, "size": {"shortest_edge": size}}
    save_processor(folder, "CLIPImageProcessor", {**CROP, **sizes})
    models.BPE(vocabulary, merges).save(str(folder))  # vocab.json and merges.txt
    write(folder / "tokenizer_config.json", {"tokenizer_class": "CLIPTokenizer"})


def _save_siglip(folder: Path, tokenizer: Tokenizer, vision: dict[str, Any], seed: int) -> None:
    sizes = {"vocab_size": tokenizer.get_vocab_size(), "max_position_embeddings": 64}
    config = {"text_config": {**_LAYERS, **sizes}, "vision_config": vision}
    spread(_build("SiglipModel", config, seed)).save_pretrained(folder)
    square = dict.fromkeys(("height", "width"), vision["image_size"])
    save_processor(folder, "SiglipImageProcessor", {"resample": 3, "size": square})
    tokenizer.save(str(folder / "tokenizer.json"))


def _build(name: str, settings: dict[str, Any], seed: int) -> Any:
    import transformers

    torch.manual_seed(seed)
    kind = getattr(transformers, name)
    return kind(kind.config_class(**settings))


def save_processor(folder: Path, kind: str, values: dict[str, Any]) -> None:
    """Saves the settings of an image processor; `values` differ from the defaults of its class."""
    import transformers

    getattr(transformers, f"{kind}Pil")(**_STATISTICS, **values).save_pretrained(folder)


def write(path: Path, value: object) -> None:
    path.write_text(json.dumps(value), "utf-8")


def spread(network: Any) -> Any:
    """Gives a network random weights with which embeddings differ clearly."""
    with torch.no_grad():
        for name, weight in network.named_parameters():
            if weight.dim() > 1:
                nn.init.normal_(weight, std=1.5 / weight[0].numel() ** 0.5)
            elif "bias" in name:
                nn.init.normal_(weight, std=0.1)
    return network.eval()


def unigram() -> Tokenizer:
    """Builds SigLIP's tokenizer, without the cleaning of texts that SigLIP adds."""
    tokenizer = Tokenizer(models.Unigram(unigram_pieces(), 2))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    return tokenizer


def unigram_pieces() -> list[tuple[str, float]]:
    """Returns tokens and log probabilities in SigLIP's order: padding, end, unknown, others."""
    letters = [(letter, -9.0 - i / 9) for i, letter in enumerate("▁abcdefghijklmnopqrstuvwxyz0")]
    words = [(f"▁{word}", -3.0 - i / 7) for i, word in enumerate(WORDS)]
    return [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), *words, ("ch", -5.0), *letters]


def gemma() -> Tokenizer:
    """Builds SigLIP 2's tokenizer, which has byte fallback and keeps upper case."""
    from transformers import GemmaTokenizer

    pieces = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "▁", *string.ascii_letters]
    pieces += [f"<0x{byte:02X}>" for byte in range(256)]
    merges = _merges(["▁", *word] for word in WORDS)
    vocabulary = {piece: i for i, piece in enumerate([*pieces, *map("".join, merges)])}
    tokenizer = GemmaTokenizer(vocab=vocabulary, merges=merges).backend_tokenizer
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A <eos>", special_tokens=[("<eos>", 1)]
    )
    return tokenizer


def _byte_pairs() -> tuple[dict[str, int], list[tuple[str, str]]]:
    """Returns CLIP's vocabulary (bytes, bytes at the end of a word, merges, marks) and merges."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    merges = _merges([*word[:-1], f"{word[-1]}</w>"] for word in WORDS)
    names = [*letters, *(f"{letter}</w>" for letter in letters), *map("".join, merges)]
    return {name: i for i, name in enumerate([*dict.fromkeys(names), *CLIP_MARKS])}, merges


def _merges(words: Iterable[list[str]]) -> list[tuple[str, str]]:
    """Returns the pairs to merge until each word is one token."""
    pairs = dict[tuple[str, str], None]()
    for word in words:
        for end in range(1, len(word)):
            pairs["".join(word[:end]), word[end]] = None
    return list(pairs)
