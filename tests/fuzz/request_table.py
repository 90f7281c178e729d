"""Which requests of JSON-RPC a broker takes, with their actions and parameters: asked of the broker itself.

So a request that is new is among those that are tried.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple, Protocol

from qpid_ha_broker.access.operations import ALL, OPERATIONS

UNKNOWN: Final = "zzzzzzzz"
"""No method, action or parameter has a name that is near it, so the refusal tells all there are."""
_KNOWN = re.compile(r"known: (.*)$")
_TRIED: Final[Mapping[str, Mapping[str, object]]] = {
    "history": {"sets": True},
    "rebalance": {"plan": True},
    "replicate": {"queue": "fuzz.0"},
}
"""Some methods tell their parameters only to who gives one of them."""


class Asked(Protocol):
    """Whoever asks the broker."""

    def __call__(self, method: str, params: Mapping[str, object]) -> dict[str, Any]:
        """The reply of JSON-RPC."""


class KnownRequest(NamedTuple):
    """`action`: empty for a method that has none."""

    method: str
    action: str
    parameters: tuple[str, ...]


def read_requests(ask: Asked) -> tuple[KnownRequest, ...]:
    """All that there are. Raises LookupError when the broker does not tell."""
    reply = ask(UNKNOWN, {})
    methods = reply.get("error", {}).get("data", {}).get("methods")
    if not methods:
        raise LookupError(f"the broker does not tell its methods: {reply!r:.200}")
    return tuple(each for method in methods for each in _of_method(ask, method))


def _of_method(ask: Asked, method: str) -> Iterator[KnownRequest]:
    rows = OPERATIONS.by_method.get(method, {})
    actions = {*rows} - {ALL}
    if actions:
        actions |= {*_told(ask(method, {"action": UNKNOWN}))}
    for action in sorted(actions) or [""]:
        given: dict[str, object] = {"action": action} if action else {}
        told = _told(ask(method, {**given, **_TRIED.get(method, {}), UNKNOWN: 1}))
        row = rows.get(action, rows.get(ALL))
        declared = () if row is None else row.parameters
        yield KnownRequest(method, action, tuple(sorted({*told, *declared} - {"action" if action else ""})))


def _told(reply: Mapping[str, Any]) -> list[str]:
    found = _KNOWN.search(str(reply.get("error", {}).get("message", "")))
    return found[1].split(", ") if found else []
