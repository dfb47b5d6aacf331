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
from typing import Any, get_args, get_type_hints

import gradio as gr
from anyio import CapacityLimiter
from anyio.to_thread import run_sync
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, ConfigDict, ValidationError, create_model
from pydantic.json_schema import models_json_schema
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
# HTTP status of an error, and seconds to wait
_STATUSES: dict[type[Exception], tuple[int, int]] = {
    GoneError: (410, 0),
    ForbiddenError: (403, 0),
    FullError: (503, 60),
    NotReadyError: (503, 5),
    FileNotFoundError: (404, 0),
    ValueError: (400, 0),
}
_log = logging.getLogger(__name__)


class Server(gr.Server):
    """Gradio's server, with the app's middleware outermost.

    Ours therefore sees every request first, and can remove CORS headers.
    """

    def add_middleware(self, middleware_class: Any, *args: Any, **options: Any) -> None:
        """Adds a middleware inside of the existing ones."""
        self.user_middleware.append(Middleware(middleware_class, *args, **options))


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
        self.answers = [m for m in get_args(plain["return"]) or (plain["return"],) if m != Blob]
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

    @property
    def defaults(self) -> list[Any]:
        """The default of each parameter; None if it has none."""
        fields = self.parameters.model_fields.values()
        return [None if field.is_required() else field.default for field in fields]

    def run(self, opened: Opened, values: Mapping[str, Any]) -> BaseModel:
        """The answer.

        Raises:
            ValidationError: a value is not valid.
            ValueError: the function refuses the question.
        """
        names = [field.alias or name for name, field in self.parameters.model_fields.items()]
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


class Adapter:
    """Registers questions with a server, and runs them in threads.

    Args:
        server: Gradio's server.
        opened: the open packs and collections; also phrases error messages.
    """

    def __init__(self, server: Server, opened: Opened) -> None:
        self._server, self._opened, self._count = server, opened, 0
        self._limiter, self._images = CapacityLimiter(_AT_ONCE), CapacityLimiter(_AT_ONCE - 1)
        self._single = CapacityLimiter(1)
        for kind in (ValueError, FileNotFoundError, HTTPException, RequestValidationError):
            server.add_exception_handler(kind, lambda _, error: refused(*self.refusal(error)))

    def add(self, question: Question) -> None:
        """Registers a question as a route and as a Gradio endpoint."""

        async def route(request: Request) -> Response:
            try:
                answer = await self.answer(question, await _read(request, question))
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
        self._server.add_route(path, route, methods, include_in_schema=False)
        # this class limits concurrency; Gradio's own queue would run one question at a time
        endpoint = self._endpoint(question)
        self._server.api(endpoint, name=question.name, concurrency_limit=None)

    async def answer(self, question: Question, values: Mapping[str, Any]) -> BaseModel:
        """Runs a question in a thread when a slot is free.

        Quick questions run one at a time: they are mostly Python code, which holds the
        interpreter's lock. Questions that decode a client's image may take seconds; they never use
        all slots.

        Raises:
            Refusal: too many questions are waiting.
        """
        if self._count >= WAITING:
            raise Refusal(503, f"{WAITING} questions are waiting; ask again soon", 1)
        quick = question.quick and len(self._opened.first.index) < MANY
        limiter = self._single if quick else self._limiter
        self._count += 1
        try:
            async with self._images if values.get(question.body) else nullcontext():
                run = partial(question.run, self._opened, values)
                return await run_sync(run, limiter=limiter)
        finally:
            self._count -= 1

    def _endpoint(self, question: Question) -> Callable[..., Any]:
        """Wraps a question for Gradio: positional values, plain types, a dictionary as answer."""

        async def endpoint(*values: Any) -> dict[str, Any]:
            try:
                answer = await self.answer(question, dict(zip(question.types, values)))  # noqa: B905
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
        parameters = [
            inspect.Parameter(
                name,
                inspect.Parameter.POSITIONAL_OR_KEYWORD,
                default=inspect.Parameter.empty if field.is_required() else field.default,
                annotation=question.types[name],
            )
            for name, field in fields.items()
        ]
        endpoint.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
            parameters, return_annotation=dict[str, Any]
        )
        return endpoint

    def refusal(self, error: Exception) -> tuple[int, str, int]:
        """HTTP status, message and seconds to wait for an error."""
        if isinstance(error, Refusal):
            return error.status, str(error), error.wait
        if isinstance(error, HTTPException):
            return error.status_code, f"{error.detail}; see {PREFIX}", 0
        if isinstance(error, ValidationError):
            return 400, _sentence(error), 0
        if isinstance(error, RequestValidationError):
            first = error.errors()[0]
            sentence = f"{first['loc'][-1]} cannot be read: {first['msg'].lower()}"
            return 400, f"{sentence}; see {PREFIX}", 0
        if isinstance(error, FileNotFoundError) and error.filename:
            return 404, f"{Path(error.filename).name} no longer exists", 0
        for kind, (status, wait) in _STATUSES.items():
            if isinstance(error, kind):
                return status, self._opened.sentence(error)[:_LONGEST], wait
        place = traceback.extract_tb(error.__traceback__)[-1]
        about = f"{type(error).__name__} at {Path(place.filename).name}:{place.lineno}"
        _log.error("a question failed: %s: %.200s", about, error)
        return 500, "this could not be answered; change the question", 0


def refused(status: int, sentence: str, wait: int = 0) -> JSONResponse:
    """An error response."""
    headers = {"Retry-After": str(wait)} if wait else None
    return JSONResponse({"error": sentence[:_LONGEST]}, status, headers)


def describe(questions: Sequence[Question]) -> dict[str, Any]:
    """The OpenAPI description of all routes."""
    models = {Refused, *(model for question in questions for model in question.answers)}
    references, schemas = models_json_schema(
        [(model, "serialization") for model in sorted(models, key=str)],
        ref_template="#/components/schemas/{model}",
    )
    contents = {
        model: {"application/json": {"schema": reference}}
        for (model, _), reference in references.items()
    }
    paths: dict[str, dict[str, Any]] = {}
    for question in questions:
        schema = question.parameters.model_json_schema()
        parameters = [
            {
                "name": name,
                "in": "path" if f"{{{name}}}" in question.path else "query",
                "required": name in schema.get("required", ()),
                "description": kind.pop("description", ""),
                "schema": kind,
            }
            for name, kind in schema.get("properties", {}).items()
            if name != question.body
        ]
        responses = {
            str(status): {"description": "refused", "content": contents[Refused]}
            for status in (400, 404, 410, 429, 503)
        }
        content: dict[str, Any] = next((contents[model] for model in question.answers), {"*/*": {}})
        responses["200"] = {"description": "the answer", "content": content}
        for method in question.methods:
            about: dict[str, Any] = {
                "summary": question.about.splitlines()[0],
                "description": question.about,
            }
            about |= {"operationId": f"{question.name}_{method.lower()}", "parameters": parameters}
            if question.body and method == "POST":
                about["requestBody"] = {"content": {"image/*": {}, "application/json": {}}}
            path = paths.setdefault(f"{PREFIX}{question.path}", {})
            path[method.lower()] = about | {"responses": responses}
    info = {"title": "Polyview", "version": "1"}
    components = {"schemas": schemas.get("$defs", {})}
    return {"openapi": "3.1.0", "info": info, "paths": paths, "components": components}


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
        values[key] = several if len(several) > 1 else several[0]
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
