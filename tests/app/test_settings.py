"""The command line: defaults, host names, and errors with exit status 2."""

import importlib.util
import os
import sys
from pathlib import Path

import pytest

from polyview.app.main import main
from polyview.app.packs.downloads import PRESETS
from polyview.app.settings import Settings, bundled_pack
from polyview.export.hub.client import is_hub_id


def test_wrong_options(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, sentence in {
        ("--port", "0"): "--port must be 1 to 65535, not 0",
        ("--port", "70000"): "--port must be 1 to 65535, not 70000",
        ("--gallery", "/no/such/folder"): "--gallery /no/such/folder does not exist",
        ("--pack", " "): "--pack is empty",
        ("--allow-host", "http://x"): '--allow-host "http://x" is not a host name',
    }.items():
        with pytest.raises(SystemExit, match="2"):
            Settings.from_argv(arguments)
        assert sentence in capsys.readouterr().err
    with pytest.raises(ValueError, match='--device "tpu" is unknown; choose one of auto, cpu'):
        Settings(device="tpu")  # type: ignore[arg-type]


def test_the_first_pack_suits_the_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable, arguments, pack in (
        ("", [], "scenes"),
        ("", ["--gallery", str(tmp_path)], "photos"),
        ("", ["--gallery", str(tmp_path), "--pack", "scenes"], "scenes"),
        ("", ["--gallery", "qdrant://host:6333/mine"], "scenes"),
        ("owner/name@v1", [], "owner/name@v1"),
        ("owner/name@v1", ["--pack", "photos"], "photos"),
    ):
        monkeypatch.setenv("POLYVIEW_PACK", variable)
        assert Settings.from_argv(arguments).first_pack == pack


def test_missing_mcp(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(os, "environ", os.environ.copy())
    monkeypatch.setattr(sys, "path", sys.path.copy())
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "mcp" else name)
    assert main(["--mcp"]) == 1
    errors = capsys.readouterr().err
    assert errors.startswith("polyview: --mcp needs a package that is not installed")
    assert 'pip install "gradio[mcp]"' in errors


def test_only_loopback_hosts_are_private(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("SPACE_ID", "GRADIO_SHARE", "GRADIO_SERVER_NAME", "POLYVIEW_ALLOW_HOST"):
        monkeypatch.delenv(name, raising=False)
    assert Settings.from_argv([]).host == "127.0.0.1"
    for host in ("localhost", "127.0.0.1", "::1", "[::1]"):
        settings = Settings.from_argv(["--host", host])
        assert settings.private
        assert settings.host == ("[::1]" if "::1" in host else host)
    for host in ("0.0.0.0", "::", "192.0.2.1", "polyview.example"):
        assert not Settings(host=host).private
    settings = Settings(allow_hosts=("polyview.example",))
    assert not settings.private
    assert "polyview.example" in settings.names
    assert "polyview.example" in Settings(host="polyview.example").names
    monkeypatch.setenv("GRADIO_SHARE", "True")
    assert not Settings().private
    assert ".gradio.live" in Settings().names


def test_host_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("POLYVIEW_ALLOW_HOST", "a.example, b.example:8443,")
    assert Settings.from_argv([]).allow_hosts == ("a.example", "b.example:8443")
    values = Settings.from_argv(["--allow-host", "c.example", "--allow-host", "d.example"])
    assert values.allow_hosts == ("c.example", "d.example")
    space = {"SPACE_ID": "owner/space", "SPACE_HOST": "space.example", "GRADIO_SHARE": "True"}
    for name, value in space.items():
        monkeypatch.setenv(name, value)
    settings = Settings(host="127.0.0.1")
    assert not settings.private
    assert not settings.shared  # gradio shares no Space
    assert {".hf.space", "space.example"} <= {*settings.names}


def test_names_of_bundled_packs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("..", "../bundled", "/etc", "no_such_pack", "", "a/b"):
        assert bundled_pack(name) is None
    assert all(is_hub_id(preset["published"]) for preset in PRESETS.values())
    monkeypatch.setattr("polyview.app.settings.BUNDLED", tmp_path)
    (tmp_path / "mine").mkdir()
    assert bundled_pack("mine") is None
    (tmp_path / "mine" / "pack.json").write_text("{}")
    assert bundled_pack("mine") == tmp_path / "mine"


def test_a_public_app_refuses_to_trust_every_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for everybody in ("10.0.0.2,*", "10.0.0.1, 0.0.0.0/0"):
        monkeypatch.setenv("FORWARDED_ALLOW_IPS", everybody)
        assert Settings().private  # a private app refuses forwarded requests
        with pytest.raises(ValueError, match="FORWARDED_ALLOW_IPS"):
            Settings(host="0.0.0.0")
    monkeypatch.setenv("FORWARDED_ALLOW_IPS", "10.0.0.0/8")
    assert not Settings(host="0.0.0.0").private
