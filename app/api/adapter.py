"""Registers each question twice: as a route below /api/v1, and as an endpoint of Gradio.

A question is a function with flat, typed parameters and an answer of `app/api/answers.py`. Both
registrations check the parameters with pydantic's `validate_call` and run the function in a thread,
of which a bounded number work and wait. Gradio itself does not enforce types and ranges.
"""

from __future__ import annotations

import base64
import inspect
import logging
import os
import traceback
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from html import escape
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import gradio as gr
from anyio import CapacityLimiter
from anyio.to_thread import run_sync
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, TypeAdapter, ValidationError, validate_call
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response

from polyview.app.access import Refusal
from polyview.app.api.answers import Blob, Refused
from polyview.app.limits import read_json
from polyview.app.packs.errors import ForbiddenError, FullError, GoneError
from polyview.app.packs.opened import Opened
from polyview.app.search.hits import NotReadyError

PREFIX = "/api/v1"
WAITING = 64  # questions at a time, those that are being answered included
_AT_ONCE = max(2, os.cpu_count() or 1)  # questions that run a model at the same time
_LONGEST = 2000  # characters of a sentence, which may repeat what was sent
_HTTP_NAMES = {"query": "q", "filters": "filter"}  # other names than the parameter's
_log = logging.getLogger(__name__)


class Server(gr.Server):
    """Gradio's server, with the middleware that Gradio adds inside of ours.

    So ours sees every request first, and answers carry no CORS headers.
    """

    def add_middleware(self, middleware_class: Any, *args: Any, **options: Any) -> None:
        """Adds a middleware inside of those that are there."""
        self.user_middleware.append(Middleware(middleware_class, *args, **options))


class BusyError(Exception):
    """Too many questions wait already."""


class Slots:
    """Runs functions in threads: a few at a time, a bounded number of others wait their turn.

    Quick ones run one by one: most of their work is Python's, for whose lock threads would fight.
    """

    def __init__(self, at_once: int = _AT_ONCE, waiting: int = WAITING) -> None:
        self._limiter, self._single = CapacityLimiter(at_once), CapacityLimiter(1)
        self._images = CapacityLimiter(max(1, at_once - 1))
        self._most, self._count = waiting, 0

    async def run(
        self, function: Callable[[], Any], quick: bool = False, decodes: bool = False
    ) -> Any:
        """What a function returns, once it is its turn.

        One that decodes a stranger's image may take seconds: those leave a place for others.

        Raises:
            BusyError: too many wait already.
        """
        if self._count >= self._most:
            raise BusyError
        self._count += 1
        try:
            async with self._images if decodes else nullcontext():
                return await run_sync(function, limiter=self._single if quick else self._limiter)
        finally:
            self._count -= 1


@dataclass(frozen=True)
class Question:
    """A function that answers one question.

    Attributes:
        function: with flat, typed parameters; its docstring describes it.
        path: of the route, below `PREFIX`.
        name: of Gradio's endpoint.
        methods: of HTTP.
        quick: it takes a millisecond or so.
    """

    function: Callable[..., BaseModel]
    path: str
    name: str
    methods: tuple[str, ...] = ("GET",)
    quick: Callable[[], bool] = field(default=lambda: False)

    @property
    def parameters(self) -> dict[str, inspect.Parameter]:
        """The parameters with their whole annotations."""
        hints = get_type_hints(self.function, include_extras=True)
        signature = inspect.signature(self.function).parameters
        return {name: one.replace(annotation=hints[name]) for name, one in signature.items()}

    @property
    def defaults(self) -> list[Any]:
        """The default of each parameter; None where there is none."""
        kinds = self.parameters.values()
        return [None if one.default is one.empty else one.default for one in kinds]


class Adapter:
    """Registers questions with a server.

    Args:
        server: of Gradio.
        opened: words errors for whoever reaches the app.
        slots: shared by all questions.
    """

    def __init__(self, server: Server, opened: Opened, slots: Slots | None = None) -> None:
        self._server, self._opened = server, opened
        self._slots = slots or Slots()
        self._described = FastAPI(title=server.title, description=server.description, version="1")

    def add(self, question: Question) -> None:
        """Registers a question both ways."""
        call = validate_call(question.function)
        self._add_route(question, call)
        # `Slots` bounds what runs; Gradio's own queue would run one question at a time
        endpoint = self._endpoint(question, call)
        self._server.api(endpoint, name=question.name, concurrency_limit=None)

    def _add_route(self, question: Question, call: Callable[..., BaseModel]) -> None:
        kinds = question.parameters
        names = {_HTTP_NAMES.get(name, name): name for name in kinds} | {n: n for n in kinds}
        body = next((n for n, one in kinds.items() if bytes in _types(one.annotation)), "")
        lists = {n for n, one in kinds.items() if get_origin(_plain(one.annotation)) is list}

        async def route(request: Request) -> Response:
            values: dict[str, Any] = dict(request.path_params)
            for key in request.query_params:
                name = _known(key, names)
                several = request.query_params.getlist(key)
                values[name] = several if name in lists else several[-1]
            try:
                if request.method == "POST":
                    values |= await _read(request, names, body)
                decodes = bool(values.get(body))
                bound = partial(call, **values)
                answer = await self._slots.run(bound, question.quick(), decodes)
            except Exception as error:
                return refused(*self.refusal(error))
            if isinstance(answer, Blob):
                headers = {"cache-control": "private, max-age=600"}
                return Response(answer.data, media_type=answer.media_type, headers=headers)
            content = answer.model_dump_json(exclude_unset=True)
            return Response(content, media_type="application/json")

        answers = inspect.signature(question.function).return_annotation
        model = get_type_hints(question.function)["return"] if answers else None
        refusals = {status: {"model": Refused} for status in (400, 404, 410, 429, 503)}
        about = inspect.cleandoc(question.function.__doc__ or "")
        # a plain route: FastAPI would look into a request once more, and describes it only
        methods = list(question.methods)
        self._server.add_route(f"{PREFIX}{question.path}", route, methods, include_in_schema=False)
        for method in methods:
            self._described.add_api_route(
                f"{PREFIX}{question.path}",
                route,
                methods=[method],
                response_model=None,
                responses=refusals | ({} if model is Blob else {200: {"model": model}}),  # type: ignore[dict-item]
                operation_id=f"{question.name}_{method.lower()}",
                summary=about.splitlines()[0],
                description=about,
                openapi_extra=_description(kinds, question.path, body if method == "POST" else ""),
            )

    def _endpoint(self, question: Question, call: Callable[..., BaseModel]) -> Callable[..., Any]:
        """A question as Gradio calls it: values in order, plain types, a dictionary as answer."""
        kinds = question.parameters

        async def endpoint(*values: Any) -> dict[str, Any]:
            bound = partial(call, **dict(zip(kinds, values, strict=False)))
            decodes = any(isinstance(one, str) and one.startswith("data:") for one in values)
            try:
                answer = await self._slots.run(bound, question.quick(), decodes)
            except Exception as error:
                raise gr.Error(self.refusal(error)[1], print_exception=False) from None
            if isinstance(answer, Blob):
                encoded = base64.b64encode(answer.data).decode()
                data = f"data:{answer.media_type};base64,{encoded}"
                return {"media_type": answer.media_type, "data": data}
            return answer.model_dump(mode="json", exclude_unset=True)

        plain = {name: _for_gradio(one.annotation) for name, one in kinds.items()}
        endpoint.__name__ = question.name
        endpoint.__doc__ = _documented(question)
        endpoint.__annotations__ = {**plain, "return": dict[str, Any]}
        signature = inspect.Signature(
            [one.replace(annotation=plain[name]) for name, one in kinds.items()],
            return_annotation=dict[str, Any],
        )
        endpoint.__signature__ = signature  # type: ignore[attr-defined]
        return endpoint

    def refusal(self, error: Exception) -> tuple[int, str, int]:
        """Status, sentence and seconds to wait for an error."""
        if isinstance(error, ValidationError):
            return 400, _of_value(error), 0
        if isinstance(error, Refusal):
            return error.status, str(error), error.wait
        if isinstance(error, BusyError):
            return 503, f"{WAITING} questions wait already; ask again soon", 1
        if isinstance(error, FileNotFoundError) and error.filename:
            return 404, f"{Path(error.filename).name} is not there any more", 0
        for kind, status, wait in _STATUSES:
            if isinstance(error, kind):
                return status, self._opened.sentence(error)[:_LONGEST], wait
        place = traceback.extract_tb(error.__traceback__)[-1]
        about = f"{type(error).__name__} at {Path(place.filename).name}:{place.lineno}"
        _log.error("a question failed: %s: %.200s", about, error)
        return 500, "this could not be answered; ask for it in another way", 0

    def describe(self) -> dict[str, Any]:
        """The OpenAPI description of all routes."""
        return self._described.openapi()

    def handlers(self) -> dict[Any, Any]:
        """Exception handlers of the server: every refusal is {"error": sentence}."""

        async def refuse(_: Request, error: Exception) -> Response:
            return refused(*self.refusal(error))

        async def say(_: Request, error: Exception) -> Response:
            if isinstance(error, HTTPException):
                return refused(error.status_code, f"{error.detail}; see {PREFIX}")
            assert isinstance(error, RequestValidationError)
            first = error.errors()[0]
            sentence = f"{first['loc'][-1]} cannot be read: {first['msg'].lower()}"
            return refused(400, f"{sentence}; see {PREFIX}")

        known: dict[Any, Any] = {ValueError: refuse, FileNotFoundError: refuse}
        return known | {HTTPException: say, RequestValidationError: say}


_STATUSES: tuple[tuple[type[Exception], int, int], ...] = (
    (GoneError, 410, 0),
    (ForbiddenError, 403, 0),
    (FullError, 503, 60),
    (NotReadyError, 503, 5),
    (FileNotFoundError, 404, 0),
    (ValueError, 400, 0),
)


def refused(status: int, sentence: str, wait: int = 0) -> JSONResponse:
    """An answer that says why there is none."""
    headers = {"Retry-After": str(wait)} if wait else None
    return JSONResponse({"error": sentence[:_LONGEST]}, status, headers)


def page(schema: Mapping[str, Any]) -> HTMLResponse:
    """The list of all routes, for people; it fetches nothing."""
    rows = []
    for path, methods in schema["paths"].items():
        for method, about in methods.items():
            if not path.startswith(PREFIX):
                continue
            names = ", ".join(one["name"] for one in about.get("parameters", ()))
            summary = escape(about["summary"])
            rows.append(
                f"<tr><td>{method.upper()} {escape(path)}</td><td>{escape(names)}</td>"
                f"<td>{summary}</td></tr>"
            )
    head = "<!doctype html><meta charset=utf-8><title>Polyview API</title>"
    style = "<style>body{font:15px system-ui;margin:2em}td{padding:.2em 1em .2em 0}</style>"
    link = f'<p><a href="{PREFIX}/openapi.json">openapi.json</a></p>'
    return HTMLResponse(f"{head}{style}<h1>Polyview API</h1>{link}<table>{''.join(rows)}</table>")


async def _read(request: Request, names: Mapping[str, str], body: str) -> dict[str, Any]:
    """The values in a body: a file, or a JSON object."""
    content = await request.body()
    if not content:
        return {}
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if body and kind != "application/json":
        return {body: content}
    return {_known(key, names): one for key, one in read_json(content).items()}


def _known(key: str, names: Mapping[str, str]) -> str:
    if key not in names:
        known = ", ".join(sorted({_HTTP_NAMES.get(n, n) for n in names.values()}))
        raise ValueError(f'there is no parameter "{key[:80]}"; there are {known or "none"}')
    return names[key]


def _plain(annotation: Any) -> Any:
    """A type without its metadata."""
    return get_args(annotation)[0] if get_origin(annotation) is Annotated else annotation


def _types(annotation: Any) -> tuple[Any, ...]:
    """The members of a union, or the type itself."""
    plain = _plain(annotation)
    several = get_origin(plain) in (Union, UnionType)
    return tuple(map(_plain, get_args(plain))) if several else (plain,)


def _for_gradio(annotation: Any) -> Any:
    """A type that Gradio describes: bytes are data URIs there."""
    plain = get_type_hints(_Holder(annotation))["value"]
    if plain is bytes:
        return str
    return str | None if plain == bytes | None else plain


def _documented(question: Question) -> str:
    """A question's docstring with its parameters, which MCP tools are described by."""
    lines = [inspect.cleandoc(question.function.__doc__ or ""), "", "Args:"]
    for name, one in question.parameters.items():
        about = TypeAdapter(one.annotation).json_schema().get("description", name)
        lines.append(f"    {name}: {about}")
    return "\n".join(lines)


class _Holder:
    """Holds an annotation, whose metadata `get_type_hints` leaves out at every depth."""

    def __init__(self, annotation: Any) -> None:
        self.__annotations__ = {"value": annotation}


def _description(kinds: Mapping[str, inspect.Parameter], path: str, body: str) -> dict[str, Any]:
    """Parameters and body of a route, for the OpenAPI description."""
    parameters = []
    for name, one in kinds.items():
        if bytes in _types(one.annotation):
            continue
        schema = TypeAdapter(one.annotation).json_schema()
        required = one.default is inspect.Parameter.empty
        if not required:
            schema["default"] = one.default
        place = "path" if f"{{{name}}}" in path else "query"
        about = {"name": _HTTP_NAMES.get(name, name), "in": place, "required": required}
        parameters.append({**about, "schema": schema, "description": schema.pop("description", "")})
    content: dict[str, Any] = {"image/*": {}, "application/json": {}}
    return {"parameters": parameters} | ({"requestBody": {"content": content}} if body else {})


def _of_value(error: ValidationError) -> str:
    """Which value cannot be used, and why."""
    first = error.errors(include_url=False)[0]
    name = str(first["loc"][0]) if first["loc"] else "the question"
    if first["type"] in ("missing_argument", "missing"):
        return f"{name} is missing; see {PREFIX}"
    why = first["msg"].removeprefix("Value error, ")
    value = first.get("input")
    described = f"{len(value):,} bytes" if isinstance(value, bytes) else f"{value!s:.80}"
    return f'{name} cannot be "{described}": {why[:1].lower()}{why[1:]}'
