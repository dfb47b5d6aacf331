"""A method comes in with four touches: its class, its objective, its recipe and a test, this one.

They are made in a copy of the code. Everything else (training, export, evaluation, card, search and
maps) has to find the method by the registries alone.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.export.conftest import write_gallery
from tests.training.photographs import write_encoder, write_photographs

ROOT = Path(__file__).parents[1]
METHOD = '''
from torch import nn, stack

from polyview.models.evidence import Parts
from polyview.models.layers import l2_normalize, masked_mean, mean_parts, single_view
from polyview.models.method import Method


class TwoMaps(Method):
    """The mean of two learned linear maps, averaged over the set; V = 1.

    Args:
        image_dim: width of the image features.
        text_dim: width of the text features.
        embed_dim: width of a view.
    """

    title = "Two maps"
    paper = "Nobody, nowhere, this year"
    attention_is = "the same share for every element"

    def __init__(self, image_dim: int, text_dim: int, embed_dim: int = 16) -> None:
        super().__init__()
        self.image_maps = nn.ModuleList(nn.Linear(image_dim, embed_dim) for _ in range(2))
        self.text_maps = nn.ModuleList(nn.Linear(text_dim, embed_dim) for _ in range(2))

    def encode(self, side, features, mask, attention):
        shares = mask / mask.sum(dim=1, keepdim=True)
        pooled = masked_mean(self.mapped(side, features), mask)
        return single_view(l2_normalize(pooled), shares if attention else None)

    def split(self, side, features, mask):
        return Parts.of(mean_parts(self.mapped(side, features), mask)[:, None]).unit()

    def mapped(self, side, features):
        maps = self.image_maps if side == "image" else self.text_maps
        return stack([part(features) for part in maps]).mean(dim=0)  # (B, N, D)
'''
RECIPE = """
method = "two_maps"
epochs = 2
batch_size = 4
arguments = {embed_dim = 8}
objective = {margin = 0.3}
text = {word_dim = 6, hidden_dim = 10}
"""
# each is a command's module and its arguments; the pack that comes of them is searched at the end
COMMANDS = """
import json
import runpy
import sys
from pathlib import Path

import numpy

pack, commands = Path(sys.argv[1]), json.loads(sys.argv[2])
for module, *sys.argv[1:] in commands:
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
        if end.code:
            raise
    print("that was", module)

from polyview.app.explain.evidence import explain
from polyview.app.explain.views import describe_views
from polyview.app.gallery.scan import from_pack
from polyview.app.search.ranking import Term
from polyview.app.search.retriever import Retriever
from polyview.export.runtime import Runtime

retriever = Retriever(Runtime.load(pack, "cpu"), from_pack(pack), pack.with_name("cache"))
retriever.index.start()
assert retriever.index.wait(60)
hits = retriever.search([Term("a red dog")], "two_maps", 3).hits
assert [hit.rank for hit in hits] == [1, 2, 3]
assert hits[0].score >= hits[1].score >= hits[2].score
image = Term(image=retriever.open(hits[0].image_id))
assert retriever.search([image], "two_maps", 1, captions=1).captions
found = explain(retriever, [Term("a red dog")], "two_maps", [hits[0].image_id])
(term,) = found.terms
assert abs(term.base + term.cells.sum() - found.scores[0]) < 1e-5
(view,) = describe_views(retriever, hits[0].image_id, "two_maps").views
heatmap = numpy.array(view["attention"])
assert abs(heatmap * heatmap.size - 1).max() < 1e-3
"""


def insert(path: Path, after: str, line: str) -> None:
    text = path.read_text("utf-8")
    assert after in text
    path.write_text(text.replace(after, f"{after}{line}\n", 1), "utf-8")


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the code with the toy method in it."""
    ignored = shutil.ignore_patterns("bundled", "__pycache__")
    for folder in ("polyview", "app", "export", "models", "training"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=ignored)
    (tmp_path / "models/two_maps.py").write_text(METHOD)
    methods, objectives = tmp_path / "models/__init__.py", tmp_path / "training/objectives"
    imports = "from polyview.models.pvse import PVSE\n"
    insert(methods, imports, "from polyview.models.two_maps import TwoMaps")
    insert(methods, "METHODS: dict[str, type[Method]] = {\n", '    "two_maps": TwoMaps,')
    registry = "OBJECTIVES: dict[str, type[Objective]] = {\n"
    insert(objectives / "__init__.py", registry, '    "two_maps": Triplet,')
    (tmp_path / "training/recipes/two_maps.toml").write_text(RECIPE)
    return tmp_path


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_toy_method_is_trained_exported_measured_searched_and_looked_into(tree: Path) -> None:
    data = write_photographs(tree / "photographs", {"train": 8, "val": 4})
    backbone, gallery = write_encoder(tree / "backbone"), write_gallery(tree / "gallery", 12)
    pack, settings = tree / "pack", ("--set", f"data={data}", "--set", f"backbone={backbone}")
    train = ("--recipe", "two_maps", "--out", tree / "run", "--cache", tree / "cache", *settings)
    made = ("--backbone", backbone, "--run", tree / "run", "--gallery", gallery, "--out", pack)
    commands = [
        ("training.train", *train),
        ("export.to_onnx", *made, "--licence", "MIT"),
        ("training.evaluate", "--pack", pack, "--all"),
    ]
    command = [sys.executable, "-c", COMMANDS, str(pack), json.dumps(commands, default=str)]
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    _, exported, evaluated, _ = done.stdout.split("that was")
    assert "two_maps" in exported
    assert "two_maps" in evaluated
    assert "Two maps" in (pack / "README.md").read_text("utf-8")
