"""Every question with its route and its name in Gradio; docs/api.md describes them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import PurePath

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response

from polyview.app.api.adapter import PREFIX, Adapter, Question, Server, page
from polyview.app.api.collections import CollectionQuestions, PackQuestions
from polyview.app.api.evidence import EvidenceQuestions
from polyview.app.api.mistakes import MistakeQuestions
from polyview.app.api.search import SearchQuestions
from polyview.app.packs.errors import ForbiddenError
from polyview.app.packs.opened import Opened
from polyview.app.search.ranking import MANY

_KINDS = {".mov": "video/quicktime", ".mkv": "video/x-matroska", ".webm": "video/webm"} | {
    ".gif": "image/gif",
    ".webp": "image/webp",
    ".png": "image/png",
    ".apng": "image/apng",
}
_POST, _BOTH = ("POST",), ("GET", "POST")


def questions(opened: Opened) -> list[Question]:
    """All questions over what is open."""
    search, evidence = SearchQuestions(opened), EvidenceQuestions(opened)
    images, packs = CollectionQuestions(opened), PackQuestions(opened)
    mistakes = MistakeQuestions(opened)

    def few() -> bool:
        return len(opened.first.index) < MANY

    return [
        Question(search.search_text, "/search", "search_text", quick=few),
        Question(search.search_image, "/search", "search_image", _POST),
        Question(search.compare, "/compare", "compare"),
        Question(search.lens, "/lens", "lens"),
        Question(search.timeline, "/timeline", "timeline"),
        Question(search.examples, "/examples", "examples"),
        Question(mistakes.mistakes, "/mistakes", "mistakes"),
        Question(mistakes.add_queries, "/mistakes/queries", "add_queries", _POST),
        Question(evidence.explain, "/explain", "explain", _BOTH),
        Question(evidence.explain_hits, "/explain/hits", "explain_hits", _BOTH),
        Question(evidence.explain_image, "/explain.png", "explain_image"),
        Question(evidence.views, "/views", "views"),
        Question(evidence.collapse, "/collapse", "collapse"),
        Question(images.image, "/image/{image_id}", "image"),
        Question(images.images, "/images", "images"),
        Question(images.collections, "/collections", "collections"),
        Question(images.open_collection, "/collections/open", "open_collection", _POST),
        Question(images.new_collection, "/collections/new", "new_collection", _POST),
        Question(images.add_file, "/collections/file", "add_file", _POST),
        Question(images.start_collection, "/collections/start", "start_collection", _POST),
        Question(images.progress, "/collections/progress", "progress"),
        Question(images.stop_reading, "/collections/stop", "stop_reading", _POST),
        Question(images.resume_reading, "/collections/resume", "resume_reading", _POST),
        Question(packs.packs, "/packs", "packs"),
        Question(packs.look_pack, "/packs/look", "look_pack", _POST),
        Question(packs.fetch_pack, "/packs/fetch", "fetch_pack", _POST),
        Question(packs.pack_job, "/packs/job", "pack_job"),
        Question(packs.cancel_pack, "/packs/cancel", "cancel_pack", _POST),
        Question(images.results, "/results", "results"),
        Question(images.info, "/info", "info"),
        Question(images.health, "/health", "health"),
    ]


def register(server: Server, opened: Opened, all_questions: Sequence[Question]) -> None:
    """Adds everything below /api/v1 to a server, and Gradio's endpoints."""
    adapter = Adapter(server, opened)
    for question in all_questions:
        adapter.add(question)

    async def clip(image_id: int, pack: str = "", collection: str = "") -> Response:
        """Sends a clip's file, or the part that the header Range names."""
        return await run_in_threadpool(_clip, opened, image_id, pack, collection)

    server.add_api_route(f"{PREFIX}/clip/{{image_id}}", clip, response_model=None)
    schema = adapter.describe()
    described, listed = JSONResponse(schema), page(schema)

    async def describe(request: Request) -> Response:
        return described if request.url.path.endswith(".json") else listed

    for path in (PREFIX, f"{PREFIX}/openapi.json"):
        server.add_route(path, describe, include_in_schema=False)
    for kind, handler in adapter.handlers().items():
        server.add_exception_handler(kind, handler)


def _clip(opened: Opened, image_id: int, pack: str, collection: str) -> Response:
    pack, collection = opened.resolve(pack, collection)
    if not opened.sends_files(collection):
        raise ForbiddenError("clips of this collection are sent to its owner's machine alone")
    retriever = opened.retriever(pack, collection)
    try:
        image = retriever.image(image_id)
    except ValueError as error:
        raise HTTPException(404, str(error)) from error
    if image.moment is None:
        raise HTTPException(404, f"image {image_id} is no clip")
    with image.reached().open():  # it is a regular file, inside of its folder
        kind = _KINDS.get(PurePath(image.file).suffix.lower(), "video/mp4")
    headers = {"content-encoding": "identity", "cache-control": "private, no-cache"}
    return FileResponse(image.path.resolve(), headers=headers, media_type=kind)
