"""Random JSON values, damaged JSON documents and damaged bytes."""

import copy
from collections.abc import Iterator
from typing import Any

from hypothesis import strategies as st

_TEXTS = (
    "", " ", "../../etc/passwd", "/etc/passwd", "C:\\x", "a\0b", "\ud800",
    "<script>alert(1)</script>", "{{7*7}}", "nan", "1e999", "vsepp", "pack", "owner/name", "/",
    "2: dog + - +", "100000: a", "x" * 70_000, "é" * 300, "-1",
)  # fmt: skip
_NUMBERS = (0, -1, 1, 2**31, 2**53, 2**63, 10**30, 10**400, 1e308, -1e308, 5e-324, 0.5, -0.0)
LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    st.sampled_from(_NUMBERS),
    st.sampled_from(_TEXTS),
    st.integers(),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=20),
)
JUNK = st.recursive(
    LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.dictionaries(st.text(max_size=8), inner, max_size=4)
    ),
    max_leaves=12,
)
Path = tuple[Any, ...]


def paths(document: Any, path: Path = ()) -> Iterator[Path]:
    """Yields the paths of all values in a JSON document, also of the document itself."""
    yield path
    if isinstance(document, dict | list):
        keys = document if isinstance(document, dict) else range(min(len(document), 3))
        for key in keys:
            yield from paths(document[key], (*path, key))


@st.composite
def damaged_json(draw: st.DrawFn, document: Any, most: int = 3) -> Any:
    """Draws a document with 1 to `most` values replaced, removed or added."""
    values = copy.deepcopy(document)
    for _ in range(draw(st.integers(1, most))):
        path = draw(st.sampled_from(list(paths(values))))
        if not path:
            values = draw(JUNK) if draw(st.integers(0, 9)) == 0 else values
            continue
        holder = values
        for key in path[:-1]:
            holder = holder[key]
        what = draw(st.integers(0, 5))
        if what == 0:
            del holder[path[-1]]
        elif what == 1 and isinstance(holder, dict):
            holder[draw(st.text(max_size=12))] = draw(JUNK)
        else:
            holder[path[-1]] = draw(JUNK)
    return values


@st.composite
def damaged_bytes(draw: st.DrawFn, content: bytes, early: int = 0) -> bytes:
    """Draws content with 1 to 4 ranges of bytes overwritten, inserted or removed.

    Half of the changes are in the first `early` bytes, the header.
    """
    results = bytearray(content)
    for _ in range(draw(st.integers(1, 4))):
        last = len(results)
        place = draw(st.integers(0, min(early, last) if early and draw(st.booleans()) else last))
        what = draw(st.integers(0, 3))
        if what == 3:
            del results[place : place + draw(st.sampled_from((1, 4, 64, len(content))))]
            continue
        put = draw(st.one_of(st.binary(min_size=1, max_size=8), st.sampled_from(_WORDS)))
        results[place : place + len(put) * (what == 0 or what == 1)] = put
    return bytes(results)


_WORDS = (b"\xff" * 4, b"\xff" * 8, b"\0" * 8, b"\x7f\xff\xff\xff", b"9" * 9, b"-1", b"[" * 200)
