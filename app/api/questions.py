"""All questions with their routes; documented in docs/api.md."""

from __future__ import annotations

from collections.abc import Sequence

from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from polyview.app.api import collections, evidence, mistakes, search
from polyview.app.api.adapter import PREFIX, Adapter, Question, Server, describe, page
from polyview.app.api.collections import PackQuestions
from polyview.app.packs.opened import Opened

_POST, _BOTH = ("POST",), ("GET", "POST")


def questions(opened: Opened) -> list[Question]:
    """Creates all questions."""
    packs = PackQuestions(opened)
    return [
        Question(search.search_text, "/search", quick=True),
        Question(search.search_image, "/search", _POST),
        Question(search.compare, "/compare"),
        Question(search.lens, "/lens"),
        Question(search.timeline, "/timeline"),
        Question(search.examples, "/examples"),
        Question(mistakes.mistakes, "/mistakes"),
        Question(mistakes.add_queries, "/mistakes/queries", _POST),
        Question(evidence.explain, "/explain", _BOTH),
        Question(evidence.explain_hits, "/explain/hits", _BOTH),
        Question(evidence.explain_image, "/explain.png"),
        Question(evidence.views, "/views"),
        Question(evidence.collapse, "/collapse"),
        Question(collections.image, "/image/{image_id}"),
        Question(collections.clip, "/clip/{image_id}"),
        Question(collections.images, "/images"),
        Question(collections.collections, "/collections"),
        Question(collections.open_collection, "/collections/open", _POST),
        Question(collections.new_collection, "/collections/new", _POST),
        Question(collections.add_file, "/collections/file", _POST),
        Question(collections.start_collection, "/collections/start", _POST),
        Question(collections.progress, "/collections/progress"),
        Question(collections.stop_reading, "/collections/stop", _POST),
        Question(collections.resume_reading, "/collections/resume", _POST),
        Question(packs.packs, "/packs"),
        Question(collections.check_pack, "/packs/check"),
        Question(packs.look_pack, "/packs/look", _POST),
        Question(packs.fetch_pack, "/packs/fetch", _POST),
        Question(packs.pack_job, "/packs/job"),
        Question(packs.cancel_pack, "/packs/cancel", _POST),
        Question(collections.results, "/results"),
        Question(collections.info, "/info"),
        Question(collections.health, "/health"),
    ]


def register(server: Server, opened: Opened, all_questions: Sequence[Question]) -> None:
    """Adds everything below /api/v1 to a server, and Gradio's endpoints."""
    adapter, schema = Adapter(server, opened), describe(all_questions)
    for question in all_questions:
        adapter.add(question)
    described, listed = JSONResponse(schema), page(schema)

    async def show(request: Request) -> Response:
        return described if request.url.path.endswith(".json") else listed

    for path in (PREFIX, f"{PREFIX}/openapi.json"):
        server.add_route(path, show, include_in_schema=False)
