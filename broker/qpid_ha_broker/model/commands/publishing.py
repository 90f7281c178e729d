"""A message that came to an exchange, for queues of several resource sets: routed here, wherever they are.

Exchanges and bindings are in `default`. Queues of sets that this broker leads get the message at once, in one unit in
each set; for those of other sets it is handed to a `Forwarder`. The publisher hears that it was accepted when all sets
have committed it.

A set that this broker has begun to lead is another broker's here until all that was handed on for it is in its log: so
no message overtakes an earlier one. docs/cluster.md, "One way at a time", says why, and who else keeps to it.

1. All sets that are led here can take it: it is written to them, and then handed on.
2. One of them cannot (a queue is full): it is written to none and handed to nobody, and the publisher is refused.
3. One that is led elsewhere cannot: the publisher is refused, with what failed, but the other sets have it. There is no
   unit over several logs. A publisher that sends it again makes copies in those, unless it numbers its messages.

A number is looked for in each set by itself: that one of them has the message says nothing about the others. So one may
have from before what is refused in case 2, when it is sent again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

from qpid_ha_broker.model.errors import ModelError, NotSupported, OtherSet
from qpid_ha_broker.model.exchanges.exchange import NOBODY, Exchange, Origin
from qpid_ha_broker.model.logs.log import COMMITTED, DEFAULT_SET, Commitment, CommitToken, Log
from qpid_ha_broker.model.queues.queue import Queue
from qpid_ha_broker.model.sets.catalog import Destinations
from qpid_ha_broker.model.sets.message_clock import by_clock
from qpid_ha_broker.model.sets.resources import Resources
from qpid_ha_broker.model.transactions.plan import EnqueuePlan
from qpid_ha_broker.model.transactions.transaction import Message


class Forwarder(Protocol):
    """Hands messages to the primaries of sets that are led by other brokers."""

    @property
    def is_full(self) -> bool:
        """So much is on its way that publishers should wait."""

    def has_unwritten(self, set_name: str) -> bool:
        """Something was handed on for that set of which it is not known that it is in the set's log at this broker."""

    def forward(self, set_name: str, queues: tuple[str, ...], message: Message) -> Commitment:
        """Hand `message` on for these queues; it is sent again, without copies, when the primary moves."""


class AllCommitted(NamedTuple):
    """Waits for several things."""

    parts: tuple[Commitment, ...]

    @property
    def is_committed(self) -> bool:
        """All are."""
        return all(part.is_committed for part in self.parts)

    @property
    def failure(self) -> ModelError | None:
        """The first one's that has failed."""
        return next((part.failure for part in self.parts if part.failure is not None), None)

    def waits_for(self, log: Log) -> bool:
        """One of them does."""
        return any(part.waits_for(log) for part in self.parts)


Led = Callable[[str], Resources | None]
"""The resources of a set that this broker leads; None: another one does."""


class ExchangePublisher:
    """The promise: what it returns is committed only when each set whose queues get the message has committed it."""

    def __init__(self, default: Resources, led: Led, forwarder: Forwarder | None = None) -> None:
        """`forwarder` None: messages for sets that are led elsewhere are refused."""
        self._default = default
        self._led = led
        self.forwarder = forwarder

    def publish(
        self, exchange: Exchange, message: Message, key: str, now_ms: int, origin: Origin = NOBODY
    ) -> CommitToken:
        """Enqueue wherever the exchange says. Raises as `Resources.publish`, and OtherSet: nothing was written.
        `origin`: who publishes it."""
        catalog = self._default.catalog
        if not catalog.map.queues_by_id:
            return self._default.publish_to_exchange(exchange, message, key, now_ms, origin)
        self._default.replication.check_writable()
        there = catalog.destinations(exchange, key, message.payload, origin)
        if not there.placed:
            return self._default.publish_to_exchange(exchange, message, key, now_ms, origin)
        by_set = _by_set(there)
        led = {name: resources for name in by_set if (resources := self._led_alone(name)) is not None}
        for name, resources in led.items():
            by_set[name] = self._still_there(resources, by_set[name])
        elsewhere = [name for name in by_set if name not in led]
        if elsewhere and self.forwarder is None:
            raise OtherSet(
                f"the message would go to queue {by_set[elsewhere[0]][0]} of resource set {elsewhere[0]}, which another"
                " broker leads, and messages are not handed on to it"
            )
        releases = {broker.version for broker in catalog.map.brokers.values()}
        if elsewhere and message.due_at_ms and len(releases) > 1:
            text = f"an older release may not know delayed delivery: have all brokers on one first (now {releases})"
            raise NotSupported(text)
        waiting: list[Commitment] = []
        for resources, plan in self._plans(there, led, by_set, message, now_ms):
            waiting.append(resources.written if plan is None else resources.carry_out(plan, []))
        if self.forwarder is not None:
            waiting += [self.forwarder.forward(name, by_set[name], message) for name in elsewhere]
        return CommitToken(COMMITTED.log, COMMITTED.lsn, AllCommitted(tuple(waiting)))

    def plain_route(self, exchange: Exchange, key: str) -> tuple[Queue, ...]:
        """The queues of all plain messages with this key, which are to be written to one log and come to them as to a
        queue alone; (): each message has to be published by itself.

        Queues of other sets are not among those of `default`.
        """
        there = self._default.catalog.queues_by_id
        queues: list[Queue] = []
        for queue_id in exchange.route_of_key(key):
            queue = there.get(queue_id)
            if queue is None or queue.deleted or queue.needs_care or (queues and queue.log is not queues[0].log):
                return ()
            queues.append(queue)
        return tuple(queues)

    @property
    def is_full(self) -> bool:
        """So much is on its way to other brokers that publishers should wait."""
        return self.forwarder is not None and self.forwarder.is_full

    def _led_alone(self, name: str) -> Resources | None:
        """The resources of a set to which there is no other way from here than to write to them."""
        if self.forwarder is not None and self.forwarder.has_unwritten(name):
            return None
        return self._led(name)

    def _still_there(self, resources: Resources, names: tuple[str, ...]) -> tuple[str, ...]:
        """Without queues that were deleted, whose entries and bindings are about to follow."""
        placed, there = self._default.catalog.map.queues, resources.catalog.queues
        gone = [
            name
            for name in names
            if (there[name].deleted if name in there else name in placed and placed[name].deleting)
        ]
        return tuple([name for name in names if name not in gone]) if gone else names

    def _plans(
        self, there: Destinations, led: dict[str, Resources], by_set: dict[str, tuple[str, ...]], message: Message,
        now_ms: int,
    ) -> list[tuple[Resources, EnqueuePlan | None]]:  # fmt: skip
        """All of them, before any is carried out. Raises ModelError, and then nothing has changed."""
        plans: list[tuple[Resources, EnqueuePlan | None]] = []
        try:
            for name, resources in led.items():
                queues = there.queues if name == DEFAULT_SET else _queues(resources, by_set[name])
                resources.replication.check_writable()
                is_known = resources.known_at(message) is not None
                plan = None if is_known else self._plan(resources, queues, message, now_ms)
                plans.append((resources, plan))
        except ModelError:
            for _, plan in plans:
                if plan is not None:
                    plan.abandon()
            raise
        return plans

    def _plan(self, resources: Resources, queues: tuple[Queue, ...], message: Message, now_ms: int) -> EnqueuePlan:
        """By the clock of that set: `message` and `now_ms` are by that of `default`."""
        clock, default = resources.catalog.clock, self._default.catalog.clock
        if clock.offset_ms != default.offset_ms:
            message, now_ms = by_clock(message, clock, default), clock.converted(now_ms, default)
        return resources.plan(queues, message, now_ms, routed=True)


def _by_set(there: Destinations) -> dict[str, tuple[str, ...]]:
    """Names of queues by set, `default` first."""
    names: dict[str, list[str]] = {}
    for queue in there.queues:
        names.setdefault(DEFAULT_SET, []).append(queue.name)
    for placed in there.placed:
        names.setdefault(placed.set, []).append(placed.name)
    return {name: tuple(queues) for name, queues in names.items()}


def _queues(resources: Resources, names: tuple[str, ...]) -> tuple[Queue, ...]:
    """Raises OtherSet for one that the directory has, and the set has not yet."""
    queues = resources.catalog.queues
    missing = [name for name in names if name not in queues]
    if missing:
        raise OtherSet(f"queue {missing[0]} is not there yet in resource set {resources.name}: send the message again")
    return tuple([queues[name] for name in names])
