"""What a publisher is told is looked at in that moment: a loss is seen as soon as somebody's death could bring it.

`Custody` has seen which process took a message in, and what has reached which disk. When a publisher hears that its
message is accepted, as many brokers must have it as `min-in-sync` says, and each that the record names: whoever may be
promoted next is one of those. What nobody may have any more, because somebody has got it, is not asked for.
"""

from __future__ import annotations

import re
from collections import deque
from typing import Final, NamedTuple

from simulation.brokers.ledger import Sent
from simulation.brokers.placed_sets import Records
from simulation.custody import Custody
from simulation.violations import Violation

_PAYLOAD = re.compile(rb"[adpst]\d+-\d+ \d+ \w+ ")
"""Of messages that publishers send to queues of sets: see `Sent.text`."""
KEPT_S: Final = 60.0
"""So long after it was sent a message is confirmed, at most."""


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
        self._members: deque[tuple[float, frozenset[str]]] = deque([(0.0, frozenset())])
        """Who could be promoted since when, as was seen now and then."""

    def look(self, now_s: float) -> None:
        """Now and then."""
        members = frozenset(self._register.record.members)
        if members != self._members[-1][1]:
            self._members.append((now_s, members))

    def confirmed(self, sent: Sent, is_durable: bool, sent_s: float) -> None:
        """Its publisher hears of it now, and nobody has got it."""
        names = {holder.name for holder in self._custody.holders_of(Letter(sent, is_durable))}
        held = f"{sent} was accepted, held by {' and '.join(sorted(names)) or 'nobody'}"
        if len(names) < self._min_in_sync:
            raise Violation(f"{held}: {self._min_in_sync} brokers should have it")
        lacking = self._could_be_promoted(sent_s) - names
        if lacking:
            raise Violation(f"{held}: {' and '.join(sorted(lacking))} may be promoted, and should have it")

    def _could_be_promoted(self, since_s: float) -> frozenset[str]:
        """All the time since then. Who has joined meanwhile may have yet to write what was confirmed before: that he
        is in sync stands behind it in his log."""
        while len(self._members) > 1 and self._members[1][0] <= since_s - KEPT_S:
            self._members.popleft()
        members = frozenset(self._register.record.members)
        for count, (_, seen) in enumerate(self._members):
            is_over = count + 1 < len(self._members) and self._members[count + 1][0] <= since_s
            members = members if is_over else members & seen
        return members


def payloads_in(data: bytes) -> list[bytes]:
    """What `Letter.payload` says of each message in there."""
    return _PAYLOAD.findall(data)
