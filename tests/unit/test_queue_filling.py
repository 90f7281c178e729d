"""Stories about a queue that is filled from its end, as a backup does that catches up: the newest messages first."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from model_support import NOW_MS, Core, bodies, message
from qpid_ha_broker.events.types import Scalar
from qpid_ha_broker.model.queues.headers import MessageHeader
from qpid_ha_broker.model.queues.queue import Queue
from qpid_ha_broker.model.queues.sequence import Entry, Holder

ORDERS: list[dict[str, Scalar]] = [{}, {"priorities": 10}, {"last_value_queue_key": "k"}]
SOMEBODY = Holder()


def entry_of(message_id: int, body: str = "x", *, key: str = "", priority: int = 4, expires_at_ms: int = 0) -> Entry:
    payload = message(body).payload
    return Entry(message_id, MessageHeader((1,), False, priority, expires_at_ms, key), payload)


def ids(entries: Iterator[Entry] | list[Entry]) -> list[int]:
    return [entry.id for entry in entries]


@pytest.mark.parametrize("arguments", ORDERS)
def test_a_queue_that_was_filled_from_its_end_gives_its_messages_in_order(arguments: dict[str, Scalar]) -> None:
    core = Core(witness=False)
    queue = core.queue("q", **arguments)
    core.log.reset(10_000)
    core.publish(queue, "newest")
    for at in range(2000, 0, -100):
        core.catalog.prepended(queue, [entry_of(number, str(number)) for number in range(at - 99, at + 1)])
    queue.messages.check_invariants()
    assert core.consume(queue, 5000) == [*map(str, range(1, 2001)), "newest"]
    assert core.catalog.memory_bytes == 0
    assert queue.messages.enqueued_total == queue.messages.dequeued_total == 2001


def test_a_consumer_that_had_seen_everything_gets_what_is_put_before_it() -> None:
    core = Core(witness=False)
    queue = core.queue("q")
    core.log.reset(10_000)
    core.publish(queue, *(str(number) for number in range(1500)))
    core.consume(queue, 1500)
    consumer = core.consumer(queue)
    core.catalog.prepended(queue, [entry_of(7, "a"), entry_of(9, "b")])
    core.catalog.prepended(queue, [entry_of(5, "c")])
    assert bodies(core.take(queue, consumer)) == ["c", "a", "b"]


def test_of_one_key_the_newest_value_stays_whatever_comes_before_it() -> None:
    core = Core(witness=False)
    queue = core.queue("q", last_value_queue_key="k")
    core.log.reset(10_000)
    core.publish(queue, message("newest", k="1"))
    core.catalog.prepended(queue, [entry_of(7, "a", key="2"), entry_of(8, "b", key="2"), entry_of(9, "c", key="1")])
    assert queue.messages.count == 4
    assert [queue.messages.is_superseded(entry) for entry in queue.messages] == [True, False, True, False]


def test_what_is_put_before_the_rest_expires_in_its_time() -> None:
    core = Core()
    queue = core.queue("q")
    core.log.reset(100)
    core.catalog.prepended(queue, [entry_of(7, "a", expires_at_ms=NOW_MS + 5), entry_of(8, "b")])
    core.resources.replicated.take_over(NOW_MS, 0)
    core.tick(after_ms=5)
    assert bodies(queue.messages) == ["b"]


def test_a_queue_that_was_emptied_counts_as_if_nothing_had_come_and_can_be_filled_again() -> None:
    core = Core(witness=False)
    queue = core.queue("q", priorities=10)
    core.publish(queue, *(message(str(number), priority=number % 10, ttl_ms=5) for number in range(100)))
    taken = core.catalog.emptied(queue)
    assert ids(taken) == sorted(ids(taken))
    assert (
        queue.messages.count,
        queue.messages.size,
        queue.messages.enqueued_total,
        queue.messages.dequeued_total,
    ) == (0, 0, 0, 0)
    assert (core.catalog.memory_bytes, queue.messages.expiries.next_ms) == (0, None)
    core.catalog.prepended(queue, taken)
    assert len(core.consume(queue)) == 100


class Filling(RuleBasedStateMachine):
    """A queue against a sorted list: whatever is added at both ends, taken out, renumbered and asked for."""

    @initialize(arguments=st.sampled_from(ORDERS))
    def begin(self, arguments: dict[str, Scalar]) -> None:
        self.core = Core(witness=False)
        self.queue: Queue = self.core.queue("q", **arguments)
        self.low, self.high = 50_000, 50_001
        self.model: list[Entry] = []
        self.gone: list[int] = []
        self.consumer = self.core.consumer(self.queue)

    @rule(count=st.integers(1, 600), gap=st.integers(1, 3))
    def append(self, count: int, gap: int) -> None:
        for number in range(count):
            entry = entry_of(self.high, priority=number % 10)
            self.high += gap
            self.queue.messages.add(entry)
            self.model.append(entry)

    @rule(count=st.integers(1, 700))
    def prepend(self, count: int) -> None:
        top = min([self.low, *ids(self.model[:1])])
        if top <= 2 * count:
            return
        entries = [entry_of(top - 1 - number, priority=number % 10) for number in range(count)][::-1]
        self.low = entries[0].id
        self.queue.messages.prepend(entries)
        self.model = entries + self.model

    @precondition(lambda self: self.model)
    @rule(start=st.integers(0, 5000), length=st.integers(1, 1500), step=st.integers(1, 3))
    def remove(self, start: int, length: int, step: int) -> None:
        start %= len(self.model)
        chosen = self.model[start : start + length : step]
        found = self.queue.messages.find_all(ids(chosen))
        assert sorted(ids(found)) == ids(chosen)
        for entry in found:
            self.gone.append(entry.id)
            self.queue.messages.remove([entry])
        self.model = [entry for entry in self.model if entry.body is not None]

    @rule()
    def empty_and_fill(self) -> None:
        taken = self.queue.messages.take_all()
        assert taken == self.model
        self.queue.messages.prepend(taken)

    @rule(gap=st.integers(1, 3))
    def renumber(self, gap: int) -> None:
        start = self.low if gap == 1 else self.high
        self.queue.renumber({entry.id: start + gap * at for at, entry in enumerate(self.model)})
        self.high = max(self.high, start + gap * len(self.model))
        self.gone.clear()

    @rule(credit=st.integers(1, 600), back=st.integers(0, 600))
    def take_and_give_back(self, credit: int, back: int) -> None:
        entries = self.core.take(self.queue, self.consumer, credit)
        assert len(entries) == min(credit, len(self.model))
        if not self.queue.arguments.priorities > 1:
            assert entries == self.model[: len(entries)]
        for entry in entries[back:] + entries[:back]:
            self.queue.messages.give_back(entry, failed=False)

    @rule(bound=st.integers(0, 100_000), limit=st.integers(0, 1500))
    def ask_for_the_newest(self, bound: int, limit: int) -> None:
        below = [entry for entry in self.model if entry.id < bound]
        assert self.queue.messages.newest_before(bound, limit) == (below[-limit:] if limit else [])

    @invariant()
    def the_books_balance(self) -> None:
        self.queue.messages.check_invariants()
        assert sorted(ids(list(self.queue.messages))) == ids(self.model)
        present = set(ids(self.model))
        assert self.queue.messages.find_all([each for each in self.gone[-50:] if each not in present]) == []
        assert all(self.queue.messages.find(entry.id) is entry for entry in self.model[::97])


TestFilling = Filling.TestCase
TestFilling.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
