"""The parameters of all questions: types, ranges and descriptions, for every interface."""

from __future__ import annotations

import base64
import binascii
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from polyview.app.search.query import MAX_QUERY, MAX_WEIGHT
from polyview.app.search.retriever import MAX_HITS

IMAGE_BYTES = 50_000_000  # of one uploaded image
TABLE_BYTES = 1_000_000


def _split(value: Any) -> Any:
    """Splits a text, or each item of a list, at commas."""
    parts = [value] if isinstance(value, str) else value
    if not isinstance(parts, list):
        return value
    split = [x for part in parts for x in (part.split(",") if isinstance(part, str) else [part])]
    return [x.strip() if isinstance(x, str) else x for x in split if x != ""]


def _listed(value: Any) -> Any:
    """A text alone, as in a query string, is a list of one."""
    return [value] if isinstance(value, str) else value


def _content(value: Any) -> Any:
    """Decodes a data URI; leaves bytes, the body of a request, unchanged."""
    if not isinstance(value, str):
        return value
    head, comma, encoded = value.partition(",")
    if not (comma and head.startswith("data:") and head.endswith(";base64")):
        raise ValueError("it must be a data URI, data:image/png;base64,...; no other file is read")
    if len(encoded) > IMAGE_BYTES * 4 // 3 + 4:
        raise ValueError(f"the image is too large; send at most {IMAGE_BYTES // 10**6} MB")
    try:
        return base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError) as error:
        raise ValueError("what follows base64, in the data URI is not base64") from error


def _number(value: Any) -> Any:
    """Converts a text that is a whole number, as in a query string."""
    return int(value) if isinstance(value, str) and value.isdecimal() and len(value) < 10 else value


def _whole(value: Any) -> Any:
    """Rejects true and false, which pydantic would accept as 1 and 0."""
    if isinstance(value, bool) or (isinstance(value, list) and bool in map(type, value)):
        raise ValueError("it must be a number, not true or false")
    return value


def _about(description: str, alias: str | None = None, **limits: Any) -> Any:
    return Field(alias=alias, description=description, **limits)


def _text(most: int, description: str, alias: str | None = None) -> Any:
    return _about(description, alias, max_length=most)


def _range(least: float, most: float, description: str = "") -> Any:
    return _about(description, ge=least, le=most)


def _list(least: int, most: int, description: str, alias: str | None = None) -> Any:
    return _about(description, alias, min_length=least, max_length=most)


NUMBER, LIST, TEXTS, CONTENT = map(BeforeValidator, (_whole, _split, _listed, _content))
NUMBER_OR_TEXT = BeforeValidator(_number)
NONE: list[Any] = []  # the default of lists; must not be changed

_WORDS = "a sentence, or terms whose weighted scores are added: 2: dog + beach - people"
_METHOD = "a method of the pack, or an average of several, a+b; empty: the best"
_METHODS = "2 to 8; a+b averages two, pack/a is a method of another open pack"
_FACTS = "fact:value, such as setting:beach; several values of a fact are alternatives"
_CONTENT = "an image as a data URI (data:image/png;base64,...); over HTTP the body"
_QUERY_IMAGE = "a query image as a data URI; over HTTP the body of a POST"
_CELL = "which methods find the captions; labels: suspected label errors"
_TABLE = "CSV: query, image and kind; a data URI, over HTTP the body"

_Item = Annotated[str, Field(max_length=500)]
_Id = Annotated[int, NUMBER, _range(0, 10**9)]
_Image = Annotated[bytes, Field(max_length=IMAGE_BYTES)]
_Cells = Literal["a", "b", "both", "neither", "all", "labels"]
Words = Annotated[str, _text(MAX_QUERY, _WORDS, "q")]  # "q" over HTTP
Method = Annotated[str, _text(500, _METHOD)]
Methods = Annotated[list[_Item], LIST, _list(2, 8, _METHODS)]
Count = Annotated[int, NUMBER, _range(1, MAX_HITS, "how many images, 1 to 1,000")]
CompareCount = Annotated[int, NUMBER, _range(1, 100, "how many images each method lists, 1 to 100")]
Facts = Annotated[list[_Item], TEXTS, _list(0, 100, _FACTS, "filter")]
ImageId = Annotated[int, NUMBER, _range(0, 10**9, "an image of the collection, by its id")]
Like = Annotated[_Id | None, _about("a query image of the collection, by its id")]
ImageIds = Annotated[list[_Id], LIST, _list(0, 10, "at most 10 example images, by their ids")]
ManyIds = Annotated[list[_Id], LIST, _list(1, 100, "1 to 100 images, by their ids")]
ImageOrFile = Annotated[
    int | Annotated[str, Field(max_length=4096)],
    NUMBER_OR_TEXT,
    NUMBER,
    _about("an image of the collection, by its id or its file"),
]
Weight = Annotated[
    float, NUMBER, _range(-MAX_WEIGHT, MAX_WEIGHT, "weight of a query image beside words")
]
_Share = Annotated[float, NUMBER, _range(0, 1)]
Weights = Annotated[list[_Share], LIST, _list(1, 1000, "0 (off) to 1 for each view, not all 0")]
_Setting = Annotated[str, Field(max_length=100)]
Settings = Annotated[list[_Setting], LIST, _list(0, 20, "name:value for the knobs of a method")]
Content = Annotated[bytes, CONTENT, _list(1, IMAGE_BYTES, _CONTENT)]
MaybeContent = Annotated[_Image | None, CONTENT, _about(_QUERY_IMAGE)]
Layout = Annotated[bool, _about("also sizes, and which hits look nearly the same")]
PerView = Annotated[bool, _about("also split the score of each view; of one method")]
Large = Annotated[bool, _about("up to 2,048 pixels instead of 320")]
Word = Annotated[str, _text(200, "one word of the query; empty: all")]
Job = Annotated[str, _text(200, "the job key from fetch")]
Place = Annotated[str, _text(4096, "a folder of images on this machine, or a ZIP archive")]
FileName = Annotated[str, _text(1000, "the name of the file")]
Address = Annotated[str, _text(500, "owner/name[@revision], a folder, or the name of an offer")]
Kind = Annotated[Literal["pack", "clip", "vse_infty"], _about("kind of the address")]
Start = Annotated[int, NUMBER, _range(0, 10**9, "the first, from 0")]
Depth = Annotated[int, NUMBER, _range(1, MAX_HITS, "found: ranks within k")]
Cell = Annotated[_Cells, _about(_CELL)]
CaptionKind = Annotated[str, _text(100, "a kind of caption, or word:dog for those with a word")]
Order = Annotated[Literal["gap", "a", "b", "caption"], _about("by gap, a rank, or caption")]
_Rank = Annotated[int, NUMBER, _range(1, 2**31)]
Within = Annotated[list[_Rank], LIST, _list(0, 4, "lowest, highest rank by a, by b; empty: all")]
Rows = Annotated[int, NUMBER, _range(1, 5000, "how many captions, 1 to 5,000")]
Queries = Annotated[str, _text(100, "key from mistakes/queries; empty: captions")]
Table = Annotated[bytes, CONTENT, _list(1, TABLE_BYTES, _TABLE)]
Format = Annotated[Literal["json", "csv"], _about("csv: all captions of the cell")]
Upload = Annotated[str, _text(200, "the secret key of an upload")]
Pack = Annotated[str, _text(200, "a key of packs; empty: the pack of the app's start")]
Collection = Annotated[str, _text(200, "a key of collections; empty: the one of the app's start")]


def pairs(texts: list[str], name: str, example: str) -> dict[str, list[str]]:
    """Groups texts `key:value` by key.

    Raises:
        ValueError: a text has no colon.

    >>> pairs(["setting:beach", "setting:sea"], "filter", "setting:beach")
    {'setting': ['beach', 'sea']}
    """
    values: dict[str, list[str]] = {}
    for text in texts:
        key, colon, value = text.partition(":")
        if not colon:
            raise ValueError(f'{name} must be key:value, such as {example}, not "{text[:80]}"')
        values.setdefault(key, []).append(value)
    return values
