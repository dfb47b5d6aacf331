"""What no method of a pack tells, as was measured of it: which thing is left, right, above, below.

`python -m training.evaluate --foils` notes in a pack how often each method scores a true caption
above the same with the sides exchanged; who guesses is right in half (docs/results.md).
"""

import re

from export.pack.schema import PackInfo

_SIDES = re.compile(r"\b(left|right|above|below|beneath|higher|lower)\b", re.IGNORECASE)
_MEASURED = "foil_replaced_relation"
_TOLD = 60.0  # percent; of a thousand pairs, guessing is right in less


def asks_untold(info: PackInfo, text: str) -> bool:
    """Whether a sentence asks for sides, which were measured and no method of the pack tells."""
    if not _SIDES.search(text):
        return False
    metrics = [method.metrics.values for method in info.methods.values() if method.metrics]
    measured = [values[_MEASURED] for values in metrics if _MEASURED in values]
    return bool(measured) and max(measured) < _TOLD
