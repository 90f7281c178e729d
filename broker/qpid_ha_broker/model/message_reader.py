"""What the model cannot know of a message without its protocol, and asks whoever speaks it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import NamedTuple, Protocol

Lookup = Callable[[str], object]
"""Gives what a selector's identifier stands for in a message, None where the message lacks it. Raises ModelError."""


class DeathReason(StrEnum):
    """Why a message became a dead letter, as it says itself from then on."""

    REJECTED = "rejected"
    """By a consumer: also as undeliverable here."""
    DELIVERY_LIMIT = "delivery-limit"
    """It was delivered in vain as often as its queue allows."""
    QUEUE_DELETED = "queue-deleted"


class Death(NamedTuple):
    """How a message became a dead letter: in which queue, why, and when."""

    queue: str
    reason: DeathReason
    time_ms: int


class GroupProperty(NamedTuple):
    """What a message says of its group."""

    id: bytes
    """The group's, as short as it can be told from others: see `amqp.wire.message_groups`."""
    is_last: bool
    """The group ends with it."""


class CompiledSelector(Protocol):
    """Which messages a subscriber wants, ready to be asked."""

    @property
    def cost(self) -> int:
        """What a message costs at most, in units of about a microsecond."""

    def matches(self, lookup: Lookup) -> bool:
        """Whether the selector wants a message. Raises what `lookup` raises, and nothing else."""


class MessageReader(Protocol):
    """Reads messages, and says what becomes of them; each call may cost a parse."""

    def routing_key(self, payload: bytes) -> str:
        """The subject."""

    def properties(self, payload: bytes) -> Mapping[str, object]:
        """The application properties."""

    def lookup(self, payload: bytes) -> Lookup:
        """What selectors ask of the message; its properties are read once."""

    def selector(self, text: str) -> CompiledSelector:
        """Raises ValueError for a text that is none."""

    def is_tombstone(self, payload: bytes) -> bool:
        """Whether a message for a last-value queue is to delete what its key has, and to stay no longer itself."""

    def has_group(self, payload: bytes) -> bool:
        """Whether the message is of a group: cheap where it is not."""

    def group(self, payload: bytes) -> GroupProperty | None:
        """The group of the message; None: it has none, or what it says of it makes no sense."""

    def dead_letter(self, payload: bytes, death: Death) -> bytes:
        """The message as it goes on after `death`: it says so, and nothing of a time to live."""

    def died_in(self, payload: bytes) -> str:
        """The queue in which the message says that it died last; empty: it says of none."""

    def annotated(self, payload: bytes, annotations: bytes) -> bytes:
        """The message with what consumers have said of it, a map that is encoded; as it is where that cannot be."""


class _Everything:
    """A selector that nobody can evaluate here: it keeps nothing from a subscriber."""

    cost = 0

    def matches(self, lookup: Lookup) -> bool:
        return True


class NoReader:
    """Of a state that routes nothing, such as one that is read from a store to be looked at."""

    def routing_key(self, payload: bytes) -> str:
        return ""

    def properties(self, payload: bytes) -> Mapping[str, object]:
        return {}

    def lookup(self, payload: bytes) -> Lookup:
        return lambda name: None

    def selector(self, text: str) -> CompiledSelector:
        return EVERYTHING

    def is_tombstone(self, payload: bytes) -> bool:
        return False

    def has_group(self, payload: bytes) -> bool:
        return False

    def group(self, payload: bytes) -> GroupProperty | None:
        return None

    def dead_letter(self, payload: bytes, death: Death) -> bytes:
        return payload

    def died_in(self, payload: bytes) -> str:
        return ""

    def annotated(self, payload: bytes, annotations: bytes) -> bytes:
        return payload


EVERYTHING: CompiledSelector = _Everything()
