"""Names, origins, and what a proxy adds."""

from __future__ import annotations

import pytest
from starlette.datastructures import Headers

from polyview.app.access import Hosts, Refusal

PRIVATE = Hosts()
PUBLIC = Hosts(private=False, names=("polyview.example", "other.example:8443", ".hf.space"))
OWN = {"host": "127.0.0.1:7860"}


def status(hosts: Hosts, headers: dict[str, str], method: str = "POST") -> int:
    try:
        hosts.check(Headers(headers), method)
    except Refusal as refusal:
        return refusal.status
    return 200


@pytest.mark.parametrize("host", ["127.0.0.1:7860", "localhost:7860", "LOCALHOST", "[::1]:7860"])
def test_loopback_is_always_answered(host: str) -> None:
    assert status(PRIVATE, {"host": host}) == status(PUBLIC, {"host": host}) == 200


@pytest.mark.parametrize(
    "host",
    [
        "", "evil.example", "127.0.0.1.evil.example", "localhost.evil.example", "0.0.0.0:7860",
        "192.168.0.7", "localhost:x", "[::1", "user@evil.example", "evil.example#127.0.0.1",
        "evil.example@127.0.0.1:7860", "127.0.0.1/evil", "127.0.0.1?.evil.example",
        "127.0.0.1#evil", "[::1].evil.example", "[::1]evil",
    ],
)  # fmt: skip
def test_a_private_app_has_no_other_name(host: str) -> None:
    assert status(PRIVATE, {"host": host}) == 421


@pytest.mark.parametrize(
    ("host", "expected"),
    [
        ("polyview.example", 200),
        ("Polyview.Example:7860", 200),
        ("192.168.0.7:7860", 200),
        ("[2001:db8::1]:7860", 200),
        ("owner-space.hf.space", 200),
        ("other.example:8443", 200),
        ("other.example", 421),
        ("evil.example", 421),
        ("evilhf.space", 421),
        ("x.polyview.example", 421),
    ],
)
def test_a_public_app_has_the_names_it_was_given(host: str, expected: int) -> None:
    assert status(PUBLIC, {"host": host}) == expected


@pytest.mark.parametrize(
    "header",
    [
        "forwarded", "via", "x-real-ip", "x-forwarded-for", "x-forwarded-host", "fly-client-ip",
        "tailscale-user-login", "x-envoy-external-address", "x-original-forwarded-for",
    ],
)  # fmt: skip
def test_a_private_app_takes_nothing_from_a_proxy(header: str) -> None:
    assert status(PRIVATE, OWN | {header: "127.0.0.1"}) == 403


def test_the_name_a_proxy_forwards_is_checked_as_well() -> None:
    named = {"host": "127.0.0.1:7860", "x-forwarded-host": "polyview.example"}
    assert status(PUBLIC, named) == 200
    assert status(PUBLIC, named | {"x-forwarded-host": "polyview.example, evil.example"}) == 421


@pytest.mark.parametrize(
    "origin",
    [
        "http://evil.example", "null", "", "http://127.0.0.1:3000", "http://localhost:7860",
        "https://127.0.0.1:78600", "http://127.0.0.1:7860.evil.example",
    ],
)  # fmt: skip
@pytest.mark.parametrize("method", ["GET", "POST", "OPTIONS"])
def test_other_origins_are_refused(origin: str, method: str) -> None:
    assert status(PRIVATE, OWN | {"origin": origin}, method) == 403


def test_the_own_origin_is_answered() -> None:
    assert status(PRIVATE, OWN | {"origin": "http://127.0.0.1:7860"}) == 200
    behind = {"host": "polyview.example", "origin": "https://polyview.example"}
    assert status(PUBLIC, behind) == 200
    assert status(PUBLIC, OWN | {"origin": "https://polyview.example"}) == 200  # Host rewritten
    assert status(PUBLIC, OWN | {"origin": "https://polyview.example:444"}) == 403


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_what_a_browser_says_of_the_asking_site_counts(site: str) -> None:
    assert status(PRIVATE, OWN | {"sec-fetch-site": site}) == 403
    assert status(PRIVATE, OWN | {"sec-fetch-site": site}, "GET") == 403
    link = {"sec-fetch-site": site, "sec-fetch-mode": "navigate"}
    assert status(PRIVATE, OWN | link, "GET") == 200
    assert status(PRIVATE, OWN | link, "POST") == 403  # a form
    assert status(PRIVATE, OWN | {"sec-fetch-site": "same-origin"}) == 200
