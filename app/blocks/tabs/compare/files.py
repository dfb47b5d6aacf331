"""A comparison as a file: a sheet to print (PNG), a table (CSV), or all of it (JSON)."""

import json
import re
from dataclasses import asdict
from pathlib import Path
from typing import Any

from app.blocks.tabs.compare.sheet import draw
from app.blocks.tabs.compare.view import Sheet
from app.blocks.tabs.images import Listed
from app.blocks.tabs.saving import keep
from app.packs.csv_table import csv_table
from app.search.comparison import as_json

KINDS = {"png": "Save PNG", "csv": "Save CSV", "json": "Save JSON"}
FIELDS = (
    "query", "column", "method", "title", "ms", "rank", "image_id", "file", "seconds", "score",
    "right", "left_rank",
)  # fmt: skip
_LONGEST_NAME = 60


def write(sheet: Sheet, kind: str, folder: Path) -> Path:
    """Writes a file, whole or not at all.

    Args:
        sheet: what to write.
        kind: "png", "csv" or "json".
        folder: where a folder is made for it, named after its content.

    Returns:
        The file, named after the query.
    """
    content = {"png": draw, "csv": table, "json": whole}[kind](sheet)
    return keep(content, f"polyview-{_slug(sheet.comparison.query)}.{kind}", folder)


def table(sheet: Sheet) -> bytes:
    """CSV in UTF-8 with one row for each column and rank; unknown values are empty."""
    rows = []
    for number, column in enumerate(sheet.comparison.columns, start=1):
        about = [sheet.comparison.query, number, column.key, column.title, column.ms]
        for place in column.places:
            right = None if place.right is None else str(place.right).lower()
            image = sheet.images[place.image_id]
            seconds = image.moment and round(image.moment.seconds, 3)
            shown = [place.rank, place.image_id, image.file, seconds]
            rows.append([*about, *shown, place.score, right, place.left_rank])
    return csv_table(FIELDS, rows)


def whole(sheet: Sheet) -> bytes:
    """JSON with everything the tab shows; the same as /compare answers."""
    known = {image_id: image_json(shown) for image_id, shown in sheet.images.items()}
    content = {"gallery": sheet.gallery, **as_json(sheet.comparison, known)}
    return (json.dumps(content, indent=1, ensure_ascii=False) + "\n").encode()


def image_json(shown: Listed) -> dict[str, Any]:
    """What a file says of an image beside its rank."""
    known = {"file": shown.file, "captions": list(shown.captions)}
    return known | (asdict(shown.moment) if shown.moment else {})


def _slug(query: str) -> str:
    """A query as part of a file name.

    >>> _slug("2: Dog + beach")
    '2-dog-beach'
    """
    words = re.findall(r"\w+", query.lower(), re.ASCII)
    return "-".join(words)[:_LONGEST_NAME].strip("-") or "comparison"
