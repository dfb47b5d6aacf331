"""All questions with their routes; documented in docs/api.md."""

from __future__ import annotations

from polyview.app.api import collections, evidence, mistakes, search
from polyview.app.api.adapter import Question

_POST, _BOTH = ("POST",), ("GET", "POST")


QUESTIONS = [
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
    Question(collections.packs, "/packs"),
    Question(collections.check_pack, "/packs/check"),
    Question(collections.look_pack, "/packs/look", _POST),
    Question(collections.fetch_pack, "/packs/fetch", _POST),
    Question(collections.pack_job, "/packs/job"),
    Question(collections.cancel_pack, "/packs/cancel", _POST),
    Question(collections.results, "/results"),
    Question(collections.info, "/info"),
    Question(collections.health, "/health"),
]
