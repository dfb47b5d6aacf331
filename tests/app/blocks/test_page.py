"""The page as a whole: its endpoints, its fonts, its terminal."""

from pathlib import Path
from unittest.mock import Mock

import gradio as gr
import pytest
from gradio import http_server

from app.blocks import page as interface
from app.blocks.tabs.search.tab import SearchTab
from app.blocks.tabs.session import Session
from app.gallery.indexing import Progress
from app.gallery.terminal import ProgressBar
from app.packs.open_packs import OpenPacks
from app.search.retriever import Retriever
from app.settings import Settings

README = Path(__file__).resolve().parents[3] / "README.md"
ENDPOINTS = {
    "/search_text",
    "/search_image",
    "/compare",
    "/views",
    "/lens",
    "/explain",
    "/explain_image",
    "/benchmark",
    "/info",
}


@pytest.fixture(scope="module")
def blocks(tiny_pack: Path, tmp_path_factory: pytest.TempPathFactory) -> gr.Blocks:
    cache = tmp_path_factory.mktemp("cache")
    return interface.build(OpenPacks(Settings(str(tiny_pack), device="cpu"), cache))


def test_every_event_has_a_name_of_its_own(blocks: gr.Blocks) -> None:
    events = [event for event in blocks.config["dependencies"] if event["backend_fn"]]
    names = [event["api_name"] for event in events]
    assert all(isinstance(name, str) for name in names)
    assert len(set(names)) == len(names)
    assert not [name for name in names if name.endswith("_1") and name != "show_example_1"]


def test_exactly_the_documented_endpoints_are_public(blocks: gr.Blocks) -> None:
    public = blocks.get_api_info()["named_endpoints"]
    assert public.keys() == ENDPOINTS
    readme = README.read_text("utf-8")
    for name, endpoint in public.items():
        assert endpoint["description"], name
        assert f"`{name}`" in readme
        [reply] = endpoint["returns"]
        assert reply["component"] == "Api", name  # plain JSON
    functions = {f"/{fn.api_name}": fn.fn for fn in blocks.fns.values()}
    for name in ENDPOINTS:
        told = functions[name].__doc__ or ""
        for parameter in public[name]["parameters"]:
            assert f"{parameter['parameter_name']}:" in told, name


@pytest.mark.parametrize("mcp", [True, False])
def test_mcp_is_served_only_where_it_was_asked_for(mcp: bool, tmp_path: Path) -> None:
    blocks = Mock()
    blocks.launch.side_effect = lambda **_: http_server.uvicorn.Config(Mock(), port=1)
    interface.launch(blocks, Mock(), Settings(mcp=mcp), tmp_path)
    assert blocks.launch.call_args.kwargs["mcp_server"] is mcp


def test_a_gradio_that_passes_by_the_front_door_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="without the front door"):
        interface.launch(Mock(), Mock(), Settings(), tmp_path)


def test_gradio_opens_no_picture_itself(blocks: gr.Blocks) -> None:
    """It would without our limits; whatever takes a file takes it as it was sent."""
    takes = [
        event.api_name
        for event in blocks.fns.values()
        if event.preprocess and any(isinstance(block, gr.Image | gr.File) for block in event.inputs)
    ]
    assert takes == []


def test_fonts_come_from_the_visitors_system() -> None:
    theme = interface.theme()
    assert "http" not in "".join(theme._stylesheets)
    assert theme._font_css == []
    assert interface.STYLES
    for style in interface.STYLES:
        assert "url(" not in style.read_text("utf-8")


def test_white_letters_are_readable_on_the_main_button() -> None:
    """WCAG 2.2, contrast of normal text: at least 4.5."""
    fill = interface.theme().primary_700.lstrip("#")
    channels = [int(fill[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    luminance = sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), linear, strict=True))
    assert 1.05 / (luminance + 0.05) >= 4.5


def test_the_terminal_shows_bars_and_the_end(capsys: pytest.CaptureFixture[str]) -> None:
    bar = ProgressBar()
    bar(Progress("pictures", 0, 4))
    bar(Progress("pictures", 4, 4))
    bar(Progress("captions", 2, 2))
    bar(Progress("ready", 4, 4))
    written = capsys.readouterr()
    assert "4/4" in written.err
    assert "captions: 100%" in written.err
    assert written.out == "polyview: 4 pictures ready\n"


def test_a_question_before_the_pack_s_methods_are_shown_asks_the_best(retriever: Retriever) -> None:
    packs = Mock()
    packs.get.return_value = packs.first = retriever
    with gr.Blocks() as blocks:
        lab, look, tabs = gr.Tabs(), gr.State(None), gr.Tabs()
        tab = SearchTab(Session(packs, blocks, gr.State(""), tabs, lab, look), Mock())
        said = {
            tab.by_words("", "a dog", method, (), "", 1.0)[tab._line]
            for method in (None, "vsepp+another", retriever.methods.best)
        }
    assert all(retriever.methods.title(retriever.methods.best) in line for line in said)
    assert all("no method" not in line for line in said)
