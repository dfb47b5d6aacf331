"""What no method of a pack tells, as was measured of it: sides and heights, and what is not there.

`python -m training.evaluate` notes in a pack how often each method scores a true caption above the
same with the sides exchanged (`--foils`), and a caption of twins above what is true of the twin;
who guesses is right in half (docs/results.md).
"""

import re

from export.pack.schema import PackInfo

# what is asked for, the words that ask for it, and what tells whether it is told
_REGARDS = {
    "sides": (
        re.compile(r"\b(left|right|above|below|beneath|higher|lower)\b", re.IGNORECASE),
        ("foil_replaced_relation", "side_above_alike", "height_above_alike"),
    ),
    "absence": (
        re.compile(r"\b(no|not|without|lacks|lacking)\b", re.IGNORECASE),
        ("absence_above_alike",),
    ),
}
_TOLD = 60.0  # percent; of a thousand pairs, guessing is right in less


def untold(info: PackInfo, text: str) -> list[str]:
    """What a sentence asks for that was measured, and that no method of the pack tells.

    Returns:
        Of "sides" (left, right, above, below) and "absence" (no, not, without).
    """
    metrics = [method.metrics.values for method in info.methods.values() if method.metrics]
    found = []
    for regard, (words, measures) in _REGARDS.items():
        if words.search(text):
            told = [values[name] for values in metrics for name in measures if name in values]
            if told and max(told) < _TOLD:
                found.append(regard)
    return found
