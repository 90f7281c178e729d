"""The way of a link that goes on to nodes of other brokers, so that one which comes back to where it was is refused.

It is a property of the attach, which our own brokers add to and check: AMQP lets others ignore it, and they do.
"""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import proton

from qpid_ha_broker.amqp.wire.conditions import INVALID_FIELD, NOT_ALLOWED, AmqpError

REMOTE_PATH: Final = "qpid.remote-path"
MOST_STEPS: Final = 8
_MOST_BYTES: Final = 4096


class Step(NamedTuple):
    """A broker from which the link goes on, and the name under which its client knows the node there."""

    broker: str
    """By which it is told from all others: no text for readers."""
    shown: str
    """The broker's name."""
    node: str

    def __str__(self) -> str:
        return f"{self.shown}/{self.node}"


def read_path(properties: object) -> tuple[Step, ...]:
    """The way so far; empty for a link that begins here. Raises AmqpError."""
    if not isinstance(properties, dict) or REMOTE_PATH not in properties:
        return ()
    written = properties[REMOTE_PATH]
    if not isinstance(written, list) or len(written) > 3 * MOST_STEPS or len(written) % 3:
        raise _malformed()
    if not all(isinstance(part, str) and len(part.encode()) <= _MOST_BYTES for part in written):
        raise _malformed()
    texts = [str(part) for part in written]
    return tuple(Step(*texts[start : start + 3]) for start in range(0, len(texts), 3))


def extend(path: tuple[Step, ...], step: Step) -> tuple[Step, ...]:
    """The way, one step further. Raises AmqpError, with the way, where that was taken before or it gets too long."""
    longer = (*path, step)
    way = " -> ".join(map(str, longer))
    if any((earlier.broker, earlier.node) == (step.broker, step.node) for earlier in path):
        text = f"the link comes back to where it began, {way}: one of these remote nodes has to lead elsewhere"
        raise AmqpError(NOT_ALLOWED, text)
    if len(longer) > MOST_STEPS:
        raise AmqpError(NOT_ALLOWED, f"the link goes over more than {MOST_STEPS} brokers, {way}: shorten the way")
    return longer


def check_ends_here(path: tuple[Step, ...], broker: str, node: str) -> None:
    """Refuse a link to a queue of `broker` that a bridge of that queue has begun. Raises AmqpError, with the way."""
    if any((step.broker, step.node) == (broker, node) for step in path):
        way = " -> ".join([*map(str, path), node])
        raise AmqpError(NOT_ALLOWED, f"the link comes back to the queue where it began, {way}: lead it elsewhere")


def properties_of(path: tuple[Step, ...]) -> dict[Any, Any]:
    """Of the attach at the next broker."""
    return {proton.symbol(REMOTE_PATH): [part for step in path for part in step]}


def _malformed() -> AmqpError:
    text = f"link property {REMOTE_PATH}: expected a list of texts, three for each of at most {MOST_STEPS} brokers"
    return AmqpError(INVALID_FIELD, text)
