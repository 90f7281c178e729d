"""Messages between two positions of a queue, from whoever is primary."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import proton

from qpid_ha_broker.amqp.wire import engine
from qpid_ha_broker.amqp.wire.engine import Delivery, EachTransfer
from qpid_ha_broker.events.payloads import without_format
from qpid_ha_pipeline.amqp.connection import BrokerConnection, BrokerLost, LinkRefused
from qpid_ha_pipeline.amqp.primary import PrimaryConnection
from qpid_ha_pipeline.amqp.queues import (
    ManagementClient,
    Measured,
    MessageTimes,
    NoSuchQueue,
    PrimaryManagement,
    QueueFacts,
)
from qpid_ha_pipeline.errors import PipelineError

_AFTER: Final = "qpid-ha.org:after:ulong"
_ROUND: Final = 20_000
"""Messages that are asked for at a time."""
_CHUNK_BYTES: Final = 8 * 1024 * 1024
_GONE: Final = ("amqp:resource-deleted", "amqp:not-found")
_PAUSE_S: Final = 0.05
_NO_END: Final = 1 << 64


class QueuePlace(NamedTuple):
    """Behind a message of a queue. `broker`: whose ids these are, where they are of one broker only; else empty.

    `set`: of which resource set's log, where that is not `default`; else empty.
    """

    queue_id: int
    message_id: int
    broker: str = ""
    set: str = ""

    @classmethod
    def at(cls, facts: QueueFacts, message_id: int) -> QueuePlace:
        """A place in the queue as it is now."""
        return cls(facts.queue_id, message_id, facts.broker if facts.is_local else "", facts.set)

    @property
    def kept(self) -> dict[str, Any]:
        """What Spark keeps in offsets: without a set where it is `default`, as before there were others."""
        kept = self._asdict()
        if not self.set:
            del kept["set"]
        return kept

    @property
    def source(self) -> str:
        """What tells this queue from all others of the cluster, and from its predecessors of the same name."""
        of_set = self.set and f"{self.set}/"
        return f"{of_set}{self.queue_id}{self.broker and '@'}{self.broker}"


class BrowsedChunk(NamedTuple):
    """Messages with their ids, ascending; at least one."""

    ids: list[int]
    payloads: list[bytes]


class PlaceLost(Exception):
    """What a place was in is no more: what was behind it cannot be told."""


class LiveQueue:
    """One queue, whoever is primary; it may be another one for each call."""

    def __init__(self, primary: PrimaryConnection, name: str, management: PrimaryManagement | None = None) -> None:
        """`management`: one for several queues."""
        self.primary = primary.of(name)
        self.name = name
        self._management = (management or PrimaryManagement(primary)).of(name)

    def facts(self) -> QueueFacts:
        """As they are now. Raises NoSuchQueue, PipelineError."""
        return self._management.ask(lambda client: client.queue(self.name))

    def facts_for(self, place: QueuePlace) -> QueueFacts:
        """As they are once the log has come to `place`, which a new primary may still have to make certain.

        Raises PlaceLost when it never does, or the queue is another one, NoSuchQueue, PipelineError.
        """
        return self._at(place, accepts=False)

    def accept(self, place: QueuePlace) -> None:
        """Consume all up to `place` that no consumer holds. Raises as `facts_for`; nothing is taken then."""
        self._at(place, accepts=True)

    def _at(self, place: QueuePlace, *, accepts: bool) -> QueueFacts:
        deadline = time.monotonic() + self.primary.cluster.failover_timeout_s

        def look(client: ManagementClient) -> QueueFacts:
            facts = client.queue(self.name)
            self.check(place, facts)
            # Of the broker that has just said that the place means something there, and of no other.
            if accepts and facts.log_position >= place.message_id:
                client.accept(self.name, place.queue_id, place.message_id)
            return facts

        while True:
            facts = self._management.ask(look)
            if facts.log_position >= place.message_id:
                return facts
            if time.monotonic() > deadline:
                raise PlaceLost(
                    f"the log of {facts.broker} ends at {facts.log_position}, before the position {place.message_id}:"
                    " it has lost what was read before, or is another one"
                )
            time.sleep(_PAUSE_S)

    def check(self, place: QueuePlace, facts: QueueFacts) -> None:
        """Raises PlaceLost when `place` means nothing in the queue as it is now."""
        if (place.set, place.queue_id) != (facts.set, facts.queue_id):
            raise PlaceLost(f"queue {self.name} was deleted and declared again, or its qpid.replicate was changed")
        if facts.is_local != bool(place.broker) or (place.broker and place.broker != facts.broker):
            raise PlaceLost(
                f"the messages of queue {self.name} are not replicated: those at {place.broker or 'another broker'} are"
                f" not those at {facts.broker}"
            )

    def first_after(self, place: QueuePlace) -> int | None:
        """The id of the first message behind `place` that is there and committed; None when there is none."""

        def look(client: ManagementClient) -> int | None:
            if client.has_many_sets:
                client.queue(self.name)  # a replica, which lets browsers in, may not have what its primary has
            window = _Window(client.connection, self.name, place.message_id, 1, _NO_END)
            return next((chunk.ids[0] for chunk in window.read()), None)

        try:
            return self._management.ask(look)
        except LinkRefused as error:
            raise self._explained(error) from None

    def position_before(self, time_ms: int) -> int:
        """Behind which message there is all that came at that time or later. Raises NoSuchQueue, PipelineError."""
        return self._management.ask(lambda client: client.position_before(self.name, time_ms))

    def write_times(self, begin: QueuePlace, end: int) -> MessageTimes:
        """When the messages behind `begin` and up to the id `end` had come. Raises as `facts_for`."""
        self.facts_for(begin._replace(message_id=end))
        return self._management.ask(lambda client: client.write_times(self.name, begin.message_id, end))

    def count_after(self, place: QueuePlace, most: int) -> int:
        """How many messages there are behind `place`; not much more than `most` are counted. Raises as `facts`."""
        last, count, is_whole = place.message_id, 0, False
        while count < most and not is_whole:
            measure = self._measure(last, most, _NO_END - 1)
            last, count, is_whole = measure.last, count + measure.messages, measure.is_whole
        return count

    def end_of_bytes(self, place: QueuePlace, end: int, size: int) -> int:
        """The id, `end` at most, up to which messages behind `place` have so many bytes; but at least of one."""
        last, left = place.message_id, size
        while last < end:
            measure = self._measure(last, _NO_END - 1, left)
            if measure.size > left and last != place.message_id:  # the one that is always counted
                return last
            last, left = measure.last, left - measure.size
            if measure.is_whole:
                return end
            if left <= 0:
                return min(last, end)
        return min(last, end)

    def _measure(self, after: int, messages: int, size: int) -> Measured:
        return self._management.ask(lambda client: client.measure(self.name, after, messages, size))

    def between(self, begin: QueuePlace, end: int) -> Iterator[BrowsedChunk]:
        """What is there behind `begin` and up to the id `end`. Raises as `facts_for`."""
        last, timeout_s = begin.message_id, self.primary.cluster.failover_timeout_s
        deadline = time.monotonic() + timeout_s
        while last < end:
            try:
                connection = self.primary.connection()
                # Asked before reading: only then is what does not come until the queue has no more really not there.
                self.facts_for(begin._replace(message_id=end))
                if self.primary.connection() is not connection:
                    continue  # it has not been asked itself
                window = _Window(connection, self.name, last, _ROUND, end)
                for chunk in window.read():
                    last, deadline = chunk.ids[-1], time.monotonic() + timeout_s
                    yield chunk
                if window.is_exhausted:
                    return
            except BrokerLost as error:
                self.primary.lost(error)
                if time.monotonic() > deadline:
                    raise self.primary.unreachable() from None
            except LinkRefused as error:
                raise self._explained(error) from None

    def _explained(self, error: LinkRefused) -> NoSuchQueue | PipelineError:
        if error.condition in _GONE:
            return NoSuchQueue(self.name)
        return PipelineError(f"queue {self.name} cannot be read: {error}")


class _Window(EachTransfer):
    """One link's worth of messages: until `end` is reached, `count` have come, or the queue has no more."""

    def __init__(self, connection: BrokerConnection, queue: str, after: int, count: int, end: int) -> None:
        self.is_exhausted = False
        """There is no more up to `end`."""
        self._connection = connection
        self._queue, self._after, self._missing, self._end = queue, after, count, end
        self._ids: list[int] = []
        self._payloads: list[bytes] = []
        self._size = 0
        self._part = b""

    def read(self) -> Iterator[BrowsedChunk]:
        """Also what had come when it ends with BrokerLost or LinkRefused."""
        link = self._connection.receiver(
            self._queue,
            self,
            distribution_mode=proton.Terminus.DIST_MODE_COPY,
            filters={
                proton.symbol("qpid.after"): proton.Described(proton.symbol(_AFTER), proton.ulong(self._after)),
            },
        )
        engine.drain(link, self._missing)
        try:
            yield from self._chunks(link)
        finally:
            self._connection.end(link)

    def _chunks(self, link: proton.Link) -> Iterator[BrowsedChunk]:
        lost: BrokerLost | LinkRefused | None = None
        is_over = False
        while not is_over and lost is None:
            try:
                self._connection.wait(lambda: self._size >= _CHUNK_BYTES or self._is_over(link), link)
                is_over = self._is_over(link)
                self.is_exhausted = self._is_past_end or (is_over and self._missing > 0)
            except (BrokerLost, LinkRefused) as error:
                lost = error
            if self._ids and (chunk := self._take()).ids:
                yield chunk
        if lost is not None:
            raise lost

    def _is_over(self, link: proton.Link) -> bool:
        return self._is_past_end or engine.credit(link) == 0

    @property
    def _is_past_end(self) -> bool:
        return bool(self._ids) and self._ids[-1] >= self._end

    def _take(self) -> BrowsedChunk:
        """What has come, without what lies behind the end."""
        count = bisect_right(self._ids, self._end)
        chunk = BrowsedChunk(self._ids[:count], self._payloads[:count])
        self._ids, self._payloads, self._size = [], [], 0
        return chunk

    # --- see engine.Receiving

    def transfer(self, delivery: Delivery, payload: bytes, settled: bool, state: int) -> None:
        whole = without_format(self._part + payload if self._part else payload)
        self._part = b""
        self._ids.append(engine.number_of(delivery))
        self._payloads.append(whole)
        self._size += len(whole)
        self._missing -= 1
        engine.forget(delivery)

    def partial(self, delivery: Delivery, data: bytes) -> None:
        self._part += data

    def aborted(self, delivery: Delivery) -> None:
        self._part = b""
