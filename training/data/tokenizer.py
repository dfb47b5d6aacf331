"""Word-level tokenizers, and pre-trained vectors of their words."""

from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers
from torch import Tensor

PAD, UNKNOWN = "[PAD]", "[UNK]"
PAD_ID, UNKNOWN_ID = 0, 1


def build_tokenizer(captions: Iterable[str], min_count: int = 1) -> Tokenizer:
    """A lower-casing word tokenizer over the words of the captions.

    Args:
        captions: training captions.
        min_count: words seen less often become [UNK].

    Returns:
        A tokenizer with [PAD] = 0 and [UNK] = 1; other words by falling count, then by alphabet.
    """
    normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    words = pre_tokenizers.Sequence(
        [pre_tokenizers.Whitespace(), pre_tokenizers.Punctuation("removed")]
    )
    counts: Counter[str] = Counter()
    for caption in captions:
        pieces = words.pre_tokenize_str(normalizer.normalize_str(caption))
        counts.update(piece for piece, _ in pieces)
    if not counts:
        raise ValueError("there are no captions to build a vocabulary from")
    frequent = sorted(
        (w for w, n in counts.items() if n >= min_count), key=lambda w: (-counts[w], w)
    )
    vocabulary = {word: i for i, word in enumerate([PAD, UNKNOWN, *frequent])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = words
    return tokenizer


def load_vectors(path: Path, vocabulary: Mapping[str, int], dim: int) -> tuple[Tensor, Tensor]:
    """Pre-trained vectors of a vocabulary in GloVe's format (Pennington et al., EMNLP 2014).

    Args:
        path: one word a line, followed by its numbers, all separated by single spaces.
        vocabulary: word -> row.
        dim: how many numbers a word has.

    Returns:
        (R,) rows and (R, dim) vectors of the words of the vocabulary that the file holds.

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
