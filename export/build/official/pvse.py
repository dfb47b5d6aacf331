"""PVSE's release: images through a torchvision ResNet, PIE-Nets over its cells and over words.

In its models of clips (MRW, TGIF) the ResNet makes one feature a frame, which a bi-GRU and a
PIE-Net read. The pack's image encoder is that ResNet, so that an image is a clip of one frame. The
release repeats the last frame of a short clip; here it stays short.
"""

from typing import Any

import models
from export.build.official.checkpoint import Checkpoint, OfficialError, State
from export.build.official.cnn import TABLE as CNN
from export.build.official.cnn import build_resnet
from export.build.official.conversion import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    MAX_LENGTH,
    Conversion,
    Given,
)
from export.build.official.keys import Table, load_renamed, shape_of
from export.build.official.vocabulary import word_tokenizer
from models.encoders.bigru import BiGRUTextEncoder
from models.preprocess import Preprocess

IMAGE, TEXT = "img_enc.", "txt_enc."
RESIZED = 256  # the shorter side, before the centre is cut out

TABLE = Table(
    {
        "img_enc.rnn.": "method.image_global.gru.",
        "img_enc.fc.": "method.image_global.",
        "img_enc.pie_net.attention.w_1.": "method.image_net.w1.",
        "img_enc.pie_net.attention.w_2.": "method.image_net.w2.",
        "img_enc.pie_net.fc.": "method.image_net.w3.",
        "img_enc.pie_net.layer_norm.": "method.image_net.norm.",
        "txt_enc.embed.": "text.embed.",
        "txt_enc.rnn.": "method.text_global.gru.",
        "txt_enc.pie_net.attention.w_1.": "method.text_net.w1.",
        "txt_enc.pie_net.attention.w_2.": "method.text_net.w2.",
        "txt_enc.pie_net.fc.": "method.text_net.w3.",
        "txt_enc.pie_net.layer_norm.": "method.text_net.norm.",
    }
) | CNN.under("img_enc.cnn.", "image.")


def convert(checkpoint: Checkpoint, given: Given) -> Conversion:
    """Reads a checkpoint of PVSE, with its options, bare, or of the older two-part kind.

    Raises:
        OfficialError: it is not one, or no word list was given.
    """
    source = str(checkpoint.path)
    state = _flat(checkpoint)
    clips = f"{IMAGE}rnn.weight_ih_l0" in state
    image = build_resnet(state, f"{IMAGE}cnn.", source, pooled=clips)
    if clips:
        gates, image_dim = shape_of(state, f"{IMAGE}rnn.weight_ih_l0", source)
        embed_dim = 2 * gates // 3  # three gates of half the width in each direction
    else:
        embed_dim, image_dim = shape_of(state, f"{IMAGE}fc.weight", source)
    words, word_dim = shape_of(state, f"{TEXT}embed.weight", source)
    legacy = checkpoint.option("legacy", False)
    if given.legacy_text is not None:
        legacy = given.legacy_text
    arguments: dict[str, Any] = {
        "embed_dim": embed_dim,
        "views": _views(state, source),
        "legacy_text": legacy,
        "similarity": "order" if checkpoint.option("order", False) else "cosine",
    }
    if clips:
        arguments["image_global"] = "legacy" if legacy else "states"
    method = models.build("pvse", image_dim, word_dim, arguments)
    text = BiGRUTextEncoder(words, word_dim, directions=0)
    load_renamed({"method.": method, "image.": image, "text.": text}, state, TABLE, source)
    tokenizer = word_tokenizer(given.vocabulary, words, source, mask=False)
    size = checkpoint.option("crop_size", 224)
    preprocess = Preprocess(
        size=size,
        mean=IMAGENET_MEAN,
        std=IMAGENET_STD,
        fit="crop",
        resize=max(size, RESIZED),
        filter="bilinear",
    )
    notes = [f"The words are those of {given.vocabulary.name}." if given.vocabulary else ""]
    if "legacy" not in checkpoint.options:
        notes.append(
            f"The file does not say whether texts{' and clips' if clips else ''} are read in the "
            "legacy way (option --legacy-text, which the published models need); taken here: "
            f"{'yes' if legacy else 'no'}."
        )
    if clips:
        notes.append("It reads the frames of clips; a single image is a clip of one frame.")
    return Conversion(
        "pvse",
        arguments,
        method,
        image_dim,
        image,
        preprocess,
        text,
        tokenizer,
        MAX_LENGTH,
        tuple(notes),
    )


def _flat(checkpoint: Checkpoint) -> State:
    """All weights under current names: old files hold two parts and call the PIE-Net our_model."""
    if len(checkpoint.parts) == 2:
        image, text = checkpoint.parts
        state = {f"{IMAGE}{k}": v for k, v in image.items()}
        state |= {f"{TEXT}{k}": v for k, v in text.items()}
    else:
        state = checkpoint.parts[0]
    return {key.replace(".our_model.", ".pie_net."): value for key, value in state.items()}


def _views(state: State, source: str) -> int:
    """K, read off the attention; 0 where there are no PIE-Nets."""
    counts = {}
    for side in (IMAGE, TEXT):
        key = f"{side}pie_net.attention.w_2.weight"
        present = any(name.startswith(f"{side}pie_net.") for name in state)
        counts[side] = shape_of(state, key, source)[0] if present else 0
    if counts[IMAGE] != counts[TEXT]:
        raise OfficialError(
            f"{source} has {counts[IMAGE]} views of a picture and {counts[TEXT]} of a text; only "
            "models with as many of both convert"
        )
    return counts[IMAGE]
