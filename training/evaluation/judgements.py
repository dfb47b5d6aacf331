"""Agreement of scores with people: Kendall's tau-c against ratings of captions.

Flickr8k's `ExpertAnnotations.txt` (Hodosh, Young and Hockenmaier, JAIR 2013) has a line for each
pair of a photograph and a caption, tabs between: the photograph's file, the caption as `file#k`
(the k-th of that photograph, from 0), and three ratings from 1 (unrelated) to 4 (describes it). As
Hessel et al. (CLIPScore, EMNLP 2021) measure it, every rating counts by itself, and pairs of a
photograph and its own caption are left out.
"""

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from training.data.image_files import ImageFiles
from training.data.split import Split


@dataclass(frozen=True)
class Judgements:
    """Ratings of pairs.

    Attributes:
        images: (J,) rows of photographs.
        captions: (J,) rows of captions.
        ratings: (J, 3) from 1 to 4.
    """

    images: np.ndarray
    captions: np.ndarray
    ratings: np.ndarray

    def agreement(self, scores: np.ndarray) -> dict[str, float]:
        """Kendall's tau-c times 100, as published, of scores (N_img, N_txt)."""
        rated = np.repeat(scores[self.images, self.captions], self.ratings.shape[1])
        return {"tau_c": 100 * tau_c(rated, self.ratings.ravel())}


def read_judgements(path: Path, data: Split) -> Judgements:
    """The judgements in a file of pairs of a split's photographs and captions.

    Raises:
        ValueError: a line is not of that form, or no pair is of the split.
        OSError: the file cannot be read.
    """
    if not isinstance(data.images, ImageFiles):
        raise ValueError("--judgements needs --data with photographs")
    rows = {file.name: row for row, file in enumerate(data.images.paths)}
    starts = np.searchsorted(data.image_of, np.arange(len(rows) + 1))  # of each one's captions
    judged = []
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        match = re.fullmatch(r"([^\t]*)\t([^\t#]*)#(\d+)\t([1-4])\t([1-4])\t([1-4])", line)
        if match is None:
            raise ValueError(f"{path}, line {number} is no judgement: {line!a:.80}")
        image, owner = match[1], match[2]
        if image in rows and owner in rows and image != owner:
            row = starts[rows[owner]] + int(match[3])
            if row < starts[rows[owner] + 1]:
                judged.append([rows[image], row, *map(int, match.group(4, 5, 6))])
    if not judged:
        raise ValueError(f"{path} judges no photograph of this split; choose another --split")
    table = np.array(judged)
    return Judgements(table[:, 0], table[:, 1], table[:, 2:])


def tau_c(scores: np.ndarray, ratings: np.ndarray) -> float:
    """Stuart's tau-c of scores (J,) and ratings (J,) of a few values.

    >>> tau_c(np.array([0.1, 0.2, 0.3, 0.4]), np.array([1, 1, 2, 2]))
    1.0
    """
    levels = [np.sort(scores[ratings == level]) for level in np.unique(ratings)]
    agree = 0
    for i, low in enumerate(levels):
        for high in levels[i + 1 :]:
            below = np.searchsorted(high, low, side="left")
            above = len(high) - np.searchsorted(high, low, side="right")
            agree += int((above - below).sum())  # concordant pairs less discordant ones
    few = min(len(levels), len(np.unique(scores)))
    return 2 * agree * few / (len(scores) ** 2 * (few - 1)) if few > 1 else 0.0
