"""A crowd that sends half of its requests for 35 seconds; short: tests/app/blocks/server."""

import select
import time
from contextlib import ExitStack

import pytest

from tests.app.blocks.server.attacks import API, ask, connect
from tests.app.serving import Serve
from tests.soak.checks import SLOW

HALVES = (
    b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-",
    b"POST %b/call/info HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 900\r\n\r\n{" % API.encode(),
)


@pytest.mark.soak
@pytest.mark.timeout(400)
@pytest.mark.parametrize("half", HALVES)
def test_a_slow_crowd_keeps_nobody_out(serve: Serve, tiny_pack: object, half: bytes) -> None:
    server = serve("--pack", str(tiny_pack), "--host", "0.0.0.0", descriptors=1024)
    with ExitStack() as held:
        lines = [held.enter_context(connect(server.url)) for _ in range(1100)]
        for line in lines:
            line.sendall(half)
        end, waited = time.monotonic() + 35, 0.0
        while time.monotonic() < end:
            start = time.monotonic()
            assert ask(server.url, "/config").status_code in (200, 429, 503)
            waited = max(waited, time.monotonic() - start)
            time.sleep(1)
        assert waited < SLOW
        ended = select.poll()
        for line in lines:
            ended.register(line, select.POLLIN | select.POLLHUP | select.POLLERR)
        assert len(ended.poll(0)) == len(lines)  # answered, or closed
    assert ask(server.url, "/config").status_code == 200
