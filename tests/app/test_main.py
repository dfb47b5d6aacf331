"""Components come without the type hints that gradio writes for editors."""

import inspect
from unittest.mock import Mock

import gradio as gr
import pytest
from gradio import component_meta

from app.main import without_hints


def test_no_source_of_a_component_is_parsed(monkeypatch: pytest.MonkeyPatch) -> None:
    parse = Mock(side_effect=ValueError("parsed"))
    monkeypatch.setattr(component_meta, "extract_class_source_code", parse)
    before = inspect.getfile
    with without_hints():
        type("Mine", (gr.HTML,), {})
        assert inspect.getfile(Mock) == before(Mock)
    parse.assert_not_called()
    assert inspect.getfile is before
    with pytest.raises(ValueError, match="parsed"):
        type("Other", (gr.HTML,), {})
