"""The page: a header, the tabs, and the endpoints, around the open packs."""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gradio as gr
import httpx
import uvicorn
from gradio import http_server, utils
from gradio.themes import Base
from gradio.themes.utils import colors, sizes
from starlette.middleware.gzip import GZipMiddleware
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from app.access import Hosts
from app.blocks.api.endpoints import endpoints
from app.blocks.server import listening, uploads
from app.blocks.server.assistants import send_images
from app.blocks.server.door import FrontDoor
from app.blocks.server.limits import Limits
from app.blocks.server.visitors import OWN_SESSIONS, SESSIONS, Visitors, keep_little
from app.blocks.tabs.benchmark.tab import BenchmarkTab
from app.blocks.tabs.compare.tab import CompareTab
from app.blocks.tabs.events import MODEL_QUEUE, Event, connect, guard
from app.blocks.tabs.html import text
from app.blocks.tabs.images import THUMBNAILS
from app.blocks.tabs.models.tab import ModelsTab
from app.blocks.tabs.search.tab import SearchTab
from app.blocks.tabs.session import LAB_TAB, Session
from app.blocks.tabs.sharing import note_tab
from app.blocks.tabs.start.tab import Start
from app.blocks.tabs.views.tab import ViewsTab
from app.gallery.thumbnails import thumbnail_folder
from app.packs.open_packs import OpenPacks
from app.settings import Settings

_Tabs = tuple[tuple[str, Callable[[Session, Event], object]], ...]
TABS: _Tabs = (("Search", SearchTab), ("Compare", CompareTab))
LAB: _Tabs = (("Views", ViewsTab), ("Benchmark", BenchmarkTab), ("Models", ModelsTab))
_AT_ONCE = max(2, os.cpu_count() or 1)  # events that may run a model at the same time
_LOOK_EVERY = 0.01  # seconds between two looks into the queue of events
_SPACE_FRAMES = "'self' https://huggingface.co https://*.huggingface.co https://*.hf.space"
_NEAR = "127.0.0.0/8,10.0.0.0/8,172.16.0.0/12,192.168.0.0/16,100.64.0.0/10,fc00::/7"  # its proxies
STYLES = sorted(Path(__file__).parent.rglob("*.css"))
FAVICON = Path(__file__).parents[1] / "favicon.png"
# Svelte copies whatever the page is made of, each number and word by structuredClone: 30,000 calls
# to load the page and 47,000 to open Views, a fifth of the time that both take.
_PLAIN_COPIES = """{
  const copy = structuredClone, objects = ["object", "function", "symbol"];
  window.structuredClone = (value, ...options) =>
    objects.includes(typeof value) && value !== null ? copy(value, ...options) : value;
}"""
# What a visitor asks goes out in the order in which it is asked: of two requests at once either may
# come first, and an older answer would replace the newer one. Loading the page asks all at once.
_IN_ORDER = """{
  const send = window.fetch;
  let before = Promise.resolve();
  window.fetch = (address, ...options) => {
    if (!String(address).includes("/queue/join") || !navigator.userActivation?.hasBeenActive)
      return send(address, ...options);
    const answer = before.then(() => send(address, ...options));
    before = answer.catch(() => {});
    return answer;
  };
}"""
# The first tab says that it is selected as soon as it is there, before the one that the page's
# address names could be opened.
_TAB_RESTORED = "() => { window.pvTabRestored = true; }"
_BACK = """addEventListener("popstate", () => trigger("select"));"""
# By the page alone: of two answers of the server, that to an older step could come last.
_GO_BACK = """() => {
    const open = (tab) => ({ __type__: "update", selected: tab });
    const tab = new URLSearchParams(location.search).get("tab");
    if (%s.includes(tab)) return [open("%s"), open(tab)];
    return [open(%s.includes(tab) ? tab : "search"), undefined];
}"""


def build(packs: OpenPacks) -> gr.Blocks:
    """Builds the page; `launch` shows it."""
    with gr.Blocks(
        title="Polyview",
        analytics_enabled=False,
        delete_cache=(3600, int(uploads.AGE)),
        fill_width=True,
    ) as blocks:
        tabs = gr.Tabs(render=False)
        lab_tabs = gr.Tabs(render=False, elem_id="pv-lab")
        session = Session(packs, blocks, gr.State(""), tabs, lab_tabs, gr.State(None))
        Start(session)
        tabs.render()
        with tabs:
            _add_tabs(session, TABS)
            with gr.Tab("Lab", id=LAB_TAB, render_children=True) as lab:
                _note(lab, LAB_TAB)
                lab_tabs.render()
                with lab_tabs:
                    _add_tabs(session, LAB, lab.select)
        _restore_tab(session)
        model, others = endpoints(packs)
        for function in (*model, *others):
            queue = MODEL_QUEUE if function in model else None
            gr.api(function, api_name=function.__name__, concurrency_id=queue)
    guard(blocks)
    return blocks


def _add_tabs(session: Session, tabs: _Tabs, *also: Event) -> None:
    """Adds tabs; whatever selects them is an event of theirs, and so is each of `also`."""
    for title, build_tab in tabs:
        with gr.Tab(title, id=title.lower(), render_children=True) as tab:
            _note(tab, title.lower())
            build_tab(session, partial(gr.on, [tab.select, *also]))


def _note(tab: gr.Tab, name: str) -> None:
    """Has the address follow a tab; before all else, as an event waits for those before it."""
    tab.select(None, js=note_tab(name), api_visibility="private")


def theme() -> Base:
    """Colours and sizes; every font is one that the visitor's system already has."""
    base = gr.themes.Default(
        primary_hue=colors.teal,
        secondary_hue=colors.amber,
        neutral_hue=colors.slate,
        radius_size=sizes.radius_lg,
        font=["system-ui", "-apple-system", "Segoe UI", "Roboto", "sans-serif"],
        font_mono=["ui-monospace", "Menlo", "Consolas", "monospace"],
    )
    # Dark enough for white letters on it (WCAG AA).
    return base.set(
        button_primary_background_fill="*primary_700",
        button_primary_background_fill_hover="*primary_800",
        button_primary_background_fill_dark="*primary_700",
        button_primary_background_fill_hover_dark="*primary_600",
        body_text_color_subdued="*neutral_600",
        body_text_color_subdued_dark="*neutral_400",
    )


def launch(blocks: gr.Blocks, api: ASGIApp, settings: Settings, cache: Path) -> None:
    """Begins to serve the page, in a thread of its own.

    Args:
        blocks: what `build` made.
        api: answers programs beside the page.
        settings: where to listen.
        cache: the user's cache folder; of it, only the thumbnails can be fetched.
    """
    blocks.queue(max_size=100, default_concurrency_limit=_AT_ONCE, api_open=False)
    # gradio would load matplotlib, and choose how it draws on a screen, around every event
    utils.MatplotlibBackendMananger = nullcontext  # type: ignore[assignment,misc]
    # gradio looks for events a thousand times a second, which takes 6 % of a processor at rest
    blocks._queue.sleep_when_free = _LOOK_EVERY
    blocks._queue.progress_update_sleep_when_free = _LOOK_EVERY * 10
    with _front_door(blocks, settings, api):
        blocks.launch(
            server_name=settings.host,
            server_port=settings.port,
            share=settings.shared,
            theme=theme(),
            head=f"<script>{_PLAIN_COPIES}{_IN_ORDER}</script>",
            css_paths=list(STYLES),
            favicon_path=FAVICON,
            footer_links=["api", "settings"],
            run_history=False,
            max_file_size=uploads.FORM_BYTES,  # the front door refuses less, in a sentence
            state_session_capacity=OWN_SESSIONS if settings.private else SESSIONS,
            enable_monitoring=False,
            num_workers=0,
            show_error=False,
            ssr_mode=False,
            # gradio asks its own page once, within 3 s, and on a busy machine would give up
            _frontend=False,
            mcp_server=settings.mcp,
            prevent_thread_lock=True,
        )
    keep_little(blocks)
    if settings.mcp:
        send_images(blocks.mcp_server_obj)
    # gradio keeps its answer, with the address by which the first one asked
    with suppress(httpx.HTTPError):
        httpx.get(f"{blocks.local_url}gradio_api/info", trust_env=False)
    uploads.keep_swept()
    # by their names alone: gradio's own addresses tell where a file lies on this machine
    folder = thumbnail_folder(cache)
    with suppress(OSError):  # there are no thumbnails then
        folder.mkdir(parents=True, exist_ok=True)
    blocks.app.mount(f"/{THUMBNAILS}", StaticFiles(directory=folder, check_dir=False))


@contextmanager
def _front_door(blocks: gr.Blocks, settings: Settings, api: ASGIApp) -> Iterator[None]:
    """Has every request pass the front door, and bounds connections, while gradio begins to serve.

    gradio gives no way to configure its server, which it makes by `uvicorn.Config`.
    """
    closed = []
    visitors = Visitors(blocks)

    def configure(app: ASGIApp, **options: Any) -> uvicorn.Config:
        closed.append(app)
        hosts = Hosts(settings.private, settings.names)
        limits = None if settings.private else Limits(visitors.waiting, visitors.enter)
        frames = _SPACE_FRAMES if settings.on_space else "'self'"
        compressed = GZipMiddleware(app, compresslevel=6)  # but for streams of events
        door = FrontDoor(compressed, hosts, limits, frames, settings.mcp, api)
        return listening.configure(door, _NEAR if settings.on_space else None, **options)

    found = http_server.uvicorn
    http_server.uvicorn = SimpleNamespace(Config=configure)  # type: ignore[assignment]
    try:
        yield
    finally:
        http_server.uvicorn = found
    if not closed:
        raise ValueError("this gradio serves without the front door; install gradio>=6.31,<7")


def _restore_tab(session: Session) -> None:
    """Opens the tab that the page's address names, also as the visitor goes back to one."""
    titles = {title.lower(): title for title, _ in (*TABS, *LAB)}

    def restore(request: gr.Request) -> dict[Any, Any]:
        wanted = request.query_params.get("tab", "")
        if wanted in titles:
            return session.opened(wanted)
        if wanted:
            known = ", ".join(titles)
            gr.Warning(text(f'There is no tab "{wanted[:40]}"; there are {known}.'))
        return {session.tabs: gr.skip()}

    both = [session.tabs, session.lab]
    back = gr.HTML("", html_template="", js_on_load=_BACK, visible="hidden")
    beside, inside = ([title.lower() for title, _ in tabs] for tabs in (TABS, LAB))
    script = _GO_BACK % (inside, LAB_TAB, beside)
    back.select(None, outputs=both, js=script, api_visibility="private")
    opened = connect(session.blocks.load, restore, [], both, "open_tab")
    opened.then(None, js=_TAB_RESTORED, api_visibility="private")
