"""Registers each endpoint as a route below /api/v1 and as an endpoint of Gradio.

An endpoint is a function with parameters of simple types that returns a pydantic model.
Another pydantic model, derived from the function's signature, validates the parameters.
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
from urllib.parse import parse_qs

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

from polyview.app.access import client_key, client_name
from polyview.app.api.answers import Blob, Refused
from polyview.app.api.parameters import CONTENT, IMAGE_BYTES, Collection, Pack
from polyview.app.gallery.index import LARGE_GALLERY
from polyview.app.packs.state import AppState
from polyview.app.refusal import Refusal, read_json
from polyview.app.search.hits import Timed

PREFIX = "/api/v1"
MAX_WAITING = 64  # waiting and running requests together
_SLOTS = max(2, os.cpu_count() or 1)  # requests that are answered at the same time
_MAX_MESSAGE = 2000  # characters of an error message, which may quote the request


class Server(gr.Server):
    """Gradio's server. The app's middleware is outermost, so that it can remove CORS headers."""

    def add_middleware(self, middleware_class: Any, *args: Any, **options: Any) -> None:
        """Adds a middleware inside the existing ones."""
        self.user_middleware.append(Middleware(middleware_class, *args, **options))


class Endpoint:
    """A function of the API, with its path and the model of its parameters.

    Args:
        function: its docstring is for users. A parameter `state` receives the app's `AppState`. For
            a parameter `retriever`, the endpoint has the parameters `pack` and `collection`, which
            select the retriever. An empty `method` then becomes the pack's best method.
        path: the route below `PREFIX`.
        methods: the HTTP methods of the route.
        quick: whether an answer takes about a millisecond with a small gallery.

    Attributes:
        answer: the model that the function returns; `Blob` for a file.
        parameters: the model that validates the parameters; `fields` are its fields.
        defaults: the default of each parameter; None for a required parameter.
        types: the types that Gradio shows for the parameters; `str` for a data URI.
        body: the parameter that a POST request passes as its body; "" for none.
    """

    def __init__(
        self,
        function: Callable[..., BaseModel],
        path: str,
        methods: Sequence[str] = ("GET",),
        quick: bool = False,
    ) -> None:
        self.function, self.path, self.methods, self.quick = function, path, methods, quick
        self.name, self.doc = function.__name__, inspect.cleandoc(function.__doc__ or "")
        signature = inspect.signature(function, eval_str=True)
        self._injected = {"state", "retriever"} & signature.parameters.keys()
        parameters = [p for name, p in signature.parameters.items() if name not in self._injected]
        if "retriever" in self._injected:
            parameters += [*inspect.signature(_retriever_keys, eval_str=True).parameters.values()]
        self.signature = signature.replace(parameters=parameters, return_annotation=dict[str, Any])
        # the first type of a union such as Mistakes | Blob
        self.answer = (*get_args(signature.return_annotation), signature.return_annotation)[0]
        config = ConfigDict(populate_by_name=True, loc_by_alias=False)
        definitions: dict[str, Any] = {
            p.name: (p.annotation, ... if p.default is p.empty else p.default) for p in parameters
        }
        self.parameters = create_model(self.name, __config__=config, **definitions)
        self.fields = self.parameters.model_fields
        self.defaults = {p.name: None if p.default is p.empty else p.default for p in parameters}
        self.types, self.body = {p.name: p.annotation for p in parameters}, ""
        for name, field in self.fields.items():
            if CONTENT in field.metadata:
                self.body, self.types[name] = name, str if field.is_required() else str | None

    def run(self, state: AppState, values: Mapping[str, Any]) -> BaseModel:
        """Validates `values` and calls the function; raises ValueError for an invalid value."""
        names = [field.alias or name for name, field in self.fields.items()]
        if unknown := sorted(values.keys() - names - self.types.keys()):
            choices = ", ".join(sorted(names)) or "none"
            raise ValueError(f'unknown parameter "{unknown[0][:80]}"; known: {choices}')
        for name, value in values.items():  # pydantic would accept true and false as 1 and 0
            has_bool = bool in map(type, value if isinstance(value, list) else [value])
            field = self.fields.get(name)
            if has_bool and (field is None or field.annotation is not bool):
                raise ValueError(f"{name} must be a number or a text, not true or false")
        arguments = dict(self.parameters.model_validate(values))
        if "retriever" in self._injected:
            retriever = state.retriever(arguments.pop("pack"), arguments.pop("collection"))
            arguments["retriever"] = retriever
            if arguments.get("method") == "":
                arguments["method"] = retriever.methods.best
        if "state" in self._injected:
            arguments["state"] = state
        start = time.perf_counter()
        answer = self.function(**arguments)
        if isinstance(answer, Timed):
            answer.ms = round((time.perf_counter() - start) * 1000, 1)
        return answer


def _retriever_keys(pack: Pack = "", collection: Collection = "") -> None:
    """Declares the parameters that select a retriever; only the signature is used."""


class Adapter:
    """Registers endpoints with a server, and runs their functions in threads."""

    def __init__(self, server: Server, state: AppState, endpoints: Sequence[Endpoint]) -> None:
        self._state, self._waiting = state, asyncio.Semaphore(MAX_WAITING)
        self._slots, self._image_slots = CapacityLimiter(_SLOTS), CapacityLimiter(_SLOTS - 1)
        self._quick_slot = CapacityLimiter(1)
        errors = (ValueError, FileNotFoundError, HTTPException, RequestValidationError, Refusal)
        for error_type in errors:
            server.add_exception_handler(error_type, lambda _, exc: self.refusal(exc).response())
        for endpoint in endpoints:
            path, methods = f"{PREFIX}{endpoint.path}", list(endpoint.methods)
            server.add_route(path, partial(self._respond, endpoint), methods)
            # no limit in Gradio's queue (by default 1): `answer` limits concurrency
            server.api(self._gradio_function(endpoint), name=endpoint.name, concurrency_limit=None)
        schema = openapi_schema(endpoints)
        content, page = JSONResponse(schema).body, routes_page(schema)
        # a new response for each request: the GZip middleware changes its headers in place
        server.add_route(
            f"{PREFIX}/openapi.json", lambda _: Response(content, media_type="application/json")
        )
        server.add_route(PREFIX, lambda _: HTMLResponse(page))

    async def _respond(self, endpoint: Endpoint, request: Request) -> Response:
        """Answers an HTTP request with JSON or a file."""
        answer = await self.answer(endpoint, await _read(request, endpoint))
        if not isinstance(answer, Blob):
            content = answer.model_dump_json(exclude_unset=True)
            return Response(content, media_type="application/json")
        if answer.file is None:
            headers = {"cache-control": "private, max-age=600"}
            return Response(answer.data, media_type=answer.media_type, headers=headers)
        # "identity" prevents compression, which would break requests for a range of bytes
        headers = {"content-encoding": "identity", "cache-control": "private, no-cache"}
        return FileResponse(answer.file, headers=headers, media_type=answer.media_type)

    async def answer(self, endpoint: Endpoint, values: Mapping[str, Any]) -> BaseModel:
        """Runs an endpoint's function in a thread as soon as a slot is free.

        Over a small gallery, quick endpoints run one at a time, as threads do not speed up their
        Python code. Requests with a file may take seconds, so they never use all slots. Raises
        `Refusal` if `MAX_WAITING` requests are open.
        """
        if self._waiting.locked():
            raise Refusal(503, f"{MAX_WAITING} requests are waiting; try again soon", 1)
        is_quick = endpoint.quick and self._state.first.index.file_count < LARGE_GALLERY
        slots = self._quick_slot if is_quick else self._slots
        image_slot = self._image_slots if values.get(endpoint.body) else nullcontext()
        async with self._waiting, image_slot:
            return await run_sync(endpoint.run, self._state, values, limiter=slots)

    def _gradio_function(self, endpoint: Endpoint) -> Callable[..., Any]:
        """Returns a function that takes values by position and returns a dictionary, for Gradio."""

        async def function(request: gr.Request, *values: Any) -> dict[str, Any]:
            # Gradio's queue runs in the context of the request that started it, not of this one
            client_name.set("" if self._state.private else client_key({"client": request.client}))
            try:
                answer = await self.answer(endpoint, dict(zip(endpoint.types, values)))  # noqa: B905
                if isinstance(answer, Blob):
                    return _inline(answer)
            except Exception as error:
                raise gr.Error(str(self.refusal(error)), print_exception=False) from None
            return answer.model_dump(mode="json", exclude_unset=True)

        fields = endpoint.fields.items()
        doc = [f"    {name}: {field.description or name}" for name, field in fields]
        function.__name__ = endpoint.name
        function.__doc__ = "\n".join([endpoint.doc, "", "Args:", *doc])
        types = {"request": gr.Request, **endpoint.types}
        function.__annotations__ = {**types, "return": dict[str, Any]}
        kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
        request = inspect.Parameter("request", kind, annotation=gr.Request)
        parameters = [request, *endpoint.signature.parameters.values()]
        signature = endpoint.signature.replace(parameters=parameters)
        function.__signature__ = signature  # type: ignore[attr-defined]
        return function

    def refusal(self, error: Exception) -> Refusal:
        """Converts an error to a refusal; logs unexpected errors."""
        if isinstance(error, Refusal):
            return error
        if isinstance(error, HTTPException):
            return Refusal(error.status_code, f"{error.detail}; see {PREFIX}")
        if isinstance(error, ValidationError):
            return Refusal(400, _validation_message(error))
        if isinstance(error, RequestValidationError):
            detail = error.errors()[0]
            message = f"{detail['loc'][-1]} cannot be read: {detail['msg'].lower()}"
            return Refusal(400, f"{message}; see {PREFIX}")
        if isinstance(error, FileNotFoundError) and error.filename:
            return Refusal(404, f"{Path(error.filename).name} no longer exists")
        if isinstance(error, ValueError | FileNotFoundError):
            status = 404 if isinstance(error, FileNotFoundError) else 400
            return Refusal(status, self._state.public_message(error)[:_MAX_MESSAGE])
        return Refusal.for_unexpected(error, "a request")


def openapi_schema(endpoints: Sequence[Endpoint]) -> dict[str, Any]:
    """Returns the OpenAPI description of all routes."""
    models = dict.fromkeys([Refused, *(e.answer for e in endpoints if e.answer is not Blob)])
    references, schemas = models_json_schema(
        [(model, "serialization") for model in models], ref_template="#/components/schemas/{model}"
    )
    contents: dict[Any, dict[str, Any]] = {Blob: {"*/*": {}}}
    for (model, _), reference in references.items():
        contents[model] = {"application/json": {"schema": reference}}
    refused = {"description": "refused", "content": contents[Refused]}
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in endpoints:
        schema = endpoint.parameters.model_json_schema()
        parameters = [
            {
                "name": name,
                "in": "path" if f"{{{name}}}" in endpoint.path else "query",
                "required": name in schema.get("required", ()),
                "description": value.pop("description", ""),
                "schema": value,
            }
            for name, value in schema.get("properties", {}).items()
            if name != endpoint.body
        ]
        answer = {"description": "the answer", "content": contents[endpoint.answer]}
        for method in endpoint.methods:
            statuses = ["400", "403", "404", "410", "421", "429", "500", "503"]
            statuses += ["408", "413"] if method == "POST" else []  # for bodies
            responses = dict.fromkeys(statuses, refused) | {"200": answer}
            if endpoint.path.startswith("/clip/"):  # the route answers the header Range
                responses |= {"206": answer, "416": {"description": "the file has no such range"}}
            path = paths.setdefault(f"{PREFIX}{endpoint.path}", {})
            path[method.lower()] = {
                "summary": endpoint.doc.splitlines()[0],
                "description": endpoint.doc,
                "operationId": f"{endpoint.name}_{method.lower()}",
                "parameters": parameters,
                "responses": responses,
            }
            if endpoint.body and method == "POST":
                path["post"]["requestBody"] = {"content": {"image/*": {}, "application/json": {}}}
    description = "An HTTP method that a path does not list gets status 405."
    info = {"title": "Polyview", "version": "1", "description": description}
    components = {"schemas": schemas["$defs"]}
    return {"openapi": "3.1.0", "info": info, "paths": paths, "components": components}


def routes_page(schema: Mapping[str, Any]) -> str:
    """Returns an HTML page that lists all routes and loads no other resource."""
    rows = ""
    for path, methods in schema["paths"].items():
        for method, doc in methods.items():
            names = ", ".join(parameter["name"] for parameter in doc["parameters"])
            cells = (f"{method.upper()} {path}", names, doc["summary"])
            rows += f"<tr><td>{'<td>'.join(map(escape, cells))}"
    head = "<!doctype html><meta charset=utf-8><title>Polyview API</title><h1>Polyview API</h1>"
    return f'{head}<p><a href="{PREFIX}/openapi.json">openapi.json</a></p><table>{rows}</table>'


async def _read(request: Request, endpoint: Endpoint) -> dict[str, Any]:
    """Reads the parameters of a request from its path, query string and body."""
    lists = parse_qs(request.scope["query_string"].decode("latin-1"), keep_blank_values=True)
    query = {key: items if len(items) > 1 else items[0] for key, items in lists.items()}
    values: dict[str, Any] = request.path_params | query
    content = await request.body() if request.method == "POST" else b""
    if not content:
        return values
    media_type = request.headers.get("content-type", "").lower()
    if endpoint.body and not media_type.startswith("application/json"):
        return {**values, endpoint.body: content}
    return values | read_json(content)


def _inline(blob: Blob) -> dict[str, str]:
    """Encodes a file as a data URI; raises ValueError for a file larger than `IMAGE_BYTES`."""
    if blob.file is not None and blob.file.stat().st_size > IMAGE_BYTES:
        raise ValueError(f"the file is too large for a data URI; download it from {PREFIX}/clip")
    data = blob.data if blob.file is None else blob.file.read_bytes()
    encoded = base64.b64encode(data).decode()
    return {"media_type": blob.media_type, "data": f"data:{blob.media_type};base64,{encoded}"}


def _validation_message(error: ValidationError) -> str:
    """Returns an error message that names the first invalid value."""
    detail = error.errors(include_url=False)[0]
    name = str(detail["loc"][0]) if detail["loc"] else "the request"
    if detail["type"] == "missing":
        return f"{name} is missing; see {PREFIX}"
    reason = detail["msg"].removeprefix("Value error, ")
    value = detail.get("input")
    excerpt = f"{len(value):,} bytes" if isinstance(value, bytes) else f"{value!s:.80}"
    return f'{name} cannot be "{excerpt}": {reason[:1].lower()}{reason[1:]}'
