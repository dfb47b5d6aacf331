"""MV-VSE's release: region features, one linear map and max pooling a view, a forward GRU."""

import re
from typing import Any

import models
from export.build.official.checkpoint import Checkpoint, OfficialError
from export.build.official.conversion import MAX_LENGTH, REGIONS_NOTE, Conversion, Given
from export.build.official.keys import Table, load_renamed, shape_of
from export.build.official.pooling import words_table
from export.build.official.vocabulary import word_tokenizer
from export.build.official.vse_infty import IMAGE, TEXT, two_parts
from models.encoders.bigru import BiGRUTextEncoder
from models.preprocess import Preprocess


def convert(checkpoint: Checkpoint, given: Given) -> Conversion:
    """Reads a checkpoint of MV-VSE.

    Raises:
        OfficialError: it is not one, or no word list was given.
    """
    source = str(checkpoint.path)
    image, text = two_parts(checkpoint, "MV-VSE")
    state = {**{IMAGE + k: v for k, v in image.items()}, **{TEXT + k: v for k, v in text.items()}}
    numbers = {int(m[1]) for key in image if (m := re.match(r"fc_list\.(\d+)\.", key))}
    views = len(numbers)
    if numbers != set(range(views)):
        raise OfficialError(f"{source}: fc_list is numbered {sorted(numbers)}, with gaps")
    embed_dim, image_dim = shape_of(state, f"{IMAGE}fc_list.0.weight", source)
    words, word_dim = shape_of(state, f"{TEXT}embed.weight", source)
    hidden = shape_of(state, f"{TEXT}rnn.weight_hh_l0", source)[1]
    arguments: dict[str, Any] = {"embed_dim": embed_dim, "views": views, "aggregator": "released"}
    method = models.build("mv_vse", image_dim, hidden, arguments)
    encoder = BiGRUTextEncoder(words, word_dim, hidden, directions=1)
    table = Table({f"{IMAGE}fc_list.*.": "method.project_image.*.linear."})
    table |= words_table(TEXT, "text.", both=False)
    load_renamed({"method.": method, "text.": encoder}, state, table, source)
    tokenizer = word_tokenizer(given.vocabulary, words, source, mask=False)
    return Conversion(
        "mv_vse",
        arguments,
        method,
        image_dim,
        None,
        Preprocess(),
        encoder,
        tokenizer,
        MAX_LENGTH,
        (
            REGIONS_NOTE,
            f"The words are those of {given.vocabulary.name}." if given.vocabulary else "",
        ),
    )
