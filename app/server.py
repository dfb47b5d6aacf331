"""The app on `gradio.Server`: a typed API, a page of static files, Gradio's queue and MCP.

    python -m app.server [--pack PATH_OR_HUB_ID] [--gallery DIR_OR_ZIP] [--mcp] ...

Imports that take seconds are made late, so that a mistake in the command line is told at once.
"""

from __future__ import annotations

import atexit
import gc
import importlib.util
import logging
import os
import sys
import threading
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from app.api.adapter import Server
    from app.packs.opened import Opened
    from app.settings import Settings

PAGE = Path(__file__).parent / "page"
NO_MCP = '--mcp needs a package that is not installed; run: pip install "gradio[mcp]"'
_SESSIONS = 50  # whose state Gradio keeps; our endpoints have none
_SWEEP_SECONDS = 60.0
_NEAR = "127.0.0.0/8,10.0.0.0/8,172.16.0.0/12,192.168.0.0/16,100.64.0.0/10,fc00::/7"  # a Space's


def build(settings: Settings, opened: Opened) -> Server:
    """A server with every route and endpoint; `launch` starts it."""
    from starlette.middleware import Middleware
    from starlette.middleware.gzip import GZipMiddleware
    from starlette.requests import Request
    from starlette.responses import FileResponse, RedirectResponse, Response
    from starlette.staticfiles import StaticFiles

    from app.access import Hosts
    from app.api.adapter import PREFIX, Server
    from app.api.questions import questions, register
    from app.limits import Door

    hosts, asked = Hosts(settings.private, settings.names), questions(opened)
    endpoints = [(question.name, question.defaults) for question in asked]
    server = Server(
        title="Polyview",
        description="Searches images by words and by images, and says why.",
        version="1",
        openapi_url=None,  # `register` adds it
        docs_url=None,  # FastAPI's own pages fetch scripts from elsewhere
        redoc_url=None,
        redirect_slashes=False,
        middleware=[
            Middleware(Door, hosts, endpoints, mcp=settings.mcp, space=settings.on_space),
            Middleware(GZipMiddleware, minimum_size=1000, compresslevel=5),
        ],
    )
    register(server, opened, asked)
    if PAGE.is_dir():
        server.mount("/page", StaticFiles(directory=PAGE))

    async def start(_: Request) -> Response:
        first = PAGE / "index.html"
        return FileResponse(first) if first.is_file() else RedirectResponse(PREFIX)

    server.add_route("/", start, methods=["GET", "HEAD"], include_in_schema=False)
    return server


def launch(server: Server, settings: Settings) -> str:
    """Begins to serve in a thread of its own; returns the address."""
    if settings.on_space:  # its proxies say who asks
        os.environ.setdefault("FORWARDED_ALLOW_IPS", _NEAR)
    _, url, _ = server.launch(
        server_name=settings.host,
        server_port=settings.port,
        share=settings.shared,
        favicon_path=Path(__file__).parent / "favicon.png",
        mcp_server=settings.mcp,
        state_session_capacity=_SESSIONS,
        max_file_size=1,  # Gradio's own uploads are closed
        enable_monitoring=False,
        run_history=False,
        show_error=False,
        ssr_mode=False,
        num_workers=0,
        prevent_thread_lock=True,
    )
    return url


def declare_zerogpu() -> None:
    """Names a function that could borrow a GPU, without which ZeroGPU ends an app at its start.

    It is never called: a loan takes seconds, and a question takes the processor milliseconds.
    """
    from export.sessions import on_zerogpu

    if not on_zerogpu():
        return
    import spaces  # there only
    import torch

    @spaces.GPU
    def lent_gpu() -> str:
        """The name of the GPU that a call gets."""
        return torch.cuda.get_device_name()


def main(argv: Sequence[str] | None = None) -> int:
    """Serves until the process is ended; returns its exit status."""
    # before gradio and huggingface_hub are imported, which read these once
    os.environ["GRADIO_ANALYTICS_ENABLED"] = "False"
    os.environ["HF_HUB_DISABLE_TELEMETRY"] = "1"
    # by default gradio remembers 10,000 events and sums them up after each one
    os.environ["GRADIO_ANALYTICS_CACHE_FREQUENCY"] = str(10**12)
    os.environ["GRADIO_ANALYTICS_MAX_EVENTS"] = "1"
    from app.settings import Settings

    settings = Settings.from_argv(sys.argv[1:] if argv is None else argv)
    if settings.mcp and importlib.util.find_spec("mcp") is None:
        print(f"polyview: {NO_MCP}", file=sys.stderr)
        return 1
    gc.disable()  # while thousands of modules are imported
    from PIL import Image

    from app.gallery.cache import cache_folder
    from app.gallery.terminal import ProgressBar
    from app.packs.opened import Opened

    logging.basicConfig(level=logging.WARNING, format="polyview: %(message)s")
    logging.getLogger("httpx").setLevel(logging.WARNING)
    # app/gallery/images.py has its own limit and says so in a sentence
    warnings.simplefilter("ignore", Image.DecompressionBombWarning)
    try:
        opened = Opened(settings, cache_folder())
        if settings.pack is None and settings.gallery is not None:
            title = opened.first.info.title
            print(f"polyview: the gallery is searched with {title}; --pack names another pack")
        declare_zerogpu()
        launch(build(settings, opened), settings)
    except (ValueError, OSError) as error:
        print(f"polyview: {error}", file=sys.stderr)
        return 1
    finally:
        gc.enable()
    atexit.register(opened.close)
    gc.collect()
    gc.freeze()  # what the start made stays, and is not looked through for garbage
    # only now, so that the first page does not wait for processors busy with images
    opened.first.index.start(ProgressBar())
    wait = threading.Event()
    try:
        while not wait.wait(_SWEEP_SECONDS):
            opened.sweep()
    except KeyboardInterrupt:
        print("polyview: stopped", file=sys.stderr)
    return 0


if __name__ == "__main__":
    sys.exit(main())
