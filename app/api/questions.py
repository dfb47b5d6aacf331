"""Every question with its route and its name in Gradio; docs/api.md describes them."""

from __future__ import annotations

from pathlib import PurePath

from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import FileResponse, Response

from app.api.adapter import PREFIX, Adapter, Question, Server, page
from app.api.collections import CollectionQuestions, PackQuestions
from app.api.evidence import EvidenceQuestions
from app.api.search import SearchQuestions
from app.packs.opened import ForbiddenError, Opened
from export.sessions import MANY

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

    def few() -> bool:
        return len(opened.first.index) < MANY

    return [
        Question(search.search_text, "/search", name="search_text", quick=few),
        Question(search.search_image, "/search", _POST, "search_image"),
        Question(search.compare, "/compare", name="compare"),
        Question(search.lens, "/lens", name="lens"),
        Question(search.timeline, "/timeline", name="timeline"),
        Question(search.examples, "/examples", name="examples"),
        Question(evidence.explain, "/explain", _BOTH, "explain"),
        Question(evidence.explain_hits, "/explain/hits", _BOTH, "explain_hits"),
        Question(evidence.explain_image, "/explain.png", name="explain_image"),
        Question(evidence.views, "/views", name="views"),
        Question(evidence.collapse, "/collapse", name="collapse"),
        Question(images.image, "/image/{image_id}", name="image"),
        Question(images.images, "/images", name="images"),
        Question(images.collections, "/collections", name="collections"),
        Question(images.open_collection, "/collections/open", _POST, "open_collection"),
        Question(images.new_collection, "/collections/new", _POST, "new_collection"),
        Question(images.add_file, "/collections/file", _POST, "add_file"),
        Question(images.start_collection, "/collections/start", _POST, "start_collection"),
        Question(images.progress, "/collections/progress", name="progress"),
        Question(images.stop_reading, "/collections/stop", _POST, "stop_reading"),
        Question(images.resume_reading, "/collections/resume", _POST, "resume_reading"),
        Question(packs.packs, "/packs", name="packs"),
        Question(packs.look_pack, "/packs/look", _POST, "look_pack"),
        Question(packs.fetch_pack, "/packs/fetch", _POST, "fetch_pack"),
        Question(packs.pack_job, "/packs/job", name="pack_job"),
        Question(packs.cancel_pack, "/packs/cancel", _POST, "cancel_pack"),
        Question(images.results, "/results", name="results"),
        Question(images.info, "/info", name="info"),
        Question(images.health, "/health", name="health"),
    ]


def register(server: Server, opened: Opened) -> None:
    """Adds everything below /api/v1 to a server, and Gradio's endpoints."""
    adapter = Adapter(server, opened)
    for question in questions(opened):
        adapter.add(question)

    async def clip(image_id: int, pack: str = "", collection: str = "") -> Response:
        """Sends a clip's file, or the part that the header Range names."""
        return await run_in_threadpool(_clip, opened, image_id, pack, collection)

    server.add_api_route(f"{PREFIX}/clip/{{image_id}}", clip, response_model=None)
    listed = page(server.openapi())  # only ours: Gradio adds its own routes as it launches

    async def index(_: Request) -> Response:
        return listed

    server.add_route(PREFIX, index, include_in_schema=False)
    for kind, handler in adapter.handlers().items():
        server.add_exception_handler(kind, handler)


def _clip(opened: Opened, image_id: int, pack: str, collection: str) -> Response:
    pack, collection = opened.resolve(pack, collection)
    if not opened.sends_files(collection):
        raise ForbiddenError("clips of this collection are sent to its owner's machine alone")
    try:
        image = opened.retriever(pack, collection).image(image_id)
    except ValueError as error:
        raise HTTPException(404, str(error)) from error
    if image.moment is None:
        raise HTTPException(404, f"image {image_id} is no clip")
    with image.reached().open():  # it is a regular file, inside of its folder
        kind = _KINDS.get(PurePath(image.file).suffix.lower(), "video/mp4")
    headers = {"content-encoding": "identity", "cache-control": "private, no-cache"}
    return FileResponse(image.path.resolve(), headers=headers, media_type=kind)
