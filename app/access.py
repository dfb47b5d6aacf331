"""Access control: the host names the app answers to, the origins it accepts, and refusals.

A web page cannot forge the `Host` and `Origin` headers that a browser sends. Checking the host
therefore stops DNS rebinding (a foreign name that resolves to this machine), and checking the
origin stops forms and scripts of other sites. Responses carry no CORS headers, so other sites
cannot read them.
"""

from __future__ import annotations

import ipaddress
import logging
import re
import traceback
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from starlette.datastructures import Headers
from starlette.responses import JSONResponse

_MAX_QUOTED = 100  # characters of a client's value quoted in a message
# headers that proxies and tunnels add
_FORWARDING = re.compile(
    "forwarded|via|x-forwarded-.*|x-real-ip|x-client-ip|true-client-ip|cf-connecting-ip"
    "|fly-client-ip|tailscale-user-login|x-envoy-external-address|x-original-forwarded-for"
)
_DEFAULT_PORTS = {"http": ":80", "https": ":443"}
HOST = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(:\d{1,5})?")
_log = logging.getLogger(__name__)


class Refusal(ValueError):  # noqa: N818 it is an answer
    """The HTTP status and message with which a request is refused.

    Args:
        status: 400 or higher.
        message: one sentence that names the value and what to do.
        wait: seconds after which the same request may succeed; 0 if never.
    """

    def __init__(self, status: int, message: str, wait: int = 0) -> None:
        super().__init__(message)
        self.status, self.wait = status, wait

    @classmethod
    def for_unexpected(cls, error: Exception, operation: str) -> Refusal:
        """Logs an unexpected error without its traceback; returns the refusal for the client."""
        frame = traceback.extract_tb(error.__traceback__)[-1]
        summary = f"{type(error).__name__} at {Path(frame.filename).name}:{frame.lineno}"
        _log.error("%s failed: %s: %.200s", operation, summary, error)
        return cls(500, "internal error; try a different request")

    def response(self) -> JSONResponse:
        """The refusal as a JSON response."""
        headers = {"retry-after": str(self.wait)} if self.wait else None
        return JSONResponse({"error": str(self)}, self.status, headers)


def is_loopback(host: str) -> bool:
    """Whether an address or name is reachable only from this machine.

    >>> [is_loopback(host) for host in ("localhost", "127.0.0.1", "[::1]", "0.0.0.0", "x.example")]
    [True, True, True, False, False]
    """
    with suppress(ValueError):
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    return host.lower() == "localhost"


@dataclass(frozen=True)
class Hosts:
    """The host names the app answers to.

    Attributes:
        private: whether to accept only loopback names, and no forwarded requests.
        names: further names, as `host` or `host:port`; a leading dot matches all subdomains.
    """

    private: bool = True
    names: tuple[str, ...] = ()

    def check(self, headers: Headers, method: str) -> None:
        """Raises `Refusal` for a request with a foreign host name or origin."""
        for name in filter(_FORWARDING.fullmatch, headers if self.private else ()):
            raise Refusal(
                403,
                f"this app serves only its own machine, but the header {name[:_MAX_QUOTED]} shows "
                "that the request was forwarded; start it with --allow-host NAME to serve others",
            )
        own_host = headers.get("host", "").lower()
        forwarded_hosts = ",".join(headers.getlist("x-forwarded-host"))  # trusted by gradio
        for host in [own_host, *(forwarded_hosts.lower().split(",") if forwarded_hosts else ())]:
            if not self._accepts(host.strip()):
                raise Refusal(
                    421,
                    f'this app does not serve "{host[:_MAX_QUOTED]}"; if that is its name, start '
                    "it with --allow-host NAME",
                )
        origin, site = headers.get("origin"), headers.get("sec-fetch-site", "none")
        is_navigation = method == "GET" and headers.get("sec-fetch-mode") == "navigate"
        is_foreign = site not in ("same-origin", "none") and not is_navigation
        if is_foreign or (origin is not None and not self._is_own(origin.lower(), own_host)):
            raise Refusal(403, "other sites may not send requests to this app; open its own page")

    def _accepts(self, host: str) -> bool:
        """Whether the app serves a host name or address."""
        match = HOST.fullmatch(host)
        if match is None or is_loopback(match[1]):
            return match is not None
        with suppress(ValueError):  # a public app accepts any address: rebinding needs a name
            return ipaddress.ip_address(match[1].strip("[]")) is not None and not self.private
        return self._is_named(match[1]) or self._is_named(host)

    def _is_own(self, origin: str, host: str) -> bool:
        """Whether an origin is this app: the request's own host and port, or one of `names`."""
        scheme, _, address = origin.partition("://")
        port = _DEFAULT_PORTS.get(scheme)
        if port is None or HOST.fullmatch(address) is None:
            return False
        address = address.removesuffix(port)
        return address == host.removesuffix(port) or self._is_named(address)

    def _is_named(self, host: str) -> bool:
        names = () if self.private else map(str.lower, self.names)
        return any(host == name or (name[0] == "." and host.endswith(name)) for name in names)
