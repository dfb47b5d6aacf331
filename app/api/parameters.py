"""The parameters of all endpoints: types, ranges and descriptions, for every interface."""

from __future__ import annotations

import base64
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field

from polyview.app.search.retriever import MAX_HITS

MAX_QUERY = 10_000  # characters of a query
MAX_WEIGHT = 100.0  # magnitude of a term's weight
IMAGE_BYTES = 50_000_000  # maximum size of an uploaded image
TABLE_BYTES = 1_000_000  # maximum size of an uploaded CSV file


def _split(value: Any) -> Any:
    """Splits a text, or each text of a list, at commas; returns other values unchanged."""
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, list):
        return value
    items = [x for text in texts for x in (text.split(",") if isinstance(text, str) else [text])]
    return [x.strip() if isinstance(x, str) else x for x in items if x != ""]


def _decode_content(value: Any) -> Any:
    """Decodes a data URI; returns the body of a request, which is bytes, unchanged."""
    if not isinstance(value, str):
        return value
    head, comma, encoded = value.partition(",")
    if not (comma and head.startswith("data:") and head.endswith(";base64")):
        raise ValueError("it must be a data URI, such as data:image/png;base64,...")
    try:
        return base64.b64decode(encoded, validate=True)
    except ValueError as error:
        raise ValueError("the content of the data URI is not valid base64") from error


def _length(high: int, description: str, low: int | None = None, alias: str | None = None) -> Any:
    """Returns the field of a text, list or file with a length from `low` to `high`."""
    return Field(alias=alias, description=description, min_length=low, max_length=high)


def _range(low: float, high: float, description: str = "") -> Any:
    """Returns the field of a number from `low` to `high`."""
    return Field(description=description, ge=low, le=high)


LIST, CONTENT = BeforeValidator(_split), BeforeValidator(_decode_content)
TEXTS = BeforeValidator(lambda value: [value] if isinstance(value, str) else value)
NONE: list[Any] = []  # the default of lists; must not be mutated

_WORDS = "a sentence, or terms whose weighted scores are added, such as 2: dog + beach - people"
_METHOD = "a method of the pack, or an average of several, a+b; if empty, the best method"
_METHODS = "2 to 8 methods; a+b averages two, and pack/a is a method of another open pack"
_FACTS = "fact:value, such as setting:beach; several values of a fact are alternatives"
_CONTENT = "an image: a data URI (data:image/png;base64,...) or, over HTTP, the body"
_QUERY_IMAGE = "a query image: a data URI or, over HTTP, the body of a POST"
_EITHER = "an image of the collection, by its id or its file"
_WEIGHT = "weight of the query image in a query with words"
_DEPTH = "a method finds a caption if it ranks a correct image in its top k"
_CELL = "captions found by only a, only b, both or neither; all captions; or doubtful labels"
_ORDER = "sort by the ratio of both ranks (gap), the rank by a or by b, or the index (caption)"
_WITHIN = "lowest and highest rank by a, then by b; if empty, all"
_TABLE = "a CSV file (columns query, image, kind): a data URI or, over HTTP, the body"

_Item = Annotated[str, Field(max_length=500)]
_File = Annotated[str, Field(max_length=4096)]
_Id = Annotated[int, _range(0, 10**9)]
_Orders = Literal["gap", "a", "b", "caption"]
_Cells = Literal["a", "b", "both", "neither", "all", "labels"]
Words = Annotated[str, _length(MAX_QUERY, _WORDS, alias="q")]  # "q" over HTTP
Method = Annotated[str, _length(500, _METHOD)]
Methods = Annotated[list[_Item], LIST, _length(8, _METHODS, 2)]
Count = Annotated[int, _range(1, MAX_HITS, "number of images, 1 to 1,000")]
CompareCount = Annotated[int, _range(1, 100, "number of images for each method, 1 to 100")]
Facts = Annotated[list[_Item], TEXTS, _length(100, _FACTS, alias="filter")]
ImageId = Annotated[int, _range(0, 10**9, "an image of the collection, by its id")]
Like = Annotated[_Id | None, Field(description="a query image of the collection, by its id")]
ImageIds = Annotated[list[_Id], LIST, _length(10, "at most 10 example images, by their ids")]
ManyIds = Annotated[list[_Id], LIST, _length(100, "1 to 100 images, by their ids", 1)]
ImageOrFile = Annotated[int | _File, Field(union_mode="left_to_right", description=_EITHER)]
Weight = Annotated[float, _range(-MAX_WEIGHT, MAX_WEIGHT, _WEIGHT)]
_Share = Annotated[float, _range(0, 1)]
Weights = Annotated[list[_Share], LIST, _length(1000, "weight of each view, 0 to 1, not all 0", 1)]
_Setting = Annotated[str, Field(max_length=100)]
Settings = Annotated[list[_Setting], LIST, _length(20, "settings of the method, name:value")]
Content = Annotated[bytes, _length(IMAGE_BYTES, _CONTENT, 1), CONTENT]
MaybeContent = Annotated[bytes | None, _length(IMAGE_BYTES, _QUERY_IMAGE), CONTENT]
Layout = Annotated[bool, Field(description="also return thumbnail sizes and near-duplicates")]
PerView = Annotated[bool, Field(description="also split the score of each view; one method only")]
Large = Annotated[bool, Field(description="up to 2,048 pixels a side instead of 320")]
Word = Annotated[str, _length(200, "one word of the query; if empty, all words")]
Job = Annotated[str, _length(200, "a job key from packs/fetch")]
Place = Annotated[str, _length(4096, "a folder of images on this machine, or a ZIP archive")]
FileName = Annotated[str, _length(1000, "the name of the file")]
Address = Annotated[str, _length(500, "owner/name[@revision], a folder, or the name of an offer")]
Kind = Annotated[Literal["pack", "clip"], Field(description="clip for a CLIP model to convert")]
Start = Annotated[int, _range(0, 10**9, "index of the first item, from 0")]
Depth = Annotated[int, _range(1, MAX_HITS, _DEPTH)]
Cell = Annotated[_Cells, Field(description=_CELL)]
CaptionKind = Annotated[str, _length(100, "a kind of caption, or word:dog for captions with dog")]
Order = Annotated[_Orders, Field(description=_ORDER)]
_Rank = Annotated[int, _range(1, 2**31)]
Within = Annotated[list[_Rank], LIST, _length(4, _WITHIN)]
Rows = Annotated[int, _range(1, 5000, "number of captions, 1 to 5,000")]
Queries = Annotated[str, _length(100, "a key from mistakes/queries; if empty, all captions")]
Table = Annotated[bytes, _length(TABLE_BYTES, _TABLE, 1), CONTENT]
Format = Annotated[Literal["json", "csv"], Field(description="csv lists all captions of the cell")]
Upload = Annotated[str, _length(200, "the secret key of an upload")]
Pack = Annotated[str, _length(200, "a key from packs; if empty, the app's first pack")]
Collection = Annotated[str, _length(200, "a key from collections; if empty, the first collection")]
