"""The answer models of all endpoints.

Ids of images and views count from 0. Maps are nested lists of numbers, row by row.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field

from polyview.app.explain.views import Rows
from polyview.app.gallery.images import RefusedFile
from polyview.app.gallery.indexing import Copy
from polyview.app.packs.description import Mismatch
from polyview.app.search.hits import Hit, QueryTerm, Timed
from polyview.export.check import Verdict

Fields = dict[str, Any]  # a JSON object


class Refused(BaseModel):
    """The answer to a refused request: an error message."""

    error: str


class Blob(BaseModel):
    """A file, as a path or as bytes. HTTP sends it as the body, Gradio as a data URI."""

    media_type: str
    data: bytes = b""
    file: Path | None = None


class Hits(BaseModel):
    """A part of a list of images; `total` is the length of the whole list."""

    total: int
    hits: list[Hit]


class _SharedFields(Timed):
    """The fields that explanations of one image and of several images share."""

    query: str
    method: str
    grid: list[int]
    words: list[str]
    terms: list[QueryTerm]
    cells: Rows
    whole_sentence: Rows
    remark: str


class Explanation(_SharedFields):
    """The score of an image, split over the N cells of `grid` and M words.

    The score is the sum of `base`, all `cells` (N, M) and all values of `whole_sentence` (N).
    """

    read_as: str
    image_id: int
    file: str
    seconds: list[float] = Field(default=[])  # times of frames, for a clip that is read as a set
    score: float
    base: float
    per_view: list[Fields] = Field(default=[])


class HitExplanations(_SharedFields):
    """The scores of n images, split as in `Explanation`; each summand has a leading axis of n.

    `boxes` (n, 4) has the left, top, right and bottom edges of the area that the cells cover, as
    shares of the image's width and height. For clips that are read as sets, the cells cover a sheet
    of frames: `sheet` has its rows and columns, `frames` the image ids and `seconds` the times of
    the frames. `remark` states why there is no map.
    """

    images: list[int]
    scores: Rows
    base: Rows
    boxes: Rows
    sheet: list[int] | None
    seconds: Rows
    frames: Rows


class Mistakes(BaseModel):
    """Captions, grouped by which of the methods a and b rank a correct image in the top k.

    Request again while `state` is "running". `export/mistakes.py` describes the other fields and
    the items of `captions` (`Outcome`). A row of `pairs` has a rank by a, a rank by b, and the
    number of captions with both. `labels` counts label errors; if not `exact`, suspected ones.
    """

    state: str
    progress: str
    a: str
    b: str
    k: int
    exact: bool = False
    counts: dict[str, int] = {}
    difference: float = 0.0
    low: float = 0.0
    high: float = 0.0
    p: float = 1.0
    kinds: list[Fields] = []
    words_a: list[Fields] = []
    words_b: list[Fields] = []
    pairs: list[list[int]] = []
    labels: int = 0
    total: int = 0
    captions: list[Fields] = []


class Queries(BaseModel):
    """The key of an uploaded query file; the server keeps only the most recent files."""

    queries: str


class Results(BaseModel):
    """The recorded results of a pack."""

    pack: str
    checksum: str
    columns: list[Fields]
    methods: dict[str, Fields]
    speed: Fields | None
    curves: list[Fields]
    ablations: list[Fields]
    problems: list[str]


class Info(BaseModel):
    """The pack, its methods, the device and the gallery."""

    pack: Fields
    device: str
    providers: list[str]
    image_encoder: Fields
    methods: dict[str, Fields]
    gallery: Fields
    facts: Fields


class Health(BaseModel):
    """The number of images in the first collection, and how many of them are searchable."""

    searchable: int
    pictures: int
    complete: bool


class Collections(BaseModel):
    """The available collections, each with key, kind ("pack" or "folder"), title and pictures."""

    collections: list[Fields]


class Progress(BaseModel):
    """A collection, and the progress of reading it with a pack.

    `stage` is "pictures", "views", "captions", "clusters", "stopped", "ready", "failed", "opening"
    (a folder or archive) or "uploading". The last two set only `pictures`, the uploaded files.
    """

    collection: str
    pack: str
    stage: str
    title: str = ""
    pictures: int = 0
    searchable: int = 0
    progress: str = ""
    done: int = 0
    total: int = 0
    complete: bool = False
    refused_count: int = 0
    refused: list[RefusedFile] = []
    copies_count: int = 0
    copies: list[Copy] = []
    mismatch: Mismatch | None = None


class Packs(BaseModel):
    """Packs on this machine, packs to download by name, and the accepted addresses.

    A pack has key, title, description, licence, bytes, methods, own_images (whether it contains
    images) and open (whether it is in memory); an offer has name, title, about, facts and
    installed. `private` is true if folders of this machine may be opened.
    """

    packs: list[Fields]
    offers: list[Fields]
    accepts: str
    private: bool


class Check(BaseModel):
    """A check of whether a pack preprocesses as its model expects; wrong steps come first."""

    method: str
    pairs: int  # number of pairs of an image and a caption
    steps: list[Verdict]


class Look(BaseModel):
    """The files that a download would fetch; `pack` is the key of a pack that needs no download."""

    pack: str
    missing_bytes: int
    unknown_sizes: int
    parts: list[Fields]
