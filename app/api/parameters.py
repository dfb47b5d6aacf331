"""The parameters of the questions: their types, ranges and descriptions, for every way to ask."""

from __future__ import annotations

import base64
import binascii
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from polyview.app.search.query import MAX_QUERY, MAX_WEIGHT
from polyview.app.search.retriever import MAX_HITS

IMAGE_BYTES = 50_000_000  # of one image that is sent


def _split(value: Any) -> Any:
    """A list where a text has commas, or where each item of a list has."""
    parts = [value] if isinstance(value, str) else value
    if not isinstance(parts, list):
        return value
    split = [piece for part in parts for piece in (part.split(",") if _text(part) else [part])]
    return [piece.strip() if _text(piece) else piece for piece in split if piece != ""]


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _content(value: Any) -> Any:
    """The bytes of a data URI; a body is bytes already."""
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
        raise ValueError("what follows base64, in the data URI is no base64") from error


def _number(value: Any) -> Any:
    """A whole number where a text is one, as in a query string."""
    return int(value) if isinstance(value, str) and value.isdecimal() and len(value) < 10 else value


def _whole(value: Any) -> Any:
    """Refuses true and false, which pydantic takes for 1 and 0."""
    if isinstance(value, bool) or (isinstance(value, list) and bool in map(type, value)):
        raise ValueError("it must be a number, not true or false")
    return value


ID = {"ge": 0, "le": 10**9}
NUMBER = BeforeValidator(_whole)
NONE: list[Any] = []  # the default of lists; nobody changes it

Words = Annotated[
    str,
    Field(
        max_length=MAX_QUERY,
        description="a sentence, or terms whose weighted scores are added: 2: dog + beach - people",
    ),
]
Method = Annotated[
    str,
    Field(
        max_length=500,
        description="a method of the pack, or an average of several, a+b; empty: the best",
    ),
]
Methods = Annotated[
    list[Annotated[str, Field(max_length=500)]],
    BeforeValidator(_split),
    Field(
        min_length=2,
        max_length=8,
        description="2 to 8; a+b averages two, pack/a is a method of another open pack",
    ),
]
Count = Annotated[int, NUMBER, Field(ge=1, le=MAX_HITS, description="how many images, 1 to 1,000")]
CompareCount = Annotated[
    int, NUMBER, Field(ge=1, le=100, description="how many images each method lists, 1 to 100")
]
Facts = Annotated[
    list[Annotated[str, Field(max_length=500)]],
    Field(
        max_length=100,
        description="fact:value, such as setting:beach; of one fact any of its values is enough",
    ),
]
ImageId = Annotated[int, NUMBER, Field(**ID, description="an image of the collection, by its id")]
Like = Annotated[
    Annotated[int, NUMBER, Field(**ID)] | None,
    Field(description="an image of the collection that is asked with, by its id"),
]
ImageIds = Annotated[
    list[Annotated[int, NUMBER, Field(**ID)]],
    BeforeValidator(_split),
    Field(max_length=10, description="images of the collection as examples, at most 10"),
]
ManyIds = Annotated[
    list[Annotated[int, NUMBER, Field(**ID)]],
    BeforeValidator(_split),
    Field(
        min_length=1, max_length=100, description="1 to 100 images of the collection, by their ids"
    ),
]
ImageOrFile = Annotated[
    int | Annotated[str, Field(max_length=4096)],
    BeforeValidator(_number),
    NUMBER,
    Field(description="an image of the collection, by its id or its file"),
]
Weight = Annotated[
    float,
    NUMBER,
    Field(
        ge=-MAX_WEIGHT,
        le=MAX_WEIGHT,
        description="what the scores of the image asked with are multiplied by beside words",
    ),
]
Weights = Annotated[
    list[Annotated[float, NUMBER, Field(ge=0, le=1)]],
    BeforeValidator(_split),
    Field(
        min_length=1,
        max_length=1000,
        description="for each view of an image a number from 0 (off) to 1, not all 0",
    ),
]
Settings = Annotated[
    list[Annotated[str, Field(max_length=100)]],
    BeforeValidator(_split),
    Field(max_length=20, description="name:value, of the knobs of a method"),
]
Content = Annotated[
    bytes,
    BeforeValidator(_content),
    Field(
        min_length=1,
        max_length=IMAGE_BYTES,
        description="an image as a data URI (data:image/png;base64,...); over HTTP the body",
    ),
]
MaybeContent = Annotated[
    Annotated[bytes, Field(max_length=IMAGE_BYTES)] | None,
    BeforeValidator(_content),
    Field(description="an image that is asked with, as a data URI; over HTTP the body of a POST"),
]
Layout = Annotated[bool, Field(description="also sizes, and which hits look nearly the same")]
PerView = Annotated[bool, Field(description="also split the score of each view; of one method")]
Large = Annotated[bool, Field(description="up to 2,048 pixels instead of 320")]
Word = Annotated[str, Field(max_length=200, description="one word of the query; empty: all")]
Job = Annotated[str, Field(max_length=200, description="as fetch answered it")]
Place = Annotated[
    str, Field(max_length=4096, description="a folder of images of this machine, or a ZIP archive")
]
FileName = Annotated[str, Field(max_length=1000, description="what the file is called")]
Address = Annotated[
    str,
    Field(max_length=500, description="owner/name[@revision], a folder, or the name of an offer"),
]
Kind = Annotated[Literal["pack", "clip", "vse_infty"], Field(description="what the address holds")]
Start = Annotated[int, NUMBER, Field(ge=0, le=10**9, description="the first, from 0")]
Depth = Annotated[int, NUMBER, Field(ge=1, le=MAX_HITS, description="found is what ranks within k")]
Cell = Annotated[
    Literal["a", "b", "both", "neither", "all", "labels"],
    Field(description="who finds the captions; labels: suspected label errors"),
]
CaptionKind = Annotated[
    str, Field(max_length=100, description="a kind of caption, or word:dog for those with a word")
]
Order = Annotated[
    Literal["gap", "a", "b", "caption"],
    Field(description="by gap, by a's or b's rank, or as they are"),
]
Within = Annotated[
    list[Annotated[int, NUMBER, Field(ge=1, le=2**31)]],
    BeforeValidator(_split),
    Field(max_length=4, description="lowest and highest rank by a, then by b; empty: all"),
]
Rows = Annotated[int, NUMBER, Field(ge=1, le=5000, description="how many captions, 1 to 5,000")]
Queries = Annotated[str, Field(max_length=100, description="as queries answered; empty: captions")]
Table = Annotated[
    bytes,
    BeforeValidator(_content),
    Field(
        min_length=1,
        max_length=1_000_000,
        description="CSV: query, image and kind; a data URI, over HTTP the body",
    ),
]
Format = Annotated[Literal["json", "csv"], Field(description="csv: a table of all of the cell")]
Upload = Annotated[str, Field(max_length=200, description="the secret key of an upload")]
Pack = Annotated[
    str,
    Field(max_length=200, description="a key of packs; empty: the one the app was started with"),
]
Collection = Annotated[
    str,
    Field(max_length=200, description="a key of collections; empty: what the app was started with"),
]


def pairs(texts: list[str], name: str, example: str) -> dict[str, list[str]]:
    """Texts `key:value` as the values of each key.

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
