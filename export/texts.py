"""A text as a pack's text encoders read it: its tokens, their ids, and its unknown words."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

import numpy as np
from tokenizers import Encoding, Tokenizer

from export.word_forms import read_word

_CACHED = 64  # texts: one question splits its text several times


@dataclass(frozen=True)
class Tokens:
    """A text as the text encoders read it.

    Attributes:
        ids: token ids, at least one, at most the pack's `max_length`.
        words: the tokens as text; a word that the vocabulary lacks appears as its unknown token.
        truncated: whether tokens beyond `max_length` were cut off.
        unknown: place among `words` -> the word as typed, for words that the vocabulary lacks.
    """

    ids: list[int]
    words: list[str]
    truncated: bool
    unknown: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Reworded:
    """A text whose unknown words are replaced by known ones where possible.

    Attributes:
        text: the new text.
        corrections: word as typed -> the known word in its place.
    """

    text: str
    corrections: Mapping[str, str]


class TextReader:
    """Splits texts into tokens.

    Args:
        tokenizer: of the pack.
        max_length: of a text, in tokens.

    Attributes:
        size: number of token ids, including those of padding and of unknown words.
    """

    def __init__(self, tokenizer: Tokenizer, max_length: int) -> None:
        self._tokenizer = tokenizer
        self._max_length = max_length
        self._unknown = getattr(tokenizer.model, "unk_token", None)  # the token of unknown words
        self.size = int(tokenizer.get_vocab_size())
        self._cached_split = lru_cache(_CACHED)(self._split)

    def words(self) -> list[str]:
        """The known words in alphabetical order, without marks and pieces."""
        return sorted(self._known)

    def read(self, text: str) -> Tokens:
        """Splits a text into tokens.

        Raises:
            ValueError: the text has no word, or is not valid Unicode.
        """
        return self._split_stripped(text)[0]

    def reword(self, text: str) -> Reworded:
        """Replaces unknown words by known ones of the same meaning, see `read_word`.

        Evaluation on captions does not reword: it compares vocabularies, too.

        Raises:
            ValueError: see `read`.
        """
        return self._split_stripped(text)[1]

    def batch(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Token ids (B, M) int64, 0 beyond each text's length, and the lengths (B,) int64.

        Raises:
            ValueError: no texts, or see `read`.
        """
        if not texts:
            raise ValueError("there is no text to encode; give at least one")
        ids = [self.read(text).ids for text in texts]
        lengths = np.array([len(row) for row in ids], np.int64)  # (B,)
        padded = np.zeros((len(ids), int(lengths.max())), np.int64)  # (B, M)
        for row, tokens in zip(padded, ids, strict=True):
            row[: len(tokens)] = tokens
        return padded, lengths

    @cached_property
    def _known(self) -> frozenset[str]:
        return frozenset(word for word in self._tokenizer.get_vocab() if word.isalpha())

    def _split_stripped(self, text: str) -> tuple[Tokens, Reworded]:
        """The results of `read` and `reword`."""
        try:
            result = self._cached_split(text.strip())
        except (TypeError, UnicodeError) as error:
            raise ValueError("the text is not valid Unicode; type it again") from error
        if result is None:
            raise ValueError("the text is empty; type at least one word")
        return result

    def _split(self, text: str) -> tuple[Tokens, Reworded] | None:
        """The same; None for a text without tokens other than marks such as [CLS]."""
        encoding = self._tokenizer.encode(text)
        if all(encoding.special_tokens_mask):
            return None
        return self._as_tokens(text, encoding), self._as_reworded(text, encoding)

    def _as_tokens(self, text: str, encoding: Encoding) -> Tokens:
        marks, limit = encoding.special_tokens_mask, self._max_length
        ids, words = encoding.ids[:limit], encoding.tokens[:limit]
        truncated = len(encoding.ids) > limit
        if truncated and marks[-1]:  # a text still ends with its end mark
            ids[-1], words[-1] = encoding.ids[-1], encoding.tokens[-1]
        unknown = {
            place: text[start:end]
            for place, (start, end) in enumerate(encoding.offsets[:limit])
            if words[place] == self._unknown and not marks[place]
        }
        return Tokens(ids, list(map(_plain, words)), truncated, unknown)

    def _as_reworded(self, text: str, encoding: Encoding) -> Reworded:
        corrections, parts, end_of_last = dict[str, str](), list[str](), 0
        offsets = encoding.offsets[: self._max_length]
        for token, (start, end) in zip(encoding.tokens, offsets, strict=False):
            typed = text[start:end]
            known = read_word(typed, self._known) if token == self._unknown else None
            if known is not None:
                parts += [text[end_of_last:start], known]
                corrections[typed], end_of_last = known, end
        return Reworded("".join([*parts, text[end_of_last:]]), corrections)


def _plain(token: str) -> str:
    """A token without the mark of a word's end (CLIP) or start (SigLIP).

    >>> [_plain(token) for token in ("dog</w>", "▁dog", "##s", "▁")]
    ['dog', 'dog', '##s', '▁']
    """
    return token.removesuffix("</w>").removeprefix("▁") or token
