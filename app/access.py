"""Which names the app answers for, which pages may ask it, and how it says no.

A page of another site cannot forge the `Host` and `Origin` that a browser sends. So a page whose
name was made to point here (DNS rebinding) is told apart by its host, and a form or script of
another site by its origin. No answer carries a CORS header: other sites never read one.
"""

from __future__ import annotations

import ipaddress
import json
import re
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import Send

_SHOWN = 100  # characters of a value that a sentence repeats
# what proxies and tunnels add, beside `x-forwarded-...`
_FORWARDING = frozenset(
    {
        "forwarded", "via", "x-real-ip", "x-client-ip", "true-client-ip", "cf-connecting-ip",
        "fly-client-ip", "tailscale-user-login", "x-envoy-external-address",
        "x-original-forwarded-for",
    }
)  # fmt: skip
_PORTS = {"http": 80, "https": 443}
_HOST = re.compile(r"(\[[0-9a-fA-F:.]+\]|[A-Za-z0-9._-]+)(:\d{1,5})?")


def is_loopback(host: str) -> bool:
    """Whether an address or name means this machine alone.

    >>> [is_loopback(host) for host in ("localhost", "127.0.0.1", "[::1]", "0.0.0.0", "x.example")]
    [True, True, True, False, False]
    """
    address = _address(host.strip("[]"))
    return host.lower() == "localhost" if address is None else address.is_loopback


def trusts_everybody(proxies: str) -> bool:
    """Whether FORWARDED_ALLOW_IPS lets every client say what its address is.

    >>> [trusts_everybody(proxies) for proxies in ("*", "10.0.0.1, 0.0.0.0/0", "10.0.0.0/8", "")]
    [True, True, False, False]
    """
    return any(part.strip() == "*" or part.strip().endswith("/0") for part in proxies.split(","))


@dataclass(frozen=True)
class Hosts:
    """The names the app answers for.

    Attributes:
        private: the app is for this machine alone: loopback names only, and nothing forwarded.
        names: further names, as `host` or `host:port`; one that begins with a dot stands for every
            name that ends with it.
    """

    private: bool = True
    names: tuple[str, ...] = ()

    def check(self, headers: Headers, method: str) -> Refusal | None:
        """Says why a request is refused, or None.

        A public app takes IP addresses for its own: a page cannot be rebound to one, because a
        browser that shows it has been there from the start.
        """
        if self.private:
            forwarded = next((name for name in headers if _forwards(name)), None)
            if forwarded is not None:
                return Refusal(
                    403,
                    f"this app is for its own machine alone, and {shown(forwarded)} says that the "
                    "request was forwarded; start it with --allow-host NAME to serve others",
                )
        named = [headers.get("host", "")]
        for value in headers.getlist("x-forwarded-host"):  # which gradio believes
            named += value.split(",")
        for host in named:
            if not self._answers_for(host.strip()):
                return Refusal(
                    421,
                    f'this app does not answer for "{shown(host)}"; where that is its name, start '
                    "it with --allow-host NAME",
                )
        return self._check_origin(headers, method)

    def _check_origin(self, headers: Headers, method: str) -> Refusal | None:
        origin, site = headers.get("origin"), headers.get("sec-fetch-site", "none")
        navigates = method == "GET" and headers.get("sec-fetch-mode") == "navigate"
        foreign = site not in ("same-origin", "none") and not navigates
        if foreign or (origin is not None and not self._own(origin, headers.get("host", ""))):
            return Refusal(403, "pages of other sites may not ask this app; open it by its address")
        return None

    def _answers_for(self, host: str) -> bool:
        if _HOST.fullmatch(host) is None:
            return False
        name, port = _split(f"//{host}")
        if not name:
            return False
        if is_loopback(name):
            return True
        if self.private:
            return False
        return _address(name) is not None or self._named(name, port)

    def _own(self, origin: str, host: str) -> bool:
        """Whether an origin is this app's: its host by name and port, or a name it was given."""
        name, port = _split(origin)
        if not name:
            return False
        scheme = origin.partition(":")[0].lower()
        default = _PORTS.get(scheme)
        host_name, host_port = _split(f"//{host}")
        if (name, port or default) == (host_name, host_port or default):
            return True
        return not self.private and port in (None, default) and self._named(name, default)

    def _named(self, name: str, port: int | None) -> bool:
        for given in self.names:
            given_name, given_port = _split(f"//{given.lstrip('.')}")
            same = name == given_name or (given.startswith(".") and name.endswith(given.lower()))
            if same and given_port in (None, port):
                return True
        return False


def is_name(text: str) -> bool:
    """Whether `--allow-host` can take a text: a name or an address, with or without a port.

    >>> [is_name(text) for text in ("polyview.example", "polyview.example:8443", "http://x", "a/b")]
    [True, True, False, False]
    """
    name, _ = _split(f"//{text.lstrip('.')}")
    return bool(name) and not set(text) & set("/@?#* ")


def _split(address: str) -> tuple[str, int | None]:
    """Host and port of an address; an empty host where it is none, or names a user."""
    try:
        parts = urlsplit(address)
        if "@" in parts.netloc:
            return "", None
        return (parts.hostname or "").lower().rstrip("."), parts.port
    except ValueError:
        return "", None


def _address(host: str) -> Any:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _forwards(header: str) -> bool:
    return header in _FORWARDING or header.startswith("x-forwarded-")


@dataclass(frozen=True)
class Refusal:
    """Why a request goes no further.

    Attributes:
        status: of HTTP: 400, 403, 404, 408, 413, 421, 429, 500 or 503.
        sentence: names the value and what to do.
        wait: seconds after which the same request may succeed; 0 where it never does.
    """

    status: int
    sentence: str
    wait: int = 0

    async def answer(self, send: Send) -> None:
        """Sends the refusal and closes the connection, of whose body something may be left."""
        body = json.dumps({"error": self.sentence}).encode()
        headers = [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
            (b"cache-control", b"no-store"),
            (b"connection", b"close"),
        ]
        if self.wait:
            headers.append((b"retry-after", str(self.wait).encode()))
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        await send({"type": "http.response.body", "body": body})


def shown(value: str) -> str:
    r"""A stranger's text as a sentence may repeat it: short, and printable.

    >>> shown("evil.example\n" + "x" * 200)[:20]
    'evil.example?xxxxxxx'
    """
    text = "".join(c if c.isprintable() else "?" for c in value[:_SHOWN])
    return text if len(value) <= _SHOWN else f"{text}…"
