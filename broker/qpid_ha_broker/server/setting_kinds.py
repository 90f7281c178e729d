"""What a setting's value may be, and how it is read from YAML or from text and shown again.

A `Kind` says in words what it expects, so that each refusal can quote it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from qpid_ha_broker.quantities import format_duration, format_size, parse_duration_s, parse_size_bytes
from qpid_ha_broker.server.listen_address import ListenAddress

QueueArgument = str | int | float | bool
AUTO = -1
"""The number for a size that the broker chooses."""
LOG_LEVELS = ("debug", "info", "warning", "error")
TLS_VERSIONS = ("TLSv1.2", "TLSv1.3")
MECHANISMS = ("EXTERNAL", "SCRAM-SHA-512", "SCRAM-SHA-256", "SCRAM-SHA-1", "PLAIN", "ANONYMOUS")
_TRUE = frozenset({"true", "yes", "on", "1"})
_FALSE = frozenset({"false", "no", "off", "0"})


@dataclass(frozen=True, slots=True)
class Kind:
    """`parse` takes what YAML or a command line gave and raises ValueError with the reason, or with none."""

    expected: str
    parse: Callable[[object], Any]
    show: Callable[[Any], object] = lambda value: value


def count(minimum: int, maximum: int) -> Kind:
    """A whole number between `minimum` and `maximum`."""

    def parse(value: object) -> int:
        if isinstance(value, str) and value.strip().isdecimal() and len(value) < 20:
            value = int(value)
        if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= maximum:
            raise ValueError
        return value

    return Kind(f"a whole number from {minimum} to {maximum}", parse)


def size(minimum_bytes: int, maximum_bytes: int) -> Kind:
    """A size in bytes, written with or without a unit."""

    def parse(value: object) -> int:
        size_bytes = parse_size_bytes(value)
        if not minimum_bytes <= size_bytes <= maximum_bytes:
            raise ValueError
        return size_bytes

    bounds = f"from {format_size(minimum_bytes)} to {format_size(maximum_bytes)}"
    return Kind(f"a size {bounds} such as 512KiB, 100MiB, 1GB", parse, format_size)


def duration(minimum_s: float, maximum_s: float) -> Kind:
    """A duration in seconds, written with or without a unit."""

    def parse(value: object) -> float:
        duration_s = parse_duration_s(value)
        if not minimum_s <= duration_s <= maximum_s:
            raise ValueError
        return float(duration_s)

    bounds = f"from {format_duration(minimum_s)} to {format_duration(maximum_s)}"
    return Kind(f"a duration {bounds} such as 200ms, 10s, 2m", parse, format_duration)


def choice(*allowed: str) -> Kind:
    """One of a few words."""

    def parse(value: object) -> str:
        if not isinstance(value, str) or value.lower() not in allowed:
            raise ValueError
        return value.lower()

    return Kind(f"one of {', '.join(allowed)}", parse)


def choices(*allowed: str) -> Kind:
    """Some of a few words, each once, as a list or as text; shown in the spelling of `allowed`."""
    spelling = {word.lower(): word for word in allowed}

    def parse(value: object) -> tuple[str, ...]:
        words: object = value.replace(",", " ").split() if isinstance(value, str) else value
        if not isinstance(words, list | tuple) or not words:
            raise ValueError
        for word in words:
            if not isinstance(word, str) or word.lower() not in spelling:
                raise ValueError(f"{word!r} is unknown")
        return tuple(dict.fromkeys(spelling[word.lower()] for word in words))

    return Kind(f"a list out of {', '.join(allowed)}", parse, list)


def _parse_boolean(value: object) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in _TRUE | _FALSE:
        return value.lower() in _TRUE
    raise ValueError


def _parse_text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError("put it in quotes" if isinstance(value, int | float) else "")
    if not value or not value.isprintable():
        raise ValueError
    return value


def _parse_path(value: object) -> Path:
    if not isinstance(value, str | Path) or not str(value) or "\0" in str(value):
        raise ValueError
    os.fsencode(value)  # raises UnicodeEncodeError, a ValueError, for what no file system can have
    path = Path(value).expanduser()
    return path if path.is_absolute() else Path.cwd() / path


def _parse_listen(value: object) -> tuple[ListenAddress, ...]:
    parts: object = value.split(",") if isinstance(value, str) else value
    if not isinstance(parts, list | tuple) or not parts:
        raise ValueError
    addresses = []
    for part in parts:
        if isinstance(part, ListenAddress):
            addresses.append(part)
        elif isinstance(part, str):
            addresses.append(ListenAddress.parse(part))
        else:
            raise ValueError(f"{part!r} is not text")
    return tuple(addresses)


def _parse_queue_arguments(value: object) -> Mapping[str, QueueArgument]:
    if not isinstance(value, Mapping):
        raise ValueError
    for name, argument in value.items():
        if not isinstance(name, str) or not isinstance(argument, str | int | float | bool):
            raise ValueError(f"{name!r} does not name text, a number or a boolean")
    return MappingProxyType(dict(value))


def _parse_size_or_auto(value: object) -> int:
    return AUTO if isinstance(value, str) and value.strip().lower() == "auto" else parse_size_bytes(value)


SIZE_OR_AUTO = Kind(
    "a size such as 16MiB, 0 for no limit, or auto",
    _parse_size_or_auto,
    lambda value: "auto" if value == AUTO else format_size(value),
)
BOOLEAN = Kind("true or false", _parse_boolean)
TEXT = Kind("text", _parse_text)
PATH = Kind("a path", _parse_path, lambda path: None if path is None else str(path))
LISTEN = Kind(
    "a list of amqp://HOST[:PORT] or amqps://HOST[:PORT]",
    _parse_listen,
    lambda addresses: [str(address) for address in addresses],
)
MECHANISM_LIST = choices(*MECHANISMS)
TLS_VERSION_LIST = choices(*TLS_VERSIONS)
QUEUE_ARGUMENTS = Kind("a mapping such as {qpid.max_count: 1000}", _parse_queue_arguments, dict)
