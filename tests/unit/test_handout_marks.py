"""After a failover what somebody may have had is marked as delivered before, and hardly anything else is."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from model_support import NOW_MS, WITNESS, Core, TextReader, bodies, message, wants
from qpid_ha_broker.events.types import EVERYTHING, Event, GenerationStarted, HandedOut
from qpid_ha_broker.model.queues import next_mark
from qpid_ha_broker.model.queues.dispatcher import Consumer
from qpid_ha_broker.model.queues.orders import Fifo, make_order
from qpid_ha_broker.model.queues.queue import Queue
from qpid_ha_broker.model.queues.queue_arguments import QueueArguments, Replicate
from qpid_ha_broker.model.queues.sequence import Entry
from qpid_ha_broker.model.sets.resources import Resources

STEP = 4


def numbers(count: int) -> list[str]:
    """Bodies of messages."""
    return [str(number) for number in range(1, count + 1)]


@pytest.fixture(autouse=True)
def _short_steps(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setattr(next_mark, "STEP_LENGTH", STEP)
        yield


def leading(core: Core) -> Core:
    """The one who writes the log, and tells of marks."""
    core.resources.replicated.state.marks.inherit(is_next=True)
    core.resources.replicated.take_over(NOW_MS, 0)
    core.resources.replicated.begin_marks()
    core.commit()
    return core


def heir_of(core: Core, upto: int = EVERYTHING, *, is_next: bool = True, tells: bool = True) -> Core:
    """Who has followed the log of `core` as far as that, and leads now."""
    core.read()
    backup = Resources(TextReader())
    for record in core.records:
        if record.lsn <= upto:
            backup.replicated.follow([record])
    backup.replicated.state.marks.inherit(is_next=is_next)
    backup.replicated.drop_open_unit()
    heir = Core(backup)
    heir.records = [record for record in core.records if record.lsn <= backup.replicated.log.last_lsn]
    backup.replicated.write(GenerationStarted(1, "heir", "cluster", 0, False, ""))
    backup.replicated.take_over(NOW_MS, 0)
    if tells:
        backup.replicated.begin_marks()
    return heir


def marked(core: Core, name: str = "q") -> list[str]:
    queue = core.catalog.queues[name]
    return bodies([entry for entry in queue.messages if queue.is_redelivered(entry)])


def marks_in(core: Core) -> list[Event]:
    core.read()
    return [record.event for record in core.records if isinstance(record.event, HandedOut)]


def get(core: Core, queue: Queue, consumer: Consumer, credit: int) -> list[Entry]:
    """What comes for that credit, once the marks for it are committed."""
    core.give_credit(queue, consumer, credit)
    core.hand_out()
    core.commit()
    core.hand_out()
    return core.inbox(consumer)


# --- what is marked


def test_what_nobody_had_is_not_marked_after_a_failover() -> None:
    core = leading(Core())
    core.publish(core.queue("q"), *numbers(100))
    assert marked(heir_of(core)) == []


def test_what_somebody_had_is_marked_and_a_step_more() -> None:
    core = leading(Core())
    queue = core.queue("q")
    core.publish(queue, *numbers(100))
    consumer = core.consumer(queue)
    got = get(core, queue, consumer, 10)
    assert bodies(got) == numbers(1 + STEP), "a step, and then the next one has to be committed"
    core.commit()
    core.hand_out()
    assert bodies(got + core.inbox(consumer)) == numbers(10)
    heir = heir_of(core)
    assert marked(heir)[:10] == numbers(10)
    assert len(marked(heir)) <= 10 + 2 * STEP


def test_when_the_last_consumer_goes_the_log_says_exactly_how_far_it_came() -> None:
    core = leading(Core())
    queue = core.queue("q")
    core.publish(queue, *numbers(100))
    consumer = core.consumer(queue)
    got = get(core, queue, consumer, 3)
    core.resources.release(queue, got, failed=False)
    core.leave(queue, consumer)
    assert marked(heir_of(core)) == numbers(3)


def test_a_mark_counts_as_a_delivery_and_not_towards_the_limit() -> None:
    core = leading(Core())
    queue = core.queue("q", delivery_limit=2)
    core.publish(queue, "a")
    get(core, queue, core.consumer(queue), 1)
    heir = heir_of(core)
    replica = heir.catalog.queues["q"]
    consumer = heir.consumer(replica)
    for failures in range(2):
        (entry,) = get(heir, replica, consumer, 1)
        assert (entry.delivery_count, replica.deliveries_before(entry)) == (failures, failures + 1)
        heir.resources.release(replica, [entry], failed=True)
    assert replica.messages.count == 0, "only what has failed here counts"


def test_what_was_marked_stays_so_at_the_next_failover() -> None:
    core = leading(Core())
    queue = core.queue("q")
    core.publish(queue, *numbers(100))
    get(core, queue, core.consumer(queue), 3)
    first = heir_of(core)
    first.commit()
    assert marked(heir_of(first)) == marked(first)


# --- what waits


def test_nothing_goes_out_before_its_mark_is_committed() -> None:
    core = leading(Core())
    queue = core.queue("q")
    core.publish(queue, *numbers(3))
    consumer = core.consumer(queue)
    assert core.take(queue, consumer) == []
    assert queue.dispatcher.awaits_mark
    core.give_credit(queue, consumer)
    core.commit()
    core.hand_out()
    assert bodies(core.inbox(consumer)) == numbers(3)
    assert not queue.dispatcher.awaits_mark


def test_who_takes_as_fast_as_messages_come_waits_for_nothing_and_costs_no_events() -> None:
    core = leading(Core())
    queue = core.queue("q")
    consumer = core.consumer(queue)
    core.give_credit(queue, consumer)
    core.hand_out()
    before = len(marks_in(core))
    for number in numbers(20 * STEP):
        core.publish(queue, number)  # not committed: but the mark comes before it in the log
        core.hand_out()
        core.resources.accept(queue, core.inbox(consumer))
    assert queue.messages.count == 0
    assert len(marks_in(core)) == before


def test_a_backlog_costs_an_event_for_half_a_step() -> None:
    core = leading(Core())
    queue = core.queue("q")
    core.publish(queue, *numbers(50 * STEP))
    consumer = core.consumer(queue)
    got: list[Entry] = []
    while len(got) < 50 * STEP:
        got += get(core, queue, consumer, 1)
    assert bodies(got) == numbers(50 * STEP)
    assert len(marks_in(core)) <= 2 * 50 + 3


def test_what_comes_and_nobody_takes_is_not_marked() -> None:
    core = leading(Core())
    queue = core.queue("q")
    consumer = core.consumer(queue)
    core.give_credit(queue, consumer, 1)
    core.hand_out()
    for number in numbers(100):
        core.publish(queue, number)
        core.hand_out()
    core.commit()
    assert len(marked(heir_of(core))) <= 1 + 3 * STEP


def test_a_consumer_with_a_selector_does_not_wait_for_each_message() -> None:
    core = leading(Core())
    queue = core.queue("q")
    core.publish(queue, *numbers(100))
    consumer = core.consumer(queue, accepts=wants("x"))
    core.publish(queue, "x")
    got = get(core, queue, consumer, 1000)
    before = len(marks_in(core))
    for _ in range(20):
        core.publish(queue, "x")
        core.hand_out()
    assert len(got + core.inbox(consumer)) == 21
    assert len(marks_in(core)) == before


def test_a_set_without_witnesses_gives_out_at_once() -> None:
    core = Core(witness=False)
    queue = core.queue("q")
    core.publish(queue, "a")
    assert bodies(core.take(queue, core.consumer(queue))) == ["a"]


# --- where the log does not tell


def test_after_a_primary_of_an_older_release_all_that_was_queued_is_marked() -> None:
    core = Core()
    core.publish(core.queue("q"), "a", "b")
    heir = heir_of(core)
    assert marked(heir) == ["a", "b"]
    heir.publish(heir.catalog.queues["q"], "c")
    assert marked(heir_of(heir)) == ["a", "b"], "it tells what it knows, and what came to it nobody had"


def test_after_a_primary_that_had_not_begun_to_tell_all_is_marked() -> None:
    core = leading(Core())
    core.publish(core.queue("q"), "a", "b")
    silent = heir_of(core, tells=False)
    assert marked(silent) == []
    assert marked(heir_of(silent)) == ["a", "b"]


def test_after_a_generation_of_which_nothing_is_known_all_is_marked() -> None:
    core = leading(Core())
    core.publish(core.queue("q"), "a", "b")
    assert marked(heir_of(core, is_next=False)) == ["a", "b"]


def test_who_begins_to_tell_later_tells_what_went_out_until_then() -> None:
    core = leading(Core())
    queue = core.queue("q")
    core.publish(queue, *numbers(50))
    second = heir_of(core, tells=False)
    replica = second.catalog.queues["q"]
    assert bodies(second.take(replica, second.consumer(replica), 5)) == numbers(5), "nothing waits for marks"
    second.resources.replicated.begin_marks()
    assert marked(heir_of(second)) == numbers(5)


def test_when_marks_end_messages_wait_until_everybody_knows_that() -> None:
    core = leading(Core())
    queue = core.queue("q")
    core.publish(queue, *numbers(50))
    consumer = core.consumer(queue)
    core.resources.replicated.end_marks()
    assert core.take(queue, consumer) == []
    assert bodies(get(core, queue, consumer, 1000)) == numbers(50)
    new = core.queue("new")
    core.publish(new, "a")
    assert bodies(core.take(new, core.consumer(new))) == ["a"]
    assert marked(heir_of(core)) == numbers(50)


def test_messages_that_come_into_the_replicated_log_keep_their_marks() -> None:
    core = Core()
    core.configuration.default_replication = Replicate.NONE
    leading(core)
    queue = core.queue("q")
    core.publish(queue, *numbers(9))
    got = core.take(queue, core.consumer(queue), 2)
    core.configuration.set_replication([], Replicate.MESSAGES)
    assert bodies(got) == numbers(2)
    assert marked(heir_of(core)) == numbers(2)


# --- an order's places


@pytest.mark.parametrize("priorities", [1, 10])
def test_an_id_ahead_has_that_many_messages_before_it(priorities: int) -> None:
    order = make_order(QueueArguments.parse({"qpid.priorities": priorities}))
    core = Core()
    queue = core.queue("q", priorities=priorities)
    core.publish(queue, *numbers(2000))
    ids = [entry.id for entry in queue.messages]
    assert [queue.messages.id_ahead(ids[at], 700) for at in (0, 5, 1299)] == [ids[700], ids[705], ids[1999]]
    assert queue.messages.id_ahead(ids[1300], 700) == 0
    assert queue.messages.id_ahead(0, 1) == ids[0]
    assert order.id_ahead(0, 1) == 0
    assert isinstance(order, Fifo) == (priorities == 1)


# --- whatever happens


class Histories(RuleBasedStateMachine):
    """A queue under several primaries, each of which knows the log of the one before up to anywhere behind what was
    committed. Checked at each failover: what anybody ever had is marked, if it is there."""

    @initialize(priorities=st.sampled_from([1, 3]), tells=st.booleans())
    def begin(self, priorities: int, tells: bool) -> None:
        self.steps = pytest.MonkeyPatch()
        self.steps.setattr(next_mark, "STEP_LENGTH", STEP)
        self.core = Core()
        self.core.queue("q", priorities=priorities)
        if tells:
            leading(self.core)
        self.had: set[int] = set()
        self.consumers: list[Consumer] = []
        self.held: list[tuple[Consumer, Entry]] = []
        self.count = 0

    def teardown(self) -> None:
        if hasattr(self, "steps"):
            self.steps.undo()

    @property
    def queue(self) -> Queue:
        return self.core.catalog.queues["q"]

    @rule(count=st.integers(1, 2 * STEP), priority=st.integers(0, 9))
    def publish(self, count: int, priority: int) -> None:
        for _ in range(count):
            self.count += 1
            self.core.publish(self.queue, message(str(self.count), priority=priority))
        self.turn(100)

    @rule()
    def come(self) -> None:
        self.consumers.append(self.core.consumer(self.queue))
        self.core.give_credit(self.queue, self.consumers[-1], 2 * STEP)
        self.turn(100)

    @precondition(lambda self: self.consumers)
    @rule(pick=st.integers(0, 9), credit=st.integers(0, 3 * STEP))
    def flow(self, pick: int, credit: int) -> None:
        self.core.give_credit(self.queue, self.consumers[pick % len(self.consumers)], credit)

    @rule(limit=st.sampled_from([1, 2, 100]))
    def turn(self, limit: int) -> None:
        self.core.catalog.wake(self.queue)
        for handout in self.core.resources.hand_out(self.core.now_ms, limit):
            self.had.update(entry.id for entry in handout.entries)
            self.held += [(handout.consumer, entry) for entry in handout.entries]

    @precondition(lambda self: self.held)
    @rule(pick=st.integers(0, 9), answer=st.sampled_from(["accept", "accept", "release", "fail"]))
    def answer(self, pick: int, answer: str) -> None:
        _, entry = self.held.pop(pick % len(self.held))
        if answer == "accept":
            self.core.resources.accept(self.queue, [entry])
        else:
            self.core.resources.release(self.queue, [entry], failed=answer == "fail")

    @precondition(lambda self: self.consumers)
    @rule(pick=st.integers(0, 9))
    def go(self, pick: int) -> None:
        consumer = self.consumers.pop(pick % len(self.consumers))
        mine = [entry for holder, entry in self.held if holder is consumer]
        self.held = [(holder, entry) for holder, entry in self.held if holder is not consumer]
        self.core.resources.release(self.queue, mine, failed=True)
        self.core.leave(self.queue, consumer)

    @rule(waiting=st.integers(0, 4))
    def commit(self, waiting: int) -> None:
        self.core.log.acknowledge(WITNESS, max(self.core.log.last_lsn - waiting, 0))

    @rule()
    def begin_marks(self) -> None:
        if not self.core.state.marks.is_told:
            self.core.resources.replicated.begin_marks()

    @precondition(lambda self: self.core.state.marks.is_told)
    @rule()
    def end_marks(self) -> None:
        self.core.resources.replicated.end_marks()

    @rule(lost=st.integers(0, 6), tells=st.sampled_from([True, True, True, False]))
    def fail_over(self, lost: int, tells: bool) -> None:
        log = self.core.log
        upto = max(log.committed_lsn, log.last_lsn - lost, self.queue.id)
        self.core.read()
        generations = [record.lsn for record in self.core.records if isinstance(record.event, GenerationStarted)]
        is_next = not generations or generations[-1] <= upto
        self.core = heir_of(self.core, upto, is_next=is_next, tells=tells)
        self.consumers, self.held = [], []
        self.had = {message_id for message_id in self.had if message_id <= upto}  # others get the ids of what is lost
        unmarked = {entry.id for entry in self.queue.messages if not self.queue.is_redelivered(entry)} & self.had
        assert not unmarked, (unmarked, self.queue.redelivered_below)


TestHistories = Histories.TestCase
TestHistories.settings = settings(
    max_examples=50, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(0, STEP), st.integers(0, 3 * STEP)), max_size=40), st.booleans())
def test_of_what_nobody_had_few_messages_are_marked(history: list[tuple[int, int]], is_gone: bool) -> None:
    core = leading(Core())
    queue = core.queue("q")
    consumer = core.consumer(queue)
    had: set[int] = set()
    for published, credit in history:
        core.publish(queue, *numbers(published))
        had.update(entry.id for entry in get(core, queue, consumer, credit))
    if is_gone:
        core.leave(queue, consumer)
    core.commit()
    replica = heir_of(core).catalog.queues["q"]
    seen = [entry.id for entry in replica.messages if replica.is_redelivered(entry)]
    assert had <= set(seen)
    assert len(seen) - len(had) <= (0 if is_gone else 4 * STEP)
