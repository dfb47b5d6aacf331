"""What is left out of imports comes once it is asked for, and what the app needs is there."""

import gc
import inspect
import subprocess
import sys
from unittest.mock import Mock

import gradio as gr
import pytest
from gradio import component_meta

from app.blocks.server.imports import quick_imports

# In a process of its own, as the app starts: every method is built as packs build it, and searches.
LEAN = """
import sys
from app.blocks.server.imports import quick_imports
with quick_imports(mcp=False):
    import torch
    import models
    import app.blocks.page
    from app.api.library import Library
late = {"torch._meta_registrations", "pandas", "faiss", "mcp"}
assert not late & sys.modules.keys(), late & sys.modules.keys()
for name in models.METHODS:
    with torch.device("meta"):
        models.build(name, 64, 48, {})
    models.build(name, 64, 48, {})
with Library("scenes", method="mv_vse") as library:
    assert len(library.search("a dog", 3)) == 3
assert not late & sys.modules.keys(), late & sys.modules.keys()
from app.gallery import rows
assert rows.faiss.METRIC_INNER_PRODUCT == 0 and "faiss" in sys.modules
import mcp.types
import pandas
assert pandas.DataFrame({"a": [1]}).shape == (1, 1)
import torch._meta_registrations
assert torch.empty(2, 3, device="meta").matmul(torch.empty(3, 4, device="meta")).shape == (2, 4)
"""


def test_what_is_left_out_comes_when_it_is_asked_for() -> None:
    subprocess.run([sys.executable, "-c", LEAN], check=True)


def test_imports_are_as_usual_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    parse = Mock(side_effect=ValueError("parsed"))
    monkeypatch.setattr(component_meta, "extract_class_source_code", parse)
    before = inspect.getfile
    with quick_imports():
        type("Mine", (gr.HTML,), {})
        assert inspect.getfile(Mock) == before(Mock)
        assert not gc.isenabled()
    parse.assert_not_called()
    assert inspect.getfile is before
    assert gc.isenabled()
    with pytest.raises(ValueError, match="parsed"):
        type("Other", (gr.HTML,), {})
