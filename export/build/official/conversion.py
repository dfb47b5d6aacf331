"""What a release gives once it is read: modules with its weights, and what must be said of them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from models import Method
from models.encoders.encoder import ImageEncoder, TextEncoder
from models.preprocess import Preprocess

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)
MAX_LENGTH = 64  # tokens of a text that are read at most; the releases set no limit
REGIONS_NOTE = (
    "It reads region features (bottom-up attention, 36 for a picture), which are not computed here."
)


@dataclass(frozen=True)
class Given:
    """What a person gives beside the checkpoint.

    Attributes:
        vocabulary: the word list of a release that reads words.
        text_backbone: a folder or a Hub repository with BERT's word pieces.
        image_backbone: a folder with the `config.json` of AVSE's ViT.
        legacy_text: PVSE's option of the same name; None takes what the checkpoint says.
        block_dim: AVSE's block size; None for the 256 that the release has in its code.
        centres: AVSE's view centres, see `SampledViT`; None for the default.
    """

    vocabulary: Path | None = None
    text_backbone: str | None = None
    image_backbone: Path | None = None
    legacy_text: bool | None = None
    block_dim: int | None = None
    centres: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Conversion:
    """A release's model.

    Attributes:
        name: key of `models.METHODS`.
        arguments: named arguments for `models.build`.
        method: heads and score with the released weights.
        image_dim: d of the image side.
        image_encoder: None where the model reads features that were computed elsewhere.
        preprocess: how images are prepared.
        text_encoder: with the released weights.
        tokenizer: what makes its ids.
        max_length: after how many tokens a text is cut.
        notes: what the checkpoint does not store, and what was taken instead; sentences.
    """

    name: str
    arguments: dict[str, Any]
    method: Method
    image_dim: int
    image_encoder: ImageEncoder | None
    preprocess: Preprocess
    text_encoder: TextEncoder
    tokenizer: Tokenizer
    max_length: int
    notes: tuple[str, ...]
