"""The button of the Models tab that stops reading and goes on with it."""

from pathlib import Path
from unittest.mock import Mock

import gradio as gr
import pytest

from app.blocks.tabs.models.tab import ModelsTab
from app.blocks.tabs.session import Session
from app.gallery import indexing as index_module
from app.gallery.indexing import Progress
from app.packs.open_packs import OpenPacks
from app.settings import Settings
from tests.app.conftest import finish


def make(tiny_pack: Path, cache: Path, host: str) -> ModelsTab:
    open_packs = OpenPacks(Settings(str(tiny_pack), device="cpu", host=host), cache)
    with gr.Blocks() as blocks:
        session = Session(open_packs, blocks, gr.State(""), Mock(), Mock(), gr.State(None))
        with gr.Tabs(), gr.Tab("Models") as own:
            return ModelsTab(session, own.select)


def button(tab: ModelsTab) -> tuple[str, bool]:
    """What it says, and whether it is shown."""
    shown = tab.refresh("")[tab._pause]
    return shown.value, shown.visible


def test_whoever_sits_at_the_machine_stops_and_goes_on(
    tiny_pack: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_module, "IMAGES_AT_ONCE", 10)
    tab = make(tiny_pack, tmp_path, "127.0.0.1")
    index = tab._session.packs.first.index
    buttons: list[tuple[str, bool]] = []

    def watch(progress: Progress) -> None:
        if progress.stage == "pictures" and not buttons:
            buttons.append(button(tab))
            index.stop()

    finish(index, watch)
    assert buttons == [("Stop reading", True)]
    assert button(tab) == ("Go on reading", True)
    assert "stopped after 10 of" in tab.refresh("")[tab._pack]
    tab.pause("")
    assert index.wait(60)
    assert index.progress.stage == "ready"
    assert button(tab)[1] is False
    tab.pause("")  # too late
    assert index.complete


def test_visitors_from_elsewhere_cannot_stop_it(tiny_pack: Path, tmp_path: Path) -> None:
    tab = make(tiny_pack, tmp_path, "0.0.0.0")
    assert button(tab) == ("Stop reading", False)
    with pytest.raises(ValueError, match="no other machine"):
        tab.pause("")
    index = tab._session.packs.first.index
    finish(index)
    assert index.progress.stage == "ready"
