"""Where the broker listens: `amqp://HOST[:PORT]` or `amqps://HOST[:PORT]`."""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass
from typing import Literal

DEFAULT_PORTS = {"amqp": 5672, "amqps": 5671}
_ADDRESS = re.compile(r"(amqps?)://(\[[^\[\]/]*\]|[^\[\]:/@?#\s]*)(?::([0-9]{1,5}))?/?", re.ASCII)
_HOST_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]{0,252})?", re.ASCII)


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """One listener. `host` carries no brackets; port 0 lets the system choose (tests, demos)."""

    scheme: Literal["amqp", "amqps"]
    host: str
    port: int

    @classmethod
    def parse(cls, text: str) -> ListenAddress:
        """Read `amqp://127.0.0.1:5672`, `amqps://[::1]`. Raises ValueError that says what is wrong."""
        found = _ADDRESS.fullmatch(text.strip())
        if found is None:
            raise ValueError(_what_is_wrong(text))
        scheme, host, port_text = found[1], found[2], found[3]
        port = DEFAULT_PORTS[scheme] if port_text is None else int(port_text)
        if port > 65535:
            raise ValueError(f"port {port} is over 65535")
        return cls("amqps" if scheme == "amqps" else "amqp", _checked_host(host), port)

    @property
    def is_tls(self) -> bool:
        """Whether the listener speaks TLS from the first byte."""
        return self.scheme == "amqps"

    @property
    def is_loopback(self) -> bool:
        """Whether only programs of this machine can reach it. A name other than `localhost` may be anything."""
        if self.host.lower() == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"


def _checked_host(host: str) -> str:
    if host.startswith("["):
        try:
            return str(ipaddress.IPv6Address(host[1:-1]))
        except ipaddress.AddressValueError as error:
            raise ValueError(f"{host} is no IPv6 address: {error}") from None
    if not host:
        raise ValueError("the host is missing; 0.0.0.0 or [::] stands for every interface")
    if host.replace(".", "").isdigit():
        try:
            return str(ipaddress.IPv4Address(host))
        except ipaddress.AddressValueError as error:
            raise ValueError(f"{host} is no IPv4 address: {error}") from None
    if not _HOST_NAME.fullmatch(host):
        raise ValueError(f"{host!r} is no host name")
    return host


def _what_is_wrong(text: str) -> str:
    scheme, separator, rest = text.strip().partition("://")
    if not separator:
        return "the scheme is missing"
    if scheme not in DEFAULT_PORTS:
        return f"the scheme {scheme!r} is neither amqp nor amqps"
    if "@" in rest:
        return "a listener takes no user; see sasl.users-db"
    if rest.count(":") > 1 and "[" not in rest:
        return "an IPv6 address stands in brackets"
    return "it does not end with HOST or HOST:PORT"
