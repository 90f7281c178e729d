"""What a publisher is told is looked at in that moment: a loss is seen as soon as somebody's death could bring it.

`Custody` has seen which process took a message in, and what has reached which disk. When a publisher hears that its
message is accepted, as many brokers must have it as `min-in-sync` says, and each that the record names: whoever may be
promoted next is one of those. What nobody may have any more, because somebody has got it, is not asked for.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from simulation.custody import Custody
from simulation.node import Violation
from simulation.proxies_ledger import Sent
from simulation.proxies_sets import Records

_PAYLOAD = re.compile(rb"[adpst]\d+-\d+ \d+ \w+ ")
"""Of messages that publishers send to queues of sets: see `Sent.text`."""


class Letter(NamedTuple):
    """A message as it was sent: see `custody.Message`."""

    sent: Sent
    durable: bool

    def payload(self) -> bytes:
        return self.sent.text().encode()


class ConfirmationsWatch:
    """Looks at each confirmation of one set. Raises Violation."""

    def __init__(self, custody: Custody, min_in_sync: int, register: Records) -> None:
        self._custody = custody
        self._min_in_sync = min_in_sync
        self._register = register

    def confirmed(self, sent: Sent, is_durable: bool) -> None:
        """Its publisher hears of it now, and nobody has got it."""
        names = {holder.name for holder in self._custody.holders_of(Letter(sent, is_durable))}
        held = f"{sent} was accepted, held by {' and '.join(sorted(names)) or 'nobody'}"
        if len(names) < self._min_in_sync:
            raise Violation(f"{held}: {self._min_in_sync} brokers should have it")
        lacking = set(self._register.record.members) - names
        if lacking:
            raise Violation(f"{held}: {' and '.join(sorted(lacking))} may be promoted, and should have it")


def payloads_in(data: bytes) -> list[bytes]:
    """What `Letter.payload` says of each message in there."""
    return _PAYLOAD.findall(data)
