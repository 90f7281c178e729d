"""Who keeps the record of generations and in-sync sets: what the settings `ha.coordinator...` may say."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple

from qpid_ha_config.scalars import parse_path

DEFAULT_PROPERTY_SET = "qpid-ha"
ENTRY_POINT_GROUP: Final = "qpid_ha.coordinators"
"""Where an installed distribution names the coordinators that it brings: URL scheme = module:factory."""
DEFAULT_PORTS: Final = {"zookeeper": 2181, "etcd": 2379}
EXPECTED = (
    "none, or file:DIRECTORY with the absolute path of a directory that all brokers share, "
    "or zookeeper://HOST[:PORT],HOST[:PORT].../NAMESPACE, or etcd://HOST[:PORT],HOST[:PORT].../NAMESPACE, "
    "or pacemaker, or pacemaker:NAME with the name of a property set"
)
_PROPERTY_SET = re.compile(r"[A-Za-z_][A-Za-z0-9._-]{0,63}", re.ASCII)
"""A subset of what XML takes as an identifier."""
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]{0,31}", re.ASCII)
_NAMESPACE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}(/[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}){0,7}", re.ASCII)
_HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9_](?:[A-Za-z0-9_.-]{0,252})))(?::([0-9]{1,5}))?", re.ASCII)


class Server(NamedTuple):
    """One of an ensemble."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class CoordinatorUrl(NamedTuple):
    """`SCHEME:REST`; what `REST` is, the scheme says. `str()` gives what `parse` takes."""

    scheme: str = "none"
    rest: str = ""
    """Checked and in one spelling, for the schemes that this release brings."""

    @property
    def is_none(self) -> bool:
        """Whether there is nobody who keeps a record."""
        return self.scheme == "none"

    @property
    def directory(self) -> Path | None:
        """Of `file:DIRECTORY`: absolute."""
        return Path(self.rest) if self.scheme == "file" else None

    @property
    def property_set(self) -> str | None:
        """Of `pacemaker:NAME`, in Pacemaker's configuration."""
        return self.rest if self.scheme == "pacemaker" else None

    @property
    def servers(self) -> tuple[Server, ...]:
        """Of `SCHEME://HOST:PORT,.../NAMESPACE`."""
        return tuple(_parse_server(text, 0) for text in self.rest.removeprefix("//").partition("/")[0].split(","))

    @property
    def namespace(self) -> str:
        """Of `SCHEME://HOST:PORT,.../NAMESPACE`: what one cluster has for itself on an ensemble that many use."""
        return self.rest.removeprefix("//").partition("/")[2]

    @classmethod
    def parse(cls, value: object) -> CoordinatorUrl:
        """Raises ValueError, with the reason or with none."""
        if isinstance(value, cls):
            return value
        if not isinstance(value, str):
            raise ValueError
        text = value.strip()
        scheme, colon, rest = text.partition(":")
        match scheme:
            case "pacemaker":
                return cls(scheme, check_property_set(rest) if colon else DEFAULT_PROPERTY_SET)
            case "file" if colon:
                if not rest.removeprefix("//").startswith(("/", "~")):
                    raise ValueError("the path is not absolute; it has to mean the same to each broker")
                return cls(scheme, str(parse_path(rest.removeprefix("//"))))
            case "zookeeper" | "etcd" if colon:
                return cls(scheme, _parse_ensemble(rest, DEFAULT_PORTS[scheme]))
            case _ if text.lower() == "none":
                return cls()
        if not colon or not _SCHEME.fullmatch(scheme):
            raise ValueError
        if scheme not in installed_schemes():
            known = ", ".join(sorted({"file", "zookeeper", "etcd", "pacemaker", "none", *installed_schemes()}))
            raise ValueError(
                f"no coordinator for {scheme}: is installed (there are: {known}); install the package that has it"
            )
        return cls(scheme, rest)

    def __str__(self) -> str:
        return "none" if self.is_none else f"{self.scheme}:{self.rest}"


@cache
def installed_schemes() -> frozenset[str]:
    """What the entry points of installed distributions add; looked up once, for it takes a while."""
    from importlib.metadata import entry_points

    return frozenset(entry.name for entry in entry_points(group=ENTRY_POINT_GROUP))


def check_property_set(name: str) -> str:
    """`name` if it may be the id of a property set. Raises ValueError."""
    if not _PROPERTY_SET.fullmatch(name):
        raise ValueError(f"{name!r:.80} is no name for a property set; use letters, digits, dots, dashes, underscores")
    return name


def _parse_ensemble(rest: str, default_port: int) -> str:
    """`//HOST:PORT,.../NAMESPACE` with every port. Raises ValueError."""
    if "@" in rest:
        raise ValueError("a user or password does not belong there: set ha.coordinator-username and -password-file")
    hosts, slash, namespace = rest.removeprefix("//").partition("/")
    if not rest.startswith("//") or not slash:
        raise ValueError("it is not //HOST[:PORT],HOST[:PORT].../NAMESPACE; each cluster needs a namespace of its own")
    if not _NAMESPACE.fullmatch(namespace):
        problem = "is no namespace; use letters, digits, dots, dashes, underscores, and / between its parts"
        raise ValueError(f"{namespace!r:.80} {problem}")
    servers = [_parse_server(text, default_port) for text in hosts.split(",")]
    twice = next((server for server in servers if servers.count(server) > 1), None)
    if twice is not None:
        raise ValueError(f"{twice} is there twice; name each server once")
    return f"//{','.join(map(str, servers))}/{namespace}"


def _parse_server(text: str, default_port: int) -> Server:
    match = _HOST.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r:.80} is no HOST or HOST:PORT; an IPv6 address stands in brackets")
    port = int(match[3]) if match[3] else default_port
    if not 0 < port < 65_536:
        raise ValueError(f"{port} of {text!r:.80} is no port")
    return Server(match[1] or match[2], port)
