"""Nodes of other brokers under names of ours: `remote-nodes`, and who this broker is to those: `remote-brokers`.

A URL such as `amqp://node1,node2:5672/orders` names one broker or several of a cluster, tried in turn, and a node
there: all that follows the first `/`, with %2F and its like decoded. A URL never carries a user or a password.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, unquote

from qpid_ha_config.addresses import Address, parse_brokers, show_addresses
from qpid_ha_config.errors import nearest
from qpid_ha_config.scalars import parse_path

MAX_NODE_BYTES = 1024
EXPECTED_URL = "a URL such as amqp://node1,node2:5672/orders"


class RemoteUrl(NamedTuple):
    """Where a remote node is."""

    addresses: tuple[Address, ...]
    """Brokers that have it, in the order in which they are tried."""
    node: str
    """Its address there."""

    @classmethod
    def parse(cls, text: object) -> RemoteUrl:
        """Raises ValueError that says what is wrong, never with what could be a password."""
        if not isinstance(text, str):
            raise ValueError(f"it is not {EXPECTED_URL}")
        scheme, separator, rest = text.strip().partition("://")
        brokers, slash, path = rest.partition("/")
        if not separator:
            raise ValueError(f"the scheme is missing; write {EXPECTED_URL}")
        if "@" in rest:
            raise ValueError("a URL is no place for a user or a password; see user and password-file (%40 is an @)")
        if not slash or not path:
            raise ValueError(f"the node is missing; write {EXPECTED_URL}")
        try:
            node = unquote(path, errors="strict")
        except UnicodeDecodeError:
            raise ValueError("the node is not UTF-8 text") from None
        if not node.isprintable() or len(node.encode()) > MAX_NODE_BYTES:
            raise ValueError(f"the node is not 1 to {MAX_NODE_BYTES} bytes of printable text")
        addresses = parse_brokers(f"{scheme}://{brokers}")
        if not addresses:
            raise ValueError("the host is missing")
        return cls(addresses, node)

    def __str__(self) -> str:
        return f"{show_addresses(self.addresses)}/{quote(self.node, safe='/#*.:$!,;=+')}"


class RemoteLogin(NamedTuple):
    """Who this broker is to a remote one, and whom it trusts to have signed the certificate there."""

    user: str = ""
    """Empty: nobody."""
    password_file: Path | None = None
    """Its first line is the password; None: there is no user."""
    ca: Path | None = None
    """PEM, for amqps; None: that of `tls.ca`, or the system's."""

    def show(self) -> dict[str, object]:
        """The login as it is written in a file."""
        written = {"user": self.user or None, "password-file": self.password_file, "ca": self.ca}
        return {key: str(value) for key, value in written.items() if value is not None}


class RemoteNode(NamedTuple):
    """A node of another broker, under a local name."""

    name: str
    url: RemoteUrl
    login: RemoteLogin = RemoteLogin()


class RemoteBroker(NamedTuple):
    """The login for all nodes at these addresses that have none of their own."""

    addresses: tuple[Address, ...]
    login: RemoteLogin


def parse_remote_nodes(value: object) -> tuple[RemoteNode, ...]:
    """A mapping of names to {url, user, password-file, ca}. Raises ValueError."""
    if isinstance(value, tuple) and all(isinstance(node, RemoteNode) for node in value):
        return value
    if not isinstance(value, Mapping):
        raise ValueError
    nodes = []
    for name, entry in value.items():
        if not isinstance(name, str) or not name or not name.isprintable() or name.startswith("$"):
            raise ValueError(f"{name!r:.80} is no name of a node; give printable text that does not begin with $")
        with _blaming(name):
            fields = _fields(entry)
            nodes.append(RemoteNode(name, RemoteUrl.parse(fields.pop("url", None)), _login(fields)))
    return tuple(nodes)


def parse_remote_brokers(value: object) -> tuple[RemoteBroker, ...]:
    """A list of {url, user, password-file, ca}. Raises ValueError."""
    if not isinstance(value, list | tuple):
        raise ValueError
    brokers: list[RemoteBroker] = []
    for number, entry in enumerate(value, 1):
        if isinstance(entry, RemoteBroker):
            brokers.append(entry)
            continue
        with _blaming(f"entry {number}"):
            fields = _fields(entry)
            url = fields.pop("url", None)
            if isinstance(url, str) and "@" in url:
                raise ValueError("url is no place for a user or a password; see user and password-file")
            addresses = parse_brokers(url)
            twice = {address.place for address in addresses} & {
                address.place for broker in brokers for address in broker.addresses
            }
            if not addresses or twice:
                shown = ", ".join(f"{host}:{port}" for host, port in sorted(twice))
                raise ValueError(f"{shown} is there twice; take one out" if twice else "url names no broker")
            brokers.append(RemoteBroker(addresses, _login(fields)))
    return tuple(brokers)


def show_remote_nodes(nodes: Iterable[RemoteNode]) -> object:
    """What `parse_remote_nodes` reads back."""
    return {node.name: {"url": str(node.url), **node.login.show()} for node in nodes}


def show_remote_brokers(brokers: Iterable[RemoteBroker]) -> object:
    """What `parse_remote_brokers` reads back."""
    return [{"url": show_addresses(broker.addresses), **broker.login.show()} for broker in brokers]


class _blaming:  # noqa: N801 - a context manager
    """A ValueError says whose it is."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, ValueError):
            raise ValueError(f"{self._name}: {error}".removesuffix(": ")) from None


_KEYS = ("url", "user", "password-file", "ca")


def _fields(entry: object) -> dict[str, Any]:
    if not isinstance(entry, Mapping):
        raise ValueError(f"it is not a mapping such as {{url: {EXPECTED_URL.rpartition(' ')[2]}}}")
    for key in entry:
        if key == "password":
            raise ValueError("password is no key: put it into a file of mode 0600, and name that in password-file")
        if key not in _KEYS:
            raise ValueError(f"unknown key {key!s:.40}; {nearest(str(key), _KEYS)}")
    return dict(entry)


def _login(fields: Mapping[str, Any]) -> RemoteLogin:
    user, file, ca = fields.get("user", ""), fields.get("password-file"), fields.get("ca")
    if not isinstance(user, str) or not user.isprintable():
        raise ValueError("user is not text; put it in quotes")
    if bool(user) != (file is not None):
        missing, given = ("password-file", "user") if user else ("user", "password-file")
        raise ValueError(f"{missing} is missing; {given} needs it")
    return RemoteLogin(user, None if file is None else parse_path(file), None if ca is None else parse_path(ca))
