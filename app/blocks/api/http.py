"""The plain HTTP API below /api/v1: the endpoints' answers by one code path, with a status.

A refusal is {"error": sentence}. Few questions run a model at a time, and so few wait for it that
each is answered soon; who comes then is asked to come again. `app/blocks/server/door.py` bounds
sizes and rates, and says who may ask at all.
"""

import base64
import inspect
import os
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any

import orjson
from anyio import CapacityLimiter
from anyio.to_thread import run_sync
from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from jinja2 import Environment, PackageLoader
from starlette.exceptions import HTTPException
from starlette.responses import FileResponse, HTMLResponse, JSONResponse, Response

from app.blocks.api import answers, evidence, packs, search
from app.blocks.api.clip_files import send_clip
from app.blocks.server import uploads
from app.blocks.server.door import HTTP_API
from app.packs.open_packs import OpenPacks
from app.search.hits import NotReadyError
from export.sessions import MANY

WAITING = 64  # questions, those that are being answered included
_AT_ONCE = max(2, os.cpu_count() or 1)  # questions that run a model at the same time
_LONGEST = 2000  # characters of a sentence, which may repeat what was sent

_Words = Annotated[str, Query(description="A sentence; or terms: 2: dog + beach - people")]
_Method = Annotated[
    str | None, Query(description="A method of the pack, or several joined by +; else the best")
]
_Methods = Annotated[str, Query(description="2 to 8, with commas: mv_vse,avse,mvam+pvse")]
_Count = Annotated[int, Query(description="How many pictures, 1 to 1,000")]
_Image = Annotated[str, Query(description="A picture of the gallery: its id, or its file")]
_Pack = Annotated[str, Query(description="Which open pack's gallery, as the page names it")]
_Facts = Annotated[
    list[str] | None, Query(description="fact:value, as setting:beach; may be repeated")
]


class BusyError(Exception):
    """Too many questions wait already."""


def http_api(opened: OpenPacks) -> FastAPI:
    """The API as an application of its own.

    Args:
        opened: the open packs; the first is asked.
    """
    retriever, routes = opened.first, _Routes(opened)
    api = FastAPI(
        title="Polyview",
        description=f"Searches the pictures of {retriever.collection.title} with the pack "
        f"{retriever.info.title}, by {', '.join(retriever.methods)}.",
        version="1",
        openapi_url=f"{HTTP_API}/openapi.json",
        docs_url=None,  # FastAPI's own pages fetch scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,
        exception_handlers=_REFUSALS,
    )
    body: dict[str, Any] = {"requestBody": {"content": {"image/*": {}, "application/json": {}}}}
    for path, function, model, options in (
        ("/search", routes.search_words, answers.Search, {}),
        (
            "/search",
            routes.search_image,
            answers.ImageSearch,
            {"methods": ["POST"], "openapi_extra": body},
        ),
        ("/explain", routes.explain, answers.Explained, {}),
        ("/explain.png", routes.explain_image, None, {"response_class": _Png}),
        ("/compare", routes.compare, answers.Comparison, {}),
        ("/info", routes.info, answers.Info, {}),
        ("/image/{image_id}", routes.image, None, {"response_class": _WebP}),
        ("/clip/{image_id}", routes.clip, None, {"response_class": _Clip}),
        ("/health", routes.health, answers.Health, {}),
    ):
        responses = _says(model)
        at = f"{HTTP_API}{path}"
        api.add_api_route(at, function, response_model=None, responses=responses, **options)
    page = _PAGE.render(schema=api.openapi())
    for path in (HTTP_API, f"{HTTP_API}/"):
        api.add_route(path, lambda _: HTMLResponse(page), include_in_schema=False)
    return api


class _Routes:
    """What each address answers."""

    def __init__(self, opened: OpenPacks) -> None:
        self._opened, self._retriever = opened, opened.first
        self._turns = _Turns()
        functions = (*search.endpoints(opened), *evidence.endpoints(opened))
        # as they are within: here a refusal is no answer but has a status
        self._known = {one.__name__: inspect.unwrap(one) for one in functions}
        self._info = packs.endpoints(opened)[0]

    async def search_words(
        self, q: _Words, method: _Method = None, k: _Count = 10, filter: _Facts = None
    ) -> Response:
        """Finds the pictures that fit words best."""
        asked = "search_text", q, self._method(method), k, _facts(filter)
        return await self._ask(*asked, quick=len(self._retriever.index) < MANY)

    async def search_image(
        self,
        request: Request,
        q: _Words = "",
        method: _Method = None,
        k: _Count = 10,
        weight: float = 1.0,
        filter: _Facts = None,
    ) -> Response:
        """Finds the pictures, and captions, that fit a picture best, or a picture and words.

        The body is the picture itself, with its type (Content-Type: image/jpeg), or JSON:
        {"image": a data URI}.
        """
        image: Any = None
        if request.headers.get("content-type", "").startswith("image/"):
            path = await uploads.receive(request.stream())
            image = {"path": str(path), "orig_name": "the body"}
        elif await request.body():
            body = await request.json()
            image = body.get("image") if isinstance(body, dict) else None
        asked = image, self._method(method), k, q, weight, _facts(filter)
        return await self._ask("search_image", *asked)

    async def explain(
        self, q: _Words, image: _Image, method: _Method = None, per_view: bool = False
    ) -> Response:
        """Splits a score over the picture's cells and the words."""
        return await self._ask("explain", q, _image(image), self._method(method), per_view)

    async def explain_image(
        self, q: _Words, image: _Image, method: _Method = None, word: str | None = None
    ) -> Response:
        """Lights the picture where its score for the words, or for one of them, comes from."""
        asked = q, _image(image), self._method(method), word
        answer = await self._turns.answer(self._known["explain_image"], *asked)
        return _Png(base64.b64decode(answer["png"].partition(",")[2]))

    async def compare(self, q: _Words, methods: _Methods, k: _Count = 10) -> Response:
        """Ranks the pictures by several methods, and says how far they agree."""
        return await self._ask("compare", q, methods.split(","), k)

    async def info(self) -> Response:
        """Says what is searched: pack, methods, gallery, device, facts to filter by."""
        return JSONResponse(await self._turns.answer(self._info))

    async def image(self, image_id: int) -> Response:
        """Shows a small copy of a picture."""
        try:
            place = await self._turns.answer(self._retriever.thumbnail, image_id)
        except ValueError as error:
            raise HTTPException(404, str(error)) from error
        return FileResponse(place, media_type=_WebP.media_type)

    async def clip(self, request: Request, image_id: int, pack: _Pack = "") -> Response:
        """Sends a clip's file, or the part that the header Range asks for."""
        if not self._opened.sends_files(pack):
            raise HTTPException(403, "clips of this gallery are sent to its owner's machine alone")
        asked = self._opened.get(pack), image_id, request.headers.get("range")
        try:
            return await self._turns.answer(send_clip, *asked)
        except ValueError as error:
            raise HTTPException(404, str(error)) from error

    async def health(self) -> Response:
        """Says that the app answers, and how many pictures can be searched by now."""
        index, pictures = self._retriever.index, len(self._retriever.collection.images)
        return JSONResponse(
            {"searchable": len(index), "pictures": pictures, "complete": index.complete}
        )

    def _method(self, given: str | None) -> str:
        return given or self._retriever.methods.best

    async def _ask(self, name: str, *values: Any, quick: bool = False) -> Response:
        return _Json(await self._turns.answer(self._known[name], *values, quick=quick))


class _Turns:
    """Answers questions in threads, a few at a time, the others in the order they came.

    Quick ones go one by one: most of their work is Python's, for whose lock threads would fight.
    """

    def __init__(self) -> None:
        self._limiter, self._single_file = CapacityLimiter(_AT_ONCE), CapacityLimiter(1)
        self._asked = 0

    async def answer(self, function: Callable[..., Any], *values: Any, quick: bool = False) -> Any:
        """What a function answers, once it is its turn."""
        if self._asked >= WAITING:
            raise BusyError
        self._asked += 1
        try:
            limiter = self._single_file if quick else self._limiter
            return await run_sync(partial(function, *values), limiter=limiter)
        finally:
            self._asked -= 1


class _Json(Response):
    media_type = "application/json"

    def render(self, content: Any) -> bytes:
        return orjson.dumps(content)


class _Png(Response):
    media_type = "image/png"


class _Clip(Response):
    media_type = "video/mp4"


class _WebP(Response):
    media_type = "image/webp"


def _says(model: type | None) -> dict[int | str, dict[str, Any]]:
    """What an operation answers, for the description of the API."""
    refused: dict[int | str, dict[str, Any]] = {
        status: {"model": answers.Refused} for status in (400, 404, 429, 503)
    }
    return refused if model is None else {200: {"model": model}, **refused}


def _facts(given: list[str] | None) -> dict[str, list[str]]:
    """Filters as the endpoints read them, of `fact:value` each."""
    wanted: dict[str, list[str]] = {}
    for text in given or []:
        fact, colon, value = text.partition(":")
        if not colon:
            raise ValueError(f'filter must be fact:value, such as setting:beach, not "{text[:80]}"')
        wanted.setdefault(fact, []).append(value)
    return wanted


def _image(given: str) -> int | str:
    """An id, or the name of a file."""
    return int(given) if given.isdecimal() and len(given) < 10 else given


def _refuse(status: int, sentence: str, wait: int = 0) -> JSONResponse:
    headers = {"Retry-After": str(wait)} if wait else None
    return JSONResponse({"error": sentence[:_LONGEST]}, status, headers)


def _of_values(_: Request, error: Any) -> Response:
    """Says which of the values in an address cannot be read."""
    found = error.errors()[0]
    name, given = found["loc"][-1], found.get("input")
    if found["type"] == "missing":
        return _refuse(400, f"{name} is missing; see {HTTP_API}")
    return _refuse(400, f'{name} cannot be "{given!s:.80}": {found["msg"].lower()}')


_REFUSALS: dict[Any, Any] = {
    RequestValidationError: _of_values,
    NotReadyError: lambda _, error: _refuse(503, str(error), 5),
    ValueError: lambda _, error: _refuse(400, str(error)),
    FileNotFoundError: lambda _, error: _refuse(404, search.gone(error)),
    BusyError: lambda _, __: _refuse(503, f"{WAITING} questions wait already; ask again soon", 1),
    HTTPException: lambda _, error: _refuse(error.status_code, f"{error.detail}; see {HTTP_API}"),
}
_TEMPLATES = Environment(loader=PackageLoader("app.blocks.api"), autoescape=True)
_PAGE = _TEMPLATES.get_template("http.html")
