"""What the views of a text are made of, word by word, as HTML."""

from __future__ import annotations

import numpy as np
import torch

from app import heatmaps
from app.inside import Look
from app.panels import text
from app.tabs.views.charts import matrix
from app.tabs.views.panel import amount, note
from models import Method
from models.panel import Panel, view_names

_FEW = 3  # views of a text that are written out


def words(look: Look, method: Method) -> str:
    """What each view of the text is made of: bars below the words, or a table of many views."""
    if not look.text.strip():
        return note("Type a sentence above to see which of its words count.")
    if look.word_maps is None:
        return note("This method has no attention over words to show.")
    count = len(look.word_maps)
    shares = method.attention_sums_to_one
    numbers = "shares of 1" if shares else "cosines of word and text"
    if count > _FEW:
        table = Panel(
            "matrix",
            "Words and text views",
            "",
            torch.from_numpy(look.word_maps.T),  # (M, W)
            look.words,
            view_names(count, "text view"),
            limits=(0.0 if shares else -1.0, 1.0),
        )
        said = f"A column for each of {count} text views; numbers are {numbers}. Point at one."
        return f'<div class="pv-v-words">{matrix(table, name_rows=True)}</div>{note(said)}'
    rows = "".join(
        _row(f"text view {view + 1}" if count > 1 else "text", values, look, method)
        for view, values in enumerate(look.word_maps)
    )
    said = (
        "A bar is as long as the word counts in what the view is made of, relative to the row's "
        f"highest; numbers are {numbers}."
    )
    return f'<div class="pv-v-word-rows">{rows}</div>{note(said)}'


def _row(name: str, values: np.ndarray, look: Look, method: Method) -> str:
    relative = heatmaps.relative(values[None])[0]
    chips = "".join(
        f'<span class="pv-v-word" style="--share:{share:.3f}" '
        f'title="{text(word)}: {amount(value, method)}">{text(word)}<i></i>'
        f"<small>{amount(value, method)}</small></span>"
        for word, value, share in zip(look.words, values.tolist(), relative.tolist(), strict=True)
    )
    return f"<p><strong>{text(name)}</strong>{chips}</p>"
