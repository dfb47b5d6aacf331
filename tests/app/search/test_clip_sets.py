"""A pack that reads clips as sets, over its own gallery: rankings, moments, evidence."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from polyview.app.api.search import Question, parse
from polyview.app.explain import views
from polyview.app.explain.evidence import draw, explain
from polyview.app.gallery import prepared
from polyview.app.gallery.scan import from_folder, from_pack
from polyview.app.search.comparison import compare
from polyview.app.search.retriever import Retriever, Term
from polyview.app.settings import BUNDLED
from polyview.export.pack.reading import load_info
from polyview.training.data.open_split import open_pack_gallery as measured_clips
from polyview.training.evaluation.scoring import score_matrix
from tests.app.conftest import bundled_runtime, finish

PACK = BUNDLED / "scenes_moving"
CLIPS, FRAMES = 300, 16
SOME = 6  # clips that are encoded anew


@pytest.fixture(scope="module")
def retriever(tmp_path_factory: pytest.TempPathFactory) -> Retriever:
    runtime, cache = bundled_runtime("scenes_moving"), tmp_path_factory.mktemp("sets")
    opened = Retriever(runtime, from_pack(PACK), cache)
    opened.index.start()
    assert opened.index.images_done.wait(60)
    opened.index.stop()  # captions are not needed
    return opened


def test_the_bundled_pack_encodes_no_clip(
    retriever: Retriever, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = prepared.load(load_info(PACK, verify=False), retriever.collection)
    assert results is not None, (
        "the pack has changed; run python -m app.gallery.prepared --pack app/bundled/scenes_moving"
    )
    assert [window[0] for window in results[0].windows()] == list(range(CLIPS))
    assert {len(moments) for moments in results[0].values()} == {FRAMES}
    monkeypatch.setattr(retriever.runtime, "square_features", None)
    fresh = Retriever(retriever.runtime, retriever.collection, tmp_path)
    fresh.index.start()
    assert fresh.search([Term("a dog runs in")], "pvse", 12).hits[0].seconds is not None
    fresh.index.stop()


def test_the_app_scores_clips_as_evaluation_does(retriever: Retriever) -> None:
    """Evaluation decodes the files; the app's bundled views are in half precision."""
    data, runtime = measured_clips(PACK, "test"), retriever.runtime
    rows = np.arange(0, CLIPS, CLIPS // SOME)
    frames = [data.images[int(row) * FRAMES + place] for row in rows for place in range(FRAMES)]
    features = runtime.image_features(frames).reshape(SOME, FRAMES, -1)
    query = data.captions[::75]
    assert len(query) == 20
    for name, method in runtime.methods.items():
        images, texts = runtime.image_views(features, name), runtime.text_views(query, name)
        measured = score_matrix(method, images, texts)
        for column, words in enumerate(query):
            scores = retriever.scores([Term(words)], name).values[rows]
            np.testing.assert_allclose(scores, measured[:, column], atol=5e-4)
            assert measured[np.argmax(scores), column] > measured[:, column].max() - 1e-3


@pytest.mark.parametrize("name", ["pvse", "mvam"])
def test_moments_show_the_named_object(retriever: Retriever, name: str) -> None:
    """Queries name an object of every sixth clip that is visible in some frames only."""
    right, chance = [], []
    for clip in range(0, CLIPS, 6):
        truth = retriever.collection.images[clip].truth
        assert truth is not None
        entries = [entry for entry in truth.objects if 0 < len(entry.frames) < FRAMES]
        for entry in entries[:1]:
            (moment,) = retriever.find_best_frames([clip], [Term(f"a {entry.name}")], name)
            right.append(moment // CLIPS in entry.frames)
            chance.append(len(entry.frames) / FRAMES)
    assert len(right) > 45
    assert np.mean(right) > np.mean(chance) + 0.3


def test_hits_have_moments_and_evidence_adds_up(retriever: Retriever) -> None:
    terms = parse("2: dog + beach - people")
    for spec in ("vse_infty", "mvam+vsepp"):
        hits = retriever.search(terms, spec, 5).hits
        assert len({hit.image_id % CLIPS for hit in hits}) == 5
        results = explain(retriever, terms, spec, [hit.image_id for hit in hits])
        total = results.cells.sum(axis=3) + results.whole_sentence
        added = total.sum(axis=(1, 2)) + results.base
        np.testing.assert_allclose(added, results.scores, atol=1e-4)
        for place, hit in enumerate(hits):
            assert hit.score == pytest.approx(results.scores[place], abs=1e-3)
            best = int(total[place].argmax())  # 4 x 4 frames of one feature
            moment = retriever.index.clips[hit.image_id % CLIPS][best]
            assert (hit.seconds, hit.frame) == (moment.seconds, moment.frame)
            assert hit.image_id // CLIPS == best
            assert results.seconds[place][best] == hit.seconds
    query = Term(image=retriever.image(hits[0].image_id))  # an image is one column
    assert explain(retriever, [query], "vse_infty", [hits[0].image_id]).words == ("",)
    with pytest.raises(ValueError, match="by its frames"):
        draw(retriever, results, hits[0].image_id, "dog")
    plain = retriever.search([Term("a dog")], "pvse", 5).hits
    lens = views.search_weighted(retriever, "a dog", "pvse", (1.0, 1.0), 5).hits
    assert [hit.image_id for hit in lens] == [hit.image_id for hit in plain]


def test_a_query_clip_is_read_as_a_set(retriever: Retriever) -> None:
    question = Question(image_id=7 + 3 * CLIPS)
    terms = question.terms(retriever)
    assert retriever.subject(terms[0]) == [7 + 3 * CLIPS]
    best = retriever.search(terms, "vse_infty", 1).hits[0]
    assert best.image_id % CLIPS == 7
    assert best.score == pytest.approx(1.0, abs=2e-3)
    still = Term(image=Image.new("RGB", (64, 64), "green"))  # a set of one
    assert len(retriever.search([still], "pvse", 3).hits) == 3
    cancelled = retriever.search(parse("dog - dog"), "pvse", 3).hits
    assert [hit.image_id for hit in cancelled] == [0, 1, 2]


def test_packs_of_sets_and_of_images_are_compared(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The packs choose different frames; a frame of the other pack maps to the nearest."""
    folder = tmp_path_factory.mktemp("clips")
    for path in sorted((PACK / "gallery" / "images").iterdir())[:2]:
        shutil.copy(path, folder)
    Image.open(path).convert("RGB").save(folder / "still.png")
    images, cache = from_folder(folder), tmp_path_factory.mktemp("cache")
    home, guest = (
        Retriever(bundled_runtime(name), images, cache) for name in ("scenes", "scenes_moving")
    )
    for each in (home, guest):
        finish(each.index)
        assert len(each.index) == 3
        assert len(each.index.clips) == 2
    results = compare(
        home, {"scenes_moving": guest}, [Term("a dog")], ["mv_vse", "scenes_moving/pvse"], 3
    )
    assert results.pictures == 3
    hits = guest.search([Term("a dog")], "pvse", 3).hits
    for place, hit in zip(results.columns[1].hits, hits, strict=True):
        assert place.image_id % 3 == hit.image_id % 3
        displayed = home.image(place.image_id).moment
        assert (displayed is None) == (hit.seconds is None)
        if displayed is not None and hit.seconds is not None:
            assert abs(displayed.seconds - hit.seconds) < 0.4
