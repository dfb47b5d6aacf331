"""The command line: defaults, and nonsense refused with exit status 2."""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path

import pytest

from app.main import main
from app.settings import Settings, bundled_pack


def test_defaults(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("GRADIO_SERVER_NAME", raising=False)
    settings = Settings.from_argv([])
    assert settings == Settings("scenes", None, "auto", "127.0.0.1", None, mcp=False)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--port", "0"], "--port must be 1 to 65535, not 0"),
        (["--port", "70000"], "--port must be 1 to 65535, not 70000"),
        (["--port", "x"], "invalid int value: 'x'"),
        (["--device", "tpu"], '--device "tpu" is unknown; choose one of auto, cpu, cuda'),
        (["--gallery", "/no/such/folder"], "--gallery /no/such/folder is not a folder"),
        (["--pack", " "], "--pack is empty"),
        (["--galery", "x"], "unrecognized arguments"),
    ],
)
def test_nonsense_is_refused(
    arguments: list[str], sentence: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as end:
        Settings.from_argv(arguments)
    assert end.value.code == 2
    assert sentence in capsys.readouterr().err


def test_mcp_is_off_unless_it_is_asked_for() -> None:
    assert not Settings.from_argv([]).mcp
    assert Settings.from_argv(["--mcp"]).mcp


def test_without_its_package_mcp_is_refused_in_a_sentence(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "environ", os.environ.copy())
    monkeypatch.setattr(sys, "path", sys.path.copy())
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "mcp" else name)
    assert main(["--mcp"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("polyview: the package mcp, which --mcp needs, is not installed")
    assert 'pip install "gradio[mcp]"' in said


def test_only_the_own_machine_is_private(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SPACE_ID", raising=False)
    assert Settings(host="localhost").private
    assert not Settings(host="0.0.0.0").private
    monkeypatch.setenv("SPACE_ID", "owner/space")
    assert not Settings(host="127.0.0.1").private


def test_a_variable_names_the_pack_unless_the_command_line_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("POLYVIEW_PACK", raising=False)
    assert Settings.from_argv([]).pack == "scenes"
    monkeypatch.setenv("POLYVIEW_PACK", "owner/name@v1")
    assert Settings.from_argv([]).pack == "owner/name@v1"
    assert Settings.from_argv(["--pack", "scenes"]).pack == "scenes"
    monkeypatch.setenv("POLYVIEW_PACK", "")
    assert Settings.from_argv([]).pack == "scenes"


@pytest.mark.parametrize("name", ["..", "../bundled", "/etc", "no_such_pack", "", "a/b"])
def test_only_bundled_names_name_bundled_packs(name: str) -> None:
    assert bundled_pack(name) is None


def test_a_bundled_pack_is_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("app.settings.BUNDLED", tmp_path)
    (tmp_path / "mine").mkdir()
    assert bundled_pack("mine") is None
    (tmp_path / "mine" / "pack.json").write_text("{}")
    assert bundled_pack("mine") == tmp_path / "mine"
