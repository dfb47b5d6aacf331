"""The server: the API, the static files of the page, Gradio's queue and MCP."""

import os
from pathlib import Path

from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import FileResponse
from starlette.staticfiles import StaticFiles

from polyview.app.access import Hosts, RequestGuard
from polyview.app.api import collections, evidence, examples, mistakes, search
from polyview.app.api.adapter import Adapter, Endpoint, Server
from polyview.app.gradio_queue import GradioQueue
from polyview.app.packs.state import AppState
from polyview.app.settings import Settings

PAGE = Path(__file__).parent / "page"
# the IP addresses of a Space's proxies
_SPACE_PROXIES = "127.0.0.0/8,10.0.0.0/8,172.16.0.0/12,192.168.0.0/16,100.64.0.0/10,fc00::/7"
_POST, _GET_POST = ("POST",), ("GET", "POST")
ENDPOINTS = [
    Endpoint(search.search_text, "/search", quick=True),
    Endpoint(search.search_image, "/search", _POST),
    Endpoint(search.compare, "/compare"),
    Endpoint(search.lens, "/lens"),
    Endpoint(search.timeline, "/timeline"),
    Endpoint(examples.examples, "/examples"),
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


def build(settings: Settings, state: AppState) -> Server:
    """Builds the server with every route and endpoint; `launch` starts it."""
    hosts = Hosts(settings.private, settings.names)
    queue = GradioQueue({endpoint.name: endpoint.defaults for endpoint in ENDPOINTS})
    server = Server(
        title="Polyview",
        description="Searches images by words and by images, and explains each score.",
        version="1",
        openapi_url=None,  # `Adapter` serves a description of the API
        docs_url=None,  # FastAPI's pages load scripts from other servers
        redoc_url=None,
        redirect_slashes=False,
        middleware=[
            Middleware(RequestGuard, hosts, queue, mcp=settings.mcp, space=settings.on_space),
            Middleware(GZipMiddleware, minimum_size=1000, compresslevel=5),
        ],
    )
    Adapter(server, state, ENDPOINTS)
    server.mount("/page", StaticFiles(directory=PAGE))
    server.add_route("/", lambda _: FileResponse(PAGE / "index.html"))
    return server


def launch(server: Server, settings: Settings) -> str:
    """Starts serving in a background thread; returns the address."""
    if settings.on_space:  # trust the client address in the proxies' headers
        os.environ.setdefault("FORWARDED_ALLOW_IPS", _SPACE_PROXIES)
    _, url, _ = server.launch(
        server_name=settings.host,
        server_port=settings.port,
        share=settings.shared,
        favicon_path=Path(__file__).parent / "favicon.png",
        mcp_server=settings.mcp,
        state_session_capacity=50,  # the endpoints are stateless
        max_file_size=1,  # Gradio's own upload route is blocked
        enable_monitoring=False,
        run_history=False,
        show_error=False,
        ssr_mode=False,
        num_workers=0,
        prevent_thread_lock=True,
    )
    return url
