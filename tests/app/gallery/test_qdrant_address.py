"""Addresses of galleries in Qdrant: what they say, and nonsense refused."""

import importlib
import importlib.util
import sys
from pathlib import Path

import pytest

from app.gallery.qdrant.address import Address
from app.settings import Settings


def test_a_server_and_a_collection(tmp_path: Path) -> None:
    assert Address.parse("qdrant://10.0.0.7/photos") == Address("photos", "10.0.0.7", 6333)
    given = f"qdrants://vectors.example:443/photos?search=approximate&grpc=6334&pictures={tmp_path}"
    assert Address.parse(given) == Address(
        "photos", "vectors.example", 443, True, None, "approximate", tmp_path, 6334
    )
    assert str(Address.parse(given)) == "qdrants://vectors.example:443/photos"
    assert str(Address.parse("qdrant://[::1]:7000/photos")) == "qdrant://[::1]:7000/photos"


def test_a_folder_without_a_server() -> None:
    address = Address.parse("qdrant:///srv/my%20vectors/photos")
    assert (address.folder, address.name, address.host) == (Path("/srv/my vectors"), "photos", "")


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("http://localhost/photos", "is no address; give qdrant://host:port/collection"),
        ("qdrant://localhost", "names no collection"),
        ("qdrant://localhost/a/b", "names no collection"),
        ("qdrant://localhost/..", "names no collection"),
        ("qdrant:///photos", "names no server and no folder"),
        ("qdrant://localhost:99999/photos", "is no address"),
        ("qdrant://me:secret@localhost/photos", "the address holds a password"),
        ("qdrant://localhost/photos?api_key=abc", "give it in the variable QDRANT_API_KEY"),
        ("qdrant://localhost/photos?exact=1", 'no option "exact"; choose from search, pictures'),
        ("qdrant://localhost/photos?search=fast", 'must be "exact" or "approximate", not "fast"'),
        ("qdrant://localhost/photos?grpc=x", "grpc must be a port"),
        ("qdrant://localhost/photos?pictures=/no/such", "pictures=/no/such is not a folder"),
    ],
)
def test_nonsense_is_refused(text: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence.replace("?", r"\?")):
        Address.parse(text)


def test_an_address_or_a_folder_is_taken(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert Settings.from_argv(["--gallery", str(tmp_path)]).gallery == tmp_path
    given = Settings.from_argv(["--gallery", "qdrant://localhost/photos"]).gallery
    assert given == Address("photos", "localhost")
    with pytest.raises(SystemExit):
        Settings.from_argv(["--gallery", "qdrant://localhost"])
    assert "names no collection" in capsys.readouterr().err


def test_without_its_package_a_sentence_says_how(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "qdrant_client" else find(name)
    )
    monkeypatch.delitem(sys.modules, "app.gallery.qdrant.server", raising=False)
    with pytest.raises(ValueError, match=r"not installed; run pip install .qdrant-client"):
        importlib.import_module("app.gallery.qdrant.server")
