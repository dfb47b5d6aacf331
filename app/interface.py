"""The page: a header, the tabs, and the endpoints, around one shelf of packs."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import gradio as gr
from gradio.themes import Base
from gradio.themes.utils import colors, sizes
from starlette.staticfiles import StaticFiles

from app import panels
from app.api import add_endpoints
from app.description import describe
from app.guard import guard
from app.retriever import thumbnail_folder
from app.session import Session
from app.settings import Settings
from app.shelf import Shelf
from app.tabs import benchmark, compare, models, search, views
from app.tabs.sharing import note_tab

TABS: tuple[tuple[str, Callable[[Session, gr.Tab], None]], ...] = (
    ("Search", search.build),
    ("Compare", compare.build),
    ("Views", views.build),
    ("Benchmark", benchmark.build),
    ("Models", models.build),
)
_AT_ONCE = max(2, os.cpu_count() or 1)  # events that may run a model at the same time
STYLES = sorted(Path(__file__).parent.rglob("*.css"))
FAVICON = Path(__file__).parent / "favicon.png"
# The first tab says that it is selected as soon as it is there, before the one that the page's
# address names could be opened.
_TAB_RESTORED = "() => { window.pvTabRestored = true; }"


def build(shelf: Shelf) -> gr.Blocks:
    """Builds the page; `launch` shows it."""
    with gr.Blocks(
        title="Polyview", analytics_enabled=False, delete_cache=(3600, 86400), fill_width=True
    ) as blocks:
        tabs = gr.Tabs(render=False)
        session = Session(shelf, blocks, gr.State(""), tabs, gr.State(None))
        _add_header(session)
        tabs.render()
        with tabs:
            for title, build_tab in TABS:
                with gr.Tab(title, id=title.lower(), render_children=True) as tab:
                    build_tab(session, tab)
                tab.select(None, js=note_tab(title.lower()), api_visibility="private")
        _restore_tab(session)
        add_endpoints(shelf)
    guard(blocks)
    return blocks


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


def launch(blocks: gr.Blocks, settings: Settings, cache: Path) -> None:
    """Begins to serve the page, in a thread of its own.

    Args:
        blocks: what `build` made.
        settings: where to listen.
        cache: the user's cache folder; of it, only the thumbnails can be fetched.
    """
    blocks.queue(max_size=100, default_concurrency_limit=_AT_ONCE).launch(
        server_name=settings.host,
        server_port=settings.port,
        theme=theme(),
        css_paths=list(STYLES),
        favicon_path=FAVICON,
        footer_links=["api", "settings"],
        run_history=False,
        max_file_size="50mb",
        show_error=False,
        ssr_mode=False,
        mcp_server=settings.mcp,
        prevent_thread_lock=True,
    )
    # by their names alone: gradio's own addresses tell where a file lies on this machine
    folder = thumbnail_folder(cache)
    with suppress(OSError):  # there are no thumbnails then
        folder.mkdir(parents=True, exist_ok=True)
    blocks.app.mount(f"/{panels.THUMBNAILS}", StaticFiles(directory=folder, check_dir=False))


def _restore_tab(session: Session) -> None:
    """Opens the tab that the page's address names."""

    def restore(request: gr.Request) -> dict[str, Any]:
        wanted = request.query_params.get("tab", "")
        titles = {title.lower(): title for title, _ in TABS}
        if wanted in titles:
            return gr.update(selected=wanted)
        if wanted:
            known = ", ".join(titles)
            gr.Warning(panels.text(f'There is no tab "{wanted[:40]}"; there are {known}.'))
        return gr.update()

    opened = session.blocks.load(
        restore,
        None,
        session.tabs,
        api_name="open_tab",
        api_visibility="undocumented",
        show_progress="hidden",
    )
    opened.then(None, js=_TAB_RESTORED, api_visibility="private")


def _add_header(session: Session) -> None:
    """The top line, which follows the gallery until it is complete."""
    top = gr.HTML(panels.header(describe(session.shelf.first)), elem_id="pv-top")
    clock = gr.Timer(1.0)

    def follow(key: str) -> tuple[str, dict[str, Any]]:
        retriever = session.retriever(key)
        finished = retriever.index.progress.finished
        return panels.header(describe(retriever)), gr.update(active=not finished)

    for trigger, name in (
        (clock.tick, "tick"),
        (session.blocks.load, "open"),
        (session.pack.change, "swap"),
    ):
        trigger(
            follow,
            session.pack,
            [top, clock],
            api_name=f"header_{name}",
            api_visibility="undocumented",
            show_progress="hidden",
            queue=False,
        )
