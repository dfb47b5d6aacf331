"""Registers each question twice: as a route below /api/v1, and as an endpoint of Gradio.

A question is a function with flat, typed parameters that returns an answer of `app/api/answers.py`.
Both registrations check the parameters with a pydantic model derived from the function's signature,
and run the function in a thread; the numbers of running and waiting questions are limited.
"""

from __future__ import annotations

import asyncio
import base64
import inspect
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from html import escape
from pathlib import Path
from typing import Any, get_args

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
from polyview.app.api.parameters import CONTENT, IMAGE_BYTES, Collection, Pack
from polyview.app.limits import read_json
from polyview.app.packs.downloads import Downloads
from polyview.app.packs.errors import ForbiddenError, FullError, GoneError
from polyview.app.packs.opened import Opened
from polyview.app.search.hits import NotReadyError, Timed
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


class Server(gr.Server):
    """Gradio's server, with the app's middleware outermost, where it can remove CORS headers."""

    def add_middleware(self, middleware_class: Any, *args: Any, **options: Any) -> None:
        """Adds a middleware inside of the existing ones."""
        self.user_middleware.append(Middleware(middleware_class, *args, **options))


class Question:
    """A function that answers one question.

    Args:
        function: has flat, typed parameters and a docstring for users. Parameters `opened` and
            `downloads` receive the app's; a parameter `retriever` receives the retriever for the
            question's parameters `pack` and `collection`.
        path: of the route, below `PREFIX`.
        methods: HTTP methods.
        quick: whether it takes about a millisecond in a small gallery.

    Attributes:
        name: the name of the function and of Gradio's endpoint.
        signature: its parameters, as Gradio shows them.
        answer: the type of the answer.
        parameters: a model that validates the parameters.
        defaults: the default of each parameter; None if it has none.
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
        own = inspect.signature(function, eval_str=True)
        self._takes = {"opened", "downloads", "retriever"} & own.parameters.keys()
        public = [each for name, each in own.parameters.items() if name not in self._takes]
        if "retriever" in self._takes:
            public += [*inspect.signature(_keys, eval_str=True).parameters.values()]
        self.signature = own.replace(parameters=public, return_annotation=dict[str, Any])
        # of Mistakes | Blob, the first
        self.answer = (*get_args(own.return_annotation), own.return_annotation)[0]
        config = ConfigDict(populate_by_name=True, loc_by_alias=False)
        fields: dict[str, Any] = {
            each.name: (each.annotation, ... if each.default is each.empty else each.default)
            for each in public
        }
        self.parameters = create_model(self.name, __config__=config, **fields)
        self.defaults = [None if default is ... else default for _, default in fields.values()]
        self.types, self.body = {each.name: each.annotation for each in public}, ""
        for name, field in self.parameters.model_fields.items():
            if CONTENT in field.metadata:
                self.body, self.types[name] = name, str if field.is_required() else str | None

    def run(self, services: Mapping[str, Any], values: Mapping[str, Any]) -> BaseModel:
        """The answer to `values`; the function may take some of the `services`.

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
            keys = checked.pop("pack"), checked.pop("collection")
            checked["retriever"] = services["opened"].retriever(*keys)
        checked |= {name: services[name] for name in self._takes & services.keys()}
        start = time.perf_counter()
        answer = self.function(**checked)
        if isinstance(answer, Timed):
            answer.ms = round((time.perf_counter() - start) * 1000, 1)
        return answer


def _keys(pack: Pack = "", collection: Collection = "") -> None:
    """The parameters of a question whose function takes a retriever."""


class Adapter:
    """Registers questions with a server, and runs them in threads.

    Args:
        server: Gradio's server.
        opened: the open packs and collections; also phrases error messages.
        questions: all questions.
    """

    def __init__(self, server: Server, opened: Opened, questions: Sequence[Question]) -> None:
        self._opened, self._waiting = opened, asyncio.Semaphore(WAITING)
        self._services = {"opened": opened, "downloads": Downloads(opened)}
        self._limiter, self._images = CapacityLimiter(_AT_ONCE), CapacityLimiter(_AT_ONCE - 1)
        self._single = CapacityLimiter(1)
        for kind in (ValueError, FileNotFoundError, HTTPException, RequestValidationError, Refusal):
            server.add_exception_handler(kind, lambda _, error: self.refusal(error).response())
        for question in questions:
            path, methods = f"{PREFIX}{question.path}", list(question.methods)
            server.add_route(path, partial(self._respond, question), methods)
            # this class limits concurrency; Gradio's own queue would run one question at a time
            server.api(self._endpoint(question), name=question.name, concurrency_limit=None)
        schema = describe(questions)
        described, listed = JSONResponse(schema), page(schema)
        server.add_route(f"{PREFIX}/openapi.json", lambda _: described)
        server.add_route(PREFIX, lambda _: listed)

    async def _respond(self, question: Question, request: Request) -> Response:
        """Answers a question over HTTP."""
        answer = await self.answer(question, await _read(request, question))
        if not isinstance(answer, Blob):
            content = answer.model_dump_json(exclude_unset=True)
            return Response(content, media_type="application/json")
        if answer.file is None:
            headers = {"cache-control": "private, max-age=600"}
            return Response(answer.data, media_type=answer.media_type, headers=headers)
        headers = {"content-encoding": "identity", "cache-control": "private, no-cache"}
        return FileResponse(answer.file, headers=headers, media_type=answer.media_type)

    async def answer(self, question: Question, values: Mapping[str, Any]) -> BaseModel:
        """Runs a question in a thread when a slot is free.

        Quick questions run one at a time: they are mostly Python code, which holds the
        interpreter's lock. Questions that decode a client's image may take seconds; they never use
        all slots.

        Raises:
            Refusal: too many questions are waiting.
        """
        if self._waiting.locked():
            raise Refusal(503, f"{WAITING} questions are waiting; ask again soon", 1)
        quick = question.quick and len(self._opened.first.index) < MANY
        limiter = self._single if quick else self._limiter
        images = self._images if values.get(question.body) else nullcontext()
        async with self._waiting, images:
            return await run_sync(question.run, self._services, values, limiter=limiter)

    def _endpoint(self, question: Question) -> Callable[..., Any]:
        """Wraps a question for Gradio: positional values, plain types, a dictionary as answer."""

        async def endpoint(*values: Any) -> dict[str, Any]:
            try:
                answer = await self.answer(question, dict(zip(question.types, values)))  # noqa: B905
                if isinstance(answer, Blob):
                    return _inline(answer)
            except Exception as error:
                raise gr.Error(str(self.refusal(error)), print_exception=False) from None
            return answer.model_dump(mode="json", exclude_unset=True)

        fields = question.parameters.model_fields.items()
        about = [f"    {name}: {field.description or name}" for name, field in fields]
        endpoint.__name__ = question.name
        endpoint.__doc__ = "\n".join([question.about, "", "Args:", *about])
        endpoint.__annotations__ = {**question.types, "return": dict[str, Any]}
        endpoint.__signature__ = question.signature  # type: ignore[attr-defined]
        return endpoint

    def refusal(self, error: Exception) -> Refusal:
        """The answer for an error; one that is not expected is logged."""
        if isinstance(error, Refusal):
            return error
        if isinstance(error, HTTPException):
            return Refusal(error.status_code, f"{error.detail}; see {PREFIX}")
        if isinstance(error, ValidationError):
            return Refusal(400, _sentence(error))
        if isinstance(error, RequestValidationError):
            first = error.errors()[0]
            sentence = f"{first['loc'][-1]} cannot be read: {first['msg'].lower()}"
            return Refusal(400, f"{sentence}; see {PREFIX}")
        if isinstance(error, FileNotFoundError) and error.filename:
            return Refusal(404, f"{Path(error.filename).name} no longer exists")
        for kind, (status, wait) in _STATUSES.items():
            if isinstance(error, kind):
                return Refusal(status, self._opened.sentence(error)[:_LONGEST], wait)
        return Refusal.of_defect(error, "a question")


def describe(questions: Sequence[Question]) -> dict[str, Any]:
    """The OpenAPI description of all routes."""
    models = dict.fromkeys([Refused, *(question.answer for question in questions)])
    models.pop(Blob)
    references, schemas = models_json_schema(
        [(model, "serialization") for model in models], ref_template="#/components/schemas/{model}"
    )
    contents: dict[Any, dict[str, Any]] = {Blob: {"*/*": {}}}
    for (model, _), reference in references.items():
        contents[model] = {"application/json": {"schema": reference}}
    refused = {"description": "refused", "content": contents[Refused]}
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
        responses = dict.fromkeys(("400", "404", "410", "429", "503"), refused)
        responses["200"] = {"description": "the answer", "content": contents[question.answer]}
        for method in question.methods:
            path = paths.setdefault(f"{PREFIX}{question.path}", {})
            path[method.lower()] = {
                "summary": question.about.splitlines()[0],
                "description": question.about,
                "operationId": f"{question.name}_{method.lower()}",
                "parameters": parameters,
                "responses": responses,
            }
            if question.body and method == "POST":
                path["post"]["requestBody"] = {"content": {"image/*": {}, "application/json": {}}}
    info = {"title": "Polyview", "version": "1"}
    components = {"schemas": schemas["$defs"]}
    return {"openapi": "3.1.0", "info": info, "paths": paths, "components": components}


def page(schema: Mapping[str, Any]) -> HTMLResponse:
    """An HTML page that lists all routes, without external resources."""
    rows = ""
    for path, methods in schema["paths"].items():
        for method, about in methods.items():
            names = ", ".join(each["name"] for each in about.get("parameters", ()))
            cells = (f"{method.upper()} {path}", names, about["summary"])
            rows += f"<tr><td>{'<td>'.join(map(escape, cells))}"
    head = "<!doctype html><meta charset=utf-8><title>Polyview API</title>"
    style = "<style>body{font:15px system-ui;margin:2em}td{padding:.2em 1em .2em 0}</style>"
    link = f'<p><a href="{PREFIX}/openapi.json">openapi.json</a></p>'
    return HTMLResponse(f"{head}{style}<h1>Polyview API</h1>{link}<table>{rows}</table>")


async def _read(request: Request, question: Question) -> dict[str, Any]:
    """The values of a request from its path, query string and body."""
    several = {key: request.query_params.getlist(key) for key in request.query_params}
    query = {key: items if len(items) > 1 else items[0] for key, items in several.items()}
    values: dict[str, Any] = request.path_params | query
    content = await request.body() if request.method == "POST" else b""
    if not content:
        return values
    kind = request.headers.get("content-type", "").lower()
    if question.body and not kind.startswith("application/json"):
        return {**values, question.body: content}
    return values | read_json(content)


def _inline(blob: Blob) -> dict[str, str]:
    """A file as a data URI."""
    if blob.file is not None and blob.file.stat().st_size > IMAGE_BYTES:
        raise ValueError(f"the file is too large to be sent at once; get it by {PREFIX}/clip")
    data = blob.data if blob.file is None else blob.file.read_bytes()
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
