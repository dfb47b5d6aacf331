"""A pack's tokenizer: only of the parts that our packs, BERT, CLIP and SigLIP are made of."""

import json
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, normalizers, pre_tokenizers, processors
from tokenizers.models import Unigram

from polyview.export.pack.validation import PackError, read_json

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
GEMMA_END, GEMMA_PADDING = "<eos>", "<pad>"  # of SigLIP 2
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


def siglip_tokenizer(published: Tokenizer) -> Tokenizer:
    """Reads a text as SigLIP does: lower case, without punctuation, in the pieces of `published`.

    The other steps of `published` are left out: files write them in several ways, one of them a
    table in SentencePiece's own format. NFKC does what that table does to all but rare signs.
    """
    end, model = "</s>", json.loads(published.to_str())["model"]
    if published.token_to_id(end) is None:
        raise PackError(f"the tokenizer has no {end}, with which every text ends")
    pieces = [(str(piece), float(score)) for piece, score in model["vocab"]]
    tokenizer = Tokenizer(Unigram(pieces, model["unk_id"]))
    steps = [
        normalizers.Lowercase(),
        normalizers.Replace(Regex(_PUNCTUATION), ""),
        normalizers.NFKC(),
        normalizers.Replace(Regex(r"\s+"), " "),
        normalizers.Strip(),
    ]
    tokenizer.normalizer = normalizers.Sequence(steps)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {end}", special_tokens=[(end, published.token_to_id(end))]
    )
    return tokenizer


def siglip2_tokenizer(published: Tokenizer) -> Tokenizer:
    """Reads a text as SigLIP 2 does: lower case, in Gemma's pieces, with <eos> at the end.

    Files differ in whether they say so: its processor, not its tokenizer, made texts lower case.
    """
    content = json.loads(published.to_str())
    content["pre_tokenizer"] = None  # spaces are part of pieces
    tokenizer = Tokenizer.from_str(json.dumps(content))
    steps = [normalizers.Lowercase(), normalizers.Replace(" ", "▁")]
    tokenizer.normalizer = normalizers.Sequence(steps)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"$A {GEMMA_END}", special_tokens=[(GEMMA_END, published.token_to_id(GEMMA_END))]
    )
    return tokenizer


def _check_part(section: str, part: Any) -> None:
    """Raises ValueError for a part or pattern that is not allowed, also inside a sequence."""
    if part is None:
        return
    kind = part.get("type") if isinstance(part, dict) else part
    if kind == "Sequence":
        for inner in part.get("normalizers") or part.get("pretokenizers") or ():
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
