"""Comparisons of methods: ranks, moves, right images, agreement; near-duplicate images."""

import io
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageEnhance

from polyview.app.api.search import parse
from polyview.app.search.clips import Scores
from polyview.app.search.comparison import (
    Column,
    Comparison,
    Truth,
    compare,
    kendall_tau,
    measure,
    truth,
)
from polyview.app.search.hits import fingerprint, first_alike
from polyview.app.search.retriever import Retriever, Term
from polyview.export.runtime import Runtime
from tests.app.conftest import IMAGES, draw, filled, variant


def run(key: str, values: dict[int, float]) -> tuple[Column, Scores]:
    ids = np.array(list(values), np.int64)
    scores = Scores(ids, np.array(list(values.values()), np.float32), ids)
    return Column(method=key, title=key.upper(), paper=f"{key} et al.", ms=1.5), scores


# Best first: A 1 2 3 4 5 6; B 2 1 4 3 6 5; C 6 5 4 3 2 1.
A = run("a", {1: 0.9, 2: 0.8, 3: 0.7, 4: 0.6, 5: 0.5, 6: 0.4})
B = run("b", {1: 0.8, 2: 0.9, 3: 0.6, 4: 0.7, 5: 0.4, 6: 0.5})
C = run("c", {1: 0.1, 2: 0.2, 3: 0.3, 4: 0.4, 5: 0.5, 6: 0.6})
FIRST = (None, False, None)  # left_rank, new and move in the first column
JUDGED = Truth(image_ids=[2, 6], complete=True)


@pytest.fixture
def judged() -> Comparison:
    return measure([A, B, C], 3, JUDGED)


def test_kendalls_tau() -> None:
    """Concordant less discordant pairs, by the geometric mean of untied pairs."""
    random = np.random.default_rng(0)
    for size in (2, 7, 20):
        x, y = random.integers(0, size, (2, size)).astype(float)  # ties on both sides
        x[:2], y[:2] = (0, 1), (1, 0)
        left, right = (np.sign(values[:, None] - values) for values in (x, y))
        tau = (left * right).sum() / np.sqrt((left**2).sum() * (right**2).sum())
        assert kendall_tau(x, y) == pytest.approx(tau, abs=1e-12)
    assert kendall_tau(x, np.ones(20)) is None
    assert kendall_tau(x[:1], x[:1]) is None


def test_columns_have_ranks_moves_and_right_images(judged: Comparison) -> None:
    """Moves compare with the column to the left, also beyond its three listed images."""
    columns = [
        [(p.image_id, p.rank, p.left_rank, p.new, p.move, p.right) for p in column.hits]
        for column in judged.columns
    ]
    assert columns == [
        [(1, 1, *FIRST, False), (2, 2, *FIRST, True), (3, 3, *FIRST, False)],
        [(2, 1, 2, False, 1, True), (1, 2, 1, False, -1, False), (4, 3, 4, True, None, False)],
        [(6, 1, 5, True, None, True), (5, 2, 6, True, None, False), (4, 3, 3, False, 0, False)],
    ]
    assert judged.columns[1].hits[0].score == pytest.approx(0.9)
    assert judged.pictures == 6
    assert judged.ranks[4] == [4, 3, 3]
    assert set(judged.ranks) == {1, 2, 3, 4, 5, 6}
    assert [column.best_true_rank for column in judged.columns] == [2, 1, 1]
    assert [column.r_precision for column in judged.columns] == [0.5, 0.5, 0.5]
    assert judged.columns[1].right_in_list == 1


def test_an_unknown_truth() -> None:
    for known, right, best in (
        (None, [None] * 3, None),
        (Truth(image_ids=[77], complete=True), [None] * 3, None),
        (Truth(image_ids=[2], complete=False), [None, True, None], 2),
    ):
        column = measure([A, B], 3, known).columns[0]
        assert [place.right for place in column.hits] == right
        assert (column.best_true_rank, column.r_precision) == (best, None)


def test_overlap_and_tau_between_columns(judged: Comparison) -> None:
    np.testing.assert_allclose(
        judged.overlap, [(1, 2 / 3, 0), (2 / 3, 1, 1 / 3), (0, 1 / 3, 1)], atol=1e-9
    )
    # A and B list 1 2 3 4: A orders them 1234, B 2143, so 4 of 6 pairs agree.
    assert judged.tau[0][1] == pytest.approx((4 - 2) / 6)
    # A and C list all six, in opposite order.
    assert judged.tau[0][2] == pytest.approx(-1)
    assert np.array(judged.tau) == pytest.approx(np.array(judged.tau).T)
    assert [judged.tau[i][i] for i in range(3)] == [pytest.approx(1)] * 3


def test_only_found_has_right_images_if_they_are_known(judged: Comparison) -> None:
    for comparison, expected in (
        (judged, {"a": [], "b": [], "c": [6]}),  # 2 is found by A and by B
        (measure([A, B, C], 3), {"a": [3], "b": [], "c": [6, 5]}),  # 4 is found by B and by C
    ):
        alone = {k: [p["image_id"] for p in places] for k, places in comparison.only_found.items()}
        assert alone == expected
    assert comparison.only_found["a"][0]["rank"] == 3


def test_only_images_ranked_by_all_methods_count() -> None:
    fewer = run("d", {6: 0.1, 2: 0.9, 3: 0.5, 9: 1.0})  # in another order, with an additional image
    comparison = measure([A, fewer], 10)
    assert comparison.pictures == 3
    lists = [[place.image_id for place in column.hits] for column in comparison.columns]
    assert lists == [[2, 3, 6], [2, 3, 6]]
    with pytest.raises(ValueError, match="no image is left"):
        measure([A, run("e", {9: 1.0})], 3)


def test_averages_and_other_packs(retriever: Retriever, tiny_pack: Path, tmp_path: Path) -> None:
    other = variant(tiny_pack, tmp_path / "other", 9)
    beside = {"shapes": filled(Runtime.load(other, "cpu"), other, tmp_path / "cache")}
    terms = parse("a red circle")
    results = compare(retriever, beside, terms, ["vsepp", "vse_infty+vsepp", "shapes/vsepp"], 5)
    keys = [column.method for column in results.columns]
    assert keys == ["vsepp", "vsepp+vse_infty", "shapes/vsepp"]
    assert results.columns[2].title == "VSE++ of Variant"
    assert results.pictures == IMAGES
    assert results.overlap[0][2] == 1  # the same weights in both packs
    assert results.tau[0][2] == pytest.approx(1)
    mean = retriever.scores(terms, "vsepp+vse_infty").values
    assert results.columns[1].hits[0].score == pytest.approx(mean.max(), abs=1e-6)
    assert all(column.ms > 0 for column in results.columns)
    for wrong, sentence in (
        (["vsepp", "vsepp"], '"vsepp" is named twice'),
        (["vsepp+vse_infty", "vse_infty+vsepp"], '"vsepp.vse_infty" is named twice'),
        (["vsepp", "clip"], "choose one of vsepp, vse_infty"),
        (["vsepp", "nowhere/vsepp"], 'no open pack "nowhere".* known: shapes'),
    ):
        with pytest.raises(ValueError, match=sentence):
            compare(retriever, beside, terms, wrong, 5)


def test_right_images_of_a_caption(retriever: Retriever) -> None:
    caption = retriever.collection.images[5].captions[0]
    known = truth(retriever, parse(caption))
    assert known is not None
    assert 5 in known.image_ids
    assert not known.complete  # other images may also be right
    image = [Term(image=retriever.image(5).decode())]
    own = compare(retriever, {}, image, list(retriever.methods), 5, image_id=5)
    assert own.pictures == IMAGES - 1
    assert 5 not in own.ranks


def prints(folder: Path, images: list[Image.Image]) -> list:
    folder.mkdir(exist_ok=True)
    results = []
    for place, image in enumerate(images):
        image.save(folder / f"{place}.png")
        results.append(fingerprint(folder / f"{place}.png"))
    return results


def test_versions_of_an_image_are_duplicates(tmp_path: Path) -> None:
    image = draw(0)[0].resize((384, 288))
    packed = io.BytesIO()
    image.save(packed, "JPEG", quality=50)
    images = [
        draw(1)[0], image, Image.open(packed), image.resize((192, 144)),
        ImageEnhance.Brightness(image).enhance(1.02), image.rotate(90, expand=True),
        image.crop((0, 0, 384, 200)),
    ]  # fmt: skip
    assert first_alike(prints(tmp_path, images)) == [0, 1, 1, 1, 1, 5, 6]


def test_different_images_are_no_duplicates(tmp_path: Path) -> None:
    images = [draw(index)[0] for index in range(IMAGES)]
    assert first_alike(prints(tmp_path, images)) == list(range(IMAGES))
    assert first_alike([]) == []
    # shades of which each resembles the next do not form one group
    shades = [Image.new("RGB", (32, 32), (grey,) * 3) for grey in range(0, 60, 3)]
    firsts = first_alike(prints(tmp_path / "shades", shades))
    assert firsts == [2 * (place // 2) for place in range(20)]
