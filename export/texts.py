"""Tokenizes texts for the text encoders of a pack, and finds unknown words.

A pack's tokenizer may have only the components that our packs, BERT, CLIP and SigLIP use.
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

# Approximates nltk's word_tokenize for lower-case captions: splits contractions; keeps hyphens,
# periods and apostrophes inside words, and commas inside numbers; any other mark is one token.
WORDS = (
    r"can(?=not\b)|(?<=\bcan)not\b"
    r"|\w+(?=n't\b)|n't\b|'(?:s|m|d|ll|re|ve)\b"
    r"|(?<!\w)(?:[a-z]\.){2,}|\.{2,}|--+"
    r"|\d+(?:[.,:]\d+)+"
    r"|\w+(?:[-./]\w+|'(?!(?:s|m|d|ll|re|ve)\b)\w+)*"
    r"|[^\w\s]"
)
# CLIP's pattern; in some files it also matches the special tokens, see `_PATTERNS`
_CLIP = r"'s|'t|'re|'ve|'m|'ll|'d|[\p{L}]+|[\p{N}]|[^\s\p{L}\p{N}]+"
GEMMA_END = "<eos>"  # end token of SigLIP 2
_PUNCTUATION = r"[!-/:-@\[-`{-~]"  # ASCII punctuation, which SigLIP removes
# The allowed regular expressions; any other could take exponential time.
_PATTERNS = {r"\s+", WORDS, _CLIP, rf"<\|startoftext\|>|<\|endoftext\|>|{_CLIP}", _PUNCTUATION}
_COMPONENTS = {  # section of tokenizer.json -> allowed types of components
    "normalizer": "NFC NFKC Lowercase Strip BertNormalizer Replace",
    "pre_tokenizer": "Whitespace Punctuation BertPreTokenizer ByteLevel Split Metaspace",
    "model": "WordLevel WordPiece BPE Unigram",
    "post_processor": "TemplateProcessing BertProcessing RobertaProcessing ByteLevel",
}


def load_tokenizer(path: Path) -> Tokenizer:
    """Reads a pack's tokenizer, and disables padding and truncation.

    Raises FileNotFoundError if the file does not exist, PackError if it is not readable or has
    components or regular expressions that are not allowed.
    """
    content = read_json(path)
    try:
        if not isinstance(content, dict):
            raise ValueError("it is not a JSON object")
        for section in _COMPONENTS:
            _check_component(section, content.get(section))
        # Parses the checked content, not the file: tokenizers may treat repeated keys differently.
        tokenizer = Tokenizer.from_str(json.dumps({**content, "decoder": None}))
    except Exception as error:  # tokenizers raises plain Exception
        message = f"{path} is not a readable tokenizer: {error}; export the pack again"
        raise PackError(message) from error
    tokenizer.no_padding()
    tokenizer.no_truncation()  # `TextReader` truncates texts, and reports the truncation
    return tokenizer


def read_tokenizer(folder: Path) -> Tokenizer:
    """Reads the tokenizer of a Hugging Face folder, and disables padding and truncation.

    Raises FileNotFoundError if the folder has no tokenizer, ValueError if it is not readable.
    """
    path = folder / "tokenizer.json"
    if not any((folder / name).is_file() for name in (path.name, "vocab.txt", "vocab.json")):
        raise FileNotFoundError(f"{folder} holds no tokenizer; add the tokenizer.json or vocab.txt")
    try:
        if path.is_file():
            tokenizer = Tokenizer.from_file(str(path))
        else:
            with quiet():
                auto = import_transformers().AutoTokenizer
                tokenizer = auto.from_pretrained(folder, local_files_only=True).backend_tokenizer
    except Exception as error:  # tokenizers raises plain Exception
        raise ValueError(f"{folder} holds no tokenizer that can be read: {error}") from error
    tokenizer = _rebuild_siglip(tokenizer)
    tokenizer.no_padding()
    tokenizer.no_truncation()
    return tokenizer


def _rebuild_siglip(published: Tokenizer) -> Tokenizer:
    """Rebuilds the tokenizer of SigLIP or SigLIP 2; returns any other tokenizer unchanged."""
    # Only the vocabulary is used, because releases store the other steps in several ways, or not
    # at all. NFKC replaces SentencePiece's table; both agree except for rare characters.
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
        # no pre-tokenizer splits at spaces, because word pieces contain them
        tokenizer = Tokenizer.from_str(json.dumps({**content, "pre_tokenizer": None}))
        steps.append(normalizers.Replace(" ", "▁"))
    else:
        return published
    if (end_id := published.token_to_id(end)) is None:
        raise PackError(f"the tokenizer has no {end}, the token at the end of every text")
    tokenizer.normalizer = normalizers.Sequence(steps)
    template = processors.TemplateProcessing(single=f"$A {end}", special_tokens=[(end, end_id)])
    tokenizer.post_processor = template
    return tokenizer


def _check_component(section: str, component: Any) -> None:
    """Raises ValueError unless a component and its regular expression are allowed."""
    if component is None:
        return
    kind = component.get("type") if isinstance(component, dict) else component
    if kind == "Sequence":
        for key in ("normalizers", "pretokenizers", "processors"):
            for inner in component.get(key) or ():
                _check_component(section, inner)
        return
    if kind not in (allowed := _COMPONENTS[section].split()):
        raise ValueError(f"its {section} contains {kind!r:.60}; allowed are {', '.join(allowed)}")
    pattern = (component.get("pattern") or {}).get("Regex", r"\s+")
    if pattern not in _PATTERNS:
        fault = f"its {section} has the regular expression {pattern!r:.60}, which is not allowed"
        raise ValueError(f"{fault}; use a tokenizer of BERT, CLIP or SigLIP")


@dataclass(frozen=True)
class Tokens:
    """The tokens of a text."""

    ids: list[int]  # at least one, at most the pack's `max_length`
    words: list[str]  # tokens as text, without word markers (CLIP's </w>, SigLIP's leading ▁)
    truncated: bool  # whether tokens beyond `max_length` were cut off
    unknown: Mapping[int, str]  # index in `words` -> unknown word as typed
    spans: Sequence[tuple[int, int]]  # start and end of each token in the stripped text
    special: frozenset[int]  # indices of special tokens, such as [CLS]


class TextReader:
    """Splits each text into at most `max_length` tokens; `size` is the vocabulary's size."""

    def __init__(self, tokenizer: Tokenizer, max_length: int) -> None:
        self._tokenizer, self._max_length = tokenizer, max_length
        self._unknown_token = getattr(tokenizer.model, "unk_token", None)
        self.size = int(tokenizer.get_vocab_size())
        self._read_cached = lru_cache(64)(self._read)  # a search tokenizes its query several times

    @cached_property
    def words(self) -> frozenset[str]:
        """The entries of the vocabulary that have only letters, such as "dog", but not "[CLS]"."""
        return frozenset(word for word in self._tokenizer.get_vocab() if word.isalpha())

    def read(self, text: str) -> Tokens:
        """Splits a text into tokens; raises ValueError if it is empty or not valid Unicode."""
        return self._read_cached(text.strip())

    def _read(self, text: str) -> Tokens:
        """Splits a stripped text into tokens; `read` caches the result."""
        try:
            encoding = self._tokenizer.encode(text)
        except (TypeError, UnicodeError) as error:
            raise ValueError("the text is not valid Unicode; type it again") from error
        special_mask, limit = encoding.special_tokens_mask, self._max_length
        if all(special_mask):
            raise ValueError("the text is empty; type at least one word")
        ids, words, spans = encoding.ids[:limit], encoding.tokens[:limit], encoding.offsets[:limit]
        special = {index for index, value in enumerate(special_mask[:limit]) if value}
        truncated = len(encoding.ids) > limit
        if truncated and special_mask[-1]:  # keep the end token
            ids[-1], words[-1] = encoding.ids[-1], encoding.tokens[-1]
            special.add(limit - 1)
        unknown = {
            index: text[start:end]
            for index, (start, end) in enumerate(spans)
            if words[index] == self._unknown_token and not special_mask[index]
        }
        plain_words = [word.removesuffix("</w>").removeprefix("▁") or word for word in words]
        return Tokens(ids, plain_words, truncated, unknown, spans, frozenset(special))

    def batch(self, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Tokenizes at least one text and pads the ids with `pad`; raises as `read` does."""
        if not texts:
            raise ValueError("there is no text to encode; give at least one")
        return pad([self.read(text).ids for text in texts])


def pad(ids: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
    """Pads the ids of B texts with 0 to the longest; returns ids (B, M) and lengths (B,), int64."""
    lengths = np.array([len(row) for row in ids], np.int64)
    rows = [[*row, *[0] * (int(lengths.max()) - len(row))] for row in ids]
    return np.array(rows, np.int64), lengths
