"""What may be fetched, and what is removed where it may not."""

from pathlib import Path

import pytest

from export.hub.address import HUB_ID
from export.hub.blobs import forget, forget_damaged
from export.hub.client import HubError, check_address
from export.hub.download import VISITORS, Limits, TooLargeError
from export.hub.transfer import pull

LIMITS = Limits(file=100, gallery=50, total=150, files=3, spare=0)


@pytest.mark.parametrize(
    ("sizes", "sentence"),
    [
        ({"a": 101}, "a has 101 bytes, more than the 100 "),
        ({"gallery/a": 30, "gallery/b": 21}, "its gallery has 51 bytes, more than the 50 "),
        ({"a": 80, "b": 80}, "it has 160 bytes, more than the 150 "),
        ({"a": 1, "b": 1, "c": 1, "d": 1}, "has 4 files, more than the 3 "),
        ({"a": None}, "the Hub states no size of a"),
    ],
)
def test_more_is_refused(tmp_path: Path, sizes: dict[str, int | None], sentence: str) -> None:
    with pytest.raises(TooLargeError, match=f"owner/name.*{sentence}"):
        LIMITS.check("owner/name", sizes, tmp_path)


def test_what_fits_is_not_refused_and_some_of_the_disk_stays_free(tmp_path: Path) -> None:
    LIMITS.check("owner/name", {"a": 100, "gallery/b": 50}, tmp_path)
    full = Limits(100, 50, 150, 3, spare=2**60)
    with pytest.raises(TooLargeError, match="no room for its 100 bytes on the disk"):
        full.check("owner/name", {"a": 100}, tmp_path)
    assert max(VISITORS.file, VISITORS.gallery) < VISITORS.total


@pytest.mark.parametrize(
    "revision",
    [
        "refs/pr/../../x",
        "..",
        "a/..",
        "/etc",
        "a//b",
        "a\\..",
        "x\n",
        ".git",
        "a..b",
        "x" * 201,
        "",
    ],
)
@pytest.mark.parametrize("local", [True, False])
def test_a_revision_that_leads_out_is_refused_before_anybody_is_asked(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, revision: str, local: bool
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(HubError, match="names no repository and revision"):
        pull("owner/name", revision, cache_dir=tmp_path, local=local)
    assert not HUB_ID.fullmatch(f"owner/name@{revision}")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "revision", [None, "main", "v1.0", "refs/pr/1", "feature--x/y_z", "0" * 40]
)
def test_usual_revisions_are_taken(revision: str | None) -> None:
    check_address("openai/clip-vit-base-patch32", revision)


def test_bytes_that_another_commit_has_as_well_stay(tmp_path: Path) -> None:
    place = tmp_path / "models--owner--name"
    (place / "blobs").mkdir(parents=True)
    (place / "refs").mkdir()
    for blob in ("shared", "own"):
        (place / "blobs" / blob).write_text(blob)
    for commit, names in (("old", ["shared"]), ("new", ["shared", "own"])):
        (place / "snapshots" / commit / "sub").mkdir(parents=True)
        for name in names:
            link = place / "snapshots" / commit / "sub" / name
            link.symlink_to(f"../../../blobs/{name}")
        (place / "refs" / commit).write_text(commit)
    forget(place / "snapshots" / "new", ["sub/shared", "sub/own", "sub/never"])
    kept = {path.relative_to(place).as_posix() for path in place.rglob("*") if path.is_file()}
    assert kept == {"blobs/shared", "snapshots/old/sub/shared", "refs/old"}
    assert not (place / "snapshots" / "new").exists()


def test_nothing_outside_the_cache_is_removed(tmp_path: Path) -> None:
    mine, place = tmp_path / ("0" * 40), tmp_path / "models--owner--name"
    mine.write_text("mine")
    folder = place / "snapshots" / "commit"
    folder.mkdir(parents=True)
    (folder / "a").symlink_to(mine)
    assert forget_damaged(folder, ["a"]) == []
    forget(folder, ["a"])
    assert mine.read_text() == "mine"
    assert not folder.exists()
