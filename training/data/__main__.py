"""Says what training sees in a folder: `python -m training.data DIR`.

It opens every split and the head of every image, and computes nothing. The same folder is then
`--set data=DIR` for training and `--data DIR` for measuring.
"""

import argparse
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from PIL import Image

from training.data.captions_file import find_captions, read_captions
from training.data.image_files import ImageFiles
from training.data.open_split import holds_features, open_split
from training.data.split import Split
from training.data.texts import TextConfig
from training.data.tokenizer import build_tokenizer

SPLITS = ("train", "val", "test")
_NAMED = 5  # damaged images that are named
_FEW = 500  # training images with fewer than which heads learn little


def main(argv: Sequence[str] | None = None) -> None:
    """Reads the command line and prints what there is."""
    parser = argparse.ArgumentParser(
        prog="python -m training.data", description="Say what training sees in a folder."
    )
    what = "folder of photographs with captions, of rendered scenes, or of ready-made features"
    parser.add_argument("data", type=Path, help=what)
    data = parser.parse_args(argv).data
    try:
        for line in seen(data):
            print(line)
    except (ValueError, OSError) as error:
        raise SystemExit(f"{error}") from error


def seen(data: Path) -> Iterator[str]:
    """Lines that say what a folder holds.

    Raises:
        FileNotFoundError, ValueError: it holds nothing to train on; see `open_split`.
    """
    path = None if holds_features(data) or (data / "train").is_dir() else find_captions(data)
    named = SPLITS if path is None else dict.fromkeys(str(i.split) for i in read_captions(path))
    splits = {name: open_split(data, name) for name in _there(data, named)}
    yield f"{data}: {_kind(splits['train'], path)}"
    for name, split in splits.items():
        longest = max(len(caption.split()) for caption in split.captions)
        yield (
            f"  {name:5} {split.image_count:7,} images {len(split.captions):8,} captions, "
            f"{len(split.captions) / split.image_count:.1f} each, of at most {longest} words"
        )
    for name in ("train", "val"):
        if name not in splits:
            yield f'training needs a split "{name}"; add it, or leave the column split out'
    train = splits["train"]
    counts = [
        build_tokenizer(train.captions, min_count=n).get_vocab_size()
        for n in (TextConfig().min_count, 2)
    ]
    yield f"words: {counts[0]:,} in the training captions, {counts[1]:,} of them twice or more"
    if isinstance(train.images, ImageFiles):
        yield from _files([path for s in splits.values() for path in s.images.paths])  # type: ignore[attr-defined]
        if len(train.images) < _FEW:
            yield (
                f"{len(train.images)} training images are few: expect the heads to learn words "
                "that come often, and no more"
            )


def _there(data: Path, names: Sequence[str] | dict[str, None]) -> list[str]:
    """Which splits there are; the training split must be."""
    found = []
    for name in names:
        try:
            open_split(data, name)
        except FileNotFoundError:
            if name == "train" or find_captions(data) is not None:
                raise
        else:
            found.append(name)
    if "train" not in found:
        open_split(data, "train")  # says why not
    return sorted(found, key=lambda name: SPLITS.index(name) if name in SPLITS else len(SPLITS))


def _kind(train: Split, path: Path | None) -> str:
    if path is not None:
        drawn = all(i.drawn for i in read_captions(path))
        how = "the splits are drawn here, by the files' names" if drawn else "the file has splits"
        return f"photographs, captions in {path.name}; {how}"
    return "rendered scenes" if len(train.images) else "ready-made features"


def _files(paths: Sequence[Path]) -> Iterator[str]:
    """The sizes of images, by their heads alone, and those that have none."""
    sides, damaged, kinds = list[tuple[int, int]](), list[str](), Counter[str]()
    for path in paths:
        try:
            with Image.open(path) as image:
                sides.append(image.size)
                kinds[str(image.format)] += 1
        except (OSError, SyntaxError, ValueError, Image.DecompressionBombError):
            damaged.append(path.name)
    if sides:
        short = sorted(min(side) for side in sides)
        formats = ", ".join(f"{count:,} {kind}" for kind, count in kinds.most_common())
        yield (
            f"files: {formats}; the shorter side has {short[0]} to {short[-1]} pixels, half of "
            f"them at least {short[len(short) // 2]}"
        )
    if damaged:
        more = f" and {len(damaged) - _NAMED} more" if len(damaged) > _NAMED else ""
        yield (
            f"{len(damaged)} cannot be read: {', '.join(damaged[:_NAMED])}{more}; replace them, "
            "or leave them out with python -m training.extract --skip-damaged"
        )


if __name__ == "__main__":
    main()
