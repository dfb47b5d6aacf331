"""What methods show of themselves is finite, named once, and known to the page."""

import re
from pathlib import Path

import torch

from polyview.models import Method
from tests.papers.terms import encoded

PAGE = (Path(__file__).parents[2] / "app/page/inside.js").read_text("utf-8")


@torch.no_grad()
def test_every_method_answers_with_finite_arrays_that_the_page_words(method: Method) -> None:
    images, texts = encoded(method)
    titles = re.findall(r"^  (\w+): \[", PAGE, re.MULTILINE)
    knobs = re.findall(r"(\w+): \"", PAGE[PAGE.index("const KNOBS") :].partition(";")[0])
    assert {knob.name for knob in method.knobs} <= set(knobs)
    for arrays in (method.inside(images), method.inside(images, texts)):
        names = [array.name for array in arrays]
        assert len(set(names)) == len(names)
        assert set(names) <= set(titles)
        for array in arrays:
            assert bool(array.values.isfinite().all())
            assert array.values.dim() == len(array.axes) in (0, 2)
            for row, column in array.marks:
                assert array.values[row, column].isfinite()
