"""Values on the command line: sizes, durations, NAME=VALUE."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence

import click

from qpid_ha_config.scalars import parse_duration_s, parse_size_bytes

_SHORT = frozenset({"brokers-url", "public-url", "backup-timeout", "min-in-sync", "replicate", "confirm-dequeue"})
"""Settings that qpid's own tool calls by these names, without `ha.`."""


def size(text: str) -> int:
    """Bytes, from `100MiB`. Raises click.BadParameter."""
    try:
        return parse_size_bytes(text)
    except ValueError:
        raise click.BadParameter(f"{text!r} is no size such as 512KiB, 100MiB or a number of bytes") from None


def duration(text: str) -> float:
    """Seconds, from `10s`. Raises click.BadParameter."""
    try:
        return parse_duration_s(text)
    except ValueError:
        raise click.BadParameter(f"{text!r} is no duration such as 200ms, 10s, 2m or a number of seconds") from None


def policy(text: str) -> tuple[str, int]:
    """A pattern and a count, from `PATTERN=COUNT`. Raises click.BadParameter."""
    pattern, _, count = text.rpartition("=")
    if not pattern or not count.isdecimal():
        raise click.BadParameter(f"{text!r} is not PATTERN=COUNT, such as 'audit-*=5'")
    return pattern, int(count)


def read_arguments(texts: Sequence[str]) -> dict[str, object]:
    """{name: value} from `NAME=VALUE`: numbers, true and false as such, the rest as text."""
    arguments: dict[str, object] = {}
    for text in texts:
        name, separator, value = text.partition("=")
        if not separator or not name:
            raise click.UsageError(f"{text!r} is not NAME=VALUE")
        arguments[name] = _scalar(value)
    return arguments


def read_changes(words: Sequence[str]) -> list[tuple[str, str]]:
    """Pairs from `KEY VALUE`, `KEY=VALUE`, `--KEY VALUE` and `--KEY=VALUE`, as many as there are.

    `ha.` may be left out where qpid leaves it out. Raises click.UsageError.
    """
    changes = []
    rest = list(words)
    while rest:
        key, separator, value = rest.pop(0).lstrip("-").partition("=")
        if not separator:
            if not rest:
                raise click.UsageError(f"what should {key} be? Write {key}=VALUE or {key} VALUE.")
            value = rest.pop(0)
        changes.append((f"ha.{key}" if key in _SHORT else key, value))
    return changes


def _scalar(text: str) -> object:
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, int | float) and -math.inf < value < math.inf else text
