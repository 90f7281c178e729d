"""Whatever commands come in whatever order: who reads the log arrives at the same state, and the books balance."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from functools import partial

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from model_support import (
    NOW_MS,
    WITNESS,
    Core,
    TextReader,
    bodies,
    event_of,
    message,
    picture,
    replicated_picture,
    wants,
)
from qpid_ha_broker.events.codec import LogRecord
from qpid_ha_broker.events.types import Enqueued, Scalar
from qpid_ha_broker.model.errors import ModelError
from qpid_ha_broker.model.exchanges.exchange import Exchange, ExchangeKind
from qpid_ha_broker.model.queues.dispatcher import Consumer
from qpid_ha_broker.model.queues.message_groups import GroupPosition
from qpid_ha_broker.model.queues.queue import Queue
from qpid_ha_broker.model.queues.queue_arguments import Replicate
from qpid_ha_broker.model.queues.sequence import Entry
from qpid_ha_broker.model.sets.resources import Resources
from qpid_ha_broker.model.sets.state import ReplayError
from qpid_ha_broker.model.transactions.transaction import Message, Publish, Transaction

SECOND = 1000

queue_names = st.sampled_from(["a", "b", "c"])
exchange_names = st.sampled_from(["x", "y"])
kinds: dict[str, dict[str, Scalar]] = {
    "fifo": {},
    "priority": {"qpid.priorities": 3},
    "fair": {"qpid.priorities": 10, "qpid.fairshare": 2},
    "last value": {"qpid.last_value_queue_key": "k"},
    "last values, few": {"qpid.last_value_queue_key": "k", "qpid.max_count": 2},
    "last values, ring": {"qpid.last_value_queue_key": "k", "qpid.max_count": 2, "qpid.policy_type": "ring"},
    "small": {"qpid.max_count": 3},
    "ring": {"qpid.max_count": 3, "qpid.policy_type": "ring"},
    "bytes": {"qpid.max_size": 60, "qpid.policy_type": "ring"},
    "priority ring": {"qpid.max_count": 3, "qpid.policy_type": "ring", "qpid.priorities": 10},
    "brief": {"qpid.message_ttl_ms": 2 * SECOND},
    "fussy": {"qpid.delivery_limit": 2},
    "retrying": {"qpid.redelivery_delay_ms": SECOND, "qpid.redelivery_delay_max_ms": 3 * SECOND},
    "leaving": {"qpid.auto_delete": True},
    "single": {"qpid.single_active_consumer": True},
    "in groups": {"qpid.message_groups": True},
    "in groups, by priority": {"qpid.message_groups": True, "qpid.priorities": 3},
    "groupless": {"qpid.message_groups": False},
}
ends: list[dict[str, Scalar]] = [{}, {"qpid.alternate_exchange": "x"}]
level_arguments: list[dict[str, Scalar]] = [{"qpid.replicate": level.value} for level in Replicate]
levels: list[dict[str, Scalar]] = [{}, {}, *level_arguments]
changes: list[dict[str, Scalar]] = [
    {"qpid.max_count": 2, "qpid.policy_type": "reject"},
    {"qpid.max_count": 2, "qpid.policy_type": "ring"},
    {"qpid.max_count": None, "qpid.max_size": None, "qpid.policy_type": None},
    {"qpid.delivery_limit": 1},
    *level_arguments,
    {"qpid.replicate": None},
]
texts, subjects = st.text("rg", min_size=1, max_size=15), st.sampled_from(["red", "green"])
priorities, keys = st.integers(0, 9), st.sampled_from("123")
ttls_ms, delays_ms = st.sampled_from([0, 0, 0, SECOND, 5 * SECOND]), st.sampled_from([0, 0, 0, SECOND, 2 * SECOND])
groupless = st.builds(
    message, texts, subjects, priority=priorities, ttl_ms=ttls_ms, delay_ms=delays_ms, durable=st.booleans(), k=keys
)
of_groups = st.builds(
    message,
    texts,
    subjects,
    priority=priorities,
    ttl_ms=ttls_ms,
    delay_ms=delays_ms,
    group=st.sampled_from("gh"),
    k=keys,
)
messages = groupless | groupless | of_groups
numbered = st.builds(
    lambda each, producer, sequence: each._replace(producer=producer, sequence=sequence),
    messages,
    st.sampled_from([b"p", b"q", b"r"]),
    st.integers(0, 9),
)
picks = st.integers(0, 1000)


class Commands(RuleBasedStateMachine):
    """Random commands on a resource set, a reader of its log, and all that the two must agree on."""

    @initialize(log_acquisitions=st.booleans(), producers=st.sampled_from([0, 1, 2, 100]))
    def begin(self, log_acquisitions: bool, producers: int) -> None:
        self.core = Core(log_acquisitions=log_acquisitions)
        self.core.resources.deduplication.producers = producers
        self.backup = Resources(TextReader())
        self.read_to = self.committed_lsn = 0
        self.consumers: dict[Consumer, Queue] = {}
        self.held: dict[Entry, tuple[Queue, Consumer]] = {}
        self.browsed: Counter[tuple[Consumer, int]] = Counter()
        self.transactions: list[Transaction] = []

    # --- objects

    @rule(
        name=queue_names, kind=st.sampled_from(sorted(kinds)), end=st.sampled_from(ends), level=st.sampled_from(levels)
    )
    def declare_queue(self, name: str, kind: str, end: dict[str, Scalar], level: dict[str, Scalar]) -> None:
        self.attempt(lambda: self.core.configuration.declare_queue(name, {**kinds[kind], **end, **level}))

    @rule(rules=st.dictionaries(st.sampled_from("abxy"), st.sampled_from(list(Replicate)), max_size=2))
    def set_replication(self, rules: dict[str, Replicate]) -> None:
        assert self.core.configuration.set_replication(list(rules.items()), Replicate.MESSAGES)

    @rule(name=queue_names, change=st.sampled_from(changes))
    def update_queue(self, name: str, change: dict[str, Scalar]) -> None:
        self.attempt(lambda: self.core.configuration.update_queue(name, change))

    @rule(name=queue_names, if_empty=st.booleans())
    def delete_queue(self, name: str, if_empty: bool) -> None:
        self.attempt(lambda: self.core.configuration.delete_queue(name, if_empty=if_empty))

    @rule(
        name=exchange_names,
        kind=st.sampled_from(list(ExchangeKind)),
        end=st.sampled_from(ends),
        level=st.sampled_from(levels),
    )
    def declare_exchange(self, name: str, kind: str, end: dict[str, Scalar], level: dict[str, Scalar]) -> None:
        self.attempt(lambda: self.core.configuration.declare_exchange(name, kind, {**end, **level}))

    @rule(name=exchange_names)
    def delete_exchange(self, name: str) -> None:
        self.attempt(lambda: self.core.configuration.delete_exchange(name))

    @rule(
        exchange=exchange_names,
        queue=queue_names,
        key=st.sampled_from(["red", "green", "#", "*"]),
        level=st.sampled_from(levels),
    )
    def bind(self, exchange: str, queue: str, key: str, level: dict[str, Scalar]) -> None:
        self.attempt(lambda: self.core.configuration.bind(exchange, queue, key, {"k": "1", **level}))

    @rule(exchange=exchange_names, queue=queue_names, key=st.sampled_from(["red", "green", "#", "*"]))
    def unbind(self, exchange: str, queue: str, key: str) -> None:
        self.attempt(lambda: self.core.configuration.unbind(exchange, queue, key))

    # --- messages

    @rule(pick=picks, several=st.lists(messages | numbered, min_size=1, max_size=4))
    def publish(self, pick: int, several: list[Message]) -> None:
        target = self.target(pick)
        for each in several:
            self.attempt(partial(self.core.publish, target, each))

    @precondition(lambda self: self.core.catalog.queues)
    @rule(pick=picks, browsing=st.booleans(), text=st.sampled_from([None, None, "r", "gg"]))
    def subscribe(self, pick: int, browsing: bool, text: str | None) -> None:
        queue = self.queue(pick)
        accepts = wants(text) if text and not browsing else None
        self.consumers[self.core.consumer(queue, browsing=browsing, accepts=accepts)] = queue

    @precondition(lambda self: self.consumers)
    @rule(pick=picks, credit=st.integers(1, 5), window_bytes=st.integers(1, 60), limit=st.integers(1, 3))
    def hand_out(self, pick: int, credit: int, window_bytes: int, limit: int) -> None:
        consumer = list(self.consumers)[pick % len(self.consumers)]
        self.core.give_credit(self.consumers[consumer], consumer, credit, window_bytes)
        self.core.hand_out(limit)
        self.committed_lsn = self.core.log.committed_lsn  # of all, where somebody browses
        for each, queue in self.consumers.items():
            for entry in self.core.inbox(each):
                self.delivered(each, queue, entry)
        self.nobody_waits_for_what_is_there()

    @precondition(lambda self: self.held)
    @rule(
        picked=st.lists(picks, min_size=1, max_size=3),
        how=st.sampled_from(["accept", "reject", "release", "fail", "annotate"]),
    )
    def settle(self, picked: list[int], how: str) -> None:
        entries = list(dict.fromkeys(list(self.held)[pick % len(self.held)] for pick in picked))
        queue = self.held[entries[0]][0]
        entries = [entry for entry in entries if self.held[entry][0] is queue]
        for entry in entries:
            del self.held[entry]
        resources = self.core.resources
        if how in ("accept", "reject"):
            token = resources.accept(queue, entries) if how == "accept" else resources.reject(queue, entries)
        else:
            said = b"said=busy" if how == "annotate" else b""
            token = resources.release(queue, entries, failed=how == "fail", annotations=said)
        assert token.lsn <= token.log.last_lsn

    @precondition(lambda self: self.consumers)
    @rule(pick=picks)
    def unsubscribe(self, pick: int) -> None:
        consumer = list(self.consumers)[pick % len(self.consumers)]
        queue = self.consumers.pop(consumer)
        mine = [entry for entry, (_, holder) in self.held.items() if holder is consumer]
        for entry in mine:
            del self.held[entry]
        self.core.resources.release(queue, mine, failed=True)
        for transaction in self.transactions:
            for _, entry in transaction.accepted:
                if transaction.consumer_of(entry) is consumer:
                    transaction.abandon(entry)
        self.core.leave(queue, consumer)

    @precondition(lambda self: self.core.catalog.queues)
    @rule(pick=picks)
    def purge(self, pick: int) -> None:
        self.core.purge(self.queue(pick))

    @rule(after_ms=st.sampled_from([0, SECOND, 3 * SECOND]))
    def tick(self, after_ms: int) -> None:
        for queue in self.core.tick(after_ms):
            self.core.configuration.delete_queue(queue.name)
        for queue in self.core.catalog.queues.values():
            available = [event_of(entry) for entry in queue.messages if entry.is_free]
            assert not any(0 < event.expires_at_ms <= self.core.now_ms for event in available)

    # --- transactions

    @precondition(lambda self: len(self.transactions) < 2)
    @rule()
    def begin_transaction(self) -> None:
        self.transactions.append(Transaction())

    @precondition(lambda self: self.transactions)
    @rule(pick=picks, several=st.lists(messages | numbered, min_size=1, max_size=3))
    def publish_in_transaction(self, pick: int, several: list[Message]) -> None:
        target = self.target(pick)
        for each in several:
            self.transactions[pick % len(self.transactions)].publish(Publish(target, each, "red"))

    @precondition(lambda self: self.transactions and self.held)
    @rule(pick=picks, given_back=st.booleans())
    def accept_in_transaction(self, pick: int, given_back: bool) -> None:
        entry = list(self.held)[pick % len(self.held)]
        queue, consumer = self.held.pop(entry)
        self.transactions[pick % len(self.transactions)].accept(queue, entry, consumer if given_back else None)

    @precondition(lambda self: self.transactions)
    @rule(pick=picks, commit=st.booleans())
    def end_transaction(self, pick: int, commit: bool) -> None:
        transaction = self.transactions.pop(pick % len(self.transactions))
        before = self.written()
        if commit:
            try:
                self.core.resources.commit(transaction, self.core.now_ms)
            except ModelError:
                assert self.written() == before, "refused, but something was written"
            else:
                return
        self.core.resources.roll_back(transaction)
        for queue, entry in transaction.accepted:
            consumer = transaction.consumer_of(entry)
            if isinstance(consumer, Consumer) and not queue.deleted:
                self.held[entry] = queue, consumer

    # --- what must hold

    @invariant()
    def the_books_balance(self) -> None:
        for queue in self.core.catalog.queues.values():
            queue.messages.check_invariants()
            if queue.dispatcher.groups is not None:
                queue.dispatcher.groups.check_invariants()
            for entry in queue.messages:
                held = entry.is_free or isinstance(entry.holder, Consumer | Transaction)
                assert held, "held by a mark that should have passed"

    @invariant()
    def what_consumers_hold_is_theirs(self) -> None:
        for entry, (queue, consumer) in self.held.items():
            assert queue.deleted or entry.holder is consumer

    @invariant()
    def a_key_has_one_available_value(self) -> None:
        for queue in self.core.catalog.queues.values():
            if queue.arguments.last_value_queue_key:
                keys = [entry.header.key for entry in queue.messages if entry.is_free]
                assert len(keys) == len(set(keys))

    @invariant()
    def who_reads_the_log_holds_the_same(self) -> None:
        self.core.read()
        self.backup.replicated.follow(self.core.records[self.read_to :])
        self.read_to = len(self.core.records)
        for queue in self.backup.catalog.queues.values():
            queue.messages.check_invariants()
        assert self.backup.replicated.log.last_lsn == self.core.log.last_lsn
        assert picture(self.backup.sets) == replicated_picture(self.core.sets)

    @invariant()
    def nothing_is_committed_before_the_witness_says_so(self) -> None:
        assert self.core.log.committed_lsn == self.committed_lsn
        self.committed_lsn = max(self.committed_lsn, self.core.log.last_lsn // 2)
        self.core.log.acknowledge(WITNESS, self.committed_lsn)
        assert self.core.log.committed_lsn == self.committed_lsn

    def teardown(self) -> None:
        if hasattr(self, "core"):
            self.core.check()

    # --- words of the rules

    def queue(self, pick: int) -> Queue:
        queues = list(self.core.catalog.queues.values())
        return queues[pick % len(queues)]

    def target(self, pick: int) -> Queue | Exchange:
        there = self.core.catalog
        targets: list[Queue | Exchange] = [*there.queues.values(), *there.exchanges.values()]
        if not targets:
            return self.core.queue("a")
        return targets[pick % len(targets)]

    def written(self) -> tuple[int, int]:
        return self.core.log.last_lsn, self.core.resources.sets.local_log.last_lsn

    def attempt(self, command: Callable[[], object]) -> None:
        """Do it, or be refused and have changed nothing."""
        before = self.written()
        try:
            command()
        except ModelError:
            assert self.written() == before, "refused, but something was written"

    def delivered(self, consumer: Consumer, queue: Queue, entry: Entry) -> None:
        assert entry.header.due_at_ms <= self.core.now_ms, "before its time"
        if consumer.browsing:
            self.browsed[consumer, entry.id] += 1
            assert self.browsed[consumer, entry.id] == 1, "a browser sees each message once"
            return
        assert entry not in self.held, "given to two consumers"
        assert entry.holder is consumer
        assert consumer.accepts is None or consumer.accepts(entry.resident_body())
        self.held[entry] = queue, consumer

    def nobody_waits_for_what_is_there(self) -> None:
        for consumer, queue in self.consumers.items():
            if queue.deleted or consumer.browsing or consumer.credit <= 0 or consumer.window_bytes <= 0:
                continue
            waiting = [e for e in queue.messages if e.holder is None and e.header.expires_at_ms == 0]
            accepts = consumer.accepts
            may = [e for e in waiting if may_be_given(queue, consumer, e)]
            left = [e.id for e in may if accepts is None or accepts(e.resident_body())]
            assert left == [], f"a consumer of {queue.name} has credit, and nobody gives it what is there"


def may_be_given(queue: Queue, consumer: Consumer, entry: Entry) -> bool:
    """Whether no other consumer has its group, or is the only one that is given anything."""
    if queue.dispatcher.has_single_taker and consumer is not queue.dispatcher.active:
        return False
    groups, position = queue.dispatcher.groups, consumer.position
    group = None if groups is None else groups.look(entry).group
    return group is None or (isinstance(position, GroupPosition) and position.may_have(group))


TestCommands = Commands.TestCase
TestCommands.settings = settings(
    max_examples=120, stateful_step_count=60, deadline=None, suppress_health_check=list(HealthCheck)
)


def test_a_log_that_was_read_in_two_halves_gives_the_same_state() -> None:
    core = Core()
    queue = core.queue("q", max_count=5, policy_type="ring")
    core.publish(queue, *"abcdefgh")
    first = core.replayed()
    half = len(core.records)
    core.consume(queue, 3)
    core.tick(after_ms=NOW_MS)
    core.read()
    for record in core.records[half:]:
        first.replicated.follow([record])
    assert picture(first) == picture(core.replayed()) == picture(core.sets)


plain = st.builds(message, texts, priority=priorities, durable=st.booleans())
arrivals = st.tuples(st.integers(0, 2), st.lists(plain | numbered, min_size=1, max_size=4), st.booleans())


@settings(max_examples=100, deadline=None)
@given(
    arguments=st.sampled_from(list(kinds.values())),
    steps=st.lists(arrivals, min_size=1, max_size=8),
    cut=st.integers(1, 7),
)
def test_records_that_are_followed_together_count_as_each_by_itself(
    arguments: dict[str, Scalar], steps: list[tuple[int, list[Message], bool]], cut: int
) -> None:
    core, together, alone = Core(), Resources(TextReader()), Resources(TextReader())
    core.resources.deduplication.producers = 2
    queues = core.configuration.declare_queue("a", arguments), core.queue("b")
    targets = (*queues, core.exchange("x", "fanout", *queues))
    for which, sent, takes in steps:
        for each in sent:
            with suppress(ModelError):
                core.publish(targets[which], each)
        if takes:
            core.consume(queues[which % 2], 2)
    core.read()
    for at in range(0, len(core.records), cut):
        together.replicated.follow(core.records[at : at + cut])
    for record in core.records:
        alone.replicated.follow([record])
    assert together.replicated.log.last_lsn == alone.replicated.log.last_lsn == core.log.last_lsn
    assert picture(together.sets) == picture(alone.sets) == picture(core.sets)


def test_records_that_are_followed_together_count_up_to_the_one_that_does_not_fit() -> None:
    core, backup = Core(), Resources(TextReader())
    queue = core.queue("q")
    core.publish(queue, *"abc")
    core.read()
    *_, last = core.records
    nowhere = LogRecord(last.lsn + 1, Enqueued((99,), b"", True, 4, 0, ""), False)
    behind = LogRecord(last.lsn + 2, Enqueued((queue.id,), b"d", True, 4, 0, ""), False)
    with pytest.raises(ReplayError):
        backup.replicated.follow([*core.records, nowhere, behind])
    assert backup.replicated.log.last_lsn == last.lsn
    assert picture(backup.sets) == picture(core.sets)


@settings(max_examples=100, deadline=None)
@given(
    arguments=st.sampled_from(list(kinds.values())),
    runs=st.lists(st.tuples(st.lists(texts, min_size=1, max_size=5), st.booleans(), priorities), max_size=6),
    taken=st.integers(0, 3),
)
def test_messages_that_come_together_are_there_as_if_each_had_come_by_itself(
    arguments: dict[str, Scalar], runs: list[tuple[list[str], bool, int]], taken: int
) -> None:
    together, alone = Core(), Core()
    seen: dict[Core, list[object]] = {together: [], alone: []}
    for core, told in seen.items():
        queue = core.configuration.declare_queue("q", arguments)
        for bodies_of_run, durable, priority in runs:
            parts = [bodies_of_run] if core is together else [[body] for body in bodies_of_run]
            for part in parts:
                held = core.resources.sets.holding(queue)
                told += held.enqueue_plain((queue,), [message(body).payload for body in part], durable, priority)
            told += core.consume(queue, taken)
    assert seen[together] == seen[alone]
    assert together.read() == alone.read()
    assert picture(together.sets) == picture(alone.sets)


@settings(max_examples=100, deadline=None)
@given(
    runs=st.lists(st.tuples(st.lists(texts, min_size=1, max_size=5), st.booleans(), priorities), max_size=6),
    arguments=st.lists(st.sampled_from([kinds[name] for name in ("fifo", "priority", "single")]), max_size=3),
    expires=st.booleans(),
)
def test_messages_that_an_exchange_brings_together_are_there_as_if_each_had_come_by_itself(
    runs: list[tuple[list[str], bool, int]], arguments: list[dict[str, Scalar]], expires: bool
) -> None:
    together, alone = Core(), Core()
    expires_at_ms = NOW_MS + SECOND if expires else 0
    for core in (together, alone):
        named = enumerate([kinds["fifo"], *arguments])
        queues = [core.configuration.declare_queue(f"q{number}", each) for number, each in named]
        exchange = core.exchange("x", "fanout", *queues)
        consumers = [core.consumer(queue) for queue in queues]
        for bodies_of_run, durable, priority in runs:
            payloads = [message(body).payload for body in bodies_of_run]
            if core is together:
                held = core.resources.sets.holding(queues[0])
                held.enqueue_plain(queues, payloads, durable, priority, expires_at_ms)
            else:
                core.publish(exchange, *[Message(payload, durable, priority, expires_at_ms) for payload in payloads])
            for queue, consumer in zip(queues, consumers, strict=True):
                core.take(queue, consumer, 2)
    assert together.read() == alone.read()
    assert picture(together.sets) == picture(alone.sets)


@settings(max_examples=100, deadline=None)
@given(
    arguments=st.sampled_from(list(kinds.values())),
    sent=st.lists(plain | messages, min_size=1, max_size=12),
    asked=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 60), st.integers(0, 2)), min_size=1, max_size=6),
)
def test_who_takes_whatever_comes_gets_what_one_gets_who_looks_at_each(
    arguments: dict[str, Scalar], sent: list[Message], asked: list[tuple[int, int, int]]
) -> None:
    """Consumers that want everything are given runs; one that is asked about each message is not."""
    quick, careful = Core(), Core()
    seen: dict[Core, list[object]] = {quick: [], careful: []}
    for core, told in seen.items():
        queue = core.configuration.declare_queue("q", arguments)
        accepts = None if core is quick else _anything
        consumer = core.consumer(queue, accepts=accepts)
        for each in sent:
            with suppress(ModelError):
                core.publish(queue, each)
        for credit, window_bytes, back in asked:
            core.give_credit(queue, consumer, credit, window_bytes)
            core.hand_out()
            entries = core.inbox(consumer)
            told += [(entry.id, entry.body) for entry in entries]
            told.append((consumer.credit, consumer.window_bytes))
            consumer.credit = 0
            if entries and back:
                core.resources.release(queue, entries[-back:], failed=False)
            if entries[: -back or None]:
                core.resources.accept(queue, entries[: -back or None])
    assert seen[quick] == seen[careful]
    assert picture(quick.sets) == picture(careful.sets)


def _anything(_body: bytes) -> bool:
    return True


@settings(max_examples=150, deadline=None)
@given(arguments=st.sampled_from(list(kinds.values())), sent=st.lists(messages | numbered, min_size=1, max_size=12))
def test_the_short_way_of_a_publisher_does_what_the_long_way_does(
    arguments: dict[str, Scalar], sent: list[Message]
) -> None:
    """`enqueue_plain` is `publish` for what needs no plan: the same events, the same state, the same refusals."""
    short, long = Core(), Core()
    outcomes: dict[Core, list[str]] = {short: [], long: []}
    for core, told in outcomes.items():
        queue = core.configuration.declare_queue("q", arguments)
        consumer = core.consumer(queue)
        for each in sent:
            try:
                if core is short or each.producer:
                    core.resources.publish(queue, each, core.now_ms)
                else:
                    core.resources.carry_out(core.resources.plan((queue,), each, core.now_ms, routed=False), [])
                told.append("taken")
            except ModelError as error:
                told.append(str(error))
        told += bodies(core.take(queue, consumer, credit=5))
    assert outcomes[short] == outcomes[long]
    assert short.read() == long.read()
    assert picture(short.sets) == picture(long.sets)
