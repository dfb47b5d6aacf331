"""The text side of a training run: tokenizer, text encoder and tokenized captions.

A frozen text encoder encodes every caption once. Training then looks up the token features in a
cached file. The file depends only on the encoder, the tokenizer and the captions.
"""

import copy
import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import torch
from pydantic import Field, model_validator
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from torch import Tensor, nn
from tqdm import tqdm

from polyview.export.encoders.sources import describe_text_source, load_text_source
from polyview.models.encoders import TEXT_ENCODERS
from polyview.models.encoders.bigru import BiGRUTextEncoder
from polyview.models.encoders.encoder import TextEncoder
from polyview.models.files import replacing
from polyview.training.data.features import refuse_missing
from polyview.training.settings import Settings

PAD, UNKNOWN, START, END = "[PAD]", "[UNK]", "<start>", "<end>"
PAD_ID, UNKNOWN_ID = 0, 1
BATCH_SIZE = 64  # captions


class TextConfig(Settings):
    """The tokenizer and the text encoder.

    Attributes:
        arch: a key of `models.encoders.TEXT_ENCODERS`.
        source: source of a published text encoder, see `export/encoders/`; empty for the BiGRU. Of
            the settings after `lr_scale`, a published encoder uses only `dropout`.
        frozen: keep a published encoder fixed and compute its token features once.
        lr_scale: learning rate of a published encoder that is trained, as a share of the base rate
            (0.1 for BERT in VSE-infinity).
        word_dim: width of word embeddings (300 in the papers).
        hidden_dim: width of contextual word features (1,024 in the papers).
        dropout: dropout on word embeddings, and on the features of a frozen encoder.
        min_count: words with fewer occurrences in the training captions become [UNK].
        unknown_rate: share of training words replaced by [UNK], so that [UNK] is learned.
        directions: 2 for the BiGRU, 1 for a forward GRU, 0 for word embeddings alone.
        vectors: text file of pre-trained word vectors, such as GloVe, that initialise the word
            embeddings (`load_vectors`); empty for random embeddings.
        sentence_marks: put <start> before and <end> after each text, as the releases of VSE++,
            SCAN, PVSE, MV-VSE and VSE-infinity do (VSE-infinity, Fig. 1).
    """

    arch: str = "bigru"
    source: str = ""
    frozen: bool = True
    lr_scale: float = Field(default=1.0, gt=0, le=1)
    word_dim: int = Field(default=300, ge=1)
    hidden_dim: int = Field(default=1024, ge=1)
    dropout: float = Field(default=0.0, ge=0, lt=1)
    min_count: int = Field(default=1, ge=1)
    unknown_rate: float = Field(default=0.0, ge=0, lt=1)
    directions: Literal[0, 1, 2] = 2
    vectors: str = ""
    sentence_marks: bool = False

    @model_validator(mode="after")
    def _check_source_settings(self) -> Self:
        for name, default in (("unknown_rate", 0.0), ("vectors", "")):
            if self.source and (value := getattr(self, name)) != default:
                raise ValueError(f"{name}={value} has no effect with text.source; leave {name} out")
        if self.source and self.arch == "bigru":
            advice = 'set text.arch to "bert" or "clip_text", or leave text.source out'
            raise ValueError(f'text.arch cannot be "bigru" with text.source; {advice}')
        return self


class TokenTable:
    """The tokenized captions of a split, padded to the L tokens of the longest caption.

    Attributes:
        ids: (N_txt, L) int64 token ids, or numbers of tokens (`number_tokens`); 0 is padding.
        lengths: (N_txt,) number of tokens of each caption.
        fixed_ids: ids of padding and marks, which [UNK] never replaces.

    Raises ValueError if a caption holds no word.
    """

    def __init__(self, tokenizer: Tokenizer, captions: list[str]) -> None:
        encoded = tokenizer.encode_batch(captions)
        for caption, encoding in zip(captions, encoded, strict=True):
            if all(encoding.special_tokens_mask):  # empty, or only marks
                raise ValueError(f'the caption "{caption}" holds no word; correct or remove it')
        self.lengths = np.array([len(encoding.ids) for encoding in encoded])
        self.ids = np.full((len(encoded), self.lengths.max()), PAD_ID, np.int64)
        for row, encoding in zip(self.ids, encoded, strict=True):
            row[: len(encoding.ids)] = encoding.ids
        marks = [tokenizer.token_to_id(mark) for mark in (START, END)]
        self.fixed_ids = np.array([PAD_ID, *(mark for mark in marks if mark is not None)])

    def rows(self, index: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns ids (B, max(lengths)) and lengths (B,) of the captions in rows `index` (B,)."""
        lengths = self.lengths[index]
        return self.ids[index, : lengths.max()], lengths

    def number_tokens(self, offset: int) -> "TokenTable":
        """Returns a copy that numbers its tokens from `offset` + 1 on, for `StoredTokens`."""
        table = copy.copy(self)
        is_token = np.arange(self.ids.shape[1]) < self.lengths[:, None]  # (N_txt, L)
        table.ids = np.zeros_like(self.ids)
        table.ids[is_token] = offset + np.arange(1, self.lengths.sum() + 1)
        return table


class StoredTokens(TextEncoder):
    """Looks up stored features (tokens, d) float16; token number n has row n - 1."""

    def __init__(self, tokens: np.ndarray, dropout: float = 0.0) -> None:
        super().__init__()
        self.tokens, self.dim = tokens, int(tokens.shape[1])
        self.dropout = nn.Dropout(dropout)

    def forward(self, ids: Tensor, lengths: Tensor) -> Tensor:  # noqa: ARG002
        """Returns features (B, L, d) of token numbers (B, L); zeros for number 0, the padding."""
        numbers = ids.cpu().numpy()  # (B, L)
        features = np.zeros((*numbers.shape, self.dim), np.float32)
        features[numbers > 0] = self.tokens[numbers[numbers > 0] - 1]
        return self.dropout(torch.from_numpy(features).to(ids.device))


class TextSide:
    """The text encoder of a training run, with the tokenized captions `train` and `val`.

    The BiGRU's vocabulary has the words of `vocab_captions`. The token features of a
    frozen encoder are computed on `device` and stored in the folder `cache`.

    Attributes:
        encoder: the text encoder, or `StoredTokens` in place of a frozen encoder.
        tokenizer: the encoder's tokenizer.
        summary_token: whether a text's first feature is its summary ([CLS]).
        tables: the tokenized captions of the training and the validation split.
        description: metadata from which the export builds the encoder.

    Raises FileNotFoundError if the source or the file of word vectors is missing, and ValueError if
    `text.arch` does not exist or does not match the source.
    """

    def __init__(
        self,
        config: TextConfig,
        train: list[str],
        val: list[str],
        vocab_captions: list[str],
        cache: Path,
        device: torch.device,
    ) -> None:
        if config.arch not in TEXT_ENCODERS:
            known = ", ".join(TEXT_ENCODERS)
            raise ValueError(f'text.arch must be one of {known}, not "{config.arch}"')
        self.summary_token = TEXT_ENCODERS[config.arch].summary_token
        if source := config.source:
            refuse_missing(source, "text.source")
            spec = describe_text_source(source)
            if (arch := spec["arch"]) != config.arch:
                raise ValueError(f'{source} needs text.arch="{arch}", not "{config.arch}"')
            self.encoder, self.tokenizer, _ = load_text_source(source, rounded=config.frozen)
            self.description = {key: spec[key] for key in ("arch", "arguments", "max_length")}
        else:
            self.encoder, self.tokenizer, self.description = _build_bigru(config, vocab_captions)
        self.tables = [TokenTable(self.tokenizer, captions) for captions in (train, val)]
        if source and config.frozen:
            self.description |= {"source": source, "sha256": spec["sha256"]}
            tokens = _cached_features(self.encoder.to(device), self.tables, spec, cache)
            self.encoder = StoredTokens(tokens, config.dropout)
            train_table, val_table = self.tables
            train_count = int(train_table.lengths.sum())
            self.tables = [train_table.number_tokens(0), val_table.number_tokens(train_count)]


def _build_bigru(
    config: TextConfig, captions: list[str]
) -> tuple[TextEncoder, Tokenizer, dict[str, Any]]:
    """Returns a BiGRU, a tokenizer over the words of captions, and the BiGRU's metadata."""
    if config.arch != "bigru":
        requirement = "text.source: a Hugging Face folder or a Hub id"
        raise ValueError(f'text.arch "{config.arch}" needs {requirement}')
    if config.vectors and not Path(config.vectors).is_file():
        advice = "fetch it, or leave text.vectors empty for random word embeddings"
        raise FileNotFoundError(f"there is no file of word vectors {config.vectors}; {advice}")
    tokenizer = build_tokenizer(captions, config.min_count, marks=config.sentence_marks)
    sizes = {name: getattr(config, name) for name in ("word_dim", "hidden_dim", "directions")}
    arguments = {"vocab_size": tokenizer.get_vocab_size(), **sizes}
    encoder = BiGRUTextEncoder(**arguments, dropout=config.dropout)
    if config.vectors:
        word_ids = tokenizer.get_vocab()
        rows, vectors = load_vectors(Path(config.vectors), word_ids, config.word_dim)
        with torch.no_grad():
            encoder.embed.weight[rows] = vectors
    return encoder, tokenizer, {"arch": config.arch, "arguments": arguments}


def _cached_features(
    encoder: TextEncoder, tables: list[TokenTable], description: Mapping[str, Any], cache: Path
) -> np.ndarray:
    """Returns memory-mapped token features (tokens, d) float16; writes a missing file first."""
    digest = hashlib.sha256(json.dumps([description["sha256"], description["max_length"]]).encode())
    for table in tables:
        digest.update(table.ids.tobytes())
    path = cache / f"texts-{digest.hexdigest()[:16]}.npy"
    if not path.is_file():
        shape = sum(int(table.lengths.sum()) for table in tables), encoder.dim
        with replacing(path) as draft:
            out = np.lib.format.open_memmap(draft, "w+", np.float16, shape)
            sections = np.split(out, [tables[0].lengths.sum()])
            for table, section in zip(tables, sections, strict=True):
                _encode(encoder, table, section)
            out.flush()
    return np.load(path, mmap_mode="r")


@torch.inference_mode()
def _encode(encoder: TextEncoder, table: TokenTable, out: np.ndarray) -> None:
    """Writes the token features of all captions into `out` (tokens, d)."""
    device = next(encoder.parameters()).device
    ends = np.cumsum(table.lengths)  # the end of each caption's rows in `out`
    order = np.argsort(table.lengths, kind="stable")  # similar lengths in a batch save padding
    for start in tqdm(range(0, len(order), BATCH_SIZE), desc="token features", mininterval=2):
        index = order[start : start + BATCH_SIZE]
        ids, lengths = map(torch.from_numpy, table.rows(index))
        features = encoder(ids.to(device), lengths.to(device)).half().cpu().numpy()
        for row, padded in zip(index, features, strict=True):
            out[ends[row] - table.lengths[row] : ends[row]] = padded[: table.lengths[row]]


def build_tokenizer(
    captions: Iterable[str], min_count: int = 1, *, marks: bool = False
) -> Tokenizer:
    """Builds a tokenizer that splits texts into lower-cased words; captions give the vocabulary.

    [PAD] has id 0, [UNK] has id 1. Words are sorted by descending count, then alphabetically; those
    with a count below `min_count` become [UNK]. `marks` puts each text between <start> and <end>,
    which have the last ids. Raises ValueError if the captions contain no word.
    """
    normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase()])
    splitters = [pre_tokenizers.Whitespace(), pre_tokenizers.Punctuation("removed")]
    splitter = pre_tokenizers.Sequence(splitters)
    counts: Counter[str] = Counter()
    for caption in captions:
        words = splitter.pre_tokenize_str(normalizer.normalize_str(caption))
        counts.update(word for word, _ in words)
    if not counts:
        raise ValueError("no caption has a word, so there is no vocabulary; add captions")
    frequent_words = [word for word, count in counts.items() if count >= min_count]
    frequent_words.sort(key=lambda word: (-counts[word], word))
    ends = (START, END) if marks else ()
    vocabulary = {word: i for i, word in enumerate([PAD, UNKNOWN, *frequent_words, *ends])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = splitter
    if marks:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{START} $A {END}", special_tokens=[(end, vocabulary[end]) for end in ends]
        )
    return tokenizer


def load_vectors(path: Path, vocabulary: Mapping[str, int], dim: int) -> tuple[Tensor, Tensor]:
    """Reads the pre-trained vectors of a vocabulary in GloVe's format (Pennington et al., 2014).

    Each line of the file has a word and `dim` numbers, separated by single spaces. Returns ids (R,)
    and vectors (R, dim) of the vocabulary's words that the file contains. Raises ValueError if the
    vectors have another width, or the file contains none of the words.
    """
    rows, vectors = [], []
    advice = "text.word_dim must be the width of its vectors"
    with path.open(encoding="utf-8") as lines:
        for line in lines:
            word, *numbers = line.rstrip().rsplit(" ", dim)
            if word not in vocabulary:
                continue
            if len(numbers) != dim:
                counts = f"{len(numbers)} numbers, but text.word_dim is {dim}"
                raise ValueError(f'{path}: "{word}" has {counts}; {advice}')
            rows.append(vocabulary[word])
            vectors.append([float(number) for number in numbers])
    if not rows:
        raise ValueError(f"{path} has no vectors of width {dim} for any caption's words; {advice}")
    return torch.tensor(rows), torch.tensor(vectors)
