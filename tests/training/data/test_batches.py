"""Batches with several captions of an image; vocabularies, tokenizers and word vectors."""

from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from polyview import models
from polyview.export.encoders.sources import load_text_source
from polyview.export.texts import TextReader, load_tokenizer
from polyview.models.encoders.bigru import BiGRUTextEncoder
from polyview.models.views import lengths_to_mask
from polyview.training.data.batches import batches, caption_order
from polyview.training.data.split import Copies, Split
from polyview.training.data.texts import (
    UNKNOWN_ID,
    TextConfig,
    TextSide,
    TokenTable,
    build_tokenizer,
    load_vectors,
)
from polyview.training.loop.config import TrainConfig
from polyview.training.loop.dual_encoder import TEXT_BATCH_SIZE, DualEncoder, word_features
from polyview.training.objectives import OBJECTIVES, build_objective
from tests.published import save_bert

IMAGES, CAPTIONS, DIM = 6, 5, 4


@pytest.fixture
def data() -> Split:
    random = np.random.default_rng(0)
    features = random.standard_normal((IMAGES, 3, DIM)).astype(np.float32)
    image_of = np.repeat(np.arange(IMAGES), CAPTIONS)
    captions = [f"picture {image} said {'so ' * (i % 3)}" for i, image in enumerate(image_of)]
    return Split(captions, image_of, features=features)


def table_of(data: Split) -> TokenTable:
    return TokenTable(build_tokenizer(data.captions), data.captions)


@hypothesis_settings(deadline=None)  # other processes may slow the test down
@given(
    counts=st.lists(st.integers(1, 7), min_size=1, max_size=9),
    together=st.integers(1, 6),
    seed=st.integers(0, 99),
)
def test_each_caption_is_drawn_once(counts: list[int], together: int, seed: int) -> None:
    image_of = np.repeat(np.arange(len(counts)), counts)
    order = caption_order(image_of, together, np.random.default_rng(seed))
    assert sorted(order) == list(range(len(image_of)))
    runs = 1 + int((np.diff(image_of[order]) != 0).sum())
    assert runs <= sum(-(-count // together) for count in counts)


ARGUMENTS: dict[str, dict[str, Any]] = {"pvse": {"views": 2}, "mvam": {"views": 2}}
# every cell is in every group, so that AVSE draws no random groups
ARGUMENTS["avse"] = {"views": 2, "block_dim": 4, "train_share": 1.0}
WITH_COSTS = [name for name, kind in OBJECTIVES.items() if "cost" in kind.model_fields]
LOSSES: list[tuple[str, dict[str, Any]]] = [
    *((name, {}) for name in OBJECTIVES),
    *((name, {"cost": "softmax"}) for name in WITH_COSTS),
    *(("mv_vse", {"loss": loss}) for loss in ("max", "avg", "up", "rough", "released")),
    ("mv_vse", {"anneal_epochs": 2}),
    ("pvse", {"released": True, "hardest": True}),
]


@pytest.mark.parametrize(("method", "settings"), LOSSES, ids=str)
def test_encoding_each_image_once(method: str, settings: dict[str, Any], data: Split) -> None:
    table, arguments = table_of(data), {"embed_dim": 8, **ARGUMENTS.get(method, {})}
    config = TrainConfig(method=method, size_augmentation=0.0)
    directions = 0 if method == "pvse" else 2
    words = BiGRUTextEncoder(int(table.ids.max()) + 1, 6, 8, directions=directions)
    pair = DualEncoder(models.build(method, DIM, words.dim, arguments), words, config)
    objective = build_objective(method, settings)
    (batch, *_) = batches(data, table, 10, (0, 0), captions_per_image=5)
    assert batch.mask.shape == (2, 3)  # two images for ten captions
    own = torch.from_numpy(data.features)[batch.image_ids]
    assert torch.equal(batch.features[batch.rows], own)
    results = []
    for features, mask, rows in (
        (batch.features, batch.mask, batch.rows),
        (batch.features[batch.rows], batch.mask[batch.rows], torch.arange(10)),
    ):
        images, texts = pair(features, mask, rows, batch.ids, batch.lengths)
        terms = objective(pair.method, images, texts, batch.image_ids, 0)
        loss = torch.stack(list(terms.values())).sum()
        pair.zero_grad()
        loss.backward()
        grads = [p.grad.clone() for p in pair.parameters() if p.grad is not None]
        results.append((loss, grads))
    assert torch.allclose(results[0][0], results[1][0], rtol=1e-5)
    for item, other in zip(results[0][1], results[1][1], strict=True):
        assert torch.allclose(item, other, rtol=1e-4, atol=1e-5)


def test_a_batch_draws_one_version_of_each_image(data: Split) -> None:
    versions = [np.asarray(data.features) + 100 * copy for copy in range(3)]
    several = replace(data, features=Copies(versions))
    table, seen = table_of(data), set()
    for epoch in range(4):
        for batch in batches(several, table, 10, (0, epoch), captions_per_image=5):
            drawn = batch.features[batch.rows] - torch.from_numpy(versions[0])[batch.image_ids]
            copies = (drawn / 100).round()
            assert torch.allclose(drawn, 100 * copies, atol=1e-4)
            seen |= {int(copy) for copy in copies[:, 0, 0]}
            assert (copies == copies[:, :1, :1]).all()  # all elements are of one version
    assert seen == {0, 1, 2}
    again = [next(iter(batches(several, table, 10, (0, 0)))).features for _ in range(2)]
    assert torch.equal(*again)
    assert several.features.shape == data.features.shape
    assert np.array_equal(several.features[1:3], versions[0][1:3])


def test_texts_are_encoded_in_batches_of_similar_length() -> None:
    encoder, count = BiGRUTextEncoder(20, 3, 4), 2 * TEXT_BATCH_SIZE + 9
    lengths = torch.where(torch.arange(count) < 9, 12, 1 + torch.arange(count) % 4)
    ids = torch.randint(1, 20, (count, 12)) * lengths_to_mask(lengths, 12)
    read: list[int] = []
    encoder.register_forward_hook(lambda _, inputs, __: read.append(inputs[0].numel()))
    together, plain = word_features(encoder, ids, lengths), encoder(ids, lengths)
    torch.testing.assert_close(together, plain)
    assert sum(read[:-1]) < read[-1] / 2


@pytest.mark.parametrize("summaries", [(True, False), (False, True)])
def test_summaries_are_never_dropped(summaries: tuple[bool, bool], data: Split) -> None:
    method, words = models.build("vsepp", DIM, 8, {"embed_dim": 8}), BiGRUTextEncoder(20, 6, 8)
    encode_image, encode_text = Mock(wraps=method.encode_image), Mock(wraps=method.encode_text)
    method.encode_image, method.encode_text = encode_image, encode_text  # type: ignore[method-assign]
    pair = DualEncoder(method, words, TrainConfig(size_augmentation=0.9), has_summary=summaries)
    (batch,) = batches(data, table_of(data), 30, (0, 0))
    pair(batch.features, batch.mask, batch.rows, batch.ids, batch.lengths)
    masks = [encode.call_args.args[1] for encode in (encode_image, encode_text)]
    assert tuple(bool(mask[:, 0].all()) for mask in masks) == summaries


def test_words_are_lower_case_and_ordered_by_count() -> None:
    tokenizer = build_tokenizer(["A dog, a Dog.", "a cat"], min_count=2)
    assert tokenizer.get_vocab() == {"[PAD]": 0, "[UNK]": 1, "a": 2, "dog": 3}
    assert tokenizer.encode("The DOG!").ids == [1, 3]
    with pytest.raises(ValueError, match="no caption has a word"):
        build_tokenizer([])


def test_marks_start_and_end_each_text(tmp_path: Path) -> None:
    plain, marked = (build_tokenizer(["a dog"], marks=marks) for marks in (False, True))
    assert marked.get_vocab() == {**plain.get_vocab(), "<start>": 4, "<end>": 5}
    assert TokenTable(marked, ["a dog", "dog"]).ids.tolist() == [[4, 2, 3, 5], [4, 3, 5, 0]]
    for tokenizer in (plain, marked):
        with pytest.raises(ValueError, match='the caption "!" holds no word'):
            TokenTable(tokenizer, ["a dog", "!"])
    marked.save(str(tmp_path / "tokenizer.json"))
    reader = TextReader(load_tokenizer(tmp_path / "tokenizer.json"), max_length=3)
    assert reader.read("a dog").words == ["<start>", "a", "<end>"]  # truncated, with the end mark
    assert reader.read("cat").unknown == {1: "cat"}
    with pytest.raises(ValueError, match="type at least one word"):
        reader.read("!")
    # marks are never replaced by [UNK]
    captions = [f"a dog number {n}" for n in range(24)]
    table = TokenTable(build_tokenizer(captions, marks=True), captions)
    data = Split(captions, np.arange(24), features=np.zeros((24, 1, 2)))
    batch = next(batches(data, table, 24, (0, 0), unknown_rate=0.9))
    assert np.isin(batch.ids[:, [0, -1]].numpy(), table.fixed_ids).all()
    assert (batch.ids[:, 1:-1] == UNKNOWN_ID).float().mean() > 0.8


def test_texts_have_a_vocabulary_or_features_of_a_frozen_encoder(tmp_path: Path) -> None:
    train, val = ["a dog", "red dog on the beach"], ["the cat", "a red cat"]
    cpu = torch.device("cpu")
    side = TextSide(TextConfig(), train, val, ["a dog"], tmp_path, cpu)
    assert side.tokenizer.get_vocab().keys() == {"[PAD]", "[UNK]", "a", "dog"}
    source = str(save_bert(tmp_path / "bert"))
    side = TextSide(TextConfig(arch="bert", source=source), train, val, train, tmp_path, cpu)
    bert, tokenizer, _ = load_text_source(source, rounded=True)
    for rows, captions in zip(side.tables, (train, val), strict=True):
        plain = TokenTable(tokenizer, captions)
        read = [
            encoder(torch.from_numpy(table.ids), torch.from_numpy(table.lengths))
            for encoder, table in ((side.encoder, rows), (bert, plain))
        ]
        real = lengths_to_mask(torch.from_numpy(plain.lengths), plain.ids.shape[1])
        torch.testing.assert_close(read[0][real], read[1][real], rtol=0, atol=2e-3)


def test_word_vectors_of_the_vocabulary_are_loaded(tmp_path: Path) -> None:
    words = {"[PAD]": 0, "[UNK]": 1, "dog": 2, "beach": 3, "zebra": 4}
    path = tmp_path / "vectors.txt"
    path.write_text("beach 1.5 -2\nunused 7 7\n. . . 8 8\ndog 0.25 3e-1\n")
    rows, vectors = load_vectors(path, words, 2)
    assert rows.tolist() == [3, 2]
    torch.testing.assert_close(vectors, torch.tensor([[1.5, -2.0], [0.25, 0.3]]))
    for text, message in (
        ("dog 1\n", r'"dog" has 1 numbers, but text.word_dim is 2'),
        ("dog 1 2 3\n", "has no vectors of width 2 for any"),
        ("cat 1 2\n", "has no vectors of width 2 for any"),
    ):
        path.write_text(text)
        with pytest.raises(ValueError, match=message):
            load_vectors(path, words, 2)
