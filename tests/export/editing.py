"""Packs that tests change: a JSON file in place, and checksums that agree with changed files."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from polyview.export.pack.reading import describe_file


@contextmanager
def edited(path: Path) -> Iterator[dict[str, Any]]:
    """The object in a JSON file, which is written again as it was changed."""
    values = json.loads(path.read_text("utf-8"))
    yield values
    path.write_text(json.dumps(values), "utf-8")


def relist(pack: Path, name: str) -> Path:
    """Makes pack.json agree with a file that was changed, as somebody hostile would."""
    file = describe_file(pack / name)
    with edited(pack / "pack.json") as manifest:
        manifest["files"][name] = {"sha256": file.sha256, "bytes": file.bytes}
    return pack
