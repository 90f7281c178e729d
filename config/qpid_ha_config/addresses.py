"""Where brokers are: `amqp://HOST[:PORT]`, `amqps://...`, with a user where a client logs in, and lists of them."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

DEFAULT_PORTS: Final[Mapping[str, int]] = {"amqp": 5672, "amqps": 5671}
ADMIN_PORTS: Final[Mapping[str, int]] = {"http": 8672, "https": 8672}
"""Of the port for administrators and monitoring."""
_ADDRESS = re.compile(r"(?:([^@/\s]*)@)?(\[[^\[\]/]*\]|[^\[\]:/@?#\s]*)(?::([0-9]{1,5}))?/?", re.ASCII)
_HOST_NAME = re.compile(r"[A-Za-z0-9_]([A-Za-z0-9_.-]{0,252})?", re.ASCII)
_PORTS = re.compile(r"(.*:)([0-9]{1,5})-([0-9]{1,5})", re.ASCII)
_MOST_PORTS: Final = 100
"""In one range: more brokers than a cluster has."""
_ANY_INTERFACE = ("0.0.0.0", "::")


class Address(NamedTuple):
    """One end of a connection. `host` carries no brackets; `user` is empty for nobody.

    `scheme`: amqp or amqps; of the port for administrators http or https.

    Port 0 lets the system choose, and is good for a listener only.
    """

    scheme: str
    host: str
    port: int
    user: str = ""

    @classmethod
    def parse(cls, text: str, scheme: str = "", ports: Mapping[str, int] = DEFAULT_PORTS) -> Address:
        """Read `amqp://127.0.0.1:5672`, `amqps://me@[::1]`. `scheme` is for a text that has none.

        `ports`: the schemes that may be, with the port of an address that names none.
        Raises ValueError that says what is wrong, never with what could be a password.
        """
        written, separator, rest = text.strip().rpartition("://")
        scheme = written if separator else scheme
        if not scheme:
            raise ValueError("the scheme is missing")
        if scheme not in ports:
            quoted = f"the scheme {scheme!r}" if scheme.isalnum() else "what stands before ://"
            raise ValueError(f"{quoted} is neither {' nor '.join(ports)}")
        match = _ADDRESS.fullmatch(rest)
        if match is None:
            is_bare = rest.count(":") > 1 and not {"[", "@"} & set(rest)
            raise ValueError(
                "an IPv6 address stands in brackets" if is_bare else "it does not end with HOST or HOST:PORT"
            )
        user, host, port_text = match[1] or "", match[2], match[3]
        if ":" in user:
            raise ValueError("an address is no place for a password; put it into a file")
        port = ports[scheme] if port_text is None else int(port_text)
        if port > 65535:
            raise ValueError(f"port {port} is over 65535")
        return cls(scheme, _checked_host(host), port, user)

    @property
    def is_tls(self) -> bool:
        """Whether TLS is spoken there from the first byte."""
        return self.scheme in ("amqps", "https")

    @property
    def is_loopback(self) -> bool:
        """Whether only programs of this machine can reach it. A name other than `localhost` may be anything."""
        if self.host.lower() == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False

    @property
    def place(self) -> tuple[str, int]:
        """Host and port, the same for the same listener."""
        return self.host.lower(), self.port

    def is_same_listener(self, other: Address) -> bool:
        """Whether both lead to one listener, and in the same way: with TLS or without."""
        return self.place == other.place and self.is_tls == other.is_tls

    def as_user(self, user: str) -> Address:
        """The address, for `user`."""
        return self._replace(user=user)

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"


def parse_listeners(value: object) -> tuple[Address, ...]:
    """One or several, each with its scheme: `amqp://127.0.0.1,amqps://[::1]:5671` or a list. Raises ValueError."""
    addresses = tuple(part if isinstance(part, Address) else Address.parse(part) for part in _parts(value))
    if any(address.user for address in addresses):
        raise ValueError("a listener takes no user; see sasl.users-db")
    if not addresses:
        raise ValueError
    return addresses


def parse_listener(value: object) -> Address:
    """One, with its scheme and a port. Raises ValueError."""
    addresses = parse_listeners(value)
    if len(addresses) != 1:
        raise ValueError("it is more than one")
    if not addresses[0].port:
        raise ValueError("others have to find it: name the port")
    return addresses[0]


def parse_admin_listeners(value: object) -> tuple[Address, ...]:
    """Listeners for HTTP, each with its scheme: `http://127.0.0.1:8672,https://[::1]`; none for an empty list.

    Raises ValueError.
    """
    parts = _parts(value)
    addresses = tuple(part if isinstance(part, Address) else parse_admin(part) for part in parts)
    if any(address.user for address in addresses):
        raise ValueError("a listener takes no user; see admin.tokens")
    return addresses


def parse_admin(text: str) -> Address:
    """One address for HTTP: `http://HOST[:PORT]` or `https://HOST[:PORT]`. Raises ValueError."""
    return Address.parse(text, ports=ADMIN_PORTS)


def parse_peers(value: object) -> tuple[Address, ...]:
    """Brokers that connect to each other; see `parse_brokers`. Several of one machine may be written as a range of
    ports: `amqp://a:5701-5708`. Raises ValueError, also for a user."""
    addresses = parse_brokers([address for part in _parts(value) for address in _of_range(part)])
    if any(address.user for address in addresses):
        raise ValueError("it takes no user; see ha.username and ha.password-file")
    return addresses


def _of_range(part: str | Address) -> list[str | Address]:
    """An address for each port of a range."""
    match = _PORTS.fullmatch(part) if isinstance(part, str) else None
    if match is None:
        return [part]
    ports = range(int(match[2]), int(match[3]) + 1)
    if not 0 < len(ports) <= _MOST_PORTS:
        raise ValueError(f"{match[2]}-{match[3]} is no range of 1 to {_MOST_PORTS} ports, from the lower to the higher")
    return [f"{match[1]}{port}" for port in ports]


def parse_brokers(value: object) -> tuple[Address, ...]:
    """Where to connect to: `amqp://a:5672,b` or a list of such texts.

    A scheme holds for those after it too, and is amqp when left out. Raises ValueError.
    """
    scheme, addresses = "amqp", []
    for part in _parts(value):
        addresses.append(part if isinstance(part, Address) else parse_broker(part, scheme))
        scheme = addresses[-1].scheme
    return tuple(addresses)


def parse_broker(text: str, scheme: str = "amqp") -> Address:
    """Where to connect to: one broker. `scheme` is for a text that has none. Raises ValueError."""
    address = Address.parse(text, scheme)
    if address.host in _ANY_INTERFACE:
        raise ValueError(f"{address.host} is every interface, and nobody's address; name the host")
    if address.port == 0:
        raise ValueError(f"port 0 of {address.host} is nobody's; name the port")
    return address


def show_addresses(addresses: Iterable[Address]) -> str:
    """The URL that `parse_brokers` reads back; empty for none."""
    texts: list[str] = []
    scheme = ""
    for address in addresses:
        text = str(address)
        texts.append(text if address.scheme != scheme else text.partition("://")[2])
        scheme = address.scheme
    return ",".join(texts)


def _parts(value: object) -> Iterator[str | Address]:
    if not isinstance(value, str | list | tuple):
        raise ValueError
    for part in [value] if isinstance(value, str) else value:
        if isinstance(part, Address):
            yield part
        elif isinstance(part, str):
            yield from (word.strip() for word in part.split(",") if word.strip())
        else:
            raise ValueError(f"{part!r:.80} is not text")


def _checked_host(host: str) -> str:
    if host.startswith("["):
        try:
            return str(ipaddress.IPv6Address(host[1:-1]))
        except ipaddress.AddressValueError as error:
            raise ValueError(f"{host} is no IPv6 address: {error}") from None
    if not host:
        raise ValueError("the host is missing")
    if host.replace(".", "").isdigit():
        try:
            return str(ipaddress.IPv4Address(host))
        except ipaddress.AddressValueError as error:
            raise ValueError(f"{host} is no IPv4 address: {error}") from None
    if not _HOST_NAME.fullmatch(host):
        raise ValueError(f"{host!r} is no host name")
    return host
