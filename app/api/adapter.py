"""Registers each question twice: as a route below /api/v1, and as an endpoint of Gradio.

A question is a function with flat, typed parameters that returns an answer of `app/api/answers.py`.
Both registrations check the parameters with a pydantic model derived from the function's signature,
and run the function in a thread; the numbers of running and waiting questions are limited.
"""

from __future__ import annotations

import base64
import inspect
import logging
import os
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from html import escape
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import gradio as gr
from anyio import CapacityLimiter
from anyio.to_thread import run_sync
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, ValidationError, create_model
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import FileResponse, HTMLResponse, JSONResponse, Response

from polyview.app.access import Refusal
from polyview.app.api.answers import Blob, Refused
from polyview.app.api.parameters import IMAGE_BYTES, Collection, Pack
from polyview.app.limits import read_json
from polyview.app.packs.errors import ForbiddenError, FullError, GoneError
from polyview.app.packs.opened import Opened
from polyview.app.search.hits import NotReadyError
from polyview.app.search.ranking import MANY

PREFIX = "/api/v1"
WAITING = 64  # questions at a time, including those being answered
_AT_ONCE = max(2, os.cpu_count() or 1)  # questions that run a model at the same time
_LONGEST = 2000  # characters of an error message, which may quote the request
_log = logging.getLogger(__name__)


class Server(gr.Server):
    """Gradio's server, with our middleware outside of Gradio's.

    Ours therefore sees every request first, and can remove CORS headers.
    """

    def add_middleware(self, middleware_class: Any, *args: Any, **options: Any) -> None:
        """Adds a middleware inside of the existing ones."""
        self.user_middleware.append(Middleware(middleware_class, *args, **options))


class BusyError(Exception):
    """Too many questions are waiting."""


class Slots:
    """Runs functions in threads, a few at a time; a limited number of others may wait.

    Quick functions run one at a time: they are mostly Python code, which holds the interpreter's
    lock.
    """

    def __init__(self, at_once: int = _AT_ONCE, waiting: int = WAITING) -> None:
        self._limiter, self._single = CapacityLimiter(at_once), CapacityLimiter(1)
        self._images = CapacityLimiter(max(1, at_once - 1))
        self._most, self._count = waiting, 0

    async def run(
        self, function: Callable[[], Any], quick: bool = False, decodes: bool = False
    ) -> Any:
        """Runs a function when a slot is free, and returns its result.

        Functions that decode a client's image may take seconds; they never use all slots.

        Raises:
            BusyError: too many functions are waiting.
        """
        if self._count >= self._most:
            raise BusyError
        self._count += 1
        try:
            async with self._images if decodes else nullcontext():
                return await run_sync(function, limiter=self._single if quick else self._limiter)
        finally:
            self._count -= 1


class Question:
    """A function that answers one question.

    Args:
        function: has flat, typed parameters and a docstring for users. A parameter `opened`
            receives the `Opened`; a parameter `retriever` receives the retriever for the question's
            parameters `pack` and `collection`.
        path: of the route, below `PREFIX`.
        methods: HTTP methods.
        quick: whether it takes about a millisecond in a small gallery.

    Attributes:
        name: the name of the function and of Gradio's endpoint.
        parameters: a model that validates the parameters.
        types: the types that Gradio shows for the parameters; bytes are data URIs.
        body: the parameter that is the body of a POST request; "" for none.
        lists: names, including aliases, of the parameters that may be repeated.
    """

    def __init__(
        self,
        function: Callable[..., BaseModel],
        path: str,
        methods: Sequence[str] = ("GET",),
        quick: bool = False,
    ) -> None:
        self.function, self.path, self.methods, self.quick = function, path, methods, quick
        self.name, self.about = function.__name__, inspect.cleandoc(function.__doc__ or "")
        signature = inspect.signature(function).parameters
        self._takes = {"opened", "retriever"} & signature.keys()
        hints, plain = get_type_hints(function, include_extras=True), get_type_hints(function)
        self.answer = plain["return"]
        fields: dict[str, Any] = {
            name: (hints[name], ... if each.default is each.empty else each.default)
            for name, each in signature.items()
            if name not in self._takes
        }
        if "retriever" in self._takes:
            fields |= {"pack": (Pack, ""), "collection": (Collection, "")}
        config = ConfigDict(populate_by_name=True, loc_by_alias=False)
        self.parameters = create_model(self.name, __config__=config, **fields)
        self.types = {name: plain.get(name, str) for name in fields}
        contents = [n for n, kind in self.types.items() if bytes in (kind, *get_args(kind))]
        self.types |= {n: str if self.types[n] is bytes else str | None for n in contents}
        self.body = contents[0] if contents else ""
        lists = {name for name, kind in self.types.items() if get_origin(kind) is list}
        self.lists = lists | {str(self.parameters.model_fields[name].alias) for name in lists}

    @property
    def defaults(self) -> list[Any]:
        """The default of each parameter; None if it has none."""
        return [
            field.get_default(call_default_factory=True) if not field.is_required() else None
            for field in self.parameters.model_fields.values()
        ]

    def run(self, opened: Opened, values: Mapping[str, Any]) -> BaseModel:
        """The answer.

        Raises:
            ValidationError: a value is not valid.
            ValueError: the function refuses the question.
        """
        fields = self.parameters.model_fields.items()
        names = [field.alias or name for name, field in fields]
        if unknown := sorted(values.keys() - names - self.types.keys()):
            known = ", ".join(sorted(names)) or "none"
            raise ValueError(f'there is no parameter "{unknown[0][:80]}"; there are {known}')
        checked = dict(self.parameters.model_validate(values))
        if "retriever" in self._takes:
            pack, collection = checked.pop("pack"), checked.pop("collection")
            checked["retriever"] = opened.retriever(pack, collection)
        if "opened" in self._takes:
            checked["opened"] = opened
        return self.function(**checked)

    def describe(self, method: str) -> dict[str, Any]:
        """The OpenAPI description of the parameters and, for POST, of the body."""
        schema, parameters = self.parameters.model_json_schema(), []
        aliases = {field.alias: name for name, field in self.parameters.model_fields.items()}
        for alias, about in schema.get("properties", {}).items():
            if aliases.get(alias, alias) != self.body:
                place = "path" if f"{{{alias}}}" in self.path else "query"
                required = alias in schema.get("required", ())
                names = {"name": alias, "description": about.pop("description", "")}
                parameters.append({**names, "in": place, "required": required, "schema": about})
        content: dict[str, Any] = {"image/*": {}, "application/json": {}}
        body = {"requestBody": {"content": content}} if self.body and method == "POST" else {}
        return {"parameters": parameters, **body}


class Adapter:
    """Registers questions with a server.

    Args:
        server: Gradio's server.
        opened: the open packs and collections; also phrases error messages.
        slots: run the questions; shared by all.
    """

    def __init__(self, server: Server, opened: Opened, slots: Slots | None = None) -> None:
        self._server, self._opened = server, opened
        self._slots = slots or Slots()
        self._described = FastAPI(title=server.title, description=server.description, version="1")

    def add(self, question: Question) -> None:
        """Registers a question as a route and as a Gradio endpoint."""
        self._add_route(question)
        # `Slots` limits concurrency; Gradio's own queue would run one question at a time
        endpoint = self._endpoint(question)
        self._server.api(endpoint, name=question.name, concurrency_limit=None)

    async def _answer(self, question: Question, values: Mapping[str, Any]) -> BaseModel:
        quick = question.quick and len(self._opened.first.index) < MANY
        decodes, run = bool(values.get(question.body)), partial(question.run, self._opened, values)
        answer = await self._slots.run(run, quick, decodes)
        assert isinstance(answer, BaseModel)
        return answer

    def _add_route(self, question: Question) -> None:
        async def route(request: Request) -> Response:
            try:
                answer = await self._answer(question, await _read(request, question))
            except Exception as error:
                return refused(*self.refusal(error))
            if isinstance(answer, Blob):
                headers = {"cache-control": "private, max-age=600"}
                if answer.file is None:
                    return Response(answer.data, media_type=answer.media_type, headers=headers)
                headers = {"content-encoding": "identity", "cache-control": "private, no-cache"}
                return FileResponse(answer.file, headers=headers, media_type=answer.media_type)
            content = answer.model_dump_json(exclude_unset=True)
            return Response(content, media_type="application/json")

        path, methods = f"{PREFIX}{question.path}", list(question.methods)
        responses = {status: {"model": Refused} for status in (400, 404, 410, 429, 503)}
        if question.answer is not Blob:
            responses[200] = {"model": question.answer}
        # a plain route, since the values are validated here; FastAPI only documents it
        self._server.add_route(path, route, methods, include_in_schema=False)
        for method in methods:
            self._described.add_api_route(
                path,
                route,
                methods=[method],
                response_model=None,
                responses=responses,  # type: ignore[arg-type]
                operation_id=f"{question.name}_{method.lower()}",
                summary=question.about.splitlines()[0],
                description=question.about,
                openapi_extra=question.describe(method),
            )

    def _endpoint(self, question: Question) -> Callable[..., Any]:
        """Wraps a question for Gradio: positional values, plain types, a dictionary as answer."""

        async def endpoint(*values: Any) -> dict[str, Any]:
            try:
                answer = await self._answer(question, dict(zip(question.types, values)))  # noqa: B905
                if isinstance(answer, Blob):
                    return _inline(answer)
            except Exception as error:
                raise gr.Error(self.refusal(error)[1], print_exception=False) from None
            return answer.model_dump(mode="json", exclude_unset=True)

        fields = question.parameters.model_fields
        endpoint.__name__ = question.name
        about = [f"    {name}: {field.description or name}" for name, field in fields.items()]
        endpoint.__doc__ = "\n".join([question.about, "", "Args:", *about])
        endpoint.__annotations__ = {**question.types, "return": dict[str, Any]}
        kind, empty = inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.empty
        parameters = [
            inspect.Parameter(name, kind, default=value, annotation=question.types[name])
            for (name, field), default in zip(fields.items(), question.defaults, strict=True)
            for value in [empty if field.is_required() else default]
        ]
        endpoint.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            parameters, return_annotation=dict[str, Any]
        )
        return endpoint

    def refusal(self, error: Exception) -> tuple[int, str, int]:
        """HTTP status, message and seconds to wait for an error."""
        if isinstance(error, ValidationError):
            return 400, _sentence(error), 0
        if isinstance(error, Refusal):
            return error.status, str(error), error.wait
        if isinstance(error, BusyError):
            return 503, f"{WAITING} questions are waiting; ask again soon", 1
        if isinstance(error, FileNotFoundError) and error.filename:
            return 404, f"{Path(error.filename).name} no longer exists", 0
        for kind, status, wait in _STATUSES:
            if isinstance(error, kind):
                return status, self._opened.sentence(error)[:_LONGEST], wait
        place = traceback.extract_tb(error.__traceback__)[-1]
        about = f"{type(error).__name__} at {Path(place.filename).name}:{place.lineno}"
        _log.error("a question failed: %s: %.200s", about, error)
        return 500, "this could not be answered; change the question", 0

    def describe(self) -> dict[str, Any]:
        """The OpenAPI description of all routes."""
        return self._described.openapi()

    def handlers(self) -> dict[Any, Any]:
        """Exception handlers of the server: every refusal is {"error": sentence}."""

        async def refuse(_: Request, error: Exception) -> Response:
            if isinstance(error, HTTPException):
                return refused(error.status_code, f"{error.detail}; see {PREFIX}")
            if isinstance(error, RequestValidationError):
                first = error.errors()[0]
                sentence = f"{first['loc'][-1]} cannot be read: {first['msg'].lower()}"
                return refused(400, f"{sentence}; see {PREFIX}")
            return refused(*self.refusal(error))

        kinds = (ValueError, FileNotFoundError, HTTPException, RequestValidationError)
        return dict.fromkeys(kinds, refuse)


_STATUSES: tuple[tuple[type[Exception], int, int], ...] = (
    (GoneError, 410, 0),
    (ForbiddenError, 403, 0),
    (FullError, 503, 60),
    (NotReadyError, 503, 5),
    (FileNotFoundError, 404, 0),
    (ValueError, 400, 0),
)


def refused(status: int, sentence: str, wait: int = 0) -> JSONResponse:
    """An error response."""
    headers = {"Retry-After": str(wait)} if wait else None
    return JSONResponse({"error": sentence[:_LONGEST]}, status, headers)


def page(schema: Mapping[str, Any]) -> HTMLResponse:
    """An HTML page that lists all routes, without external resources."""
    rows = []
    for path, methods in schema["paths"].items():
        for method, about in methods.items():
            cells = (
                f"{method.upper()} {path}",
                ", ".join(each["name"] for each in about.get("parameters", ())),
                about["summary"],
            )
            rows.append("<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in cells) + "</tr>")
    head = "<!doctype html><meta charset=utf-8><title>Polyview API</title>"
    style = "<style>body{font:15px system-ui;margin:2em}td{padding:.2em 1em .2em 0}</style>"
    link = f'<p><a href="{PREFIX}/openapi.json">openapi.json</a></p>'
    return HTMLResponse(f"{head}{style}<h1>Polyview API</h1>{link}<table>{''.join(rows)}</table>")


async def _read(request: Request, question: Question) -> dict[str, Any]:
    """The values of a request from its path, query string and body."""
    values: dict[str, Any] = dict(request.path_params)
    for key in request.query_params:
        several = request.query_params.getlist(key)
        values[key] = several if key in question.lists else several[-1]
    content = await request.body() if request.method == "POST" else b""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if not content:
        return values
    if question.body and kind != "application/json":
        return {**values, question.body: content}
    return values | read_json(content)


def _inline(blob: Blob) -> dict[str, str]:
    """A file as a data URI."""
    data = blob.data
    if blob.file is not None:
        if blob.file.stat().st_size > IMAGE_BYTES:
            raise ValueError(f"the file is too large to be sent at once; get it by {PREFIX}/clip")
        data = blob.file.read_bytes()
    encoded = base64.b64encode(data).decode()
    return {"media_type": blob.media_type, "data": f"data:{blob.media_type};base64,{encoded}"}


def _sentence(error: ValidationError) -> str:
    """An error message that names the first invalid value."""
    first = error.errors(include_url=False)[0]
    name = str(first["loc"][0]) if first["loc"] else "the question"
    if first["type"] == "missing":
        return f"{name} is missing; see {PREFIX}"
    why = first["msg"].removeprefix("Value error, ")
    value = first.get("input")
    described = f"{len(value):,} bytes" if isinstance(value, bytes) else f"{value!s:.80}"
    return f'{name} cannot be "{described}": {why[:1].lower()}{why[1:]}'
