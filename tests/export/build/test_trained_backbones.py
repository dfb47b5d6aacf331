"""Image encoders trained with a method: the two stages of MVAM with CLIP, up to a search."""

from pathlib import Path

import pytest
import torch
from PIL import Image

from polyview.app.gallery.scan import from_folder
from polyview.app.search.retriever import Retriever, Term
from polyview.export.build.pack import IMAGE_ENCODER
from polyview.export.pack.reading import load_info, render_card
from polyview.export.runtime import Runtime
from polyview.export.to_onnx import export_runs
from polyview.training.data.features import Extraction
from polyview.training.loop.trainer import run_views
from tests.app.conftest import finish, maps_of
from tests.export.conftest import LABELS
from tests.published import save_clip
from tests.training.conftest import run_training, write_photographs

pytestmark = pytest.mark.slow
OWN = f"mvam/{IMAGE_ENCODER}"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`photos/`, and two packs of runs over `clip/`.

    `alone/` has the second stage; `both/` also has a method with CLIP's published weights.
    """
    root = tmp_path_factory.mktemp("mvam_clip")
    write_photographs(root / "photos", {"train": 8, "val": 6}, captions=2)
    save_clip(root / "clip")
    run(root, "stage1", "clip/mvam_stage1")
    # at the paper's learning rate, a few steps change nothing
    run(root, "stage2", "clip/mvam_stage2", f"init={root}/stage1", "optimizer.learning_rate=1e-3")
    still = ("method=base_attn", "arguments={embed_dim=8}", "objective={}")
    run(root, "still", "clip/mvam_stage1", *still)
    source = f"{root}/clip#projected"
    export_runs(root / "alone", source, [root / "stage2"], LABELS)
    export_runs(root / "both", source, [root / "still", root / "stage2"], LABELS)
    return root


def run(root: Path, name: str, recipe: str, *changes: str) -> None:
    source = f"{root}/clip#projected"
    sources = (f"data={root}/photos", f"backbone={source}", f"text.source={source}")
    run_training(recipe, root / name, *sources, "batch_size=8", "epochs=2", "patience=2", *changes)


def test_a_method_brings_and_uses_its_image_encoder(world: Path, tmp_path: Path) -> None:
    alone, both = load_info(world / "alone"), load_info(world / "both")
    assert (alone.image_encoder.file, alone.methods["mvam"].image_encoder) == (OWN, OWN)
    assert not (world / "alone" / IMAGE_ENCODER).exists()
    assert both.image_encoder.file == IMAGE_ENCODER
    assert both.methods["base_attn"].image_encoder is None
    assert both.methods["mvam"].image_encoder == OWN
    assert all(getattr(m.parity, "ranking", False) for m in both.methods.values())
    assert 'polyview.load("PATH_OR_HUB_ID", "mvam")' in render_card(alone)
    runtime = Runtime.load(world / "both", "cpu")
    seen = [Image.open(path) for path in sorted((world / "photos/images").glob("*.jpg"))[-6:]]
    features = {name: runtime.image_features(seen, name) for name in ("mvam", "base_attn")}
    assert torch.equal(features["base_attn"], runtime.image_features(seen))
    assert not torch.allclose(features["mvam"], features["base_attn"], atol=1e-4)
    own_runtime = Runtime.load(world / "alone", "cpu")
    assert torch.equal(own_runtime.image_features(seen), features["mvam"])
    for trained, name in (("still", "base_attn"), ("stage2", "mvam")):  # rounded in packs
        _, _, *sides, data = run_views(world / trained, "val", Extraction(world / "cache"))
        shipped = (
            runtime.image_views(features[name], name),
            runtime.text_views(data.captions, name),
        )
        for own, views in zip(sides, shipped, strict=True):
            torch.testing.assert_close(views.embeddings, own.embeddings, atol=5e-3, rtol=0.0)
    with pytest.raises(ValueError, match='no method "pvse"'):
        runtime.image_features(seen, "pvse")

    retriever = Retriever(runtime, from_folder(world / "photos/images"), tmp_path)
    finish(retriever.index)
    own = runtime.image_views(features["mvam"], "mvam")
    texts = runtime.text_views(["a red field"], "mvam")
    scores = runtime.methods["mvam"].score(own, texts)[:, 0]
    hits = retriever.search([Term("a red field")], "mvam", 20).hits
    results = {hit.image_id: hit.score for hit in hits}
    for row, score in enumerate(scores.tolist()):
        assert results[8 + row] == pytest.approx(score, abs=1e-5)
    for spec in ("mvam", "base_attn"):
        [itself] = retriever.search([Term(image=retriever.image(3).decode())], spec, 1).hits
        assert itself.score == pytest.approx(1.0)
        assert maps_of(retriever, 3, spec).shape[1:] == runtime.grid
    (stored,) = retriever.index.features([8], "mvam").values()
    torch.testing.assert_close(stored, features["mvam"][0], atol=1e-5, rtol=1e-5)
