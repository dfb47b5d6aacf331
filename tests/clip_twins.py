"""Tiny random networks in the layouts of published CLIPs: files, names, sizes and settings."""

import json
import string
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from torch import nn

VIT_B_32, VIT_B_16, SIGLIP, SIGLIP_2 = "ViT-B/32", "ViT-B/16", "SigLIP", "SigLIP 2"
SIDE, CONTEXT = 224, 77
WORDS = ["a", "red", "dog", "cat", "on", "the", "beach", "two", "cars", "plate", "of", "food"]
_LAYERS = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
_MEAN = [0.48145466, 0.4578275, 0.40821073]
_STD = [0.26862954, 0.26130258, 0.27577711]


def save_twin(folder: Path, layout: str, seed: int = 0) -> Path:
    """A twin of `layout`, as its authors publish it.

    ViT-B/32 as its first upload: whole weights with `position_ids`, text settings whose end mark is
    2 and not the tokenizer's, a processor whose sizes are plain numbers. ViT-B/16 with weights in
    shards, and a vocabulary with merges in place of `tokenizer.json`. SigLIP with a sigmoid's bias,
    pooling by attention, and word pieces of SentencePiece. SigLIP 2 is the same with Gemma's
    pieces, whose padding is 0, though its configuration does not say so.
    """
    torch.manual_seed(seed)
    folder.mkdir(parents=True)
    if layout in (SIGLIP, SIGLIP_2):
        _siglip(folder, gemma() if layout == SIGLIP_2 else unigram())
    else:
        _clip(folder, layout)
    return folder


def _clip(folder: Path, layout: str) -> None:
    from transformers import CLIPConfig, CLIPModel, CLIPTokenizer

    vocabulary, merges = _byte_pairs()
    kind: Any = CLIPTokenizer  # which takes pairs, whatever it declares
    tokenizer = kind(vocab=vocabulary, merges=merges, model_max_length=CONTEXT)
    first = layout == VIT_B_32
    ends = {"bos_token_id": 0, "pad_token_id": 1, "eos_token_id": 2}
    if not first:
        marks = len(vocabulary) - 2, len(vocabulary) - 1
        ends = {"bos_token_id": marks[0], "pad_token_id": 1, "eos_token_id": marks[1]}
    text = {**_LAYERS, **ends, "vocab_size": len(vocabulary), "max_position_embeddings": CONTEXT}
    vision = {**_LAYERS, "image_size": SIDE, "patch_size": 32 if first else 16}
    config = CLIPConfig(text_config=text, vision_config=vision, projection_dim=24)
    network = spread(CLIPModel(config))
    network.save_pretrained(folder, **({} if first else {"max_shard_size": "20KB"}))
    settings: dict[str, Any] = {
        **dict.fromkeys(("do_center_crop", "do_normalize", "do_resize"), True),
        **{"image_mean": _MEAN, "image_std": _STD, "resample": 3},
    }
    if first:
        weights = load_file(folder / "model.safetensors")
        for part, places in (("text", CONTEXT), ("vision", (SIDE // 32) ** 2 + 1)):
            name = f"{part}_model.embeddings.position_ids"
            weights[name] = torch.arange(places)[None]
        save_file(weights, folder / "model.safetensors", {"format": "pt"})
        old = {"feature_extractor_type": "CLIPFeatureExtractor", "crop_size": SIDE, "size": SIDE}
        write(folder / "preprocessor_config.json", settings | old)
        tokenizer.save_pretrained(folder)
    else:
        assert len(list(folder.glob("model-*.safetensors"))) > 1
        new: dict[str, Any] = {"image_processor_type": "CLIPImageProcessor", "do_rescale": True}
        sizes = {"crop_size": {"height": SIDE, "width": SIDE}, "size": {"shortest_edge": SIDE}}
        write(folder / "preprocessor_config.json", settings | new | sizes)
        write(folder / "vocab.json", vocabulary)
        (folder / "merges.txt").write_text(
            "\n".join(["#version: 0.2", *(" ".join(pair) for pair in merges)]), "utf-8"
        )
        write(folder / "tokenizer_config.json", {"tokenizer_class": "CLIPTokenizer"})


def _siglip(folder: Path, tokenizer: Tokenizer) -> None:
    from transformers import SiglipConfig, SiglipModel

    size = tokenizer.get_vocab_size()
    text = {**_LAYERS, "vocab_size": size, "max_position_embeddings": 64}
    config = SiglipConfig(
        text_config=text, vision_config={**_LAYERS, "image_size": SIDE, "patch_size": 16}
    )
    spread(SiglipModel(config)).save_pretrained(folder)
    settings = {
        **dict.fromkeys(("do_normalize", "do_resize", "do_rescale"), True),
        **{"image_mean": [0.5] * 3, "image_std": [0.5] * 3, "resample": 3},
        **{"image_processor_type": "SiglipImageProcessor", "processor_class": "SiglipProcessor"},
        "size": {"height": SIDE, "width": SIDE},
    }
    write(folder / "preprocessor_config.json", settings)
    tokenizer.save(str(folder / "tokenizer.json"))


def unigram() -> Tokenizer:
    """SigLIP's tokenizer, which does less to a text than SigLIP."""
    tokenizer = Tokenizer(models.Unigram(unigram_pieces(), 2))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    return tokenizer


def gemma() -> Tokenizer:
    """SigLIP 2's tokenizer: pieces of bytes where no other fits, and no lower case."""
    pieces = ["<pad>", "<eos>", "<bos>", "<unk>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += ["▁", *string.ascii_letters]
    merges = _merges(["▁", *word] for word in WORDS)
    pieces += map("".join, merges)
    vocabulary = {piece: place for place, piece in enumerate(pieces)}
    model = models.BPE(vocabulary, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.Replace(" ", "▁")
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "merged_with_previous")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A <eos>", special_tokens=[("<eos>", 1)]
    )
    tokenizer.add_special_tokens(pieces[:4])
    return tokenizer


def spread(network: Any) -> Any:
    """Gives a network weights with which images and texts come out well apart."""
    with torch.no_grad():
        for name, weight in network.named_parameters():
            if weight.dim() > 1:
                nn.init.normal_(weight, std=1.5 / weight[0].numel() ** 0.5)
            elif "bias" in name:
                nn.init.normal_(weight, std=0.1)
    return network.eval()


def unigram_pieces() -> list[tuple[str, float]]:
    """Pieces and their log probabilities, as SigLIP's: padding, end, unknown, then the pieces."""
    letters = [(letter, -9.0 - i / 9) for i, letter in enumerate("▁abcdefghijklmnopqrstuvwxyz0")]
    words = [(f"▁{word}", -3.0 - i / 7) for i, word in enumerate(WORDS)]
    return [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0), *words, ("ch", -5.0), *letters]


def enlarge(folder: Path) -> Path:
    """Adds 12 MB that nothing reads to whole weights: the Hub's client takes 10 MB at once."""
    weights = load_file(folder / "model.safetensors")
    weights["unread"] = torch.rand(3_000_000)
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    return folder


def write(path: Path, value: object) -> None:
    """Writes a JSON file."""
    path.write_text(json.dumps(value), "utf-8")


def _byte_pairs() -> tuple[dict[str, int], list[tuple[str, str]]]:
    """CLIP's kind of vocabulary: bytes, bytes that end a word, merges, and its two marks."""
    from tokenizers.pre_tokenizers import ByteLevel

    letters = sorted(ByteLevel.alphabet())
    merges = _merges([*word[:-1], f"{word[-1]}</w>"] for word in WORDS)
    names = [*letters, *(f"{letter}</w>" for letter in letters), *map("".join, merges)]
    marks = ["<|startoftext|>", "<|endoftext|>"]
    return {name: place for place, name in enumerate([*dict.fromkeys(names), *marks])}, merges


def _merges(words: Iterable[list[str]]) -> list[tuple[str, str]]:
    """The pairs that are merged until each word is one piece."""
    pairs = dict[tuple[str, str], None]()
    for word in words:
        for end in range(1, len(word)):
            pairs["".join(word[:end]), word[end]] = None
    return list(pairs)
