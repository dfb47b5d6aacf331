"""Edits JSON files of packs, and updates the checksums of changed files."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from polyview.export.pack.reading import describe_file


@contextmanager
def edited(path: Path) -> Iterator[dict[str, Any]]:
    """Yields the object in a JSON file, and writes the changed object back."""
    values = json.loads(path.read_text("utf-8"))
    yield values
    path.write_text(json.dumps(values), "utf-8")


def relist(pack: Path, name: str) -> Path:
    """Updates the size and checksum of a changed file in pack.json."""
    file = describe_file(pack / name)
    with edited(pack / "pack.json") as manifest:
        manifest["files"][name] = {"sha256": file.sha256, "bytes": file.bytes}
    return pack
