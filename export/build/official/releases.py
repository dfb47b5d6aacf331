"""The four releases: which of their keys are which of our weights, and how their models are built.

In PVSE's models of clips (MRW, TGIF) the ResNet makes one feature a frame, which a bi-GRU and a
PIE-Net read. The pack's image encoder is that ResNet, so that an image is a clip of one frame. The
release repeats the last frame of a short clip; here it stays short.
"""

import argparse
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

import models
from export.build.official.checkpoint import Checkpoint, OfficialError
from export.build.official.networks import (
    bert_table,
    build_resnet,
    read_config,
    resize_positions,
    vit_table,
)
from export.build.official.renaming import Table, load_renamed
from export.build.official.vocabulary import bert_folder, bert_tokenizer, word_tokenizer
from export.build.parity import TorchStack
from models.encoders.bigru import BiGRUTextEncoder
from models.encoders.encoder import ImageEncoder, TextEncoder
from models.encoders.pretrained_text import BertTextEncoder
from models.encoders.sampled_vit import SampledViT
from models.preprocess import Preprocess

IMAGE, TEXT = "model[0].", "model[1]."
IMAGENET = Preprocess(
    mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225), fit="stretch", filter="bilinear"
)
# Bottom-up attention reads blue, green, red of 0 to 255 minus these means, here red first
_DETECTOR_MEAN = (122.7717 / 255, 115.9465 / 255, 102.9801 / 255)
_REGIONS_NOTE = (
    "It reads region features (bottom-up attention, 36 for an image), which are not computed here."
)


@dataclass(frozen=True)
class Conversion:
    """A release's model.

    Attributes:
        stack: its modules, with the released weights.
        arguments: named arguments for `models.build`.
        image_dim: d of the image side.
        preprocess: how images are prepared.
        tokenizer: what makes its ids.
        notes: what the checkpoint does not store, and what was taken instead; sentences.
    """

    stack: TorchStack
    arguments: dict[str, Any]
    image_dim: int
    preprocess: Preprocess
    tokenizer: Tokenizer
    notes: list[str]


def _gpo(theirs: str, ours: str) -> Table:
    """A released GPO: its BiGRU and its one linear map."""
    return {f"{theirs}gru.": f"{ours}gru.", f"{theirs}linear.": f"{ours}score."}


def _projection(theirs: str, ours: str) -> Table:
    """The map to the joint space and its residual MLP, whose second batch-norm is never read."""
    return {
        f"{theirs}fc.": f"{ours}linear.",
        f"{theirs}mlp.layers.0.": f"{ours}mlp.0.",
        f"{theirs}mlp.bns.0.": f"{ours}mlp.1.",
        f"{theirs}mlp.layers.1.": f"{ours}mlp.3.",
        f"{theirs}mlp.bns.1.": None,
    }


def _words(theirs: str, ours: str) -> Table:
    """Word embeddings and a GRU, which reads in both directions or forward alone."""
    gru = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
    back = {f"{theirs}rnn.{k}_reverse": f"{ours}backward_gru.{k}" for k in gru}
    ahead = {f"{theirs}rnn.{k}": f"{ours}forward_gru.{k}" for k in gru}
    return {f"{theirs}embed.": f"{ours}embed.", **back, **ahead}


def _pie_net(theirs: str, ours: str) -> Table:
    names = {"attention.w_1": "w1", "attention.w_2": "w2", "fc": "w3", "layer_norm": "norm"}
    return {f"{theirs}.{old}.": f"{ours}.{new}." for old, new in names.items()}


VSE_INFTY: Table = {
    # The release keeps its CNN whole and, once more, as the sequences that its forward pass calls.
    f"{IMAGE}backbone.resnet.fc.": None,
    f"{IMAGE}backbone.resnet.": "image.",
    f"{IMAGE}backbone.base.0.": "image.conv1.",
    f"{IMAGE}backbone.base.1.": "image.bn1.",
    f"{IMAGE}backbone.base.4.": "image.layer1.",
    f"{IMAGE}backbone.base.5.": "image.layer2.",
    f"{IMAGE}backbone.base.6.": "image.layer3.",
    f"{IMAGE}backbone.top.0.": "image.layer4.",
    **_projection(IMAGE, "method.project_image."),
    **_gpo(f"{IMAGE}gpool.", "method.pool_image."),
    **_words(TEXT, "text."),
    **bert_table(f"{TEXT}bert.", "text.model."),
    f"{TEXT}linear.": "method.project_text.",
    **_gpo(f"{TEXT}gpool.", "method.pool_text."),
}
MV_VSE: Table = {f"{IMAGE}fc_list.*.": "method.project_image.*.linear.", **_words(TEXT, "text.")}
PVSE: Table = {
    "img_enc.cnn.fc.": None,
    "img_enc.cnn.": "image.",
    "img_enc.rnn.": "method.image_global.gru.",
    "img_enc.fc.": "method.image_global.",
    **_pie_net("img_enc.pie_net", "method.image_net"),
    "txt_enc.embed.": "text.embed.",
    "txt_enc.rnn.": "method.text_global.gru.",
    **_pie_net("txt_enc.pie_net", "method.text_net"),
}
AVSE: Table = {
    **_projection("img_enc.image_encoder.", "method.project_image."),
    **_gpo("img_enc.image_encoder.gpool.", "method.pool_image."),
    **vit_table("img_enc.visual_encoder.", "image.model."),
    **_projection("txt_enc.", "method.project_text."),
    **_gpo("txt_enc.gpool.", "method.pool_text."),
    "txt_enc.ln.": "method.norm_text.",
    **bert_table("txt_enc.bert.", "text.model."),
    "sim_enc.bin_score": None,  # the call that would read it is commented out in the release
}
# backbone_source of VSE-infinity -> the layout of its CNN, see `models/encoders/resnet.py`
LAYOUTS = {
    **dict.fromkeys(("detector", "imagenet", "imagenet_res50", "imagenet_res152"), "caffe"),
    **dict.fromkeys(("imagenet_resnext", "wsl"), "torchvision"),
}


def convert_vse_infty(checkpoint: Checkpoint, options: argparse.Namespace) -> Conversion:
    """VSE-infinity: region features or images, BiGRU or BERT text, told apart by their keys."""
    for name in ("no_imgnorm", "no_txtnorm"):
        if checkpoint.option(name, False):
            raise OfficialError(
                f"{checkpoint.path} was trained with {name}=True, which is not supported"
            )
    grid = f"{IMAGE}image_encoder.fc.weight" in checkpoint.state
    checkpoint = replace(
        checkpoint,
        state={
            key.replace(f"{IMAGE}image_encoder.", IMAGE): value
            for key, value in checkpoint.state.items()
        },
    )
    embed_dim, image_dim = checkpoint.shape(f"{IMAGE}fc.weight")
    mlp_dim = 0 if grid else checkpoint.shape(f"{IMAGE}mlp.layers.0.weight")[0]
    notes = ["The temperature of the pooling, 0.1, is in the release's code."]
    image, preprocess, source = None, Preprocess(), ""
    if grid:
        source = checkpoint.option("backbone_source", "").removeprefix("vsepp_")
        if source not in LAYOUTS:
            raise OfficialError(
                f'{checkpoint.path}: its option backbone_source is "{source}", which decides the '
                f"layout of its CNN; known are {', '.join(LAYOUTS)}"
            )
        image = build_resnet(checkpoint, f"{IMAGE}backbone.resnet.", LAYOUTS[source])
        size = int(256 * checkpoint.option("input_scale_factor", 1.0))
        preprocess = replace(IMAGENET, size=size)
        notes.append(
            "Images are resized by Pillow, which smooths when it shrinks; the release used OpenCV, "
            "which does not."
        )
    else:
        notes.append(_REGIONS_NOTE)
    if f"{TEXT}embed.weight" in checkpoint.state:
        hidden = checkpoint.shape(f"{TEXT}rnn.weight_hh_l0")[1]
        text, tokenizer, note = _read_words(checkpoint, TEXT, options, hidden, 2)
    else:
        text, tokenizer, note = _read_bert(checkpoint, f"{TEXT}bert.", options)
    arguments = {"embed_dim": embed_dim, "mlp_dim": mlp_dim, "released_gpo": True}
    stack = _load("vse_infty", arguments, checkpoint, VSE_INFTY, image, image_dim, text)
    if image is not None and source == "detector":
        image.conv1.weight.copy_(image.conv1.weight.flip(1))  # from blue first to red first
        preprocess = replace(preprocess, mean=_DETECTOR_MEAN, std=(1 / 255,) * 3)
        notes.append("The first convolution's channels were turned to read red first.")
    return Conversion(stack, arguments, image_dim, preprocess, tokenizer, [*notes, note])


def convert_mv_vse(checkpoint: Checkpoint, options: argparse.Namespace) -> Conversion:
    """MV-VSE: region features, one linear map and max pooling a view, a forward GRU."""
    embed_dim, image_dim = checkpoint.shape(f"{IMAGE}fc_list.0.weight")
    views = checkpoint.count(r"model\[0\]\.fc_list\.(\d+)\.")
    hidden = checkpoint.shape(f"{TEXT}rnn.weight_hh_l0")[1]
    text, tokenizer, note = _read_words(checkpoint, TEXT, options, hidden, 1)
    arguments = {"embed_dim": embed_dim, "views": views, "aggregator": "released"}
    stack = _load("mv_vse", arguments, checkpoint, MV_VSE, None, image_dim, text)
    return Conversion(stack, arguments, image_dim, Preprocess(), tokenizer, [_REGIONS_NOTE, note])


def convert_pvse(checkpoint: Checkpoint, options: argparse.Namespace) -> Conversion:
    """PVSE: a torchvision ResNet, PIE-Nets over its cells, or over a clip's frames, and words.

    Old files hold two parts and call the PIE-Net `our_model`.
    """
    renamed = {IMAGE: "img_enc.", TEXT: "txt_enc.", ".our_model.": ".pie_net."}
    state = dict(checkpoint.state)
    for old, new in renamed.items():
        state = {key.replace(old, new): value for key, value in state.items()}
    checkpoint = replace(checkpoint, state=state)
    clips = "img_enc.rnn.weight_ih_l0" in state
    image = build_resnet(checkpoint, "img_enc.cnn.", pooled=clips)
    if clips:
        gates, image_dim = checkpoint.shape("img_enc.rnn.weight_ih_l0")
        embed_dim = 2 * gates // 3  # three gates of half the width in each direction
    else:
        embed_dim, image_dim = checkpoint.shape("img_enc.fc.weight")
    views = [
        checkpoint.shape(f"{side}.pie_net.attention.w_2.weight")[0]
        if any(key.startswith(f"{side}.pie_net.") for key in state)
        else 0
        for side in ("img_enc", "txt_enc")
    ]
    if views[0] != views[1]:
        raise OfficialError(
            f"{checkpoint.path} has {views[0]} views of an image and {views[1]} of a text; only "
            "models with as many of both convert"
        )
    legacy = checkpoint.option("legacy", False)
    legacy = legacy if options.legacy_text is None else options.legacy_text
    arguments: dict[str, Any] = {
        "embed_dim": embed_dim,
        "views": views[0],
        "legacy_text": legacy,
        "similarity": "order" if checkpoint.option("order", False) else "cosine",
    }
    text, tokenizer, note = _read_words(checkpoint, "txt_enc.", options, 0, 0)
    notes = [note]
    if clips:
        arguments["image_global"] = "legacy" if legacy else "states"
        notes.append("It reads the frames of clips; a single image is a clip of one frame.")
    if "legacy" not in checkpoint.options:
        notes.append(
            f"The file does not say whether texts{' and clips' if clips else ''} are read in the "
            "legacy way (option --legacy-text, which the published models need); taken here: "
            f"{'yes' if legacy else 'no'}."
        )
    stack = _load("pvse", arguments, checkpoint, PVSE, image, image_dim, text)
    size = checkpoint.option("crop_size", 224)
    preprocess = replace(IMAGENET, size=size, fit="crop", resize=max(size, 256))
    return Conversion(stack, arguments, image_dim, preprocess, tokenizer, notes)


def convert_avse(checkpoint: Checkpoint, options: argparse.Namespace) -> Conversion:
    """AVSE: a ViT that reads two samples of an image, BERT, and blocks matched by MaxSim."""
    vit = "img_enc.visual_encoder."
    swin = f"{vit}embeddings.norm.weight" in checkpoint.state
    if swin or "swin" in checkpoint.option("vit_type", ""):
        raise OfficialError(
            f"{checkpoint.path} is AVSE over a Swin transformer; only its ViT converts"
        )
    embed_dim, block_dim = checkpoint.shape("txt_enc.fc.weight")[0], options.block_dim or 256
    if embed_dim % block_dim:
        raise OfficialError(
            f"{checkpoint.path}: blocks of {block_dim} do not divide its {embed_dim} dimensions; "
            "name another size with --block-dim (the release's code has 256)"
        )
    size = checkpoint.option("img_res", 224)
    config = {**read_config("vit", options.image_backbone), "image_size": size}
    image = SampledViT(config, None if options.centres is None else tuple(options.centres))
    resize_positions(checkpoint, f"{vit}embeddings.position_embeddings", image)
    text, tokenizer, note = _read_bert(checkpoint, "txt_enc.bert.", options)
    arguments = {
        "embed_dim": embed_dim,
        "block_dim": block_dim,
        "views": len(image.kept),
        "match": "maxsim",
        "released_gpo": True,
        "released_text": True,
        "sampled_features": True,
    }
    stack = _load("avse", arguments, checkpoint, AVSE, image, image.dim, text)
    centres = ", ".join(str(int(row[1]) - 1) for row in image.kept)
    notes = [
        f"Blocks have {block_dim} dimensions; the release has 256 in its code.",
        "The release draws two view centres at random for every image, in evaluation, too; here "
        f"they are the patches {centres}, so that scores do not change between calls.",
        _config_note("The ViT", image.model.config, options.image_backbone),
        note,
        "The dustbin's value is stored but never read by the release, and left out.",
    ]
    preprocess = replace(IMAGENET, size=size)
    return Conversion(stack, arguments, image.dim, preprocess, tokenizer, notes)


def _read_words(
    checkpoint: Checkpoint, prefix: str, options: argparse.Namespace, hidden: int, directions: int
) -> tuple[TextEncoder, Tokenizer, str]:
    """A text encoder of words, with random weights, its tokenizer and a note."""
    rows, word_dim = checkpoint.shape(f"{prefix}embed.weight")
    mask = directions == 2  # VSE-infinity's release appends <mask> to its list
    tokenizer = word_tokenizer(options.vocab, rows, checkpoint.path, mask=mask)
    encoder = BiGRUTextEncoder(rows, word_dim, hidden, directions=directions)
    return encoder, tokenizer, f"The words are those of {options.vocab.name}."


def _read_bert(
    checkpoint: Checkpoint, prefix: str, options: argparse.Namespace
) -> tuple[TextEncoder, Tokenizer, str]:
    """BERT, with random weights, its tokenizer and a note."""
    folder = bert_folder(options.text_backbone)
    rows = checkpoint.shape(f"{prefix}embeddings.word_embeddings.weight")[0]
    encoder = BertTextEncoder(read_config("bert", folder))
    note = _config_note("BERT", encoder.model.config, folder)
    return encoder, bert_tokenizer(folder, rows, checkpoint.path), note


def _config_note(network: str, config: Any, folder: Path | None) -> str:
    stated = folder is not None and (folder / "config.json").is_file()
    origin = "the given config.json" if stated else "the library's defaults"
    return (
        f"{network}'s {config.num_attention_heads} attention heads and its epsilon "
        f"{config.layer_norm_eps:g} are from {origin}."
    )


def _load(
    name: str,
    arguments: dict[str, Any],
    checkpoint: Checkpoint,
    table: Table,
    image: ImageEncoder | None,
    image_dim: int,
    text: TextEncoder,
) -> TorchStack:
    """The method and its encoders with the released weights."""
    method = models.build(name, image_dim, text.dim, arguments)
    modules = {"method": method, "text": text} | ({} if image is None else {"image": image})
    load_renamed(modules, checkpoint, table)
    return TorchStack(image, text, method)


# --from -> a pattern of keys that only this release has, its code and licence, its converter
RELEASES: dict[str, tuple[str, str, Callable[[Checkpoint, argparse.Namespace], Conversion]]] = {
    "vse_infty": (
        r"model\[0\]\.(image_encoder\.)?(gpool)\.",
        "github.com/woodfrog/vse_infty, MIT",
        convert_vse_infty,
    ),
    "pvse": (r"(img_enc|model\[0\])\.cnn\.", "github.com/yalesong/pvse, MIT", convert_pvse),
    "mv_vse": (r"model\[0\]\.(fc_list)\.", "the authors' repository", convert_mv_vse),
    "avse": (r"(img_enc)\.visual_encoder\.", "github.com/liuyyy111/AVSE, MIT", convert_avse),
}
