"""Pre-trained word vectors in GloVe's text format (Pennington et al., EMNLP 2014)."""

from collections.abc import Mapping
from pathlib import Path

import torch
from torch import Tensor


def load_vectors(path: Path, vocabulary: Mapping[str, int], dim: int) -> tuple[Tensor, Tensor]:
    """The vectors of those words that a vocabulary holds.

    Args:
        path: one word a line, followed by its numbers, all set apart by single spaces.
        vocabulary: word -> row.
        dim: how many numbers a word has.

    Returns:
        (R,) rows and (R, dim) vectors of the words found.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: vectors of another width, or none of the words.
    """
    refuse_missing_vectors(path)
    rows, vectors = [], []
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            word, *numbers = line.rstrip().rsplit(" ", dim)
            if word not in vocabulary:
                continue
            if len(numbers) != dim:
                raise ValueError(
                    f'{path}: "{word}" has {len(numbers)} numbers, but text.word_dim is {dim}'
                )
            rows.append(vocabulary[word])
            vectors.append([float(number) for number in numbers])
    if not rows:
        raise ValueError(
            f"{path} holds no {dim} numbers for any word of the training captions; text.word_dim "
            "must be the width of its vectors"
        )
    return torch.tensor(rows), torch.tensor(vectors)


def refuse_missing_vectors(path: Path) -> None:
    """Raises FileNotFoundError where there is no such file."""
    if not path.is_file():
        raise FileNotFoundError(
            f"there is no word vectors file {path}; fetch it, or set text.vectors to an empty "
            "text for random word embeddings"
        )
