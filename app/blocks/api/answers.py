"""What the plain HTTP API answers, for its description: the types of the endpoints' JSON."""

from typing import Any, NotRequired

from typing_extensions import TypedDict  # pydantic asks for it below Python 3.12


class Refused(TypedDict):
    """Why there is no answer."""

    error: str


class Hit(TypedDict):
    """A found picture; `view` counts from 0, and is null where no single view won.

    Of a clip it is the best frame, or the one that adds most to the score of the whole: `seconds`
    says when it is shown, `frame` which it is, from 0.
    """

    image_id: int
    file: str
    score: float
    view: int | None
    rank: int
    seconds: float | None
    frame: int | None
    captions: NotRequired[list[str]]
    objects: NotRequired[list[Any]]
    satisfies: NotRequired[bool]
    probability: NotRequired[float | None]


class Caption(TypedDict):
    """A found caption, and the picture that it was written for."""

    text: str
    image_id: int
    score: float
    view: int | None
    rank: int


class Term(TypedDict):
    """A part of a query."""

    words: str
    weight: float


class Unknown(TypedDict):
    """A word that the pack lacks: the known one it is read as, else those spelled alike."""

    word: str
    nearest: list[str]
    read_as: str | None


class _Found(TypedDict):
    read_as: str
    method: str
    k: int
    filters: dict[str, list[str]]
    searched: int
    ms: float


class Search(_Found):
    """What words found, best first."""

    query: str
    terms: list[Term]
    exact: bool
    matches: bool | None
    unknown: list[Unknown]
    hits: list[Hit]
    remark: str


class ImageSearch(_Found):
    """What a picture found, best first."""

    unfamiliar: bool | None
    captions: list[Caption]
    images: list[Hit]


class Explained(TypedDict):
    """A score: base, all of `cells` and all of `whole_sentence` added up."""

    query: str
    read_as: str
    image_id: int
    file: str
    method: str
    words: list[str]
    terms: list[dict[str, Any]]
    grid: list[int]
    seconds: NotRequired[list[float]]
    score: float
    base: float
    cells: list[list[float]]
    whole_sentence: list[float]
    per_view: NotRequired[list[dict[str, Any]]]
    remark: str
    ms: float


class Comparison(TypedDict):
    """The answers of several methods side by side."""

    query: str
    k: int
    pictures: int
    truth: dict[str, Any] | None
    columns: list[dict[str, Any]]
    overlap: list[list[float]]
    tau: list[list[float | None]]
    only_found: dict[str, list[dict[str, int]]]
    remark: str


class Info(TypedDict):
    """What is searched, by what, on what."""

    pack: dict[str, Any]
    device: str
    providers: list[str]
    image_encoder: dict[str, Any]
    methods: dict[str, dict[str, Any]]
    gallery: dict[str, Any]
    facts: dict[str, Any]


class Health(TypedDict):
    """How much of the gallery can be searched."""

    searchable: int
    pictures: int
    complete: bool
