"""A text as a pack's text encoders read it: its tokens, their ids, and what of it they lack."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache

import numpy as np
from tokenizers import Encoding, Tokenizer

from export.word_forms import read_word

_REMEMBERED = 64  # texts: a question is split again for each thing that is said of it


@dataclass(frozen=True)
class Tokens:
    """A text as the text encoders read it.

    Attributes:
        ids: token ids, at least one, at most the pack's `max_length`.
        words: the same tokens as text; words the vocabulary lacks appear as its unknown token.
        truncated: whether tokens beyond `max_length` were cut off.
        unknown: the words that the vocabulary lacks, as they were typed, by their place among
            `words`.
    """

    ids: list[int]
    words: list[str]
    truncated: bool
    unknown: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Reworded:
    """A text in words of the vocabulary, as far as there are any for it.

    Attributes:
        text: the text.
        read_as: for words that were replaced, as they were typed, the words in their place.
    """

    text: str
    read_as: Mapping[str, str]


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
        self._read = lru_cache(_REMEMBERED)(self._split)

    def words(self) -> list[str]:
        """The words that are known, in alphabetical order, without marks and pieces."""
        return sorted(self._known)

    def read(self, text: str) -> Tokens:
        """Splits a text into tokens.

        Raises:
            ValueError: the text holds no word, or is not valid Unicode.
        """
        return self._look(text)[0]

    def reword(self, text: str) -> Reworded:
        """Puts known words in the place of unknown ones, where they mean the same.

        Such a word is another form, or a plain name, of the one that was typed, see `read_word`.
        What is measured on captions is not reworded: it compares vocabularies, too.

        Raises:
            ValueError: see `read`.
        """
        return self._look(text)[1]

    @cached_property
    def _known(self) -> frozenset[str]:
        return frozenset(word for word in self._tokenizer.get_vocab() if word.isalpha())

    def _look(self, text: str) -> tuple[Tokens, Reworded]:
        """What `read` and `reword` give, which speaks of a text without space around it."""
        try:
            found = self._read(text.strip())
        except (TypeError, UnicodeError) as error:
            raise ValueError("the text is not valid Unicode; type it again") from error
        if found is None:
            raise ValueError("the text is empty; type at least one word")
        return found

    def _split(self, text: str) -> tuple[Tokens, Reworded] | None:
        """The same; None of a text that has only marks such as [CLS], or nothing at all."""
        encoding = self._tokenizer.encode(text)
        if all(encoding.special_tokens_mask):
            return None
        return self._as_tokens(text, encoding), self._as_reworded(text, encoding)

    def _as_tokens(self, text: str, encoding: Encoding) -> Tokens:
        marks, missing = encoding.special_tokens_mask, self._missing
        ids, words = encoding.ids[: self._longest], encoding.tokens[: self._longest]
        truncated = len(encoding.ids) > self._longest
        if truncated and marks[-1]:  # a text still ends with its end mark
            ids[-1], words[-1] = encoding.ids[-1], encoding.tokens[-1]
        lacking = {
            place: text[start:end]
            for place, (start, end) in enumerate(encoding.offsets[: self._longest])
            if words[place] == missing and not marks[place]
        }
        return Tokens(ids, list(map(_plain, words)), truncated, lacking)

    def _as_reworded(self, text: str, encoding: Encoding) -> Reworded:
        read_as, parts, done = dict[str, str](), list[str](), 0
        missing, offsets = self._missing, encoding.offsets[: self._longest]
        for token, (start, end) in zip(encoding.tokens, offsets, strict=False):
            typed = text[start:end]
            known = read_word(typed, self._known) if token == missing else None
            if known is not None:
                parts += [text[done:start], known]
                read_as[typed], done = known, end
        return Reworded("".join([*parts, text[done:]]), read_as)

    @property
    def _missing(self) -> str | None:
        """The token in the place of unknown words; None where there is none."""
        return getattr(self._tokenizer.model, "unk_token", None)

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


def _plain(token: str) -> str:
    """A token without the sign for where a word of CLIP ends, or one of SigLIP begins.

    >>> [_plain(token) for token in ("dog</w>", "▁dog", "##s", "▁")]
    ['dog', 'dog', '##s', '▁']
    """
    return token.removesuffix("</w>").removeprefix("▁") or token
