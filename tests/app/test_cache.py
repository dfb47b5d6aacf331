"""The store on disk: it gives back what it was given, and survives damage."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from app.cache import Store, cache_folder


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    store = Store(tmp_path / "store")
    store.save(["a", "b"], torch.arange(6.0).reshape(2, 3))
    store.save(["c"], torch.full((1, 3), 9.0))
    return tmp_path / "store"


def test_a_new_store_knows_what_the_last_one_saved(filled: Path) -> None:
    found = Store(filled).load(["c", "b", "unknown"])
    assert found.keys() == {"b", "c"}
    assert found["b"].tolist() == [3.0, 4.0, 5.0]
    assert found["c"].tolist() == [9.0, 9.0, 9.0]


def test_a_later_value_replaces_an_earlier_one(filled: Path) -> None:
    store = Store(filled)
    store.save(["a", "x"], torch.full((2, 3), 7.0))
    assert store.load(["a"])["a"].tolist() == [7.0, 7.0, 7.0]


@pytest.mark.parametrize("damage", [b"", b"nonsense", None])
def test_a_damaged_shard_is_dropped(filled: Path, damage: bytes | None) -> None:
    shards = list(filled.iterdir())
    for shard in shards:
        content = shard.read_bytes()
        shard.write_bytes(content[:-5] if damage is None else damage)
    store = Store(filled)
    assert store.load(["a", "b", "c"]) == {}
    assert list(filled.iterdir()) == []


def test_damage_after_the_start_is_noticed(filled: Path) -> None:
    store = Store(filled)
    for shard in filled.iterdir():
        shard.unlink()
    assert store.load(["a", "c"]) == {}
    store.save(["a"], torch.ones(1, 3))
    assert store.load(["a"])["a"].tolist() == [1.0, 1.0, 1.0]


def test_a_folder_that_cannot_be_written_costs_only_time(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    blocked = tmp_path / "blocked"
    blocked.write_text("a file where the folder should be")
    store = Store(blocked)
    store.save(["a"], torch.ones(1, 3))
    assert store.load(["a"]) == {}
    assert "cannot be written" in caplog.text


def test_prune_keeps_shards_that_are_still_needed(filled: Path) -> None:
    store = Store(filled)
    store.prune(["a"])
    assert store.load(["a", "b", "c"]).keys() == {"a", "b"}
    assert len(list(filled.iterdir())) == 1


def test_the_folder_can_be_chosen(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("POLYVIEW_CACHE", str(tmp_path))
    assert cache_folder() == tmp_path
    monkeypatch.delenv("POLYVIEW_CACHE")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path))
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert cache_folder().name == "polyview"
    assert cache_folder().is_relative_to(tmp_path)


def test_a_folder_that_cannot_be_made_is_replaced(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("POLYVIEW_CACHE", str(tmp_path / "file"))
    folder = cache_folder()
    assert folder.is_dir()
    assert not folder.is_relative_to(tmp_path)
    assert "nothing is kept" in caplog.text
