"""A text as a pack's text encoders read it: its tokens, their ids, and what of it they lack."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from tokenizers import Tokenizer


@dataclass(frozen=True)
class Tokens:
    """A text as the text encoders read it.

    Attributes:
        ids: token ids, at least one, at most the pack's `max_length`.
        words: the same tokens as text; words the vocabulary lacks appear as its unknown token.
        truncated: whether tokens beyond `max_length` were cut off.
        unknown: the words that the vocabulary lacks, as they were typed.
    """

    ids: list[int]
    words: list[str]
    truncated: bool
    unknown: tuple[str, ...] = ()


class TextReader:
    """Splits texts into tokens.

    Args:
        tokenizer: of the pack.
        longest: tokens of a text, at most.

    Attributes:
        size: number of token ids, those of padding and of unknown words included.
    """

    def __init__(self, tokenizer: Tokenizer, longest: int) -> None:
        self._tokenizer = tokenizer
        self._longest = longest
        self.size = int(tokenizer.get_vocab_size())

    def words(self) -> list[str]:
        """The words that are known, in alphabetical order, without marks and pieces."""
        return sorted(word for word in self._tokenizer.get_vocab() if word.isalpha())

    def read(self, text: str) -> Tokens:
        """Splits a text into tokens.

        Raises:
            ValueError: the text holds no word, or is not valid Unicode.
        """
        try:
            text = text.strip()
            encoding = self._tokenizer.encode(text)
            bare = all(encoding.special_tokens_mask)  # only marks such as [CLS], or nothing at all
        except (TypeError, UnicodeError) as error:
            raise ValueError("the text is not valid Unicode; type it again") from error
        if bare:
            raise ValueError("the text is empty; type at least one word")
        ids, words = encoding.ids[: self._longest], encoding.tokens[: self._longest]
        truncated = len(encoding.ids) > self._longest
        if truncated and encoding.special_tokens_mask[-1]:  # a text still ends with its end mark
            ids[-1], words[-1] = encoding.ids[-1], encoding.tokens[-1]
        missing = getattr(self._tokenizer.model, "unk_token", None)
        spans = zip(words, encoding.offsets, strict=False)
        lacking = tuple(text[start:end] for word, (start, end) in spans if word == missing)
        return Tokens(ids, words, truncated, lacking)

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
