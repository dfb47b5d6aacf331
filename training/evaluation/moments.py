"""Evidence over time: does it peak in a frame that shows what the words name?

Of a caption and its own clip, evidence (`models/evidence.py`) says how much of the score each frame
finds in each word. Asked is, of captions whose things are not there all the time, whether the
highest frame, all words together, shows one of the things that the caption mentions; and whether
the highest frame of the words that name a thing, shows that thing, where it is not there all the
time. Chance is the share of frames that do.
"""

import numpy as np
import torch
from torch import Tensor

from export.runtime import Runtime
from training.data.split import Split
from training.evaluation.evidence import find_words

_AT_ONCE = 32  # captions


@torch.no_grad()
def moment_metrics(runtime: Runtime, name: str, data: Split, features: Tensor) -> dict[str, float]:
    """Measures a method's evidence over time, see the module's description.

    Args:
        runtime: a loaded pack.
        name: one of its methods.
        data: clips whose `moments` are known, a feature a frame.
        features: (N_img, frames, d) of them.

    Returns:
        In percent `moment_pointing` and `moment_chance`, `moment_word_pointing` and
        `moment_word_chance`.

    Raises:
        ValueError: nothing is known of moments, or a frame has several features.
    """
    if data.moments is None or features.shape[1] != data.frames:
        raise ValueError(
            "evidence over time needs clips whose truth is known, such as a pack's own, and one "
            "feature a frame"
        )
    head, truth = runtime.methods[name], data.moments
    whole, single = list[tuple[float, float]](), list[tuple[float, float]]()
    for start in range(0, len(data.captions), _AT_ONCE):
        rows = range(start, min(start + _AT_ONCE, len(data.captions)))
        read = features[data.image_of[rows.start : rows.stop]].to(runtime.device)  # (B, T, d)
        real = torch.ones(read.shape[:2], dtype=torch.bool, device=read.device)
        spoken = runtime.text_features([data.captions[row] for row in rows], name)
        found = head.evidence(head.image_parts(read, real), head.text_parts(*spoken))
        cells = found.cells.cpu().numpy()  # (B, T, M)
        sums = cells.sum(axis=2) + found.whole_sentence.cpu().numpy()
        for place, row in enumerate(rows):
            clip = int(data.image_of[row])
            seen, mentions = truth.seen[clip], list(truth.mentions[row])
            if mentions:
                _note(whole, sums[place], np.asarray(seen[mentions].any(axis=0)))
            words = runtime.tokenize(data.captions[row]).words
            for index in mentions:
                tokens = list(find_words(words, truth.names[clip][index]))
                if tokens:
                    _note(single, cells[place][:, tokens].sum(axis=1), seen[index])
    values = dict[str, float]()
    for key, noted in (("moment", whole), ("moment_word", single)):
        if noted:
            right, chance = (100 * np.mean(noted, axis=0)).tolist()
            values |= {f"{key}_pointing": right, f"{key}_chance": chance}
    return values


def _note(noted: list[tuple[float, float]], values: np.ndarray, seen: np.ndarray) -> None:
    """Notes whether the highest of values (T,) is in a frame that is right, and chance."""
    if seen.any() and not seen.all():
        noted.append((float(seen[values.argmax()]), float(seen.mean())))
