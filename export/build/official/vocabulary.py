"""Tokenizers of the releases: word lists with their start and end marks, and BERT's word pieces."""

import json
from pathlib import Path

from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors

from export.build.offer import BERT_FILES, BERT_ID
from export.build.official.checkpoint import OfficialError
from export.hub.client import fetch_chosen, is_hub_id
from export.pack.tokens import WORDS
from models.encoders.huggingface import import_transformers, quiet
from models.files import no_such

MAX_LENGTH = 64  # tokens of a text that are read at most; the releases set no limit
PAD, START, END, UNKNOWN, MASK = "<pad>", "<start>", "<end>", "<unk>", "<mask>"


def word_tokenizer(path: Path | None, rows: int, source: Path, *, mask: bool) -> Tokenizer:
    """A tokenizer over a word list as SCAN published it, JSON with `word2idx`.

    Texts become lower-case words between <start> and <end>; nltk's word_tokenize, which the
    releases call, is followed closely but not to the last mark.

    Args:
        path: the word list; checkpoints do not store it.
        rows: how many rows the word embeddings have.
        source: the checkpoint, for messages.
        mask: whether the release appends the word <mask>.

    Raises:
        FileNotFoundError: there is no such file.
        OfficialError: none was given, it is a pickle, or it is not the list of this checkpoint.
    """
    if path is None:
        raise OfficialError(
            f"{source} does not store its words; name their list, a JSON file with word2idx, "
            "with --vocab"
        )
    if not path.is_file():
        raise FileNotFoundError(no_such("word list", path, "name a JSON file with word2idx"))
    words = _read_words(path)
    if mask and len(words) == rows - 1 and MASK not in words:
        words = {**words, MASK: len(words)}
    if len(words) != rows:
        extra = f", {MASK} included," if mask else ""
        raise OfficialError(
            f"{path} lists {len(words)} words{extra} but {source} has embeddings of {rows}; "
            "name the list that it was trained with"
        )
    tokenizer = Tokenizer(models.WordLevel(words, unk_token=UNKNOWN))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(WORDS), "removed", invert=True)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{START} $A {END}", special_tokens=[(START, words[START]), (END, words[END])]
    )
    return tokenizer


def _read_words(path: Path) -> dict[str, int]:
    content = path.read_bytes()
    if content[:1] == b"\x80":
        raise OfficialError(
            f"{path} is a pickle, which can run code and is not read. Where you trust it, write "
            "its words as JSON in the folder of PVSE's code: python -c \"import json, pickle; "
            "from vocab import Vocabulary; "
            f"json.dump({{'word2idx': pickle.load(open('{path.name}', 'rb')).word2idx}}, "
            "open('vocab.json', 'w'))\", then pass --vocab vocab.json"
        )
    try:
        words = dict(json.loads(content)["word2idx"])
        whole = sorted(words.values()) == list(range(len(words)))
    except (ValueError, KeyError, TypeError) as error:
        raise OfficialError(
            f"{path} is no word list: a JSON object with word2idx, word to number, is needed"
        ) from error
    if not whole:
        raise OfficialError(f"{path}: its {len(words)} words are not numbered from 0 without gaps")
    if words.get(PAD) != 0 or not {START, END, UNKNOWN} <= words.keys():
        raise OfficialError(
            f"{path}: {PAD} must be word 0, and {START}, {END} and {UNKNOWN} must be listed"
        )
    return words


def bert_folder(backbone: str | None) -> Path:
    """The folder with BERT's word pieces and configuration.

    Args:
        backbone: a folder or a Hub repository; None for the one that the releases name.

    Raises:
        OfficialError: it is neither.
        HubError: it could not be fetched.
    """
    name = BERT_ID if backbone is None else backbone
    folder = Path(name).expanduser()
    if folder.is_dir():
        return folder
    if not is_hub_id(name) or folder.parent.is_dir():
        advice = f"--text-backbone takes a folder, or a Hub repository such as {BERT_ID}"
        raise OfficialError(no_such("folder", folder, advice))
    return fetch_chosen(name, lambda names: [file for file in names if file in BERT_FILES])


def bert_tokenizer(folder: Path, rows: int, source: Path) -> Tokenizer:
    """BERT's lower-casing word pieces between [CLS] and [SEP]; `rows` as in `word_tokenizer`.

    Raises:
        ValueError: the folder holds none, or not the vocabulary of this checkpoint.
    """
    try:
        with quiet():
            bert = import_transformers().BertTokenizerFast
            loaded = bert.from_pretrained(folder, local_files_only=True).backend_tokenizer
    except Exception as error:
        # tokenizers raises the bare Exception for whatever it cannot read
        raise OfficialError(f"the word pieces in {folder} are not readable: {error}") from error
    tokenizer: Tokenizer = loaded
    tokenizer.no_truncation()
    tokenizer.no_padding()
    if tokenizer.get_vocab_size() != rows:
        raise OfficialError(
            f"{folder} lists {tokenizer.get_vocab_size()} word pieces, but {source} has embeddings "
            f"of {rows}; name those it was trained with"
        )
    return tokenizer
