"""Texts as the text encoders of a pack read them: tokens, their ids, and unknown words."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
from tokenizers import Tokenizer

_CACHED = 64  # texts: one query reads its text several times


@dataclass(frozen=True)
class Tokens:
    """A text as the text encoders read it.

    A word that the vocabulary lacks appears in `words` as the unknown token; `unknown` has its
    place and the word as typed.
    """

    ids: list[int]  # at least one, at most the pack's `max_length`
    words: list[str]  # the tokens as text
    truncated: bool  # whether tokens beyond `max_length` were cut off
    unknown: Mapping[int, str]
    spans: Sequence[tuple[int, int]]  # start and end of each token in the stripped text
    marks: frozenset[int]  # places of tokens that are no words, such as [CLS]


class TextReader:
    """Splits texts into tokens, at most `max_length` each.

    `size` is the number of token ids, including those of padding and of unknown words.
    """

    def __init__(self, tokenizer: Tokenizer, max_length: int) -> None:
        self._tokenizer, self._max_length = tokenizer, max_length
        self._unknown = getattr(tokenizer.model, "unk_token", None)  # the token of unknown words
        self.size = int(tokenizer.get_vocab_size())
        self._cached = lru_cache(_CACHED)(self._read)

    @cached_property
    def known(self) -> frozenset[str]:
        """The words of the vocabulary, without marks and word pieces."""
        return frozenset(word for word in self._tokenizer.get_vocab() if word.isalpha())

    def words(self) -> list[str]:
        """The known words in alphabetical order."""
        return sorted(self.known)

    def read(self, text: str) -> Tokens:
        """Splits a text into tokens.

        Raises:
            ValueError: the text has no word, or is not valid Unicode.
        """
        return self._cached(text.strip())

    def _read(self, text: str) -> Tokens:
        try:
            encoding = self._tokenizer.encode(text)
        except (TypeError, UnicodeError) as error:
            raise ValueError("the text is not valid Unicode; type it again") from error
        marks, limit = encoding.special_tokens_mask, self._max_length
        if all(marks):
            raise ValueError("the text is empty; type at least one word")
        ids, words = encoding.ids[:limit], encoding.tokens[:limit]
        spans = encoding.offsets[:limit]
        places = {place for place, mark in enumerate(marks[:limit]) if mark}
        truncated = len(encoding.ids) > limit
        if truncated and marks[-1]:  # a text still ends with its end mark
            ids[-1], words[-1] = encoding.ids[-1], encoding.tokens[-1]
            places.add(limit - 1)
        unknown = {
            place: text[start:end]
            for place, (start, end) in enumerate(spans)
            if words[place] == self._unknown and not marks[place]
        }
        plain = [_plain(word) for word in words]
        return Tokens(ids, plain, truncated, unknown, spans, frozenset(places))

    def batch(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """The padded token ids of texts and their lengths, see `pad`.

        Raises:
            ValueError: no texts, or see `read`.
        """
        if not texts:
            raise ValueError("there is no text to encode; give at least one")
        return pad([self.read(text).ids for text in texts])


def pad(ids: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
    """Token ids (B, M) int64, 0 beyond each text's length, and the lengths (B,) int64.

    >>> [array.tolist() for array in pad([[5], [6, 7]])]
    [[[5, 0], [6, 7]], [1, 2]]
    """
    lengths = np.array([len(row) for row in ids], np.int64)
    rows = [[*row, *[0] * (int(lengths.max()) - len(row))] for row in ids]
    return np.array(rows, np.int64), lengths


def _plain(token: str) -> str:
    """A token without the mark of a word's end (CLIP) or start (SigLIP).

    >>> [_plain(token) for token in ("dog</w>", "▁dog", "##s", "▁")]
    ['dog', 'dog', '##s', '▁']
    """
    return token.removesuffix("</w>").removeprefix("▁") or token
