"""AVSE's release: a ViT that reads two samples of an image, BERT, and blocks matched by MaxSim."""

from typing import Any

import models
from export.build.official.checkpoint import Checkpoint, OfficialError
from export.build.official.conversion import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    MAX_LENGTH,
    Conversion,
    Given,
)
from export.build.official.keys import Table, load_renamed, shape_of
from export.build.official.pooling import gpo_table, projection_table
from export.build.official.transformer import (
    BERT,
    VIT,
    build_bert,
    build_sampled_vit,
    read_config,
    resized_positions,
)
from export.build.official.vocabulary import bert_folder, bert_tokenizer
from export.build.official.vse_infty import bert_note
from models.preprocess import Preprocess

BLOCK_DIM = 256
_VIT, _BERT = "img_enc.visual_encoder.", "txt_enc.bert."

# The dustbin's value is stored, but the call that would read it is commented out in the release.
TABLE = (
    projection_table("img_enc.image_encoder.", "method.project_image.")
    | gpo_table("img_enc.image_encoder.gpool.", "method.pool_image.")
    | projection_table("txt_enc.", "method.project_text.")
    | gpo_table("txt_enc.gpool.", "method.pool_text.")
    | Table({"txt_enc.ln.": "method.norm_text."}, ("sim_enc.bin_score",))
    | VIT.under(_VIT, "image.model.")
    | BERT.under(_BERT, "text.model.")
)


def convert(checkpoint: Checkpoint, given: Given) -> Conversion:
    """Reads a checkpoint of AVSE.

    Raises:
        OfficialError: it is not one, or what it needs was not given.
    """
    source = str(checkpoint.path)
    if len(checkpoint.parts) != 1:
        raise OfficialError(f"{source} holds two sets of weights, but AVSE's release stores one")
    state = checkpoint.parts[0]
    if "swin" in checkpoint.option("vit_type", "") or f"{_VIT}embeddings.norm.weight" in state:
        raise OfficialError(f"{source} is AVSE over a Swin transformer; only its ViT converts")
    size = checkpoint.option("img_res", 224)
    folder = bert_folder(given.text_backbone)
    text_config = read_config(folder)
    image_config = None if given.image_backbone is None else read_config(given.image_backbone)
    if given.image_backbone is not None and image_config is None:
        raise OfficialError(f"there is no config.json in {given.image_backbone}")
    image = build_sampled_vit(state, _VIT, image_config, source, size, given.centres)
    state = resized_positions(state, _VIT, image, source)
    text = build_bert(state, _BERT, text_config, source)
    rows = shape_of(state, f"{_BERT}embeddings.word_embeddings.weight", source)[0]
    embed_dim = shape_of(state, "txt_enc.fc.weight", source)[0]
    block_dim = given.block_dim or BLOCK_DIM
    if embed_dim % block_dim:
        raise OfficialError(
            f"{source}: blocks of {block_dim}, the size in the release's code, do not divide its "
            f"{embed_dim} dimensions; name another with --block-dim"
        )
    arguments: dict[str, Any] = {
        "embed_dim": embed_dim,
        "block_dim": block_dim,
        "views": len(image.kept),
        "match": "maxsim",
        "released_gpo": True,
        "released_text": True,
        "sampled_features": True,
    }
    method = models.build("avse", image.dim, text.dim, arguments)
    load_renamed({"method.": method, "image.": image, "text.": text}, state, TABLE, source)
    vit = image.model.config
    origin = "the library's defaults" if image_config is None else "the given config.json"
    centres = ", ".join(str(int(row[1]) - 1) for row in image.kept)
    return Conversion(
        "avse",
        arguments,
        method,
        image.dim,
        image,
        Preprocess(
            size=size, mean=IMAGENET_MEAN, std=IMAGENET_STD, fit="stretch", filter="bilinear"
        ),
        text,
        bert_tokenizer(folder, rows, source),
        min(MAX_LENGTH, text.max_length or MAX_LENGTH),
        (
            f"Blocks have {block_dim} dimensions; the release has 256 in its code.",
            "The release draws two view centres at random for every picture, in evaluation, too; "
            f"here they are the patches {centres}, so that scores do not change between calls.",
            f"The ViT's {vit.num_attention_heads} attention heads and its epsilon "
            f"{vit.layer_norm_eps:g} are from {origin}.",
            bert_note(text, text_config),
            "The dustbin's value is stored but never read by the release, and left out.",
        ),
    )
