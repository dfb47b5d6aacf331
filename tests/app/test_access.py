"""Host names, origins, and headers of proxies."""

import pytest
from starlette.datastructures import Headers

from polyview.app.access import Hosts
from polyview.app.refusal import Refusal

PRIVATE = Hosts()
PUBLIC = Hosts(private=False, names=("polyview.example", "other.example:8443", ".hf.space"))
OWN = {"host": "127.0.0.1:7860"}
FOREIGN = (
    "", "evil.example", "127.0.0.1.evil.example", "localhost.evil.example", "0.0.0.0:7860",
    "192.168.0.7", "localhost:x", "[::1", "user@evil.example", "evil.example#127.0.0.1",
    "evil.example@127.0.0.1:7860", "127.0.0.1/evil", "127.0.0.1?.evil.example", "127.0.0.1#evil",
    "[::1].evil.example", "[::1]evil",
)  # fmt: skip
PROXIES = (
    "forwarded", "via", "x-real-ip", "x-forwarded-for", "x-forwarded-host", "fly-client-ip",
    "tailscale-user-login", "x-envoy-external-address", "x-original-forwarded-for",
)  # fmt: skip
PAGES = (
    "http://evil.example", "null", "", "http://127.0.0.1:3000", "http://localhost:7860",
    "https://127.0.0.1:78600", "http://127.0.0.1:7860.evil.example",
)  # fmt: skip
NAVIGATES = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}


def status(hosts: Hosts, headers: dict[str, str], method: str = "POST") -> int:
    try:
        hosts.check(Headers(headers), method)
    except Refusal as refusal:
        return refusal.status
    return 200


def test_a_private_app_refuses_other_names_and_proxies() -> None:
    for host in ("127.0.0.1:7860", "localhost:7860", "LOCALHOST", "[::1]:7860"):
        assert status(PRIVATE, {"host": host}) == status(PUBLIC, {"host": host}) == 200
    refused = {host: status(PRIVATE, {"host": host}) for host in FOREIGN}
    assert refused == dict.fromkeys(FOREIGN, 421)
    refused = {header: status(PRIVATE, OWN | {header: "127.0.0.1"}) for header in PROXIES}
    assert refused == dict.fromkeys(PROXIES, 403)


def test_a_public_app_accepts_its_names() -> None:
    own = (
        "polyview.example", "Polyview.Example:7860", "192.168.0.7:7860", "[2001:db8::1]:7860",
        "owner-space.hf.space", "other.example:8443",
    )  # fmt: skip
    others = ("other.example", "evil.example", "evilhf.space", "x.polyview.example")
    expected = dict.fromkeys(own, 200) | dict.fromkeys(others, 421)
    assert {host: status(PUBLIC, {"host": host}) for host in expected} == expected
    named = {"host": "127.0.0.1:7860", "x-forwarded-host": "polyview.example"}
    assert status(PUBLIC, named) == 200
    assert status(PUBLIC, named | {"x-forwarded-host": "polyview.example, evil.example"}) == 421


@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS"])
def test_other_origins_are_refused(method: str) -> None:
    refused = {origin: status(PRIVATE, OWN | {"origin": origin}, method) for origin in PAGES}
    assert refused == dict.fromkeys(PAGES, 403)
    assert status(PRIVATE, OWN | {"origin": "http://127.0.0.1:7860"}, method) == 200
    behind = {"host": "polyview.example", "origin": "https://polyview.example"}
    assert status(PUBLIC, behind, method) == 200
    rewritten = OWN | {"origin": "https://polyview.example"}  # by a proxy that changes Host
    assert status(PUBLIC, rewritten, method) == 200
    assert status(PUBLIC, OWN | {"origin": "https://polyview.example:444"}, method) == 403


def test_cross_site_requests_are_refused() -> None:
    for site in ("cross-site", "same-site"):
        assert status(PRIVATE, OWN | {"sec-fetch-site": site}) == 403
        assert status(PRIVATE, OWN | {"sec-fetch-site": site}, "GET") == 403
    assert status(PRIVATE, OWN | NAVIGATES, "GET") == 200
    assert status(PRIVATE, OWN | NAVIGATES, "POST") == 403  # a form
    assert status(PRIVATE, OWN | {"sec-fetch-site": "same-origin"}) == 200
