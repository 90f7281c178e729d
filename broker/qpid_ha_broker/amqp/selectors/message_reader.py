"""What the model asks of messages, which it cannot read itself: see `MessageReader`."""

from __future__ import annotations

from typing import Final

from qpid_ha_broker.amqp.selectors.selector import Selector, parse_selector
from qpid_ha_broker.amqp.wire.dead_letters import dead_letter, died_in
from qpid_ha_broker.amqp.wire.group_ids import group_of, has_group
from qpid_ha_broker.amqp.wire.outcome_annotations import annotated
from qpid_ha_broker.amqp.wire.sections import MessageSections
from qpid_ha_broker.model.message_reader import Death

TOMBSTONE: Final = "x-opt-qpid-tombstone"
"""Message annotation, a boolean, of one for a last-value queue that is to delete what its key has."""


class AmqpMessageReader(MessageSections):
    """Reads the sections of messages, compiles selectors, and writes what becomes of one that is a dead letter."""

    def selector(self, text: str) -> Selector:
        """Raises SelectorError."""
        return parse_selector(text)

    def is_tombstone(self, payload: bytes) -> bool:
        return self.annotations(payload).get(TOMBSTONE) is True

    has_group = staticmethod(has_group)
    group = staticmethod(group_of)
    annotated = staticmethod(annotated)

    def dead_letter(self, payload: bytes, death: Death) -> bytes:
        return dead_letter(self, payload, death)

    def died_in(self, payload: bytes) -> str:
        """The queue of its last death, as it says itself."""
        return died_in(self, payload)
