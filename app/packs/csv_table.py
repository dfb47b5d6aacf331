"""Tables as CSV that spreadsheets show and never run."""

import csv
import io
import re
from collections.abc import Iterable, Sequence

# What a spreadsheet takes for a formula, after what it takes away in front; the wide forms, too.
_FORMULA = re.compile(r"[\s\x00]*[=+\-@\uff1d\uff0b\uff0d\uff20]|[\t\r\n]")


def csv_table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> bytes:
    """CSV in UTF-8; None is an empty cell.

    Texts that begin as formulas do have a `'` before them, as spreadsheets write them themselves;
    numbers stay as they are.

    >>> csv_table(["file", "score"], [["=1+1.jpg", -0.5]]).decode().split()
    ['file,score', "'=1+1.jpg,-0.5"]
    """
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(head)
    writer.writerows([_plain(cell) for cell in row] for row in rows)
    return out.getvalue().encode()


def _plain(cell: object) -> object:
    return f"'{cell}" if isinstance(cell, str) and _FORMULA.match(cell) else cell
