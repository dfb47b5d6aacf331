"""Opens a split of whatever a folder holds."""

import functools
from pathlib import Path

import numpy as np

from training.data.image_files import ImageArrays
from training.data.karpathy import karpathy_file, open_photographs
from training.data.precomputed import is_precomputed, open_regions
from training.data.split import SeenObjects, Split
from training.scenes.classes import names_of
from training.scenes.relevance import relevant_images
from training.scenes.store import load_scenes


def open_split(data: Path, name: str) -> Split:
    """Opens a split with its captions.

    Args:
        data: folder that holds it: rendered scenes, photographs with captions
            (`training/data/karpathy.py`), or captions with ready-made features
            (`training/data/precomputed.py`).
        name: "train", "val" or "test".

    Raises:
        FileNotFoundError: the folder holds no such split.
        ValueError: what it holds does not fit together.
    """
    if is_precomputed(data):
        return open_regions(data, name)
    if karpathy_file(data) is not None:
        return open_photographs(data, name)
    if (data / name).is_dir():
        return _open_scenes(data / name)
    raise FileNotFoundError(
        f"{data} holds neither photographs (dataset_flickr8k.json and images/) nor a rendered "
        f'split "{name}" (python -m training.scenes makes it) nor ready-made features '
        "(train_ims.npy and so on); see training/data/karpathy.py and precomputed.py"
    )


def _open_scenes(folder: Path) -> Split:
    """Rendered scenes, of which all is known."""
    data = load_scenes(folder)
    captions = [caption for scene in data.scenes for caption in scene.captions]
    counts = [len(scene.captions) for scene in data.scenes]
    return Split(
        [caption.text for caption in captions],
        np.repeat(np.arange(len(counts)), counts),
        ImageArrays(data.images),
        folder=folder,
        relevant=functools.cache(functools.partial(relevant_images, data.scenes)),
        objects=SeenObjects(
            list(data.instances),
            [caption.mentions for caption in captions],
            [[names_of(thing.name) for thing in scene.objects] for scene in data.scenes],
        ),
    )
