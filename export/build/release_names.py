"""What the weights of the authors' releases are called here: one table a release.

A table maps beginnings of the release's names to beginnings of ours, or to None for weights that
the published forward pass never reads. A "*" stands for a number and is carried over. The first
beginning that fits counts; the rest of a name stays as it is. Two names may have one where a
release stores a weight twice. Ours begin with `image.`, `text.` or `method.`.
"""

import re
from collections.abc import Mapping

Table = Mapping[str, str | None]

IMAGE, TEXT = "model[0].", "model[1]."  # of releases that store two dictionaries
_VIT = {
    "attention.attention.query.": "attention.q_proj.",
    "attention.attention.key.": "attention.k_proj.",
    "attention.attention.value.": "attention.v_proj.",
    "attention.output.dense.": "attention.o_proj.",
    "intermediate.dense.": "mlp.fc1.",
    "output.dense.": "mlp.fc2.",
    "": "",
}


def rename(key: str, table: Table) -> str | None:
    """Our name of a release's weight; None for one that is never read.

    Raises:
        KeyError: the table does not have it.

    >>> rename("layer.11.out.bias", {"layer.*.out.": "image.blocks.*."})
    'image.blocks.11.bias'
    """
    for theirs, ours in table.items():
        if match := re.match(re.escape(theirs).replace(r"\*", r"(\d+)"), key):
            start = ours and ours.replace("*", "".join(match.groups()))
            return None if start is None else start + key[match.end() :]
    raise KeyError(key)


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


def _words(theirs: str) -> Table:
    """Word embeddings and a GRU, which reads in both directions or forward alone."""
    gru = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
    back = {f"{theirs}rnn.{k}_reverse": f"text.backward_gru.{k}" for k in gru}
    return {
        f"{theirs}embed.": "text.embed.",
        **back,
        **{f"{theirs}rnn.{k}": f"text.forward_gru.{k}" for k in gru},
    }


def _bert(theirs: str) -> Table:
    """BERT as `transformers` names it, without its pooler, which no release calls.

    Files of transformers before 4.31 also store positions, 0, 1, 2 ...
    """
    unread = (f"{theirs}pooler.", f"{theirs}embeddings.position_ids")
    return {**dict.fromkeys(unread), theirs: "text.model."}


def _vit(theirs: str) -> Table:
    """ViT as transformers 4 named it; the release reads the last layer's states, without a norm."""
    layers = {
        f"{theirs}encoder.layer.*.{old}": f"image.model.layers.*.{new}" for old, new in _VIT.items()
    }
    return {f"{theirs}layernorm.": None, f"{theirs}pooler.": None, **layers, theirs: "image.model."}


def _pie_net(theirs: str, ours: str) -> Table:
    """PVSE's PIE-Net."""
    return {
        f"{theirs}attention.w_1.": f"{ours}w1.",
        f"{theirs}attention.w_2.": f"{ours}w2.",
        f"{theirs}fc.": f"{ours}w3.",
        f"{theirs}layer_norm.": f"{ours}norm.",
    }


def _pvse(image: str, text: str, net: str) -> Table:
    """PVSE with its PIE-Nets; the text's GRU is a part of the method."""
    return {
        f"{image}cnn.fc.": None,
        f"{image}cnn.": "image.",
        f"{image}rnn.": "method.image_global.gru.",
        f"{image}fc.": "method.image_global.",
        f"{text}embed.": "text.embed.",
        f"{text}rnn.": "method.text_global.gru.",
        **_pie_net(f"{image}{net}", "method.image_net."),
        **_pie_net(f"{text}{net}", "method.text_net."),
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
    **_words(TEXT),
    **_bert(f"{TEXT}bert."),
    f"{TEXT}linear.": "method.project_text.",
    **_gpo(f"{TEXT}gpool.", "method.pool_text."),
}
MV_VSE: Table = {f"{IMAGE}fc_list.*.": "method.project_image.*.linear.", **_words(TEXT)}
PVSE: Table = {
    **_pvse("img_enc.", "txt_enc.", "pie_net."),
    **_pvse(IMAGE, TEXT, "our_model."),  # of published files, which hold two dictionaries
}
AVSE: Table = {
    **_projection("img_enc.image_encoder.", "method.project_image."),
    **_gpo("img_enc.image_encoder.gpool.", "method.pool_image."),
    **_vit("img_enc.visual_encoder."),
    **_projection("txt_enc.", "method.project_text."),
    **_gpo("txt_enc.gpool.", "method.pool_text."),
    "txt_enc.ln.": "method.norm_text.",
    **_bert("txt_enc.bert."),
    "sim_enc.bin_score": None,  # the call that would read it is commented out in the release
}
