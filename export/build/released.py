"""Reading what the authors released: checkpoints, word lists and BERT's word pieces.

Two containers (zip, and the older one of torch before 1.6) and two shapes of checkpoints occur: a
dictionary with options under `opt` or `args` and weights under `model`, or the bare weights.
Weights are one dictionary of tensors, or a list of two, image side and text side.
"""

import argparse
import re
from collections.abc import Mapping
from dataclasses import dataclass as plain_dataclass
from pathlib import Path
from typing import Any

import torch
from pydantic.dataclasses import dataclass
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors
from torch import Tensor, nn

from export.build.offer import BERT_FILES, BERT_ID
from export.build.release_names import Table, rename
from export.hub.client import fetch_chosen, is_hub_id
from export.pack.tokens import WORDS
from export.pack.validation import OPEN, check, read_json
from models.checkpoint import load_strict
from models.encoders.huggingface import import_transformers, quiet
from models.files import no_such, sha256_of

# Counters that batch-norms keep for training alone; releases differ in whether they are stored.
_COUNTER = "num_batches_tracked"
_PAD, _START, _END, _UNKNOWN, _MASK = "<pad>", "<start>", "<end>", "<unk>", "<mask>"


@dataclass(frozen=True, config=OPEN)
class Options:
    """The options of the releases that change their models; defaults where they are not stored."""

    no_imgnorm: bool = False
    no_txtnorm: bool = False
    backbone_source: str = ""
    input_scale_factor: float = 1.0
    legacy: bool = False
    order: bool = False
    crop_size: int = 224
    img_res: int = 224


@dataclass(frozen=True, config=OPEN)
class _WordList:
    word2idx: dict[str, int]


@plain_dataclass(frozen=True)
class Checkpoint:
    """A released checkpoint.

    Attributes:
        path: its file.
        state: the weights, without the prefix `module.` that several GPUs leave; where there are
            two dictionaries, their keys begin with `model[0].` (images) and `model[1].` (texts).
        options: those that change its model.
        about: JSON-ready: the file's SHA-256, all its plain options, and other plain values that
            are `stored`, such as `epoch`.
    """

    path: Path
    state: dict[str, Tensor]
    options: Options
    about: dict[str, Any]

    def shape(self, key: str) -> tuple[int, ...]:
        """The shape of a weight that sizes are read from.

        Raises:
            ValueError: it is missing.
        """
        if key not in self.state:
            raise ValueError(
                f"{self.path} lacks {key}; is it a checkpoint of another release (--from)?"
            )
        return tuple(self.state[key].shape)

    def count(self, start: str) -> int:
        """How many numbers follow a beginning of the keys."""
        pattern = re.compile(re.escape(start) + r"(\d+)\.")
        return len({match[1] for key in self.state if (match := pattern.match(key))})

    def load_into(self, module: nn.Module, table: Table) -> None:
        """Fills a module with the weights under our names and switches it to evaluation.

        Raises:
            ValueError: names the first weight that is unknown, missing, of another shape, or unlike
                its second copy.
        """
        own = module.state_dict()
        loaded = {name: value for name, value in own.items() if name.endswith(_COUNTER)}
        for key, tensor in self.state.items():
            try:
                name = rename(key, table)
            except KeyError as error:
                raise ValueError(
                    f"{self.path} holds {key}, which this release does not have; check --from"
                ) from error
            if name is None or name.endswith(_COUNTER):
                continue
            if name in loaded and not loaded[name].equal(tensor):
                raise ValueError(f"{self.path}: {key} and another copy of {name} differ")
            loaded[name] = tensor
        try:
            load_strict(module, loaded, str(self.path))
        except ValueError as error:
            raise ValueError(
                f"{error}; check --from, and that config.json is that of its BERT or ViT"
            ) from error
        module.eval().requires_grad_(False)


def read_checkpoint(path: Path) -> Checkpoint:
    """Reads a checkpoint with `torch.load(weights_only=True)`.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: it is not whole, needs a class other than `argparse.Namespace`, holds no
            weights, or an option of another type.
    """
    if not path.is_file():
        raise FileNotFoundError(no_such("checkpoint", path, "name the released file, or use --hub"))
    content = _load(path)
    options: Any = {}
    stored, model = {}, content
    if isinstance(content, Mapping) and "model" in content:
        model, options = content["model"], content.get("opt", content.get("args", {}))
        stored = _plain(content)
    options = _plain(vars(options) if isinstance(options, argparse.Namespace) else options)
    parts = {"": model}
    if isinstance(model, list | tuple):
        parts = {f"model[{side}].": part for side, part in enumerate(model)}
    state: dict[str, Tensor] = {}
    for prefix, part in parts.items():
        tensors = isinstance(part, Mapping) and all(isinstance(v, Tensor) for v in part.values())
        if not part or not tensors:
            raise ValueError(
                f"{path} holds no weights, dictionaries of tensors; name a released checkpoint"
            )
        several = "module." if all(key.startswith("module.") for key in part) else ""
        state |= {prefix + key.removeprefix(several): value for key, value in part.items()}
    for key, value in state.items():
        if not bool(torch.isfinite(value).all()):
            raise ValueError(f"{path}: {key} holds NaN or infinity; download the file again")
    about = {"sha256": sha256_of(path), "options": options, "stored": stored}
    return Checkpoint(path, state, check(Options, options, f"{path}: options"), about)


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Those values that are numbers, texts, or lists of them."""

    def is_plain(value: Any) -> bool:
        items = value if isinstance(value, list) else [value]
        return all(isinstance(item, str | int | float | None) for item in items)

    return {key: value for key, value in values.items() if is_plain(value)}


def _load(path: Path) -> Any:
    try:
        with torch.serialization.safe_globals([argparse.Namespace]):
            return torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:
        # torch raises whatever its readers and its unpickler meet, of no common class
        if refused := re.search(r"GLOBAL ([\w.]+)", str(error)):
            raise ValueError(
                f"{path} needs the Python object {refused[1]} to load, and loading others than "
                "tensors, plain values and argparse.Namespace can run code; save its weights again "
                "as plain tensors where you trust it"
            ) from error
        reason = (str(error) or type(error).__name__).strip().splitlines()[0]
        raise ValueError(
            f"{path} is not a whole PyTorch checkpoint ({reason}); download it again"
        ) from error


def word_tokenizer(
    path: Path | None, checkpoint: Checkpoint, rows: int, *, mask: bool = False
) -> Tokenizer:
    """A tokenizer over a word list as SCAN published it, JSON with `word2idx`.

    Texts become lower-case words between <start> and <end>; nltk's word_tokenize, which the
    releases call, is followed closely but not to the last mark.

    Args:
        path: the word list; checkpoints do not store it.
        checkpoint: for messages.
        rows: how many rows the word embeddings have.
        mask: whether the release appends the word <mask> to the list.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: none was given, it is a pickle, or it is not the list of this checkpoint.
    """
    if path is None:
        raise ValueError(
            f"{checkpoint.path} does not store its words; name their list, a JSON file with "
            "word2idx, with --vocab"
        )
    if path.is_file() and path.read_bytes()[:1] == b"\x80":
        raise ValueError(
            f"{path} is a pickle, which can run code; where you trust it, load it with pickle in "
            'the folder of PVSE\'s code and write {"word2idx": vocabulary.word2idx} with json.dump'
        )
    words = check(_WordList, read_json(path), str(path)).word2idx
    if mask and len(words) == rows - 1:
        words = {**words, _MASK: rows - 1}
    if sorted(words.values()) != list(range(rows)):
        raise ValueError(
            f"{path} lists {len(words)} words but {checkpoint.path} has embeddings of {rows}, "
            "numbered from 0 without gaps; name the list that it was trained with"
        )
    if words.get(_PAD) != 0 or not {_START, _END, _UNKNOWN} <= words.keys():
        raise ValueError(f"{path} must list {_PAD} as word 0, and {_START}, {_END} and {_UNKNOWN}")
    tokenizer = Tokenizer(models.WordLevel(words, unk_token=_UNKNOWN))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(WORDS), "removed", invert=True)
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{_START} $A {_END}", special_tokens=[(m, words[m]) for m in (_START, _END)]
    )
    return tokenizer


def bert_folder(backbone: str | None) -> Path:
    """The folder with BERT's word pieces and configuration.

    Args:
        backbone: a folder or a Hub repository; None for the one that the releases name.

    Raises:
        FileNotFoundError: it is neither.
        HubError: it could not be fetched.
    """
    name = backbone or BERT_ID
    folder = Path(name).expanduser()
    if folder.is_dir():
        return folder
    if not is_hub_id(name) or folder.parent.is_dir():
        advice = f"--text-backbone takes a folder, or a Hub repository such as {BERT_ID}"
        raise FileNotFoundError(no_such("folder", folder, advice))
    return fetch_chosen(name, lambda names: [file for file in names if file in BERT_FILES])


def bert_tokenizer(folder: Path, checkpoint: Checkpoint, rows: int) -> Tokenizer:
    """BERT's lower-casing word pieces between [CLS] and [SEP]; see `word_tokenizer`.

    Raises:
        ValueError: the folder holds none, or not the vocabulary of this checkpoint.
    """
    try:
        with quiet():
            bert = import_transformers().BertTokenizerFast
            tokenizer: Tokenizer = bert.from_pretrained(
                folder, local_files_only=True
            ).backend_tokenizer
    except Exception as error:
        # tokenizers raises the bare Exception for whatever it cannot read
        raise ValueError(f"the word pieces in {folder} are not readable: {error}") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    if tokenizer.get_vocab_size() != rows:
        raise ValueError(
            f"{folder} lists {tokenizer.get_vocab_size()} word pieces, but {checkpoint.path} has "
            f"embeddings of {rows}; name those it was trained with"
        )
    return tokenizer
