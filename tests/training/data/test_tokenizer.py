"""Words of captions, and pre-trained vectors of them."""

from pathlib import Path

import numpy as np
import pytest
import torch

from polyview.export.texts import TextReader, load_tokenizer
from polyview.training.data.batches import batches
from polyview.training.data.split import Split
from polyview.training.data.texts import UNKNOWN_ID, TokenTable, build_tokenizer, load_vectors

WORDS = {"[PAD]": 0, "[UNK]": 1, "dog": 2, "beach": 3, "zebra": 4}


def test_words_are_lower_case_and_ordered_by_count() -> None:
    tokenizer = build_tokenizer(["A dog, a Dog.", "a cat"], min_count=2)
    assert tokenizer.get_vocab() == {"[PAD]": 0, "[UNK]": 1, "a": 2, "dog": 3}
    assert tokenizer.encode("The DOG!").ids == [1, 3]
    with pytest.raises(ValueError, match="no captions to build a vocabulary from"):
        build_tokenizer([])


def test_marks_stand_around_each_text(tmp_path: Path) -> None:
    plain, marked = (build_tokenizer(["a dog"], marks=marks) for marks in (False, True))
    assert marked.get_vocab() == {**plain.get_vocab(), "<start>": 4, "<end>": 5}
    assert TokenTable(marked, ["a dog", "dog"]).ids.tolist() == [[4, 2, 3, 5], [4, 3, 5, 0]]
    for tokenizer in (plain, marked):
        with pytest.raises(ValueError, match='the caption "!" holds no word'):
            TokenTable(tokenizer, ["a dog", "!"])
    marked.save(str(tmp_path / "tokenizer.json"))
    reader = TextReader(load_tokenizer(tmp_path / "tokenizer.json"), max_length=3)
    assert reader.read("a dog").words == ["<start>", "a", "<end>"]  # cut off, and still ended
    assert reader.read("cat").unknown == {1: "cat"}
    with pytest.raises(ValueError, match="type at least one word"):
        reader.read("!")


def test_no_unknown_word_replaces_a_mark() -> None:
    captions = [f"a dog number {n}" for n in range(24)]
    table = TokenTable(build_tokenizer(captions, marks=True), captions)
    data = Split(captions, np.arange(24), features=np.zeros((24, 1, 2)))
    batch = next(batches(data, table, 24, (0, 0), unknown_rate=0.9))
    assert np.isin(batch.ids[:, [0, -1]].numpy(), table.fixed).all()
    assert (batch.ids[:, 1:-1] == UNKNOWN_ID).float().mean() > 0.8


def test_words_of_the_vocabulary_get_their_vectors(tmp_path: Path) -> None:
    path = tmp_path / "vectors.txt"
    path.write_text("beach 1.5 -2\nunused 7 7\n. . . 8 8\ndog 0.25 3e-1\n")
    rows, vectors = load_vectors(path, WORDS, 2)
    assert rows.tolist() == [3, 2]
    torch.testing.assert_close(vectors, torch.tensor([[1.5, -2.0], [0.25, 0.3]]))
    for text, message in (
        ("dog 1\n", r'"dog" has 1 numbers, but text.word_dim is 2'),
        ("dog 1 2 3\n", "holds no 2 numbers for any word"),
        ("cat 1 2\n", "holds no 2 numbers for any word"),
    ):
        path.write_text(text)
        with pytest.raises(ValueError, match=message):
            load_vectors(path, WORDS, 2)
