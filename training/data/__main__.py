"""Describes what training reads from a folder: `python -m polyview data DIR`.

It opens every split and decodes every image. Training then takes the folder as `--set data=DIR`,
and evaluation as `--data DIR`.
"""

import argparse
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from polyview.training.data.image_files import ImageFiles
from polyview.training.data.open_split import holds_features, open_split
from polyview.training.data.photographs import find_captions, read_captions
from polyview.training.data.split import Split
from polyview.training.data.texts import build_tokenizer

_MAX_NAMED = 10  # damaged images listed
_FEW = 500  # training images; fewer give poor heads


def main(argv: Sequence[str] | None = None) -> None:
    """Reads the command line and prints the summary."""
    parser = argparse.ArgumentParser(
        prog="python -m polyview data", description="Say what training reads in a folder."
    )
    what = "folder of photographs with captions, of rendered scenes, or of ready-made features"
    parser.add_argument("data", type=Path, help=what)
    data = parser.parse_args(argv).data
    try:
        for line in summary(data):
            print(line)
    except (ValueError, OSError) as error:
        raise SystemExit(f"{error}") from error


def summary(data: Path) -> Iterator[str]:
    """Lines that describe a folder.

    Raises:
        FileNotFoundError, ValueError: it holds nothing to train on; see `open_split`.
    """
    path = None if holds_features(data) or (data / "train").is_dir() else find_captions(data)
    splits = _open_splits(data, path)
    train = splits["train"]
    kind = "rendered scenes" if len(train.images) else "ready-made features"
    yield f"{data}: {f'photographs, captions in {path.name}' if path else kind}"
    for name, split in splits.items():
        longest = max(len(caption.split()) for caption in split.captions)
        yield (
            f"  {name:5} {split.image_count:7,} images {len(split.captions):8,} captions, "
            f"{len(split.captions) / split.image_count:.1f} each, of at most {longest} words"
        )
    if "val" not in splits:
        yield 'training needs a split "val"; add it, or leave the column split out'
    counts = [build_tokenizer(train.captions, n).get_vocab_size() for n in (1, 2)]
    yield f"words: {counts[0]:,} in the training captions, {counts[1]:,} of them twice or more"
    if isinstance(train.images, ImageFiles):
        yield from _files([path for s in splits.values() for path in s.images.paths])  # type: ignore[attr-defined]
        if len(train.images) < _FEW:
            yield (
                f"{len(train.images)} training images are few: expect the heads to learn only "
                "frequent words"
            )


def _open_splits(data: Path, captions: Path | None) -> dict[str, Split]:
    """All splits of a folder; "train" must be one of them."""
    if captions is not None:
        listed = sorted({str(image.split) for image in read_captions(captions)} - {"train"})
        return {name: open_split(data, name) for name in ["train", *listed]}
    splits = {"train": open_split(data, "train")}
    for name in ("val", "test"):
        try:
            splits[name] = open_split(data, name)
        except FileNotFoundError:
            continue
    return splits


def _files(paths: Sequence[Path]) -> Iterator[str]:
    """Lines with formats, sizes and damaged files; decodes every image completely."""
    images = ImageFiles(paths)

    def read(row: int) -> tuple[str, int] | None:
        try:
            image = images[row]
        except (ValueError, OSError):
            return None
        return str(image.format), min(image.size)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        facts = list(pool.map(read, range(len(paths))))
    damaged = [path.name for path, fact in zip(paths, facts, strict=True) if fact is None]
    if readable := [fact for fact in facts if fact is not None]:
        short = sorted(side for _, side in readable)
        counts = Counter(name for name, _ in readable).most_common()
        formats = ", ".join(f"{count:,} {name}" for name, count in counts)
        yield (
            f"files: {formats}; the shorter side has {short[0]} to {short[-1]} pixels, half of "
            f"them at least {short[len(short) // 2]}"
        )
    if damaged:
        more = f" and {len(damaged) - _MAX_NAMED} more" if len(damaged) > _MAX_NAMED else ""
        yield (
            f"{len(damaged)} cannot be read: {', '.join(damaged[:_MAX_NAMED])}{more}; replace "
            "them, or leave them out with --skip-damaged when you train"
        )


if __name__ == "__main__":
    main()
