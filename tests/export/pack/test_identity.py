"""What tells packs apart, and how much they may say."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from export.pack.reading import load_info
from export.pack.validation import PackError

Edit = Callable[[Callable[[dict[str, Any]], object]], Path]
METRICS = {"split": "test", "command": "none", "hardware": "none", "seed": 1}


def first(values: dict[str, Any]) -> dict[str, Any]:
    """The first method of a pack.json."""
    return next(iter(values["methods"].values()))


@pytest.mark.parametrize(
    "change",
    [
        lambda values: values.update(title="Another"),
        lambda values: values.update(credits="A thief"),
        lambda values: first(values).update(config={"seed": 1}),
        lambda values: first(values).update(metrics={**METRICS, "values": {"rsum": 600.0}}),
    ],
)
def test_words_and_numbers_make_another_pack_of_the_same_embeddings(
    copied: Path, edit: Edit, change: Callable[[dict[str, Any]], object]
) -> None:
    before, after = load_info(copied, verify=False), load_info(edit(change), verify=False)
    assert after.checksum == before.checksum
    assert after.identity != before.identity


def test_files_in_other_roles_make_other_embeddings(copied: Path, edit: Edit) -> None:
    def swap(values: dict[str, Any]) -> None:
        method, encoder = first(values), values["image_encoder"]
        method["text_encoder"], encoder["file"] = encoder["file"], method["text_encoder"]

    before, after = load_info(copied, verify=False), load_info(edit(swap), verify=False)
    assert after.checksum != before.checksum
    assert after.identity != before.identity


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda values: values.update(title="x" * 201), "title must be a text of at most 200"),
        (lambda values: values.update(credits="x" * 10_001), "credits .* at most 10,000 char"),
        (
            lambda values: first(values).update(
                metrics={**METRICS, "values": {f"v{i}": 0.5 for i in range(201)}}
            ),
            "values must have at most 200 items",
        ),
    ],
)
def test_too_long_texts(
    edit: Edit, change: Callable[[dict[str, Any]], object], sentence: str
) -> None:
    with pytest.raises(PackError, match=sentence):
        load_info(edit(change), verify=False)
