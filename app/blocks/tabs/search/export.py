"""Some of the images found, as a file: a table (CSV), or the images themselves (ZIP)."""

import io
import zipfile
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from app.blocks.tabs.saving import keep
from app.blocks.tabs.search.view import Result
from app.packs.csv_table import csv_table
from app.search.retriever import Retriever

KINDS = {"zip": "Save ZIP", "csv": "Save CSV"}
MOST = 200  # images of one file
MOST_BYTES = 200_000_000  # of the images of a ZIP
FIELDS = ("rank", "score", "image_id", "file", "seconds", "captions", "method", "query")
_SIDE = 4096  # pixels of the longer side of an image that is drawn anew


def write(
    kind: str, results: Sequence[Result], retriever: Retriever, folder: Path, *, private: bool
) -> Path:
    """Writes a file, whole or not at all.

    Args:
        kind: "zip" or "csv".
        results: the images.
        retriever: of the pack and its images.
        folder: where a folder is made for it, named after its content.
        private: the images' own files may be given away, with all that they say of where they were
            taken; elsewhere they are drawn anew.

    Raises:
        ValueError: none or too many images, or one that cannot be read.
    """
    if not 1 <= len(results) <= MOST:
        raise ValueError(f"choose 1 to {MOST} pictures to save, not {len(results)}")
    content = table(results) if kind == "csv" else archive(results, retriever, private=private)
    return keep(content, f"polyview-{len(results)}.{kind}", folder)


def table(results: Sequence[Result]) -> bytes:
    """CSV in UTF-8 with one row for each image; a sample has no rank."""
    return csv_table(
        FIELDS,
        [
            [
                result.rank or None,
                round(result.score, 6) if result.rank else None,
                result.image_id,
                result.image.file,
                result.image.moment and round(result.image.moment.seconds, 3),
                " | ".join(result.image.captions),
                result.spec,
                result.question.title,
            ]
            for result in results
        ],
    )


def archive(results: Sequence[Result], retriever: Retriever, *, private: bool) -> bytes:
    """ZIP of the images, each by its name in the gallery."""
    out, total = io.BytesIO(), 0
    with zipfile.ZipFile(out, "w", zipfile.ZIP_STORED) as archive:
        for result in results:
            name, content = result.image.file, io.BytesIO()
            if private:
                with retriever.image(result.image_id).reached().open() as file:
                    content.write(file.read(MOST_BYTES - total + 1))
            else:
                image = retriever.open(result.image_id)
                image.thumbnail((_SIDE, _SIDE))
                image.save(content, "WEBP", quality=90)
                name = f"{PurePosixPath(name).with_suffix('')}-{result.image_id}.webp"
            total += content.tell()
            if total > MOST_BYTES:
                raise ValueError(
                    f"these pictures have more than {MOST_BYTES // 10**6} MB; choose fewer"
                )
            archive.writestr(zipfile.ZipInfo(name), content.getvalue())
    return out.getvalue()
