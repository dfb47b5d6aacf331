"""What readers of a world reach who know scenes perfectly, or all but one side of them.

`python -m training.scenes.readers --data data/scenes/test`

A reader ranks what is true before what is not, and what is equally true by chance. Who knows
neither relations nor numbers reads "two dogs left of a cat" as "dogs and a cat". The step from one
reader to the next is what a side of scenes is worth in recalls, whoever learns it. It is no bound:
what a caption leaves unsaid makes some images likelier than others, too.
"""

import argparse
import sys
from collections.abc import Collection, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from training.scenes.relevance import SceneIndex, without
from training.scenes.store import SceneDataError, load_scenes
from training.scenes.world import Scene

RANKS = (1, 5, 10)
READERS: dict[str, tuple[str, ...]] = {
    "all that captions say": (),
    "all but left, right and other relations": ("relations",),
    "all but numbers": ("count", "min"),
    "neither relations nor numbers": ("relations", "count", "min"),
    "nor colours": ("relations", "count", "min", "color"),
    "things alone": ("relations", "count", "min", "color", "setting", "time", "weather"),
}
"""What a reader knows, and the parts of a fact (`relevance.py`) that it does not."""

TWIN_READERS: dict[str, tuple[str, ...]] = {
    "all that captions say": (),
    "all but left, right, above and below": ("relations",),
    "all but numbers": ("count", "min"),
    "all but colours": ("color",),
    "all but what is not there": ("absent",),
    "things, colours and surroundings": ("relations", "count", "min", "absent"),
    "things and surroundings alone": ("relations", "count", "min", "color", "absent"),
}
"""The same of scenes that are twins (`twins.py`)."""


def expected_recalls(true: NDArray[np.bool_], image_of: NDArray[np.int64]) -> dict[str, float]:
    """Recalls of a reader who ranks what is true first, and guesses among that.

    Args:
        true: (N_img, N_txt), what each text is true of, by what the reader knows.
        image_of: (N_txt,) the image that each text was written for, of which it is true.

    Returns:
        `i2t_r1` to `t2i_r10`, in percent, their expectation over the guesses, and `rsum`.
    """
    own = np.bincount(image_of, minlength=len(true))  # of each image
    texts, images = true.sum(axis=1), true.sum(axis=0)  # true of an image, true of a text
    values = dict[str, float]()
    for rank in RANKS:
        missed = np.ones(len(true))
        for drawn in range(rank):  # without any of the image's own among the first so many
            missed *= np.clip(texts - own - drawn, 0, None) / np.clip(texts - drawn, 1, None)
        values[f"i2t_r{rank}"] = 100 * float(1 - missed.mean())
    for rank in RANKS:
        values[f"t2i_r{rank}"] = 100 * float(np.minimum(1, rank / images).mean())
    return values | {"rsum": sum(values.values())}


def reader_recalls(scenes: Sequence[Scene], unread: Collection[str]) -> dict[str, float]:
    """What a reader of these scenes reaches who does not know some parts of facts."""
    index = SceneIndex(scenes)
    captions = [(row, text) for row, scene in enumerate(scenes) for text in scene.captions]
    true = np.zeros((len(scenes), len(captions)), np.bool_)
    for column, (_, caption) in enumerate(captions):
        true[index.relevant(without(caption.fact, unread)), column] = True
    return expected_recalls(true, np.array([row for row, _ in captions]))


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m training.scenes.readers", description="What perfect readers reach."
    )
    parser.add_argument("--data", type=Path, required=True, help="folder of a rendered split")
    options = parser.parse_args(arguments)
    try:
        data = load_scenes(options.data)
    except SceneDataError as error:
        print(error, file=sys.stderr)
        return 2
    print("| who knows | i2t R@1 | R@5 | R@10 | t2i R@1 | R@5 | R@10 | rsum |")
    print("|---|" + "---:|" * 7)
    readers = TWIN_READERS if data.twins else READERS
    for title, unread in readers.items():
        values = reader_recalls(data.scenes, unread).values()
        print(f"| {title} | " + " | ".join(f"{value:.1f}" for value in values) + " |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
