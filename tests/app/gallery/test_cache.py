"""The cache folder: where it is, and what happens where it cannot be."""

from pathlib import Path

import pytest

from app.gallery.cache import cache_folder


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
