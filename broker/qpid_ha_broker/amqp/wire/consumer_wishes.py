"""What a consumer's attach may ask for in its properties: to be served before others, or alone."""

from __future__ import annotations

from typing import Any, Final, NamedTuple

import proton

from qpid_ha_broker.amqp.wire.conditions import INVALID_FIELD, AmqpError

PRIORITY: Final = "priority"
PRIORITY_NAMES: Final = (PRIORITY, "rabbitmq:priority")
"""As Broker-J and RabbitMQ call it."""
EXCLUSIVE: Final = "exclusive"
PRIORITY_MOST: Final = (1 << 31) - 1


class ConsumerWishes(NamedTuple):
    """Of one link."""

    priority: int = 0
    """From -2^31 to 2^31 - 1: who has the highest is given messages first."""
    exclusive: bool = False
    """Nobody else is to take messages of the queue meanwhile."""
    priority_name: str = PRIORITY
    """What the client calls it."""

    def properties(self) -> dict[Any, Any]:
        """Of an attach; empty: it asks for nothing."""
        properties: dict[Any, Any] = {}
        if self.priority:
            properties[proton.symbol(self.priority_name)] = proton.int32(self.priority)
        if self.exclusive:
            properties[proton.symbol(EXCLUSIVE)] = True
        return properties


NO_WISHES: Final = ConsumerWishes()


def read_wishes(properties: object, *, browses: bool = False) -> ConsumerWishes:
    """What the properties of an attach ask for. Raises AmqpError for what makes no sense."""
    if not isinstance(properties, dict):
        return NO_WISHES
    names = [name for name in PRIORITY_NAMES if name in properties]
    if len(names) > 1:
        raise AmqpError(INVALID_FIELD, f"a link has one priority: give {names[0]} or {names[1]}, not both")
    name = names[0] if names else PRIORITY
    priority, exclusive = _priority(name, properties.get(name, 0)), _exclusive(properties.get(EXCLUSIVE, False))
    if browses and exclusive:
        raise AmqpError(INVALID_FIELD, f"{EXCLUSIVE} is for who consumes: a link that browses takes nothing")
    return NO_WISHES if browses else ConsumerWishes(priority, exclusive, name)


def _priority(name: str, value: object) -> int:
    is_whole = isinstance(value, int) and not isinstance(value, bool | proton.timestamp | proton.char)
    if not is_whole or not isinstance(value, int) or not -PRIORITY_MOST - 1 <= value <= PRIORITY_MOST:
        text = f"expected a whole number from {-PRIORITY_MOST - 1} to {PRIORITY_MOST}, found {value!r:.80}"
        raise AmqpError(INVALID_FIELD, f"link property {name}: {text}")
    return int(value)


def _exclusive(value: object) -> bool:
    if not isinstance(value, bool):
        raise AmqpError(INVALID_FIELD, f"link property {EXCLUSIVE}: expected true or false, found {value!r:.80}")
    return value
