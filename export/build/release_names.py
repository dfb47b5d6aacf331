"""Maps the weight names of the authors' releases to ours: one table for each release.

A table maps prefixes of the release's names to prefixes of ours, or to None for weights that the
published forward pass never reads. A "*" matches a number, which is kept. The first matching prefix
applies; the rest of the name is unchanged. Two names may map to one if a release stores a weight
twice. Our names begin with `image.`, `text.` or `method.`.
"""

import re
from collections.abc import Mapping

Table = Mapping[str, str | None]

IMAGE, TEXT = "model[0].", "model[1]."  # of releases that store two dictionaries


def rename(key: str, table: Table) -> str | None:
    """Our name for a weight of a release; None for one that is never read.

    Raises:
        KeyError: the table has no matching prefix.

    >>> rename("layer.11.out.bias", {"layer.*.out.": "image.blocks.*."})
    'image.blocks.11.bias'
    """
    for theirs, ours in table.items():
        if match := re.match(re.escape(theirs).replace(r"\*", r"(\d+)"), key):
            start = ours and ours.replace("*", "".join(match.groups()))
            return None if start is None else start + key[match.end() :]
    raise KeyError(key)


def _with(theirs: str, ours: str, table: Table) -> Table:
    """Adds prefixes to the names in a table."""
    return {theirs + old: None if new is None else ours + new for old, new in table.items()}


_GPO: Table = {
    "gru.": "gru.",
    "linear.": "score.",
}  # a released GPO: its BiGRU and its one linear map
# The map to the joint space and its residual MLP, whose second batch-norm is never read.
_PROJECTION: Table = {
    "fc.": "linear.",
    "mlp.layers.0.": "mlp.0.",
    "mlp.bns.0.": "mlp.1.",
    "mlp.layers.1.": "mlp.3.",
    "mlp.bns.1.": None,
}
_GRU = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
# Word embeddings and a GRU, bidirectional or forward only.
_WORDS: Table = {
    "embed.": "embed.",
    **{f"rnn.{name}_reverse": f"backward_gru.{name}" for name in _GRU},
    **{f"rnn.{name}": f"forward_gru.{name}" for name in _GRU},
}
# BERT as `transformers` names it, without its pooler, which no release calls. Files of transformers
# before 4.31 also store positions, 0, 1, 2 ...
_BERT: Table = {"pooler.": None, "embeddings.position_ids": None, "": "text.model."}
# ViT as transformers 4 named it; the release reads the last layer's states, without a norm.
_VIT: Table = {
    "layernorm.": None,
    "pooler.": None,
    "encoder.layer.*.attention.attention.query.": "layers.*.attention.q_proj.",
    "encoder.layer.*.attention.attention.key.": "layers.*.attention.k_proj.",
    "encoder.layer.*.attention.attention.value.": "layers.*.attention.v_proj.",
    "encoder.layer.*.attention.output.dense.": "layers.*.attention.o_proj.",
    "encoder.layer.*.intermediate.dense.": "layers.*.mlp.fc1.",
    "encoder.layer.*.output.dense.": "layers.*.mlp.fc2.",
    "encoder.layer.*.": "layers.*.",
    "": "",
}
_NETS = ("attention.w_1.", "attention.w_2.", "fc.", "layer_norm.")
_PIE_NET: Table = dict(zip(_NETS, ("w1.", "w2.", "w3.", "norm."), strict=True))  # of PVSE


def _pvse(image: str, text: str, net: str) -> Table:
    """PVSE with its PIE-Nets; the text's GRU is a part of the method."""
    return {
        f"{image}cnn.fc.": None,
        f"{image}cnn.": "image.",
        f"{image}rnn.": "method.image_global.gru.",
        f"{image}fc.": "method.image_global.",
        f"{text}embed.": "text.embed.",
        f"{text}rnn.": "method.text_global.gru.",
        **_with(f"{image}{net}", "method.image_net.", _PIE_NET),
        **_with(f"{text}{net}", "method.text_net.", _PIE_NET),
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
    **_with(IMAGE, "method.project_image.", _PROJECTION),
    **_with(f"{IMAGE}gpool.", "method.pool_image.", _GPO),
    **_with(f"{IMAGE}image_encoder.", "method.project_image.", _PROJECTION),
    **_with(f"{IMAGE}image_encoder.gpool.", "method.pool_image.", _GPO),
    **_with(TEXT, "text.", _WORDS),
    **_with(f"{TEXT}bert.", "", _BERT),
    f"{TEXT}linear.": "method.project_text.",
    **_with(f"{TEXT}gpool.", "method.pool_text.", _GPO),
}
MV_VSE: Table = {
    f"{IMAGE}fc_list.*.": "method.project_image.*.linear.",
    **_with(TEXT, "text.", _WORDS),
}
PVSE: Table = {
    **_pvse("img_enc.", "txt_enc.", "pie_net."),
    **_pvse(IMAGE, TEXT, "our_model."),  # of published files, which hold two dictionaries
}
AVSE: Table = {
    **_with("img_enc.image_encoder.", "method.project_image.", _PROJECTION),
    **_with("img_enc.image_encoder.gpool.", "method.pool_image.", _GPO),
    **_with("img_enc.visual_encoder.", "image.model.", _VIT),
    **_with("txt_enc.", "method.project_text.", _PROJECTION),
    **_with("txt_enc.gpool.", "method.pool_text.", _GPO),
    "txt_enc.ln.": "method.norm_text.",
    **_with("txt_enc.bert.", "", _BERT),
    "sim_enc.bin_score": None,  # the call that would read it is commented out in the release
}
