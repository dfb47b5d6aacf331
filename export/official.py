r"""Converts the authors' checkpoints to packs.

python -m polyview official --from vse_infty --hub cccjc/vse-infty/f30k_wsl_grid_bert --out PACK
python -m polyview official --from vse_infty model_best.pth --vocab f30k_vocab.json --out PACK
python -m polyview official --from avse model_best.pth \
    --text-backbone google-bert/bert-base-uncased --out PACK
"""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from pydantic.dataclasses import dataclass
from tokenizers import Regex, Tokenizer, normalizers, pre_tokenizers, processors
from tokenizers.models import WordLevel
from torch import nn
from torch.nn import functional

from polyview import models
from polyview.export.build import released
from polyview.export.build.command import labels_from, pack_name, pack_parser, run_command
from polyview.export.build.pack import MAX_LENGTH, MethodParts, PackParts, build_pack
from polyview.export.build.released import BERT_ID, Checkpoint
from polyview.export.hub.client import fetch, fetch_matching, find_folder
from polyview.export.pack.schema import UNKNOWN_LICENCE, PackInfo
from polyview.export.pack.validation import OPEN, check, read_json
from polyview.export.texts import WORDS, read_tokenizer
from polyview.models import METHODS
from polyview.models.encoders.bigru import BiGRUTextEncoder
from polyview.models.encoders.encoder import ImageEncoder, TextEncoder
from polyview.models.encoders.published import BertTextEncoder, SampledViT
from polyview.models.encoders.resnet import STAGES, ResNet
from polyview.models.preprocess import Preprocess

IMAGENET = Preprocess(
    mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225), fit="stretch", filter="bilinear"
)
# The detector of bottom-up attention reads BGR pixels of 0 to 255 minus these means (here RGB).
DETECTOR_MEAN = (122.7717 / 255, 115.9465 / 255, 102.9801 / 255)
# `backbone_source` of VSE-infinity -> layout of the CNN, see `models/encoders/resnet.py`
LAYOUTS = {
    **dict.fromkeys(("detector", "imagenet", "imagenet_res50", "imagenet_res152"), "caffe"),
    **dict.fromkeys(("imagenet_resnext", "wsl"), "torchvision"),
}
_WORD_PIECES = "text.model.embeddings.word_embeddings.weight"  # embeddings of BERT's word pieces
_POSITIONS = "image.model.embeddings.position_embeddings"  # position embeddings of a ViT


@dataclass(frozen=True, config=OPEN)
class WordList:
    """A vocabulary: word -> id."""

    word2idx: dict[str, int]


class ImageSide(NamedTuple):
    """The arguments of a method, and the release's image encoder with random weights."""

    arguments: dict[str, Any]  # for `models.build`
    dim: int  # d of the image features
    encoder: ImageEncoder | None = None  # None if the model reads precomputed features
    preprocess: Preprocess = Preprocess()


def convert_vse_infty(checkpoint: Checkpoint, _: argparse.Namespace) -> ImageSide:
    """Converts VSE-infinity over images if the checkpoint has a CNN, otherwise over regions."""
    settings, state = checkpoint.options, checkpoint.state
    if settings.no_imgnorm or settings.no_txtnorm:
        norms = f"no_imgnorm={settings.no_imgnorm} and no_txtnorm={settings.no_txtnorm}"
        raise ValueError(f"{checkpoint.path} has {norms}; both must be False")
    embed_dim, image_dim = checkpoint.shape("method.project_image.linear.weight")
    arguments = {"embed_dim": embed_dim, "mlp_dim": 0, "released_gpo": True}
    if "image.conv1.weight" not in state:
        arguments["mlp_dim"] = checkpoint.shape("method.project_image.mlp.0.weight")[0]
        return ImageSide(arguments, image_dim)
    source = settings.backbone_source.removeprefix("vsepp_")
    if source not in LAYOUTS:
        known = ", ".join(LAYOUTS)
        raise ValueError(f'{checkpoint.path}: backbone_source is "{source}"; known: {known}')
    preprocess = replace(IMAGENET, size=int(256 * settings.input_scale_factor))
    if source == "detector":
        state["image.conv1.weight"] = state["image.conv1.weight"].flip(1)  # from BGR to RGB
        preprocess = replace(preprocess, mean=DETECTOR_MEAN, std=(1 / 255,) * 3)
    return ImageSide(arguments, image_dim, _build_resnet(checkpoint, LAYOUTS[source]), preprocess)


def convert_mv_vse(checkpoint: Checkpoint, _: argparse.Namespace) -> ImageSide:
    """Converts MV-VSE over region features: a linear map and max pooling for each view."""
    embed_dim, image_dim = checkpoint.shape("method.project_image.0.linear.weight")
    views = checkpoint.count("method.project_image.")
    return ImageSide({"embed_dim": embed_dim, "views": views, "aggregator": "released"}, image_dim)


def convert_pvse(checkpoint: Checkpoint, options: argparse.Namespace) -> ImageSide:
    """Converts PVSE: a ResNet, and PIE-Nets over its cells or over the frames of a clip.

    In the models of clips (MRW, TGIF), the ResNet computes one feature of each frame, and an image
    is a clip of one frame. The release repeats the last frame of a short clip; this code does not.
    """
    settings, state = checkpoint.options, checkpoint.state
    if settings.order:
        raise ValueError(f"{checkpoint.path} has order=True; only scores by cosine are supported")
    legacy = settings.legacy if options.legacy_text is None else options.legacy_text
    attention_name, gru_name = "method.image_net.w2.weight", "method.image_global.gru.weight_ih_l0"
    views = checkpoint.shape(attention_name)[0] if attention_name in state else 0
    arguments: dict[str, Any] = {"views": views, "legacy_text": legacy}
    if gru_name in state:
        gate_rows, image_dim = checkpoint.shape(gru_name)
        embed_dim = 2 * gate_rows // 3  # a direction has 3 gates, each with embed_dim / 2 rows
        arguments["image_global"] = "legacy" if legacy else "states"
    else:
        embed_dim, image_dim = checkpoint.shape("method.image_global.weight")
    encoder = _build_resnet(checkpoint, "torchvision", pooled=gru_name in state)
    size = settings.crop_size
    preprocess = replace(IMAGENET, size=size, fit="crop", resize=max(size, 256))
    return ImageSide({"embed_dim": embed_dim, **arguments}, image_dim, encoder, preprocess)


def convert_avse(checkpoint: Checkpoint, options: argparse.Namespace) -> ImageSide:
    """Converts AVSE: a ViT over a sample of the patches for each view, with scores by MaxSim."""
    size = checkpoint.options.img_res
    config = {**_read_config("vit", options.image_backbone), "image_size": size}
    encoder = SampledViT(config, None if options.centres is None else tuple(options.centres))
    _resize_positions(checkpoint, encoder.side)
    arguments = {
        "embed_dim": checkpoint.shape("method.project_text.linear.weight")[0],
        "block_dim": options.block_dim or 256,
        "views": len(encoder.token_indices),
        "match": "maxsim",
        **dict.fromkeys(("released_gpo", "released_text", "sampled_features"), True),
    }
    return ImageSide(arguments, encoder.dim, encoder, replace(IMAGENET, size=size))


def _text_side(
    checkpoint: Checkpoint, options: argparse.Namespace
) -> tuple[TextEncoder, Tokenizer]:
    """Builds the text encoder of a release with random weights; reads or builds its tokenizer."""
    reads_words = options.release in ("pvse", "mv_vse") or "text.embed.weight" in checkpoint.state
    if _WORD_PIECES in checkpoint.state or not reads_words:
        return _bert_encoder(checkpoint, options)
    # The releases tokenize with nltk's word_tokenize, which `WORDS` approximates.
    word_count, word_dim = checkpoint.shape("text.embed.weight")
    words = _read_words(checkpoint, options, word_count)
    tokenizer = Tokenizer(WordLevel(words, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(WORDS), "removed", invert=True)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<start> $A <end>", special_tokens=[(m, words[m]) for m in ("<start>", "<end>")]
    )
    grus = ("text.forward_gru", "text.backward_gru")
    directions = sum(f"{gru}.weight_hh_l0" in checkpoint.state for gru in grus)
    # a text encoder without directions only embeds words; the method has the GRU
    gru = "text.forward_gru" if directions else "method.text_global.gru"
    hidden = checkpoint.shape(f"{gru}.weight_hh_l0")[1]
    return BiGRUTextEncoder(word_count, word_dim, hidden, directions=directions), tokenizer


def _read_words(checkpoint: Checkpoint, options: argparse.Namespace, size: int) -> dict[str, int]:
    """Reads the word list of `--vocab` as word -> id; the ids are 0 to `size` - 1."""
    if (path := options.vocab) is None:
        raise ValueError(f"{checkpoint.path} stores no words; name a JSON word list with --vocab")
    if path.is_file() and path.read_bytes()[:1] == b"\x80":
        advice = 'load it in PVSE\'s code and json.dump {"word2idx": vocabulary.word2idx}'
        raise ValueError(f"{path} is a pickle, which can run code; if you trust it, {advice}")
    words = check(WordList, read_json(path), str(path)).word2idx
    if options.release == "vse_infty" and len(words) == size - 1:
        words = {**words, "<mask>": size - 1}  # the release's code appends <mask>
    if sorted(words.values()) != list(range(size)):
        fault = f"must list the {size} words of {checkpoint.path}, numbered from 0 without gaps"
        raise ValueError(f"{path} {fault}, not {len(words)} words; name the list used in training")
    if words.get("<pad>") != 0 or not {"<start>", "<end>", "<unk>"} <= words.keys():
        raise ValueError(f"{path} must list <pad> as word 0, and <start>, <end> and <unk>")
    return words


def _bert_encoder(
    checkpoint: Checkpoint, options: argparse.Namespace
) -> tuple[TextEncoder, Tokenizer]:
    """Builds BERT with random weights, and reads its tokenizer; see `_text_side`."""
    name = options.text_backbone or BERT_ID
    try:
        folder = find_folder(name) or fetch_matching(name, released.BERT_FILES)
    except FileNotFoundError as error:
        raise FileNotFoundError(f"--text-backbone: {error} (for example {BERT_ID})") from error
    rows, tokenizer = checkpoint.shape(_WORD_PIECES)[0], read_tokenizer(folder)
    if (pieces := tokenizer.get_vocab_size()) != rows:
        sizes = f"{pieces} word pieces, but {checkpoint.path} has embeddings of {rows}"
        raise ValueError(f"{folder} lists {sizes}; name the right BERT with --text-backbone")
    return BertTextEncoder(_read_config("bert", folder)), tokenizer


def _read_config(kind: str, folder: Path | None) -> dict[str, Any]:
    """Reads a folder's `config.json`, if any; `transformers` has defaults for missing values."""
    if folder is None or not (folder / "config.json").is_file():
        return {"model_type": kind}
    return {**read_json(folder / "config.json"), "model_type": kind}


def _build_resnet(checkpoint: Checkpoint, layout: str, *, pooled: bool = False) -> ResNet:
    """Builds a ResNet of the same size as the checkpoint's, with random weights."""
    bottleneck = "image.layer1.0.conv3.weight" in checkpoint.state
    last_conv = "conv3" if bottleneck else "conv2"
    stages = [f"image.layer{stage + 1}." for stage in range(STAGES)]
    width, group_width, *_ = checkpoint.shape(f"{stages[0]}0.conv2.weight")
    return ResNet(
        stem=checkpoint.shape("image.conv1.weight")[0],
        widths=[checkpoint.shape(f"{stage}0.conv1.weight")[0] for stage in stages],
        channels=[checkpoint.shape(f"{stage}0.{last_conv}.weight")[0] for stage in stages],
        blocks=[checkpoint.count(stage) for stage in stages],
        bottleneck=bottleneck,
        groups=width // group_width if bottleneck else 1,
        layout=layout,
        pooled=pooled,
    )


def _resize_positions(checkpoint: Checkpoint, side: int) -> None:
    """Resizes position embeddings (1, 1 + n * n, width) to n = `side`, as the release does."""
    shape = checkpoint.shape(_POSITIONS)
    count = max(0, shape[1] - 1) if len(shape) == 3 else 0
    old_side = round(count**0.5)
    if old_side in (0, side) or old_side**2 != count:
        return  # loading the weights raises the error for a wrong shape
    cls_position, patches = checkpoint.state[_POSITIONS].float().split([1, count], dim=1)
    square = patches.mT.unflatten(2, (old_side, old_side))  # (1, width, n, n)
    resized = functional.interpolate(square, (side, side), mode="bicubic", align_corners=False)
    checkpoint.state[_POSITIONS] = torch.cat([cls_position, resized.flatten(2).mT], dim=1)


CONVERSIONS = {
    "vse_infty": convert_vse_infty,
    "pvse": convert_pvse,
    "mv_vse": convert_mv_vse,
    "avse": convert_avse,
}


def convert(options: argparse.Namespace) -> PackInfo:
    """Builds the pack of a released checkpoint from the options of `main`."""
    name, releases = options.release, released.read_releases()
    release = releases.pop(name)
    for other_name, other in releases.items():
        for option in other.options:
            if getattr(options, option) is not None:
                flag = f"--{option.replace('_', '-')}"
                raise ValueError(f"{flag} is for --from {other_name}; leave it out with {name}")
    if (options.checkpoint is None) == (options.hub is None):
        raise ValueError("name either a checkpoint file or, with --hub, a checkpoint on the Hub")
    if options.hub is None:
        path, origin = options.checkpoint, options.checkpoint.name
    else:
        repo = released.find_checkpoint(options.hub)
        (file,) = repo.files
        fetch(repo)
        path, origin = repo.folder / file, f"{repo.repo_id}/{file}@{repo.commit}"
    checkpoint = released.read_checkpoint(path, release.names)
    image_side = CONVERSIONS[name](checkpoint, options)
    text_encoder, tokenizer = _text_side(checkpoint, options)
    arguments, image_encoder = image_side.arguments, image_side.encoder
    head = models.build(name, image_side.dim, text_encoder.dim, arguments)
    modules = {"method": head, "text": text_encoder, "image": image_encoder}
    checkpoint.load_into(nn.ModuleDict({k: v for k, v in modules.items() if v}))
    config = {"origin": origin, **checkpoint.details, "not_stored": [release.not_stored]}
    parts = PackParts(
        image_encoder=image_encoder,
        image_dim=image_side.dim,
        preprocess=image_side.preprocess,
        tokenizer=tokenizer.to_str(pretty=True),
        max_length=min(MAX_LENGTH, text_encoder.max_length or MAX_LENGTH),
        methods={name: MethodParts(image_encoder, text_encoder, head, arguments, config)},
        gallery=options.gallery,
        half=False,  # the weights stay as they were published
    )
    method, origin_parts = METHODS[name], origin.partition("@")[0].split("/")
    # the name of the checkpoint's folder on the Hub, or else of its file without the suffix
    short_name = origin_parts[-2] if len(origin_parts) > 3 else origin_parts[-1].partition(".")[0]
    labels = labels_from(
        options,
        name=pack_name(f"{name}_{short_name}"),
        title=f"{method.title}, the authors' weights",
        licence=UNKNOWN_LICENCE,
        credits=f"Weights by the authors of {method.title} ({method.paper}); code: {release.code}; "
        "the licence of the weights is not stated",
        description=f"Converted from {origin}. {release.not_stored}",
    )
    return build_pack(options.out, labels, parts)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns its exit status."""
    parser = pack_parser("official", "Build a pack of a released checkpoint.")
    add = parser.add_argument
    add("checkpoint", type=Path, nargs="?", help="file of the released weights")
    add("--from", dest="release", choices=CONVERSIONS, required=True, help="method of the release")
    add("--hub", help="owner/name/FOLDER_OR_FILE[@REVISION] instead of a file")
    add("--vocab", type=Path, help="word list, JSON with word2idx; for models with word embeddings")
    add("--text-backbone", help="folder or Hub id with BERT's word pieces and config.json")
    add("--image-backbone", type=Path, help="folder with the config.json of AVSE's ViT")
    flag = argparse.BooleanOptionalAction
    add("--legacy-text", action=flag, help="PVSE: read texts and clips as its published models do")
    add("--block-dim", type=int, help="AVSE: size of the matched blocks (default: 256)")
    add("--centres", type=int, nargs="+", help="AVSE: centre patch of each view, row-major from 0")
    return run_command(parser, convert, argv)
