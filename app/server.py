"""The server: a typed API, a page of static files, Gradio's queue and MCP on `gradio.Server`."""

import os
from pathlib import Path

from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import FileResponse
from starlette.staticfiles import StaticFiles

from polyview.app.access import Hosts
from polyview.app.api.adapter import Adapter, Server
from polyview.app.api.endpoints import ENDPOINTS
from polyview.app.limits import RequestGuard
from polyview.app.packs.state import AppState
from polyview.app.settings import Settings

PAGE = Path(__file__).parent / "page"
# the addresses of a Space's proxies
_SPACE_PROXIES = "127.0.0.0/8,10.0.0.0/8,172.16.0.0/12,192.168.0.0/16,100.64.0.0/10,fc00::/7"


def build(settings: Settings, state: AppState) -> Server:
    """Builds the server with every route and endpoint; `launch` starts it."""
    hosts = Hosts(settings.private, settings.names)
    defaults = {endpoint.name: endpoint.defaults for endpoint in ENDPOINTS}
    server = Server(
        title="Polyview",
        description="Searches images by words and by images, and explains each score.",
        version="1",
        openapi_url=None,  # `Adapter` serves its own
        docs_url=None,  # FastAPI's pages load scripts from other servers
        redoc_url=None,
        redirect_slashes=False,
        middleware=[
            Middleware(RequestGuard, hosts, defaults, mcp=settings.mcp, space=settings.on_space),
            Middleware(GZipMiddleware, minimum_size=1000, compresslevel=5),
        ],
    )
    Adapter(server, state, ENDPOINTS)
    server.mount("/page", StaticFiles(directory=PAGE))
    server.add_route("/", lambda _: FileResponse(PAGE / "index.html"))
    return server


def launch(server: Server, settings: Settings) -> str:
    """Starts serving in a background thread; returns the address."""
    if settings.on_space:  # trust the client address in the headers of its proxies
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
