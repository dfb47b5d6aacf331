"""Texts as the text encoders of a pack read them: tokens, their ids, and unknown words.

A pack's tokenizer is made only of the parts that our packs, BERT, CLIP and SigLIP use.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Regex, Tokenizer, normalizers, pre_tokenizers, processors
from tokenizers.models import Unigram

from polyview.export.pack.validation import PackError, read_json
from polyview.models.encoders.huggingface import import_transformers, quiet

_CACHED = 64  # texts: one query reads its text several times

# The words that nltk's word_tokenize finds in a lower-case caption: contractions come apart, words
# keep inner hyphens, points and apostrophes, numbers their commas, all other marks stand alone.
WORDS = (
    r"can(?=not\b)|(?<=\bcan)not\b"
    r"|\w+(?=n't\b)|n't\b|'(?:s|m|d|ll|re|ve)\b"
    r"|(?<!\w)(?:[a-z]\.){2,}|\.{2,}|--+"
    r"|\d+(?:[.,:]\d+)+"
    r"|\w+(?:[-./]\w+|'(?!(?:s|m|d|ll|re|ve)\b)\w+)*"
    r"|[^\w\s]"
)
# CLIP's, as transformers writes it now and as the converted files on the Hub have it.
_CLIP = r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
GEMMA_END = "<eos>"  # of SigLIP 2
_PUNCTUATION = r"[!-/:-@\[-`{-~]"  # ASCII's, which SigLIP leaves out
# The allowed regular expressions: another one may take exponential time.
_PATTERNS = {r"\s+", WORDS, _CLIP, rf"<\|startoftext\|>|<\|endoftext\|>|{_CLIP}", _PUNCTUATION}
_PARTS = {  # section of tokenizer.json -> the allowed types of its parts
    "normalizer": "NFC NFKC Lowercase Strip BertNormalizer Replace",
    "pre_tokenizer": "Whitespace Punctuation BertPreTokenizer ByteLevel Split Metaspace",
    "model": "WordLevel WordPiece BPE Unigram",
    "post_processor": "TemplateProcessing BertProcessing RobertaProcessing ByteLevel",
}


def load_tokenizer(path: Path) -> Tokenizer:
    """Reads a tokenizer of Hugging Face `tokenizers` that neither pads nor truncates.

    Raises:
        FileNotFoundError: there is no such file.
        PackError: it cannot be read, or has parts or patterns that are not in the table above.
    """
    content = read_json(path)
    try:
        if not isinstance(content, dict):
            raise ValueError("it is not a JSON object")
        for section in _PARTS:
            _check_part(section, content.get(section))
        # The checked values, not the file: of a key given twice, two readers may take another one.
        tokenizer = Tokenizer.from_str(json.dumps({**content, "decoder": None}))
        # The pack's own max_length truncates texts, so that the reader can report it.
        tokenizer.no_padding()
        tokenizer.no_truncation()
    except Exception as error:  # tokenizers raises the bare Exception
        raise PackError(
            f"{path} is not a readable tokenizer: {error}; export the pack again"
        ) from error
    return tokenizer


def read_tokenizer(folder: Path) -> Tokenizer:
    """The tokenizer of a Hugging Face folder, which neither pads nor truncates."""
    path = folder / "tokenizer.json"
    if not any((folder / name).is_file() for name in ("tokenizer.json", "vocab.txt", "vocab.json")):
        raise FileNotFoundError(
            f"{folder} holds no tokenizer; put the model's tokenizer.json there, or its vocab.txt"
        )
    try:
        if path.is_file():
            tokenizer = Tokenizer.from_file(str(path))
        else:
            with quiet():
                auto = import_transformers().AutoTokenizer
                tokenizer = auto.from_pretrained(folder, local_files_only=True).backend_tokenizer
    except Exception as error:  # tokenizers raises the bare Exception
        raise ValueError(f"{folder} holds no tokenizer that can be read: {error}") from error
    tokenizer = siglip_tokenizer(tokenizer)
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def siglip_tokenizer(published: Tokenizer) -> Tokenizer:
    """Reads a text as SigLIP, or with Gemma's pieces as SigLIP 2, does; others stay unchanged.

    Only the pieces are those of `published`. Its other steps are left out: files write them in
    several ways, one of them a table in SentencePiece's own format, or leave them to the processor.
    NFKC does what that table does to all but rare signs.
    """
    content = json.loads(published.to_str())
    steps: list[normalizers.Normalizer] = [normalizers.Lowercase()]
    if isinstance(published.model, Unigram):
        end, model = "</s>", content["model"]
        pieces = [(str(piece), float(score)) for piece, score in model["vocab"]]
        tokenizer = Tokenizer(Unigram(pieces, model["unk_id"]))
        tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
        steps += [normalizers.Replace(Regex(_PUNCTUATION), ""), normalizers.NFKC()]
        steps += [normalizers.Replace(Regex(r"\s+"), " "), normalizers.Strip()]
    elif published.token_to_id(GEMMA_END) is not None:
        end = GEMMA_END
        # spaces are part of pieces
        tokenizer = Tokenizer.from_str(json.dumps({**content, "pre_tokenizer": None}))
        steps.append(normalizers.Replace(" ", "▁"))
    else:
        return published
    if (end_id := published.token_to_id(end)) is None:
        raise PackError(f"the tokenizer has no {end}, with which every text ends")
    tokenizer.normalizer = normalizers.Sequence(steps)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {end}", special_tokens=[(end, end_id)]
    )
    return tokenizer


def _check_part(section: str, part: Any) -> None:
    """Raises ValueError for a part or pattern that is not allowed, also inside a sequence."""
    if part is None:
        return
    kind = part.get("type") if isinstance(part, dict) else part
    if kind == "Sequence":
        for key in ("normalizers", "pretokenizers", "processors"):
            for inner in part.get(key) or ():
                _check_part(section, inner)
        return
    known = _PARTS[section].split()
    if kind not in known:
        known_parts = ", ".join(known)
        raise ValueError(f"its {section} has the part {kind!r:.60}, which is none of {known_parts}")
    pattern = (part.get("pattern") or {}).get("Regex", r"\s+")
    if pattern not in _PATTERNS:
        raise ValueError(
            f"its {section} has the regular expression {pattern!r:.60}, which neither our packs "
            "nor BERT, CLIP or SigLIP use"
        )


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
