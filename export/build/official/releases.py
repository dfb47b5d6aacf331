"""The four releases: what their keys are called here, and how their models are built."""

import argparse
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from export.build.official.checkpoint import Checkpoint, OfficialError, Table
from export.build.official.networks import (
    bert_table,
    build_resnet,
    read_config,
    resize_positions,
    vit_table,
)
from export.build.official.vocabulary import bert_folder, bert_tokenizer, word_tokenizer
from models.encoders.bigru import BiGRUTextEncoder
from models.encoders.encoder import ImageEncoder, TextEncoder
from models.encoders.published import BertTextEncoder
from models.encoders.sampled_vit import SampledViT
from models.preprocess import Preprocess

IMAGE, TEXT = "model[0].", "model[1]."
IMAGENET = Preprocess(
    mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225), fit="stretch", filter="bilinear"
)
# Bottom-up attention reads blue, green, red of 0 to 255 minus these means, here red first
DETECTOR_MEAN = (122.7717 / 255, 115.9465 / 255, 102.9801 / 255)
REGIONS_NOTE = (
    "It reads region features (bottom-up attention, 36 for an image), which are not computed here."
)


@dataclass(frozen=True)
class Conversion:
    """A release's model, its encoders with random weights.

    Attributes:
        arguments: named arguments for `models.build`.
        image_dim: d of the image side.
        image: None where the model reads features that were computed elsewhere.
        preprocess: how images are prepared.
        text: its text encoder.
        tokenizer: what makes the text encoder's ids.
        notes: what the checkpoint does not store, and what was taken instead; sentences.
    """

    arguments: dict[str, Any]
    image_dim: int
    image: ImageEncoder | None
    preprocess: Preprocess
    text: TextEncoder
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


def _pvse(image: str, text: str, net: str) -> Table:
    """PVSE's own layers: the maps of whole images and texts, and the PIE-Nets."""
    layers = {"attention.w_1": "w1", "attention.w_2": "w2", "fc": "w3", "layer_norm": "norm"}
    nets = {f"{image}{net}.": "method.image_net.", f"{text}{net}.": "method.text_net."}
    return {
        f"{image}cnn.fc.": None,
        f"{image}cnn.": "image.",
        f"{image}rnn.": "method.image_global.gru.",
        f"{image}fc.": "method.image_global.",
        f"{text}embed.": "text.embed.",
        f"{text}rnn.": "method.text_global.gru.",
        **{f"{a}{old}.": f"{b}{new}." for a, b in nets.items() for old, new in layers.items()},
    }


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
    **_projection(f"{IMAGE}image_encoder.", "method.project_image."),
    **_gpo(f"{IMAGE}image_encoder.gpool.", "method.pool_image."),
    **_words(TEXT, "text."),
    **bert_table(f"{TEXT}bert.", "text.model."),
    f"{TEXT}linear.": "method.project_text.",
    **_gpo(f"{TEXT}gpool.", "method.pool_text."),
}
MV_VSE: Table = {f"{IMAGE}fc_list.*.": "method.project_image.*.linear.", **_words(TEXT, "text.")}
# Old files hold two parts and call the PIE-Net our_model.
PVSE_PARTS = ("img_enc.", "txt_enc.", "pie_net"), (IMAGE, TEXT, "our_model")
PVSE: Table = {**_pvse(*PVSE_PARTS[0]), **_pvse(*PVSE_PARTS[1])}
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
    trained = checkpoint.options
    if trained.no_imgnorm or trained.no_txtnorm:
        raise OfficialError(
            f"{checkpoint.path} was trained with no_imgnorm={trained.no_imgnorm} and no_txtnorm="
            f"{trained.no_txtnorm}; only models that scale both embeddings to unit length convert"
        )
    grid = f"{IMAGE}image_encoder.fc.weight" in checkpoint.state
    embed_dim, image_dim = checkpoint.shape(f"{IMAGE}{'image_encoder.' if grid else ''}fc.weight")
    mlp_dim = 0 if grid else checkpoint.shape(f"{IMAGE}mlp.layers.0.weight")[0]
    arguments = {"embed_dim": embed_dim, "mlp_dim": mlp_dim, "released_gpo": True}
    notes = ["The temperature of the pooling, 0.1, is in the release's code."]
    image, preprocess = None, Preprocess()
    if grid:
        source = trained.backbone_source.removeprefix("vsepp_")
        if source not in LAYOUTS:
            raise OfficialError(
                f'{checkpoint.path}: its option backbone_source is "{source}", which decides the '
                f"layout of its CNN; known are {', '.join(LAYOUTS)}"
            )
        image = build_resnet(checkpoint, f"{IMAGE}backbone.resnet.", LAYOUTS[source])
        preprocess = replace(IMAGENET, size=int(256 * trained.input_scale_factor))
        notes.append(
            "Images are resized by Pillow, which smooths when it shrinks; the release used OpenCV, "
            "which does not."
        )
        if source == "detector":
            for copy in ("resnet.conv1", "base.0"):
                key = f"{IMAGE}backbone.{copy}.weight"
                checkpoint.state[key] = checkpoint.state[key].flip(1)
            preprocess = replace(preprocess, mean=DETECTOR_MEAN, std=(1 / 255,) * 3)
            notes.append("The first convolution's channels were turned to read red first.")
    else:
        notes.append(REGIONS_NOTE)
    if f"{TEXT}embed.weight" in checkpoint.state:
        # the release appends <mask> to its list of words
        text, tokenizer, note = _words_encoder(checkpoint, TEXT, options, 2, mask=True)
    else:
        text, tokenizer, note = _bert_encoder(checkpoint, f"{TEXT}bert.", options)
    notes.append(note)
    return Conversion(arguments, image_dim, image, preprocess, text, tokenizer, notes)


def convert_mv_vse(checkpoint: Checkpoint, options: argparse.Namespace) -> Conversion:
    """MV-VSE: region features, one linear map and max pooling a view, a forward GRU."""
    embed_dim, image_dim = checkpoint.shape(f"{IMAGE}fc_list.0.weight")
    views = checkpoint.count(r"model\[0\]\.fc_list\.(\d+)\.")
    text, tokenizer, note = _words_encoder(checkpoint, TEXT, options, 1)
    arguments = {"embed_dim": embed_dim, "views": views, "aggregator": "released"}
    notes = [REGIONS_NOTE, note]
    return Conversion(arguments, image_dim, None, Preprocess(), text, tokenizer, notes)


def convert_pvse(checkpoint: Checkpoint, options: argparse.Namespace) -> Conversion:
    """PVSE: a torchvision ResNet, PIE-Nets over its cells, or over a clip's frames, and words.

    In its models of clips (MRW, TGIF) the ResNet makes one feature a frame, which a bi-GRU and a
    PIE-Net read. The pack's image encoder is that ResNet, so that an image is a clip of one frame.
    The release repeats the last frame of a short clip; here it stays short.
    """
    trained, state = checkpoint.options, checkpoint.state
    sides = PVSE_PARTS["img_enc.cnn.conv1.weight" not in state]
    clips = f"{sides[0]}rnn.weight_ih_l0" in state
    image = build_resnet(checkpoint, f"{sides[0]}cnn.", pooled=clips)
    if clips:
        gates, image_dim = checkpoint.shape(f"{sides[0]}rnn.weight_ih_l0")
        embed_dim = 2 * gates // 3  # three gates of half the width in each direction
    else:
        embed_dim, image_dim = checkpoint.shape(f"{sides[0]}fc.weight")
    attention = [f"{side}{sides[2]}.attention.w_2.weight" for side in sides[:2]]
    views = [checkpoint.shape(key)[0] if key in state else 0 for key in attention]
    if views[0] != views[1]:
        raise OfficialError(
            f"{checkpoint.path} has {views[0]} views of an image and {views[1]} of a text; only "
            "models with as many of both convert"
        )
    legacy = bool(trained.legacy if options.legacy_text is None else options.legacy_text)
    arguments: dict[str, Any] = {
        "embed_dim": embed_dim,
        "views": views[0],
        "legacy_text": legacy,
        "similarity": "order" if trained.order else "cosine",
    }
    text, tokenizer, note = _words_encoder(checkpoint, sides[1], options, 0)
    notes = [note]
    if clips:
        arguments["image_global"] = "legacy" if legacy else "states"
        notes.append("It reads the frames of clips; a single image is a clip of one frame.")
    if trained.legacy is None:
        notes.append(
            "The file does not say whether texts and clips are read in the legacy way (option "
            "--legacy-text, which the published models need); taken here: "
            f"{'yes' if legacy else 'no'}."
        )
    size = trained.crop_size
    preprocess = replace(IMAGENET, size=size, fit="crop", resize=max(size, 256))
    return Conversion(arguments, image_dim, image, preprocess, text, tokenizer, notes)


def convert_avse(checkpoint: Checkpoint, options: argparse.Namespace) -> Conversion:
    """AVSE: a ViT that reads two samples of an image, BERT, and blocks matched by MaxSim."""
    trained, vit = checkpoint.options, "img_enc.visual_encoder."
    if "swin" in trained.vit_type or f"{vit}embeddings.norm.weight" in checkpoint.state:
        raise OfficialError(
            f"{checkpoint.path} is AVSE over a Swin transformer; only its ViT converts"
        )
    embed_dim, block_dim = checkpoint.shape("txt_enc.fc.weight")[0], options.block_dim or 256
    if embed_dim % block_dim:
        raise OfficialError(
            f"{checkpoint.path}: blocks of {block_dim} do not divide its {embed_dim} dimensions; "
            "name another size with --block-dim (the release's code has 256)"
        )
    config = {**read_config("vit", options.image_backbone), "image_size": trained.img_res}
    image = SampledViT(config, None if options.centres is None else tuple(options.centres))
    resize_positions(checkpoint, f"{vit}embeddings.position_embeddings", image.side)
    text, tokenizer, note = _bert_encoder(checkpoint, "txt_enc.bert.", options)
    arguments = {
        "embed_dim": embed_dim,
        "block_dim": block_dim,
        "views": len(image.kept),
        "match": "maxsim",
        **dict.fromkeys(("released_gpo", "released_text", "sampled_features"), True),
    }
    centres = ", ".join(str(int(row[1]) - 1) for row in image.kept)
    notes = [
        f"Blocks have {block_dim} dimensions; the release has 256 in its code.",
        "The release draws two view centres at random for every image, in evaluation, too; here "
        f"they are the patches {centres}, so that scores do not change between calls.",
        _config_note("The ViT", image.model.config, options.image_backbone),
        note,
        "The dustbin's value is stored but never read by the release, and left out.",
    ]
    preprocess = replace(IMAGENET, size=trained.img_res)
    return Conversion(arguments, image.dim, image, preprocess, text, tokenizer, notes)


def _words_encoder(
    checkpoint: Checkpoint,
    prefix: str,
    options: argparse.Namespace,
    directions: int,
    mask: bool = False,
) -> tuple[TextEncoder, Tokenizer, str]:
    """A text encoder of words, with random weights, its tokenizer and a note."""
    rows, word_dim = checkpoint.shape(f"{prefix}embed.weight")
    hidden = checkpoint.shape(f"{prefix}rnn.weight_hh_l0")[1]
    tokenizer = word_tokenizer(options.vocab, rows, checkpoint.path, mask=mask)
    encoder = BiGRUTextEncoder(rows, word_dim, hidden, directions=directions)
    return encoder, tokenizer, f"The words are those of {options.vocab.name}."


def _bert_encoder(
    checkpoint: Checkpoint, prefix: str, options: argparse.Namespace
) -> tuple[TextEncoder, Tokenizer, str]:
    """BERT, with random weights, its tokenizer and a note."""
    folder = bert_folder(options.text_backbone)
    rows = checkpoint.shape(f"{prefix}embeddings.word_embeddings.weight")[0]
    tokenizer = bert_tokenizer(folder, rows, checkpoint.path)
    encoder = BertTextEncoder(read_config("bert", folder))
    return encoder, tokenizer, _config_note("BERT", encoder.model.config, folder)


def _config_note(network: str, config: Any, folder: Path | None) -> str:
    stated = folder is not None and (folder / "config.json").is_file()
    origin = "the given config.json" if stated else "the library's defaults"
    return (
        f"{network}'s {config.num_attention_heads} attention heads and its epsilon "
        f"{config.layer_norm_eps:g} are from {origin}."
    )


@dataclass(frozen=True)
class Release:
    """One release: its table, a pattern of keys that it alone has, how to convert it, its code."""

    table: Table
    sign: str
    convert: Callable[[Checkpoint, argparse.Namespace], Conversion]
    code: str


RELEASES = {
    "vse_infty": Release(
        VSE_INFTY,
        r"model\[0\]\.(image_encoder\.|)gpool\.",
        convert_vse_infty,
        "github.com/woodfrog/vse_infty, MIT",
    ),
    "pvse": Release(
        PVSE, r"(img_enc|model\[0\])\.cnn\.", convert_pvse, "github.com/yalesong/pvse, MIT"
    ),
    "mv_vse": Release(
        MV_VSE, r"model\[0\]\.fc_list\.(\d+)\.", convert_mv_vse, "the authors' repository"
    ),
    "avse": Release(
        AVSE, r"(img_enc)\.visual_encoder\.", convert_avse, "github.com/liuyyy111/AVSE, MIT"
    ),
}
