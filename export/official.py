"""The authors' checkpoints as packs.

python -m export.official --from vse_infty --hub cccjc/vse-infty/f30k_wsl_grid_bert --out PACK
python -m export.official --from vse_infty model_best.pth --vocab f30k_vocab.json --out PACK
python -m export.official --from pvse model_best.pth.tar --vocab vocab.json --out PACK
python -m export.official --from avse model_best.pth --text-backbone bert-base-uncased --out PACK
"""

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from torch import nn
from torch.nn import functional

import models
from export.build import release_names as tables
from export.build.command import labels_from, pack_parser, run_command
from export.build.offer import fetch_checkpoint
from export.build.pack import MethodParts, PackParts, build_pack
from export.build.parity import TorchStack
from export.build.release_names import IMAGE, TEXT, Table, rename
from export.build.released import (
    Checkpoint,
    bert_folder,
    bert_tokenizer,
    read_checkpoint,
    word_tokenizer,
)
from export.pack.schema import UNKNOWN_LICENCE, PackInfo
from export.pack.validation import read_json
from models import METHODS
from models.encoders.bigru import BiGRUTextEncoder
from models.encoders.encoder import ImageEncoder, TextEncoder
from models.encoders.published import BertTextEncoder, SampledViT
from models.encoders.resnet import STAGES, ResNet
from models.preprocess import Preprocess

MAX_LENGTH = 64  # tokens of a text that are read at most; the releases set no limit
IMAGENET = Preprocess(
    mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225), fit="stretch", filter="bilinear"
)
# Bottom-up attention reads blue, green, red of 0 to 255 minus these means, here red first
DETECTOR_MEAN = (122.7717 / 255, 115.9465 / 255, 102.9801 / 255)
# backbone_source of VSE-infinity -> the layout of its CNN, see `models/encoders/resnet.py`
LAYOUTS = {
    **dict.fromkeys(("detector", "imagenet", "imagenet_res50", "imagenet_res152"), "caffe"),
    **dict.fromkeys(("imagenet_resnext", "wsl"), "torchvision"),
}


@dataclass(frozen=True)
class Conversion:
    """A release's model, its encoders with random weights.

    Attributes:
        arguments: named arguments for `models.build`.
        image_dim: d of the image side.
        image: None where the model reads features that were computed elsewhere.
        preprocess: how images are prepared.
        text: its text encoder, and the tokenizer that makes its ids.
    """

    arguments: dict[str, Any]
    image_dim: int
    image: ImageEncoder | None
    preprocess: Preprocess
    text: tuple[TextEncoder, Tokenizer]


def convert_vse_infty(checkpoint: Checkpoint, options: argparse.Namespace) -> Conversion:
    """VSE-infinity: region features or images, BiGRU or BERT text, told apart by their keys."""
    trained, state = checkpoint.options, checkpoint.state
    if trained.no_imgnorm or trained.no_txtnorm:
        raise ValueError(
            f"{checkpoint.path} was trained with no_imgnorm={trained.no_imgnorm} and no_txtnorm="
            f"{trained.no_txtnorm}; only models that scale both embeddings to unit length convert"
        )
    image, preprocess = None, Preprocess()
    if f"{IMAGE}image_encoder.fc.weight" in state:
        embed_dim, image_dim = checkpoint.shape(f"{IMAGE}image_encoder.fc.weight")
        mlp_dim = 0
        source = trained.backbone_source.removeprefix("vsepp_")
        if source not in LAYOUTS:
            raise ValueError(
                f'{checkpoint.path}: its option backbone_source is "{source}", which decides the '
                f"layout of its CNN; known are {', '.join(LAYOUTS)}"
            )
        image = _build_resnet(checkpoint, f"{IMAGE}backbone.resnet.", LAYOUTS[source])
        preprocess = replace(IMAGENET, size=int(256 * trained.input_scale_factor))
        if source == "detector":
            for copy in ("resnet.conv1", "base.0"):
                key = f"{IMAGE}backbone.{copy}.weight"
                state[key] = state[key].flip(1)
            preprocess = replace(preprocess, mean=DETECTOR_MEAN, std=(1 / 255,) * 3)
    else:
        embed_dim, image_dim = checkpoint.shape(f"{IMAGE}fc.weight")
        mlp_dim = checkpoint.shape(f"{IMAGE}mlp.layers.0.weight")[0]
    arguments = {"embed_dim": embed_dim, "mlp_dim": mlp_dim, "released_gpo": True}
    if f"{TEXT}embed.weight" in state:
        text = _words_encoder(checkpoint, TEXT, options, 2, mask=True)
    else:
        text = _bert_encoder(checkpoint, f"{TEXT}bert.", options)
    return Conversion(arguments, image_dim, image, preprocess, text)


def convert_mv_vse(checkpoint: Checkpoint, options: argparse.Namespace) -> Conversion:
    """MV-VSE: region features, one linear map and max pooling a view, a forward GRU."""
    embed_dim, image_dim = checkpoint.shape(f"{IMAGE}fc_list.0.weight")
    views = checkpoint.count(f"{IMAGE}fc_list.")
    arguments = {"embed_dim": embed_dim, "views": views, "aggregator": "released"}
    text = _words_encoder(checkpoint, TEXT, options, 1)
    return Conversion(arguments, image_dim, None, Preprocess(), text)


def convert_pvse(checkpoint: Checkpoint, options: argparse.Namespace) -> Conversion:
    """PVSE: a torchvision ResNet, PIE-Nets over its cells, or over a clip's frames, and words.

    In its models of clips (MRW, TGIF) the ResNet makes one feature a frame, which a bi-GRU and a
    PIE-Net read. The pack's image encoder is that ResNet, so that an image is a clip of one frame.
    The release repeats the last frame of a short clip; here it stays short.
    """
    trained, state = checkpoint.options, checkpoint.state
    renamed = {str(rename(key, tables.PVSE_OLD)): value for key, value in state.items()}
    state.clear()
    state.update(renamed)
    legacy = trained.legacy if options.legacy_text is None else options.legacy_text
    attention = "img_enc.pie_net.attention.w_2.weight"
    arguments: dict[str, Any] = {
        "views": checkpoint.shape(attention)[0] if attention in state else 0,
        "legacy_text": legacy,
        "similarity": "order" if trained.order else "cosine",
    }
    clips = "img_enc.rnn.weight_ih_l0" in state
    if clips:
        gates, image_dim = checkpoint.shape("img_enc.rnn.weight_ih_l0")
        embed_dim = 2 * gates // 3  # three gates of half the width in each direction
        arguments["image_global"] = "legacy" if legacy else "states"
    else:
        embed_dim, image_dim = checkpoint.shape("img_enc.fc.weight")
    image = _build_resnet(checkpoint, "img_enc.cnn.", pooled=clips)
    size = trained.crop_size
    preprocess = replace(IMAGENET, size=size, fit="crop", resize=max(size, 256))
    text = _words_encoder(checkpoint, "txt_enc.", options, 0)
    return Conversion({"embed_dim": embed_dim, **arguments}, image_dim, image, preprocess, text)


def convert_avse(checkpoint: Checkpoint, options: argparse.Namespace) -> Conversion:
    """AVSE: a ViT that reads two samples of an image, BERT, and blocks matched by MaxSim."""
    size = checkpoint.options.img_res
    config = {**_read_config("vit", options.image_backbone), "image_size": size}
    image = SampledViT(config, None if options.centres is None else tuple(options.centres))
    _resize_positions(
        checkpoint, "img_enc.visual_encoder.embeddings.position_embeddings", image.side
    )
    arguments = {
        "embed_dim": checkpoint.shape("txt_enc.fc.weight")[0],
        "block_dim": options.block_dim or 256,
        "views": len(image.kept),
        "match": "maxsim",
        **dict.fromkeys(("released_gpo", "released_text", "sampled_features"), True),
    }
    text = _bert_encoder(checkpoint, "txt_enc.bert.", options)
    return Conversion(arguments, image.dim, image, replace(IMAGENET, size=size), text)


def _words_encoder(
    checkpoint: Checkpoint,
    prefix: str,
    options: argparse.Namespace,
    directions: int,
    *,
    mask: bool = False,
) -> tuple[TextEncoder, Tokenizer]:
    rows, word_dim = checkpoint.shape(f"{prefix}embed.weight")
    hidden = checkpoint.shape(f"{prefix}rnn.weight_hh_l0")[1]
    encoder = BiGRUTextEncoder(rows, word_dim, hidden, directions=directions)
    return encoder, word_tokenizer(options.vocab, checkpoint, rows, mask=mask)


def _bert_encoder(
    checkpoint: Checkpoint, prefix: str, options: argparse.Namespace
) -> tuple[TextEncoder, Tokenizer]:
    folder = bert_folder(options.text_backbone)
    rows = checkpoint.shape(f"{prefix}embeddings.word_embeddings.weight")[0]
    tokenizer = bert_tokenizer(folder, checkpoint, rows)
    return BertTextEncoder(_read_config("bert", folder)), tokenizer


def _read_config(kind: str, folder: Path | None) -> dict[str, Any]:
    """A folder's `config.json`; what it does not say are the library's defaults, the base sizes."""
    path = None if folder is None else folder / "config.json"
    config = read_json(path) if path is not None and path.is_file() else {}
    return {**config, "model_type": kind}


def _build_resnet(
    checkpoint: Checkpoint, prefix: str, layout: str = "torchvision", *, pooled: bool = False
) -> ResNet:
    """The network behind `prefix` with random weights; sizes are read off the shapes."""
    bottleneck = f"{prefix}layer1.0.conv3.weight" in checkpoint.state
    last = "conv3" if bottleneck else "conv2"
    stages = [f"{prefix}layer{stage + 1}." for stage in range(STAGES)]
    width, inputs, *_ = checkpoint.shape(f"{stages[0]}0.conv2.weight")
    return ResNet(
        stem=checkpoint.shape(f"{prefix}conv1.weight")[0],
        widths=[checkpoint.shape(f"{stage}0.conv1.weight")[0] for stage in stages],
        channels=[checkpoint.shape(f"{stage}0.{last}.weight")[0] for stage in stages],
        blocks=[checkpoint.count(stage) for stage in stages],
        bottleneck=bottleneck,
        groups=width // inputs if bottleneck else 1,
        layout=layout,
        pooled=pooled,
    )


def _resize_positions(checkpoint: Checkpoint, key: str, side: int) -> None:
    """Gives stored positions (1, 1 + n * n, h) those of `side` x `side` patches, in place.

    The release enlarges them in every pass where images are larger than those its ViT was trained
    on; here that is done once, in the same way (bicubic).
    """
    stored = checkpoint.shape(key)[1] - 1
    old = round(stored**0.5)
    if old == side or old**2 != stored:
        return  # what does not fit is named when weights are loaded
    first, rest = checkpoint.state[key].float().split([1, stored], dim=1)
    square = rest.mT.unflatten(2, (old, old))  # (1, h, n, n)
    larger = functional.interpolate(square, (side, side), mode="bicubic", align_corners=False)
    checkpoint.state[key] = torch.cat([first, larger.flatten(2).mT], dim=1)


@dataclass(frozen=True)
class Release:
    """One release.

    Attributes:
        table: our names of its weights.
        convert: builds its model.
        code: where its code is, and the licence of that.
        not_stored: what its checkpoints do not store, and what is taken instead.
    """

    table: Table
    convert: Callable[[Checkpoint, argparse.Namespace], Conversion]
    code: str
    not_stored: str


_HEADS = (
    "Attention heads and epsilons of BERT and ViT are those of their config.json, or the library's "
    "defaults"
)
_REGIONS = "Region features (bottom-up attention, 36 for an image) are not computed here."
RELEASES = {
    "vse_infty": Release(
        tables.VSE_INFTY,
        convert_vse_infty,
        "github.com/woodfrog/vse_infty, MIT",
        "The temperature of the pooling is 0.1, as in the release's code. Whole images are "
        f"resized by Pillow, which smooths when it shrinks, not by OpenCV. {_REGIONS} {_HEADS}.",
    ),
    "pvse": Release(
        tables.PVSE,
        convert_pvse,
        "github.com/yalesong/pvse, MIT",
        "Texts and clips are read in the legacy way, which the published models need, only where "
        "the file or --legacy-text says so.",
    ),
    "mv_vse": Release(tables.MV_VSE, convert_mv_vse, "the authors' repository", _REGIONS),
    "avse": Release(
        tables.AVSE,
        convert_avse,
        "github.com/liuyyy111/AVSE, MIT",
        "Blocks have 256 dimensions, as in the release's code, or those of --block-dim. The "
        "release draws two view centres at random for every image, in evaluation, too; here they "
        f"are fixed (--centres). {_HEADS}.",
    ),
}


_OPTION_OF = {
    "legacy_text": "pvse",
    "block_dim": "avse",
    "centres": "avse",
    "image_backbone": "avse",
}
"""Options that a single release reads."""


def convert(options: argparse.Namespace) -> PackInfo:
    """What the command does; see `main`."""
    for option, owner in _OPTION_OF.items():
        if getattr(options, option) is not None and owner != options.release:
            flag = f"--{option.replace('_', '-')}"
            raise ValueError(f"{flag} is for --from {owner}; leave it out with {options.release}")
    if (options.checkpoint is None) == (options.hub is None):
        raise ValueError("name a checkpoint file, or one on the Hub with --hub, and not both")
    path, origin = options.checkpoint, str(options.checkpoint and options.checkpoint.name)
    if options.hub is not None:
        path, origin = fetch_checkpoint(options.hub)
    checkpoint, name = read_checkpoint(path), options.release
    release = RELEASES[name]
    read = release.convert(checkpoint, options)
    text, tokenizer = read.text
    method = models.build(name, read.image_dim, text.dim, read.arguments)
    modules = {"method": method, "text": text, "image": read.image}
    checkpoint.load_into(nn.ModuleDict({k: v for k, v in modules.items() if v}), release.table)
    config = {"origin": origin, **checkpoint.about, "not_stored": [release.not_stored]}
    stack = TorchStack(read.image, text, method)
    parts = PackParts(
        image_encoder=read.image,
        image_dim=read.image_dim,
        preprocess=read.preprocess,
        tokenizer=tokenizer.to_str(pretty=True),
        max_length=min(MAX_LENGTH, text.max_length or MAX_LENGTH),
        methods={name: MethodParts(stack, read.arguments, config)},
        gallery=options.gallery,
        half=False,  # the weights stay as they were published
    )
    about = METHODS[name]
    inside = origin.partition("@")[0].split("/")
    short = inside[-2] if len(inside) > 3 else inside[-1].partition(".")[0]  # folder, or file
    labels = labels_from(
        options,
        name=re.sub(r"[^a-z0-9]+", "_", f"{name}_{short}".lower()).strip("_")[:64],
        title=f"{about.title}, the authors' weights",
        licence=UNKNOWN_LICENCE,
        credits=(
            f"Weights by the authors of {about.title} ({about.paper}); code: {release.code}; which "
            "licence the weights have is not said with them"
        ),
        description=f"Converted from {origin}. {release.not_stored}",
    )
    return build_pack(options.out, labels, parts)


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command line; returns its exit status."""
    parser = pack_parser("official", "Make a pack of a released checkpoint.")
    add = parser.add_argument
    add("checkpoint", type=Path, nargs="?", help="the released file")
    add("--from", dest="release", choices=RELEASES, required=True, help="whose release it is")
    add("--hub", help="owner/name/FOLDER_OR_FILE[@REVISION] in place of a file")
    add("--vocab", type=Path, help="word list, JSON with word2idx; for models that read words")
    add("--text-backbone", help="folder or Hub id with BERT's word pieces and config.json")
    add("--image-backbone", type=Path, help="folder with the config.json of AVSE's ViT")
    legacy = "PVSE: read texts, and clips, in the legacy way, as its published models need"
    add("--legacy-text", action=argparse.BooleanOptionalAction, help=legacy)
    add("--block-dim", type=int, help="AVSE: size of the matched blocks (256)")
    add("--centres", type=int, nargs="+", help="AVSE: a patch for each view, row-major from 0")
    return run_command(parser, convert, argv)


if __name__ == "__main__":
    sys.exit(main())
