"""Opens splits of all supported kinds of folders, and galleries of packs.

`python -m polyview data DIR` opens each split of a folder, decodes every image file and prints a
summary. Training reads the folder with `--set data=DIR`, evaluation with `--data DIR`.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from polyview.export.pack.gallery import load_gallery, regions_of
from polyview.export.pack.reading import load_info
from polyview.training.data import image_files, photographs
from polyview.training.data.image_files import ImageFiles, LazyList, clip_frames, find_damaged
from polyview.training.data.precomputed import is_precomputed, open_regions
from polyview.training.data.split import Split, VisibleObjects, flatten_captions
from polyview.training.data.texts import build_tokenizer
from polyview.training.data.videos import is_videos, open_videos
from polyview.training.scenes.classes import names_of
from polyview.training.scenes.clip_captions import satisfies_clip
from polyview.training.scenes.foils import make_foils
from polyview.training.scenes.motion import FRAMES
from polyview.training.scenes.relevance import relevant_rows, satisfies
from polyview.training.scenes.render import clip_frames as draw_frames
from polyview.training.scenes.store import is_clips, load_clips, load_scenes
from polyview.training.settings import exit_on_error

_MAX_NAMED = 10  # maximum number of damaged images listed


def open_split(data: Path, name: str) -> Split:
    """Opens the split "train", "val", "test" or another split that the folder defines.

    The folder holds rendered scenes or clips, photographs with captions, captions with precomputed
    features (`training/data/precomputed.py`) or clips with features of their frames (`videos.py`).
    Raises FileNotFoundError if the folder does not have the split (ValueError for photographs), and
    ValueError if files of the folder disagree or are damaged.
    """
    if is_videos(data):
        return open_videos(data, name)
    if is_precomputed(data):
        return open_regions(data, name)
    if is_clips(data / name):
        return _open_clips(data / name)
    if (data / name).is_dir():
        return _open_scenes(data / name)
    if photographs.find_captions(data) is not None:
        return photographs.open_photographs(data, name)
    photos = "photographs (a file of captions and images/)"
    scenes = f'a rendered split "{name}" (python -m polyview scenes makes it)'
    features = "precomputed features (docs/training.md)"
    raise FileNotFoundError(f"{data} holds neither {photos} nor {scenes} nor {features}")


def holds_features(data: Path) -> bool:
    """Returns whether a folder has precomputed features, so that no image encoder is needed."""
    return is_precomputed(data) or is_videos(data)


def describe_data(data: Path, also: Sequence[str], split: Split) -> dict[str, Any]:
    """Describes `split`, the training split of `data` and `also`, for the model card.

    Returns `kind` ("scenes", "photographs" or "features"), `name` (such as "Flickr8k and
    my_photos"), and the numbers of `images` and `captions`.
    """
    kind, name = "features", data.resolve().name
    if isinstance(split.images, ImageFiles):
        kind, paths = "photographs", map(photographs.find_captions, (data, *map(Path, also)))
        names = (photographs.DATA_SETS.get(p.name, p.resolve().parent.name) for p in paths if p)
        name = " and ".join(dict.fromkeys(names))
    elif len(split.images):
        kind, name = "scenes", "rendered scenes" + (" in motion" if split.frames > 1 else "")
    counts = {"images": split.image_count, "captions": len(split.captions)}
    return {"kind": kind, "name": name, **counts}


def open_training(data: Path, also: Sequence[str] = (), *, without_captions: bool = False) -> Split:
    """Opens the training split of a folder, and appends the photographs of the folders `also`.

    With `without_captions`, the uncaptioned photographs of these folders are appended too. Raises
    the errors of `open_split`, and ValueError if `also` is set and `data` holds no photographs.
    """
    main_split = open_split(data, "train")
    if not also:
        return main_split
    folders = [Path(name) for name in also]
    splits = [main_split, *(photographs.open_photographs(folder, "train") for folder in folders)]
    if not isinstance(main_split.images, ImageFiles):
        reason = f'"also" needs photographs in "data", but {data} holds none'
        raise ValueError(f'{reason}; leave "also" out')
    starts = np.cumsum([0, *(len(split.images) for split in splits[:-1])])  # of each split
    paths = [path for split in splits for path in split.images.paths]  # type: ignore[attr-defined]
    if without_captions:
        paths += [path for folder in folders for path in photographs.find_uncaptioned(folder)]
    return replace(
        main_split,
        captions=[caption for split in splits for caption in split.captions],
        image_of=np.concatenate([s.image_of + n for s, n in zip(splits, starts, strict=True)]),
        images=ImageFiles(paths),
    )


def _open_scenes(folder: Path) -> Split:
    """Opens rendered scenes, with objects, foils and all relevant images."""
    data = load_scenes(folder)
    return Split(
        *flatten_captions([[caption.text for caption in scene.captions] for scene in data.scenes]),
        LazyList(len(data.images), lambda row: Image.fromarray(data.images[row])),
        folder=folder,
        relevant=cache(partial(relevant_rows, data.scenes, satisfies)),
        objects=VisibleObjects(
            list(data.instances),
            [caption.mentions for scene in data.scenes for caption in scene.captions],
            [[names_of(item.name) for item in scene.objects] for scene in data.scenes],
        ),
        foils=partial(make_foils, data.scenes),
    )


def _open_clips(folder: Path) -> Split:
    """Opens rendered clips, whose frames are drawn on access."""
    clips = load_clips(folder)
    return Split(
        *flatten_captions([[caption.text for caption in clip.captions] for clip in clips]),
        clip_frames(lambda i: [frame.image for frame in draw_frames(clips[i])], len(clips), FRAMES),
        frames=FRAMES,
        folder=folder,
        relevant=cache(partial(relevant_rows, clips, satisfies_clip)),
        alike=np.arange(len(clips)) // 2,  # twins are clips 2 k and 2 k + 1
        kinds=[caption.kind for clip in clips for caption in clip.captions],
    )


def open_pack_gallery(pack: Path, split: str) -> Split:
    """Opens the gallery of a pack; raises ValueError if it is missing or holds another split."""
    info = load_info(pack, verify=False)
    if info.gallery is None:
        raise ValueError(f"{pack} has no gallery to measure on; add --data DIR with captions")
    gallery = load_gallery(pack)
    if gallery.split != split:
        advice = f'for "{split}" add --data DIR'
        raise ValueError(f'the gallery of {pack} holds the split "{gallery.split}"; {advice}')
    images, captions = gallery.images, gallery.captions
    texts = flatten_captions([[caption.text for caption in image.captions] for image in images])
    if (regions := regions_of(info)) is not None:
        return Split(*texts, features=regions.all_features(), folder=pack / split)
    relevant = [np.array(caption.relevant) for caption in captions]
    paths = [gallery.folder / image.file for image in images]
    masks = [gallery.folder / image.mask for image in images if image.mask is not None]
    masks_by_row = LazyList(len(masks), lambda row: np.asarray(Image.open(masks[row]).convert("L")))
    names = [[names_of(item.name) for item in image.objects] for image in images]
    mentions_and_names = [caption.mentions for caption in captions], names
    objects = VisibleObjects(masks_by_row, *mentions_and_names)
    alike = [image.alike for image in images]
    has_alike = None not in alike
    image_split = Split(
        *texts,
        ImageFiles(paths),
        folder=pack / split,
        relevant=(lambda: relevant) if any(len(rows) > 1 for rows in relevant) else None,
        objects=objects if len(masks) == len(images) else None,
        alike=np.array(alike, np.int64) if has_alike else None,
        kinds=[str(caption.view) for caption in captions] if has_alike else (),
        foils=partial(make_foils, images) if gallery.world == "scenes" else None,
    )
    if (frames := info.image_encoder.frames) == 1:
        return image_split
    visibility = [np.zeros((len(image.objects), frames), np.bool_) for image in images]
    for rows, image in zip(visibility, images, strict=True):
        for row, item in zip(rows, image.objects, strict=True):
            row[list(item.frames)] = True
    read = image_files.read_frames
    frame_images = clip_frames(lambda row: read(paths[row], frames), len(paths), frames)
    moments = VisibleObjects(visibility, *mentions_and_names)
    return replace(image_split, images=frame_images, frames=frames, moments=moments)


@exit_on_error()
def main(argv: Sequence[str] | None = None) -> None:
    """Reads the command line and prints the summary."""
    description = "Describe the splits, captions and images of a folder."
    parser = argparse.ArgumentParser("python -m polyview data", description=description)
    help_text = "folder of photographs with captions, rendered scenes, or precomputed features"
    parser.add_argument("data", type=Path, help=help_text)
    for line in summary(parser.parse_args(argv).data):
        print(line)


def summary(data: Path) -> Iterator[str]:
    """Yields lines that describe a folder; raises the errors of `open_split`."""
    required_names, optional_names = ["train"], ["val", "test"]
    has_features = holds_features(data)
    kind = "precomputed features" if has_features else "rendered scenes"
    if not (has_features or (data / "train").is_dir()) and photographs.find_captions(data):
        path, entries = photographs.read_folder(data)
        required_names += sorted({str(image.split) for image in entries} - {"train"})
        optional_names = []
        kind = f"photographs, captions in {path.name}"
    splits: dict[str, Split] = {}
    for name in (*required_names, *optional_names):
        try:
            splits[name] = open_split(data, name)
        except FileNotFoundError:
            if name not in optional_names:
                raise
    yield f"{data}: {kind}"
    for name, split in splits.items():
        max_words = max(len(caption.split()) for caption in split.captions)
        images, ratio = f"{split.image_count:7,} images", len(split.captions) / split.image_count
        counts = f"{images} {len(split.captions):8,} captions, {ratio:.1f} each"
        yield f"  {name:5} {counts}, of at most {max_words} words"
    if "val" not in splits:
        yield 'training needs a split "val"; add it, or remove all splits from the captions file'
    # the vocabulary of a tokenizer also has [PAD] and [UNK]
    sizes = (build_tokenizer(splits["train"].captions, n).get_vocab_size() - 2 for n in (1, 2))
    yield "words: {:,} in the training captions, {:,} of them twice or more".format(*sizes)
    files = [s.images for s in splits.values() if isinstance(s.images, ImageFiles)]
    if paths := [path for images in files for path in images.paths]:
        names = [paths[row].name for row in find_damaged(ImageFiles(paths))]
        yield f"files: {len(paths):,}, of which {len(names):,} cannot be read"
        if names:
            omitted = f" and {len(names) - _MAX_NAMED} more" if len(names) > _MAX_NAMED else ""
            advice = "replace them, or leave them out with train --skip-damaged"
            yield f"damaged: {', '.join(names[:_MAX_NAMED])}{omitted}; {advice}"
