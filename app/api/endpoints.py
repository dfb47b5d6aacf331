"""All endpoints with their routes; documented in docs/api.md."""

from __future__ import annotations

from polyview.app.api import collections, evidence, mistakes, search
from polyview.app.api.adapter import Endpoint

_POST, _GET_POST = ("POST",), ("GET", "POST")

ENDPOINTS = [
    Endpoint(search.search_text, "/search", quick=True),
    Endpoint(search.search_image, "/search", _POST),
    Endpoint(search.compare, "/compare"),
    Endpoint(search.lens, "/lens"),
    Endpoint(search.timeline, "/timeline"),
    Endpoint(search.examples, "/examples"),
    Endpoint(mistakes.mistakes, "/mistakes"),
    Endpoint(mistakes.add_queries, "/mistakes/queries", _POST),
    Endpoint(evidence.explain, "/explain", _GET_POST),
    Endpoint(evidence.explain_hits, "/explain/hits", _GET_POST),
    Endpoint(evidence.explain_image, "/explain.png"),
    Endpoint(evidence.views, "/views"),
    Endpoint(evidence.collapse, "/collapse"),
    Endpoint(collections.image, "/image/{image_id}"),
    Endpoint(collections.clip, "/clip/{image_id}"),
    Endpoint(collections.images, "/images"),
    Endpoint(collections.collections, "/collections"),
    Endpoint(collections.open_collection, "/collections/open", _POST),
    Endpoint(collections.new_collection, "/collections/new", _POST),
    Endpoint(collections.add_file, "/collections/file", _POST),
    Endpoint(collections.start_collection, "/collections/start", _POST),
    Endpoint(collections.progress, "/collections/progress"),
    Endpoint(collections.stop_reading, "/collections/stop", _POST),
    Endpoint(collections.resume_reading, "/collections/resume", _POST),
    Endpoint(collections.packs, "/packs"),
    Endpoint(collections.check_pack, "/packs/check"),
    Endpoint(collections.look_pack, "/packs/look", _POST),
    Endpoint(collections.fetch_pack, "/packs/fetch", _POST),
    Endpoint(collections.pack_job, "/packs/job"),
    Endpoint(collections.cancel_pack, "/packs/cancel", _POST),
    Endpoint(collections.results, "/results"),
    Endpoint(collections.info, "/info"),
    Endpoint(collections.health, "/health"),
]
