"""Messages with a time to live, and the books of them: when each may go, by the true time, whatever clocks say."""

from __future__ import annotations

import random
from functools import partial
from typing import Final, NamedTuple

from qpid_ha_broker.model.errors import ModelError
from qpid_ha_broker.model.queues.sequence import Entry
from qpid_ha_broker.model.transactions.transaction import Message
from simulation.core.clients import PUBLISH_WITHIN_S, Shop
from simulation.core.node import Node, Session, Taker
from simulation.violations import Violation

QUEUE: Final = "short"
LIVES_S: Final = 1.0, 3.0, 8.0
UNEVEN: Final = 0.02
"""So differently fast clocks run that nobody sets."""
READINGS_S: Final = 40.0
"""From so long ago a backup may use what it was told, in a run that is as short as ours."""
CHANGE_S: Final = 6.0
"""What a change of primary may add at most: a backup was stopped, or cut off, while it was told the time."""
NOTICED_WITHIN_S: Final = 2.0


class Life(NamedTuple):
    """Of a message: when it was queued, and for how long, and how many primaries there had been."""

    began_s: float
    lives_s: float
    primaries: int


class ShortLived:
    """The promise: Violation where a message is gone before its time, or still there long after it.

    It publishes to a queue of which nobody takes anything.
    """

    def __init__(self, shop: Shop, draw: random.Random) -> None:
        self._shop = shop
        self._draw = draw
        self._lives: dict[bytes, Life] = {}
        self._primaries = 0
        self.expired = 0
        self.is_stopping = False
        for node in shop.nodes:
            node.time_goes_on, node.keeps_clock = self.tick, True
        self._later()

    def became_primary(self) -> None:
        """Somebody leads now."""
        self._primaries += 1

    def _later(self) -> None:
        self._shop.schedule.after(PUBLISH_WITHIN_S * self._draw.random(), self._step)

    def _step(self) -> None:
        self._later()
        primaries = [node for node in self._shop.nodes if node.is_primary]
        if not primaries or self.is_stopping:
            return
        node = self._draw.choice(primaries)
        session = node.open_session(self)
        if session is not None:
            node.do(partial(self._publish, session))

    def _publish(self, session: Session) -> None:
        node, now_s = session.node, self._shop.schedule.now_s
        if session.is_open:
            life = Life(now_s, self._draw.choice(LIVES_S), self._primaries)
            payload = f"short {len(self._lives)}".encode()
            now_ms = node.message_ms()
            message = Message(payload, True, expires_at_ms=now_ms + int(life.lives_s * 1000))
            try:
                node.resources.publish(node.configuration.declare_queue(QUEUE, {}), message, now_ms)
            except ModelError:  # below min-in-sync, say
                pass
            else:
                self._lives[payload] = life
                node.written()
            node.end_session(session)

    def tick(self, node: Node) -> None:
        """Time goes on where clients are served. Raises Violation."""
        queue = node.resources.catalog.queues.get(QUEUE)
        if queue is None:
            return
        before = {entry.resident_body() for entry in queue.messages}
        node.resources.timers.tick(node.message_ms())
        there, now_s = {entry.resident_body() for entry in queue.messages}, self._shop.schedule.now_s
        for payload in before - there:
            self.expired += 1
            life = self._lives[payload]
            if now_s - life.began_s < life.lives_s - UNEVEN * (life.lives_s + READINGS_S):
                raise Violation(f"{node.name} has dropped {payload!r} {now_s - life.began_s:.1f} s after {life}")
        for payload in there:
            life = self._lives[payload]
            most_s = life.lives_s * (1 + UNEVEN) + NOTICED_WITHIN_S + CHANGE_S * (self._primaries - life.primaries)
            if now_s - life.began_s > most_s:
                raise Violation(f"{node.name} still has {payload!r} {now_s - life.began_s:.1f} s after {life}")

    # --- see `Client`

    def handed_out(self, taker: Taker, entry: Entry) -> None:
        raise AssertionError("nobody takes anything")

    def ended(self, session: Session) -> None:
        """What was sent stays in the books."""
