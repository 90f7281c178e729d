"""Stories about queues whose payloads lie on disk: nobody can tell, but for a moment that passes now and then."""

from __future__ import annotations

from contextlib import suppress
from random import Random

import pytest

from model_support import PLENTY, Core, bodies, message, qpid, transaction_of, wants
from paged_core import PagedCore, filled, numbers, paged, resident
from qpid_ha_broker.events.types import QueueDeclared
from qpid_ha_broker.ha.browser import ReplicatingBrowser
from qpid_ha_broker.model.errors import QueueFull
from qpid_ha_broker.model.paging import AHEAD_BYTES, lead_bytes, share_of
from qpid_ha_broker.model.queues.dispatcher import Consumer
from qpid_ha_broker.model.queues.headers import MessageHeader
from qpid_ha_broker.model.queues.paged import BodyRef
from qpid_ha_broker.model.queues.queue import Queue
from qpid_ha_broker.model.queues.queue_arguments import Replicate
from qpid_ha_broker.model.queues.sequence import Entry
from qpid_ha_broker.model.sets.catalog import MESSAGE_OVERHEAD
from qpid_ha_broker.store.bodies import Bodies

SECOND = 1000


# --- nothing is lost, and nothing waits in vain


def test_what_was_paged_out_comes_back_in_order() -> None:
    core = PagedCore()
    random = Random(7)
    queue = core.queue("q")
    texts = [random.randbytes(random.choice([0, 1, 50, 3000, 60_000])).hex() for _ in range(700)]
    core.publish(queue, *(message(text, durable=True) for text in texts))
    before = core.catalog.memory_bytes
    core.published_and_paged_out()
    assert paged(queue) == list(range(1, 700))
    assert core.catalog.memory_bytes == 700 * MESSAGE_OVERHEAD + len(message(texts[0]).payload)
    assert queue.messages.size == before - 700 * MESSAGE_OVERHEAD
    assert core.consume(queue) == texts
    assert (core.catalog.memory_bytes, queue.messages.count, queue.messages.size, queue.messages.paged) == (0, 0, 0, 0)
    queue.messages.check_invariants()


def test_a_queue_hands_out_what_is_here_and_stops_before_what_is_not() -> None:
    core = PagedCore()
    queue = filled(core)
    consumer = core.consumer(queue)
    core.give_credit(queue, consumer)
    given = core.resources.hand_out(core.now_ms, 100)
    assert bodies(given[0].entries) == ["0"]
    assert queue.dispatcher.awaits_bodies
    assert not core.resources.has_work, "a queue that waits for the disk must not keep the broker busy"
    core.bring(core.wanted())
    core.hand_out()
    assert bodies(core.inbox(consumer)) == numbers(20)[1:]


def test_what_is_requested_once_is_not_requested_again_while_it_is_on_its_way() -> None:
    core = PagedCore()
    queue = filled(core)
    core.give_credit(queue, core.consumer(queue))
    requests = core.wanted()
    assert len(requests) == 19
    assert core.wanted() == []
    core.bring(requests)
    assert core.wanted() == []


def test_a_consumer_has_a_lead_ahead_of_it_that_is_renewed_when_half_of_it_is_used() -> None:
    core = PagedCore()
    size = 64 * 1024
    queue = core.queue("q")
    core.publish(queue, *(message("x" * size, durable=True) for _ in range(300)))
    core.published_and_paged_out()
    consumer = core.consumer(queue)
    core.bring(core.wanted())
    lead = AHEAD_BYTES // size
    assert len(resident(queue)) == pytest.approx(lead, abs=1)
    taken = core.take(queue, consumer, lead // 4)
    assert len(taken) == lead // 4
    assert core.wanted() == []
    core.take(queue, consumer, lead // 2)
    assert len(resident(queue)) == pytest.approx(lead + 3 * lead // 4, abs=2)


def test_what_consumers_come_to_next_stays_in_memory() -> None:
    core = PagedCore(memory_bytes=1 << 20)
    queue = core.queue("q")
    core.publish(queue, *(message("x" * 1000, durable=True) for _ in range(4000)))
    core.published_and_paged_out()
    lead = lead_bytes(1 << 20, len(core.catalog.queues_by_id))
    first = next(iter(paged(queue)))
    assert first == pytest.approx(lead / 1000, rel=0.1)
    assert resident(queue)[:first] == list(range(first))


def test_payloads_leave_only_as_far_as_it_is_too_much_and_the_oldest_first() -> None:
    core = PagedCore(memory_bytes=3_000_000)
    queue = core.queue("q")
    core.publish(queue, *(message("x" * 1000, durable=True) for _ in range(3000)))
    assert core.paging.is_over
    core.published_and_paged_out()
    assert 0.9 * 3_000_000 < core.catalog.memory_bytes < 0.96 * 3_000_000
    on_disk = paged(queue)
    assert on_disk == list(range(on_disk[0], on_disk[-1] + 1))
    assert on_disk[-1] < 2600, "the newest are there still"


def test_messages_that_are_not_durable_stay() -> None:
    core = PagedCore()
    queue = core.queue("q")
    core.publish(queue, *(message(str(n), durable=n % 2 == 0) for n in range(10)))
    core.published_and_paged_out()
    assert paged(queue) == [2, 4, 6, 8]
    assert core.consume(queue) == numbers(10)


def test_what_somebody_has_stays_until_it_is_given_back() -> None:
    core = PagedCore()
    queue = core.queue("q")
    consumer = core.consumer(queue)
    core.publish(queue, *(message(str(n), durable=True) for n in range(10)))
    taken = core.take(queue, consumer, 5)
    core.published_and_paged_out()
    assert paged(queue) == [6, 7, 8, 9]
    core.resources.release(queue, taken, failed=True)
    core.page_out()
    assert paged(queue) == list(range(1, 10))
    again = core.take(queue, consumer)
    assert bodies(again) == numbers(10)
    assert [entry.delivery_count for entry in again] == [1] * 5 + [0] * 5


def test_a_message_in_several_queues_leaves_each_and_comes_back_to_each() -> None:
    core = PagedCore()
    queues = [core.queue(name) for name in ("a", "b", "c")]
    exchange = core.exchange("fan", "fanout", *queues)
    core.publish(exchange, *(message(str(n), durable=True) for n in range(10)))
    core.published_and_paged_out()
    assert [len(paged(queue)) for queue in queues] == [9, 9, 9]
    assert [core.consume(queue) for queue in queues] == [numbers(10)] * 3


def test_parts_of_a_transaction_leave_and_come_back() -> None:
    core = PagedCore()
    queue = core.queue("q")
    core.resources.commit(transaction_of(*((queue, message(str(n), durable=True)) for n in range(10))), core.now_ms)
    core.published_and_paged_out()
    assert len(paged(queue)) == 9
    assert core.consume(queue) == numbers(10)


# --- whatever a queue can do, it does with messages on disk


def test_a_browser_sees_all_and_takes_nothing() -> None:
    core = PagedCore()
    queue = filled(core)
    browser = core.browser(queue)
    assert bodies(core.take(queue, browser)) == numbers(20)
    assert queue.messages.count == 20
    core.page_out()
    assert len(paged(queue)) > 0
    assert core.consume(queue) == numbers(20)


def test_a_selector_sees_the_payload_and_passes_what_it_does_not_want() -> None:
    core = PagedCore()
    queue = filled(core, 50)
    consumer = core.consumer(queue, accepts=wants("7"))
    assert bodies(core.take(queue, consumer)) == ["7", "17", "27", "37", "47"]


@pytest.mark.parametrize("share", [0, 3])
def test_priorities_come_first_whatever_is_on_disk(share: int) -> None:
    arguments = {"priorities": 10, "fairshare": share}
    twins = [PagedCore(), Core()]
    orders = []
    for core in twins:
        queue = core.configuration.declare_queue("q", qpid({k: v for k, v in arguments.items() if v}))
        core.publish(queue, *(message(str(n), durable=True, priority=n * 7 % 10) for n in range(200)))
        if isinstance(core, PagedCore):
            core.published_and_paged_out()
            assert len(paged(queue)) == 199
        orders.append(core.consume(queue))
    assert orders[0] == orders[1]


def test_a_last_value_queue_replaces_values_on_disk() -> None:
    core = PagedCore()
    queue = core.queue("q", last_value_queue_key="key")
    core.publish(queue, *(message(str(n), durable=True, key=str(n % 10)) for n in range(20)))
    core.published_and_paged_out()
    assert queue.messages.count == 10
    assert len(paged(queue)) == 9
    core.publish(queue, message("new", durable=True, key="5"))
    assert core.consume(queue) == [*(str(n) for n in range(10, 20) if n != 15), "new"]
    assert (queue.messages.paged, core.catalog.memory_bytes) == (0, 0)


def test_a_ring_drops_the_oldest_without_reading_it() -> None:
    core = PagedCore()
    queue = filled(core, 20, max_count=20, policy_type="ring")
    core.page_out()
    core.publish(queue, *(message(str(n), durable=True) for n in range(20, 25)))
    assert core.consume(queue) == [str(n) for n in range(5, 25)]


def test_a_limit_in_bytes_counts_what_is_on_disk() -> None:
    core = PagedCore()
    size = len(message("0").payload)
    queue = filled(core, 10, max_size=10 * size, policy_type="ring")
    core.publish(queue, message("a", durable=True), message("b", durable=True))
    assert core.consume(queue) == [*numbers(10)[2:], "a", "b"]


def test_messages_on_disk_expire_without_being_read() -> None:
    core = PagedCore()
    queue = core.queue("q")
    core.publish(queue, *(message(str(n), durable=True, ttl_ms=SECOND if n % 2 else 0) for n in range(10)))
    core.published_and_paged_out()
    core.now_ms += SECOND
    (name,) = core.bodies.names
    core.disk.remove(name)
    core.give_credit(queue, core.consumer(queue))
    core.resources.hand_out(core.now_ms, 100)
    assert queue.messages.count == 9, "the second has expired; for the third the consumer waits"


def test_messages_on_disk_expire_where_nobody_asks_for_them() -> None:
    core = PagedCore()
    queue = core.queue("q", message_ttl_ms=SECOND)
    core.publish(queue, *(message(str(n), durable=True) for n in range(10)))
    core.published_and_paged_out()
    core.tick(SECOND)
    assert (queue.messages.count, queue.messages.paged, core.catalog.memory_bytes) == (0, 0, 0)


def test_a_purge_drops_what_is_on_disk() -> None:
    core = PagedCore()
    queue = filled(core)
    assert core.purge(queue) == 20
    assert (queue.messages.count, queue.messages.size, queue.messages.paged, core.catalog.memory_bytes) == (0, 0, 0, 0)


def test_a_deleted_queue_takes_its_bodies_along() -> None:
    core = PagedCore()
    queue = filled(core)
    core.give_credit(queue, core.consumer(queue))
    requests = core.wanted()
    core.configuration.delete_queue("q")
    core.bring(requests)
    assert core.catalog.memory_bytes == 0


def test_what_was_consumed_while_it_was_read_does_not_come_back() -> None:
    core = PagedCore()
    queue = filled(core)
    core.give_credit(queue, core.consumer(queue))
    requests = core.wanted()
    core.purge(queue)
    core.bring(requests)
    assert (queue.messages.count, queue.messages.paged, core.catalog.memory_bytes) == (0, 0, 0)


def test_rejected_messages_move_with_their_payload() -> None:
    core = PagedCore()
    dead = core.dead_letter_queue()
    queue = filled(core, 10, alternate_exchange="dlx")
    taken = core.take(queue, core.consumer(queue))
    core.resources.reject(queue, taken)
    assert core.consume(dead) == numbers(10)


def test_a_backup_is_sent_the_same_bytes_whether_or_not_they_are_on_disk() -> None:
    core = PagedCore()
    queue = core.queue("q")
    core.publish(queue, *(message("x" * n, durable=True, priority=n % 10) for n in range(200)))
    up_to = core.log.last_lsn
    before = ReplicatingBrowser(queue, up_to, ()).next_chunk(1, 1000, PLENTY)
    core.published_and_paged_out()
    assert len(paged(queue)) == 199
    assert ReplicatingBrowser(queue, up_to, ()).next_chunk(1, 1000, PLENTY) == before


def test_a_queue_that_changes_its_level_takes_its_messages_along() -> None:
    core = PagedCore()
    queue = filled(core)
    core.configuration.set_replication([("q", Replicate.CONFIGURATION)], Replicate.MESSAGES)
    core.configuration.set_replication([("q", Replicate.MESSAGES)], Replicate.MESSAGES)
    assert core.consume(queue) == numbers(20)
    queue.messages.check_invariants()
    assert core.catalog.memory_bytes == 0


def test_a_backup_follows_what_happens_to_messages_that_it_has_on_disk() -> None:
    primary = Core()
    queue = primary.queue("q")
    primary.publish(queue, *(message(str(n), durable=True) for n in range(20)))
    backup = PagedCore(resources=primary.followed())
    backup.write(primary.records)
    backup.journal.roll()
    backup.page_out()
    there = backup.catalog.queues["q"]
    assert len(paged(there)) == 19
    assert primary.consume(queue, 15) == numbers(15)
    primary.read()
    for record in primary.records[20 + 1 :]:
        backup.resources.replicated.follow([record])
    assert there.messages.count == 5
    there.messages.check_invariants()
    assert bodies(there.messages) == numbers(20)[15:]


# --- a restart


def test_a_restart_may_leave_payloads_on_disk() -> None:
    before = PagedCore()
    queue = before.queue("q")
    before.publish(queue, *(message(str(n), durable=True) for n in range(10)))
    name = before.close_file()
    after = PagedCore()
    after.bodies = Bodies(before.disk)
    after.state.apply(queue.id, QueueDeclared("q", {}))
    records = next(after.bodies.pieces(name)).records[queue.id]
    header, source = MessageHeader(queue.ids, True, 4, 0, ""), after.bodies.file(name)
    refs = [BodyRef(lsn, source, offset, 3) for lsn, offset in zip(records.lsns, records.offsets, strict=True)]
    there = after.catalog.queues["q"]
    after.catalog.prepended(there, [Entry(ref.lsn, header, ref) for ref in refs])
    assert (there.messages.count, there.messages.size, there.messages.paged) == (10, 30, 30)
    assert after.catalog.memory_bytes == 10 * MESSAGE_OVERHEAD
    assert after.consume(there) == numbers(10)


# --- anything at all


class _Twins:
    """The same life with and without a disk behind the queue."""

    def __init__(self, seed: int, **arguments: str | int) -> None:
        self.random = Random(seed)
        self.paged, self.plain = PagedCore(), Core()
        self.queues = [core.queue("q", **arguments) for core in (self.paged, self.plain)]
        self.consumers: list[list[Consumer]] = [[], []]
        self.held: list[list[list[int]]] = [[], []]
        self.count = 0

    def cores(self) -> list[tuple[int, Core, Queue]]:
        return [(at, core, self.queues[at]) for at, core in enumerate((self.paged, self.plain))]

    def step(self) -> None:
        do = self.random.choice(["publish", "publish", "take", "take", "accept", "release", "out", "out", "browse"])
        getattr(self, f"_{do}")()
        for _, _, queue in self.cores():
            queue.messages.check_invariants()
        assert (self.queues[0].messages.count, self.queues[0].messages.size) == (
            self.queues[1].messages.count,
            self.queues[1].messages.size,
        )

    def _publish(self) -> None:
        texts = [f"{self.count + n} {'x' * self.random.randrange(2000)}" for n in range(self.random.randrange(40))]
        self.count += len(texts)
        facts = [(self.random.randrange(10), self.random.random() < 0.9, str(self.random.randrange(15))) for _ in texts]
        for _, core, queue in self.cores():
            for text, (priority, durable, key) in zip(texts, facts, strict=True):
                with suppress(QueueFull):  # a ring of which consumers have everything
                    core.publish(queue, message(text, durable=durable, priority=priority, key=key))

    def _take(self) -> None:
        credit, choice = self.random.randrange(1, 30), self.random.random()
        got = []
        for at, core, queue in self.cores():
            if len(self.consumers[at]) < 3:
                accepts = wants("1") if choice < 0.3 else None
                self.consumers[at].append(core.consumer(queue, accepts=accepts))
            consumer = self.consumers[at][int(choice * len(self.consumers[at]))]
            entries = core.take(queue, consumer, credit)
            self.held[at].append([entry.id for entry in entries])
            got.append(bodies(entries))
        assert got[0] == got[1]

    def _settle(self, failed: bool | None) -> None:
        if self.held[0]:
            which = self.random.randrange(len(self.held[0]))
            for at, core, queue in self.cores():
                entries = queue.messages.find_all(self.held[at].pop(which))
                if failed is None:
                    core.resources.accept(queue, entries)
                else:
                    core.resources.release(queue, entries, failed)

    def _accept(self) -> None:
        self._settle(None)

    def _release(self) -> None:
        self._settle(self.random.random() < 0.5)

    def _out(self) -> None:
        self.paged.published_and_paged_out()

    def _browse(self) -> None:
        got = []
        for _, core, queue in self.cores():
            browser = core.browser(queue)
            got.append(bodies(core.take(queue, browser, 50)))
            core.leave(queue, browser)
        assert got[0] == got[1]


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize(
    "arguments", [{}, {"priorities": 5}, {"last_value_queue_key": "key"}, {"max_count": 60, "policy_type": "ring"}]
)
def test_a_queue_on_disk_lives_as_one_in_memory(seed: int, arguments: dict[str, str | int]) -> None:
    print(f"seed {seed}")
    twins = _Twins(seed, **arguments)
    for _ in range(120):
        twins.step()
    for at, core, queue in twins.cores():
        for consumer in twins.consumers[at]:
            consumer.credit = 0
        for ids in twins.held[at]:
            core.resources.release(queue, queue.messages.find_all(ids), failed=False)
    assert twins.paged.consume(twins.queues[0], 10_000) == twins.plain.consume(twins.queues[1], 10_000)
    assert twins.paged.catalog.memory_bytes == twins.plain.catalog.memory_bytes == 0
    assert twins.paged.damaged == []


@pytest.mark.parametrize(
    ("used", "shares"),
    [
        ([], []),
        ([0, 0], [100, 100]),
        ([10, 20], [80, 90]),
        ([50, 50], [50, 50]),
        ([100, 100], [50, 50]),
        ([150, 40, 10], [75, 20, 5]),
    ],
)
def test_several_sets_have_the_memory_that_is_left_and_less_than_they_have_once_none_is(
    used: list[int], shares: list[int]
) -> None:
    assert [share_of(100, own, sum(used)) for own in used] == shares
