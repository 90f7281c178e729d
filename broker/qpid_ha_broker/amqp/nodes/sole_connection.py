"""What a connection that asks to be the only one with its container id is told, and when it may be gone (AMQP Enforcing
Connection Uniqueness 1.0)."""

from __future__ import annotations

from collections.abc import Mapping
from hashlib import sha256
from typing import Final, Protocol

import proton

from qpid_ha_broker.amqp.nodes.identity import ClientNames
from qpid_ha_broker.amqp.wire.conditions import INVALID_FIELD, RESOURCE_LOCKED, AmqpError
from qpid_ha_broker.amqp.wire.engine import Engine

ENFORCEMENT_POLICY: Final = "sole-connection-enforcement-policy"
"""Property of a client's open: which of two is to go."""
_CLOSE_EXISTING: Final = 1
_SILENCES: Final = 3
"""In our idle time-out, of who may be gone."""


class SoleConnection(Protocol):
    """What is needed of a connection."""

    engine: Engine

    def end(self, error: AmqpError) -> None:
        """Close it."""


def sole_key(names: ClientNames) -> str:
    """By what brokers tell each other which user and container id it is, whatever its length."""
    return sha256(names.client.encode("utf-8", "surrogatepass")).hexdigest()


def closes_existing(properties: object) -> bool:
    """Whether who opens with these properties wants the place of an older connection."""
    return isinstance(properties, Mapping) and properties.get(ENFORCEMENT_POLICY) == _CLOSE_EXISTING


def may_be_gone(connection: SoleConnection, now_ms: int) -> bool:
    """Whether nothing was heard of its client for so long that it may have gone, and come back. Who sends heartbeats
    does so within a quarter of our idle time-out."""
    engine = connection.engine
    idle_ms = (engine.transport.idle_timeout or 0) * 1000
    return 0 < idle_ms < (now_ms - engine.input.heard_ms) * _SILENCES


def second_refused(container: str, broker: str = "") -> AmqpError:
    """Another connection has the id; `broker`: to that one, where it is not this broker."""
    where = f", to broker {broker}" if broker else ""
    return AmqpError(
        INVALID_FIELD,
        f"the container id {container:.80} is in use by another connection of this user{where}: close that one, or use"
        " another id",
        {"invalid-field": proton.symbol("container-id")},
    )


def newer_takes_its_place() -> AmqpError:
    """Another connection gets the id."""
    text = "a newer connection with the same container id takes the place of this one"
    return AmqpError(RESOURCE_LOCKED, text, {"sole-connection-enforcement": True})
