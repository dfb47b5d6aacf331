"""What the app grows by: a few seconds over a shared app, and two minutes with a browser."""

from pathlib import Path

import pytest

from benchmarks.many_users import App, AskError
from benchmarks.soak import growth, in_a_row, soak
from tests.app.serving import Serve, Server

pytestmark = pytest.mark.slow


def app_of(server: Server, folder: Path) -> App:
    return App(int(server.url.rpartition(":")[2]), server.process, folder)


def test_everybody_is_answered_and_the_app_measured(
    many_server: Server, many_pack: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    app = app_of(many_server, tmp_path)
    first, *_, last = soak(app, many_pack, 0.05, browser=False, every=1.0)
    assert first.calls < last.calls
    assert min(last.memory, last.threads, last.files) > 0
    told = capsys.readouterr().out
    assert [part.split()[0] for part in told.split(", ")] == ["HTTP", "gradio", "uploads"]


def test_calls_in_a_row_are_counted(many_server: Server, many_pack: Path, tmp_path: Path) -> None:
    samples = list(in_a_row(app_of(many_server, tmp_path), many_pack, 5, every=2))
    assert [sample.calls for sample in samples] == [0, 2, 4, 5]


def test_a_user_who_is_refused_ends_it(
    many_server: Server, many_pack: Path, tmp_path: Path
) -> None:
    gone = App(1, many_server.process, tmp_path)
    with pytest.raises(AskError, match="refused"):
        list(soak(gone, many_pack, 0.05, browser=False, every=1.0))


@pytest.mark.soak
def test_two_minutes_add_little(serve: Serve, many_pack: Path, tmp_path: Path) -> None:
    samples = list(soak(app_of(serve("--pack", many_pack), tmp_path), many_pack, 2.0, True, 5.0))
    _, each = growth(samples, warm=0.25)
    assert samples[-1].calls > 500
    assert each < 20.0  # MB in a thousand calls; a session whose state stays takes 0.3 a call
