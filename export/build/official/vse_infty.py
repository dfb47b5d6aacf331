"""VSE-infinity's release: region features or images, BiGRU or BERT text.

Four kinds of checkpoint, told apart by their keys: the branch `bigru` (text: words and a BiGRU) and
`master` (text: BERT), each over region features (a residual MLP) or images (a CNN, no MLP).
"""

from collections.abc import Mapping
from typing import Any

import models
from export.build.official.checkpoint import Checkpoint, OfficialError, State
from export.build.official.cnn import TABLE as CNN
from export.build.official.cnn import build_resnet
from export.build.official.conversion import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    MAX_LENGTH,
    REGIONS_NOTE,
    Conversion,
    Given,
)
from export.build.official.keys import Table, drop_copy, load_renamed, shape_of
from export.build.official.pooling import gpo_table, projection_table, words_table
from export.build.official.transformer import BERT, build_bert, read_config
from export.build.official.vocabulary import bert_folder, bert_tokenizer, word_tokenizer
from models.encoders.bigru import BiGRUTextEncoder
from models.encoders.encoder import ImageEncoder, TextEncoder
from models.preprocess import Preprocess

IMAGE, TEXT = "model[0].", "model[1]."
BASE_SIZE = 256  # pixels, times the option input_scale_factor
# Bottom-up attention's means, 0 to 255, red first
DETECTOR_MEAN = (122.7717, 115.9465, 102.9801)
_RESNET = f"{IMAGE}backbone.resnet."
# The release keeps its CNN whole and, once more, as the sequences that its forward pass calls.
_COPIES = {
    f"{IMAGE}backbone.base.0.": f"{_RESNET}conv1.",
    f"{IMAGE}backbone.base.1.": f"{_RESNET}bn1.",
    f"{IMAGE}backbone.base.4.": f"{_RESNET}layer1.",
    f"{IMAGE}backbone.base.5.": f"{_RESNET}layer2.",
    f"{IMAGE}backbone.base.6.": f"{_RESNET}layer3.",
    f"{IMAGE}backbone.top.0.": f"{_RESNET}layer4.",
}
# backbone_source -> the layout of its CNN, see `models/encoders/resnet.py`
LAYOUTS = {
    "detector": "caffe",
    "imagenet": "caffe",
    "imagenet_res50": "caffe",
    "imagenet_res152": "caffe",
    "imagenet_resnext": "torchvision",
    "wsl": "torchvision",
}


def convert(checkpoint: Checkpoint, given: Given) -> Conversion:
    """Reads a checkpoint of VSE-infinity.

    Raises:
        OfficialError: it is not one, or what it needs was not given; the message says what.
    """
    source = str(checkpoint.path)
    image, text = two_parts(checkpoint, "VSE-infinity")
    refuse_options(checkpoint, {"no_imgnorm": False, "no_txtnorm": False})
    state = {**{IMAGE + k: v for k, v in image.items()}, **{TEXT + k: v for k, v in text.items()}}
    grid = any(key.startswith("backbone.") for key in image)
    front = f"{IMAGE}image_encoder." if grid else IMAGE
    embed_dim, image_dim = shape_of(state, f"{front}fc.weight", source)
    hidden = f"{front}mlp.layers.0.weight"
    mlp_dim = 0 if grid else shape_of(state, hidden, source)[0]
    table = projection_table(front, "method.project_image.")
    table |= gpo_table(f"{front}gpool.", "method.pool_image.")
    table |= gpo_table(f"{TEXT}gpool.", "method.pool_text.")
    notes = ["The temperature of the pooling, 0.1, is in the release's code."]
    encoder: ImageEncoder | None = None
    preprocess, more = Preprocess(), [REGIONS_NOTE]
    if grid:
        encoder, preprocess, state, more = _images(checkpoint, state)
        table |= CNN.under(_RESNET, "image.")
    notes += more
    if f"{TEXT}embed.weight" in state:
        text_encoder, tokenizer, more = _words(state, given, source)
        table |= words_table(TEXT, "text.", both=True)
    else:
        text_encoder, tokenizer, more = _bert(state, given, source)
        table |= BERT.under(f"{TEXT}bert.", "text.model.")
        table |= Table({f"{TEXT}linear.": "method.project_text."})
    arguments: dict[str, Any] = {"embed_dim": embed_dim, "mlp_dim": mlp_dim, "released_gpo": True}
    method = models.build("vse_infty", image_dim, text_encoder.dim, arguments)
    modules = {"method.": method, "text.": text_encoder}
    if encoder is not None:
        modules["image."] = encoder
    load_renamed(modules, state, table, source)
    return Conversion(
        "vse_infty",
        arguments,
        method,
        image_dim,
        encoder,
        preprocess,
        text_encoder,
        tokenizer,
        min(MAX_LENGTH, text_encoder.max_length or MAX_LENGTH),
        (*notes, *more),
    )


def two_parts(checkpoint: Checkpoint, title: str) -> tuple[State, State]:
    """The image and the text side of a release that stores a list of both.

    Raises:
        OfficialError: it stores something else.
    """
    if len(checkpoint.parts) != 2:
        raise OfficialError(
            f"{checkpoint.path} holds one set of weights, but {title}'s release stores a list of "
            "two, image and text"
        )
    return checkpoint.parts[0], checkpoint.parts[1]


def refuse_options(checkpoint: Checkpoint, supported: Mapping[str, Any]) -> None:
    """Refuses a checkpoint trained with options that change the forward pass unknown to us.

    Raises:
        OfficialError: names the option.
    """
    for name, value in supported.items():
        if checkpoint.option(name, value) != value:
            raise OfficialError(
                f"{checkpoint.path} was trained with {name}={checkpoint.options[name]!r}; only "
                f"{value!r} is supported"
            )


def _images(
    checkpoint: Checkpoint, state: State
) -> tuple[ImageEncoder, Preprocess, State, list[str]]:
    """The CNN of a checkpoint that reads images, and its weights stored once."""
    origin = str(checkpoint.path)
    named = checkpoint.option("backbone_source", "").removeprefix("vsepp_")
    if named not in LAYOUTS:
        raise OfficialError(
            f'{origin}: its option backbone_source is "{named}", which decides the layout of its '
            f"CNN; known are {', '.join(LAYOUTS)}"
        )
    state = drop_copy(state, _COPIES, origin)
    encoder = build_resnet(state, _RESNET, origin, LAYOUTS[named])
    mean, std = IMAGENET_MEAN, IMAGENET_STD
    notes = [
        "Pictures are resized by Pillow, which smooths when it shrinks; the release used OpenCV, "
        "which does not."
    ]
    if named == "detector":
        first = f"{_RESNET}conv1.weight"
        # it was trained on blue, green, red of 0 to 255
        state = {**state, first: state[first].flip(1)}
        notes.append("The first convolution's channels were turned to read red first.")
        mean = tuple(value / 255 for value in DETECTOR_MEAN)  # type: ignore[assignment]
        std = (1 / 255, 1 / 255, 1 / 255)
    scale = checkpoint.number("input_scale_factor", 1.0)
    preprocess = Preprocess(
        size=int(BASE_SIZE * scale), mean=mean, std=std, fit="stretch", filter="bilinear"
    )
    return encoder, preprocess, state, notes


def _words(state: State, given: Given, source: str) -> tuple[TextEncoder, Any, list[str]]:
    words, word_dim = shape_of(state, f"{TEXT}embed.weight", source)
    hidden = shape_of(state, f"{TEXT}rnn.weight_hh_l0", source)[1]
    tokenizer = word_tokenizer(given.vocabulary, words, source, mask=True)
    note = f"The words are those of {given.vocabulary.name}." if given.vocabulary else ""
    return BiGRUTextEncoder(words, word_dim, hidden), tokenizer, [note]


def _bert(state: State, given: Given, source: str) -> tuple[TextEncoder, Any, list[str]]:
    rows = shape_of(state, f"{TEXT}bert.embeddings.word_embeddings.weight", source)[0]
    folder = bert_folder(given.text_backbone)
    config = read_config(folder)
    encoder = build_bert(state, f"{TEXT}bert.", config, source)
    return encoder, bert_tokenizer(folder, rows, source), [bert_note(encoder, config)]


def bert_note(encoder: Any, config: dict[str, Any] | None) -> str:
    """What a checkpoint does not say of its BERT, and where it was taken from."""
    bert = encoder.model.config
    origin = "the library's defaults" if config is None else "the given config.json"
    return (
        f"BERT's word pieces are those that were given; its {bert.num_attention_heads} attention "
        f"heads and its epsilon {bert.layer_norm_eps:g} are from {origin}."
    )
