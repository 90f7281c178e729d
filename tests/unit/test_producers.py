"""Stories about producers that number their messages: what is sent twice is queued once."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_support import WITNESS, Core, bodies, transaction_of
from numbered import dropped, known, numbered
from qpid_ha_broker.events.codec import encode
from qpid_ha_broker.events.types import Enqueued, NumbersRefused, ProducerAdvanced, TransactionCommitted
from qpid_ha_broker.ha.objects import ObjectsError, objects_frame, read_objects
from qpid_ha_broker.model.errors import (
    LimitReached,
    NotEnoughReplicas,
    NotPrimary,
    NumberTooHigh,
    QueueFull,
    RefusedBefore,
)
from qpid_ha_broker.model.queues.queue import Queue
from qpid_ha_broker.model.sets.resources import publish_numbered
from qpid_ha_broker.model.transactions.producers import (
    MOST_AHEAD,
    Producers,
    client_producer,
    name_of,
    owner_of,
    relayed_producer,
)
from qpid_ha_broker.model.transactions.transaction import Message

# --- one message


def test_what_is_sent_twice_is_queued_once_and_counted() -> None:
    core = Core()
    queue = core.queue("q")
    core.publish(queue, numbered(1), numbered(2), numbered(2), numbered(1), numbered(5))
    assert bodies(queue.messages) == ["p1", "p2", "p5"]
    assert dropped(core) == 2
    core.check()


def test_numbers_need_not_be_dense_and_begin_anywhere_even_at_zero() -> None:
    core = Core()
    queue = core.queue("q")
    core.publish(queue, numbered(0), numbered(0), numbered(2**63 - 1), numbered(7))
    assert bodies(queue.messages) == ["p0", f"p{2**63 - 1}"]


def test_each_producer_has_numbers_of_its_own_whatever_queue_it_sends_to() -> None:
    core = Core()
    q, r = core.queue("q"), core.queue("r")
    core.publish(q, numbered(1, "a"), numbered(1, "b"))
    core.publish(r, numbered(1, "a"), numbered(2, "a"))
    assert bodies(q.messages) == ["a1", "b1"]
    assert bodies(r.messages) == ["a2"]


def test_a_message_and_the_number_of_its_producer_are_one_unit() -> None:
    core = Core()
    queue = core.queue("q")
    core.read()
    core.publish(queue, numbered(3))
    enqueued, advanced, committed = core.read()
    assert isinstance(enqueued, Enqueued)
    assert advanced == ProducerAdvanced(b"p", 3, 10_000)
    assert committed == TransactionCommitted(2)
    assert [record.part for record in core.records[-3:]] == [True, True, False]


def test_a_message_without_a_number_writes_what_it_always_did() -> None:
    core = Core()
    queue = core.queue("q")
    core.read()
    core.publish(queue, "m", "m")
    assert [type(event) for event in core.read()] == [Enqueued, Enqueued]


def test_a_duplicate_waits_for_the_original_and_for_all_before_it() -> None:
    core = Core()
    queue = core.queue("q")
    original = core.publish(queue, numbered(1))
    assert core.publish(queue, numbered(1)) == original == core.log.last_lsn
    core.publish(queue, "another")
    again = core.resources.publish(queue, numbered(1), core.now_ms)
    assert again.lsn > core.log.committed_lsn
    core.log.acknowledge(WITNESS, core.log.last_lsn)
    assert again.is_committed
    assert dropped(core) == 2


def test_a_numbered_message_is_kept_like_a_durable_one_and_another_as_it_says() -> None:
    core = Core()
    queue = core.queue("q")
    core.publish(queue, numbered(1), "plain")
    assert [entry.header.durable for entry in queue.messages] == [True, False]


# --- exchanges


def test_a_duplicate_is_not_routed() -> None:
    core = Core()
    q, r = core.queue("q"), core.queue("r")
    exchange = core.exchange("e", "fanout", q)
    core.publish(exchange, numbered(1))
    core.configuration.bind("e", "r", "", {})
    core.configuration.unbind("e", "q", "")
    core.publish(exchange, numbered(1))
    assert (q.messages.count, r.messages.count, core.resources.unroutable_total, dropped(core)) == (1, 0, 0, 1)


def test_what_no_queue_takes_is_not_remembered() -> None:
    core = Core()
    exchange, queue = core.exchange("e"), core.queue("q")
    lsn = core.log.last_lsn
    core.publish(exchange, numbered(1))
    assert (core.log.last_lsn, known(core)) == (lsn, {})
    core.configuration.bind("e", "q", "", {})
    core.publish(exchange, numbered(1), numbered(1))
    assert bodies(queue.messages) == ["p1"]


# --- refusals


def test_what_is_refused_is_not_remembered() -> None:
    core = Core()
    queue = core.queue("q", max_count=1, policy_type="reject")
    core.publish(queue, numbered(1))
    with pytest.raises(QueueFull):
        core.publish(queue, numbered(2))
    assert known(core) == {"p": 1}
    core.consume(queue)
    core.publish(queue, numbered(2))
    assert bodies(queue.messages) == ["p2"]


def test_a_duplicate_is_not_refused_for_what_would_refuse_a_new_message() -> None:
    core = Core()
    queue = core.queue("q", max_count=1, policy_type="reject")
    core.publish(queue, numbered(1))
    core.publish(queue, numbered(1))
    core.resources.replication.refusal = NotEnoughReplicas("one is missing")
    core.publish(queue, numbered(1))
    core.publish(core.exchange("e", "fanout", queue), numbered(1))
    assert dropped(core) == 3
    core.configuration.delete_queue("q")
    core.publish(queue, numbered(1))
    assert dropped(core) == 4


def test_who_may_not_write_accepts_no_duplicate_either() -> None:
    core = Core()
    queue = core.queue("q")
    core.publish(queue, numbered(1))
    exchange = core.exchange("e", "fanout", queue)
    core.resources.replication.read_only = "a backup"
    for target in (queue, exchange):
        with pytest.raises(NotPrimary):
            core.publish(target, numbered(1))
    assert dropped(core) == 0


# --- transactions


def test_a_transaction_brings_what_is_new_of_it_and_advances_with_its_commit() -> None:
    core = Core()
    queue = core.queue("q")
    core.publish(queue, numbered(1))
    core.read()
    work = transaction_of((queue, numbered(1)), (queue, numbered(2)), (queue, numbered(2)), (queue, numbered(3)))
    assert known(core) == {"p": 1}
    core.resources.commit(work, core.now_ms)
    assert bodies(queue.messages) == ["p1", "p2", "p3"]
    assert (known(core), dropped(core)) == ({"p": 3}, 2)
    assert [type(event) for event in core.read()] == [Enqueued, Enqueued, ProducerAdvanced, TransactionCommitted]
    core.check()


def test_a_rollback_advances_nothing() -> None:
    core = Core()
    queue = core.queue("q")
    core.resources.roll_back(transaction_of((queue, numbered(1))))
    assert known(core) == {}
    core.publish(queue, numbered(1))
    assert bodies(queue.messages) == ["p1"]


def test_a_transaction_that_is_refused_advances_and_counts_nothing() -> None:
    core = Core()
    queue, small = core.queue("q"), core.queue("small", max_count=1, policy_type="reject")
    core.publish(small, numbered(1))
    work = transaction_of((queue, numbered(1)), (queue, numbered(2)), (small, numbered(3)))
    with pytest.raises(QueueFull):
        core.resources.commit(work, core.now_ms)
    assert (known(core), dropped(core), queue.messages.count) == ({"p": 1}, 0, 0)


def test_what_others_sent_while_a_transaction_was_open_is_known_at_its_commit() -> None:
    core = Core()
    queue = core.queue("q")
    work = transaction_of((queue, numbered(1)))
    core.publish(queue, numbered(1))
    lsn = core.log.last_lsn
    assert core.resources.commit(work, core.now_ms).lsn == lsn == core.log.last_lsn
    assert (bodies(queue.messages), dropped(core)) == (["p1"], 1)


def test_a_commit_with_a_duplicate_waits_for_the_original_whatever_else_it_writes() -> None:
    core = Core()
    core.resources.sets.local_log.add_witness(WITNESS)
    queue, local = core.queue("q"), core.queue("local", replicate="none")
    core.publish(queue, numbered(1))
    token = core.resources.commit(transaction_of((queue, numbered(1)), (local, "new")), core.now_ms)
    core.resources.sets.local_log.acknowledge(WITNESS, core.resources.sets.local_log.last_lsn)
    assert not token.is_committed
    core.log.acknowledge(WITNESS, core.log.last_lsn)
    assert token.is_committed


# --- how many are remembered


def test_who_was_idle_longest_is_forgotten_first() -> None:
    core = Core()
    queue = core.queue("q")
    core.resources.deduplication.producers = 2
    core.publish(queue, numbered(1, "a"), numbered(1, "b"), numbered(2, "a"), numbered(1, "c"))
    assert known(core) == {"a": 2, "c": 1}
    core.publish(queue, numbered(1, "b"))
    assert queue.messages.count == 5
    core.check()


def test_the_one_who_writes_decides_how_many_are_remembered_by_all() -> None:
    core = Core()
    queue = core.queue("q")
    core.publish(queue, *[numbered(1, name) for name in "abcde"])
    core.resources.deduplication.producers = 2
    core.publish(queue, numbered(1, "f"))
    backup = core.followed()
    backup.deduplication.producers = 50
    assert backup.replicated.state.producers.items() == core.state.producers.items()
    assert known(core) == {"e": 1, "f": 1}


def test_with_none_to_remember_numbers_mean_nothing() -> None:
    core = Core()
    queue = core.queue("q")
    core.resources.deduplication.producers = 0
    core.read()
    core.publish(queue, numbered(1), numbered(1))
    core.resources.commit(transaction_of((queue, numbered(1)), (queue, numbered(1))), core.now_ms)
    assert (queue.messages.count, dropped(core), known(core)) == (4, 0, {})
    assert [entry.header.durable for entry in queue.messages] == [False] * 4


def test_a_table_that_does_not_follow_from_a_log_is_noticed() -> None:
    producers = Producers()
    producers.advanced(7, ProducerAdvanced(b"a", 1, 10))
    producers.advanced(5, ProducerAdvanced(b"b", 1, 10))
    with pytest.raises(AssertionError, match="order"):
        producers.check_invariants(7)
    producers.forget_after(5)
    producers.check_invariants(5)
    with pytest.raises(AssertionError, match="up to 4"):
        producers.check_invariants(4)


# --- refused, and then a later one is accepted


def refusing(core: Core, queue: Queue, *sequences: int) -> None:
    """They are refused, as the publisher's link notes."""
    for sequence in sequences:
        with pytest.raises(QueueFull):
            core.publish(queue, numbered(sequence))
        core.resources.deduplication.note_refused(b"p", sequence)


def test_a_number_that_was_refused_is_no_duplicate_of_a_later_one() -> None:
    core = Core()
    queue = core.queue("q", max_count=1)
    core.publish(queue, numbered(1))
    refusing(core, queue, 2, 3)
    core.purge(queue)
    core.read()
    core.publish(queue, numbered(4))
    assert core.read()[1:] == [ProducerAdvanced(b"p", 4, 10_000), NumbersRefused(b"p", (2, 3)), TransactionCommitted(3)]
    core.purge(queue)
    for sequence in (2, 3):
        with pytest.raises(RefusedBefore, match=f"message {sequence} .* new number"):
            core.publish(queue, numbered(sequence))
        with pytest.raises(RefusedBefore):
            core.resources.commit(transaction_of((queue, numbered(sequence))), core.now_ms)
    core.publish(queue, numbered(1), numbered(4), numbered(5))
    assert (bodies(queue.messages), dropped(core)) == (["p5"], 2)
    core.check()


def test_who_follows_the_log_or_is_given_the_table_knows_what_was_refused() -> None:
    core = Core()
    queue = core.queue("q", max_count=1)
    core.publish(queue, numbered(1, "other"))
    refusing(core, queue, 1)
    core.purge(queue)
    core.publish(queue, numbered(2))
    backup = core.followed()
    assert backup.replicated.state.producers.refused(b"p") == (1,)
    assert list(backup.replicated.state.producers.events()) == list(core.state.producers.events())
    objects = read_objects(objects_frame(core.state, 1, core.log.last_lsn))
    assert objects.refused == [NumbersRefused(b"p", (1,))]
    strange = objects.frame._replace(data=objects.frame.data + encode(1, NumbersRefused(b"nobody", (1,))))
    with pytest.raises(ObjectsError, match="nobody"):
        read_objects(strange)


def test_a_refused_number_that_is_tried_again_before_anything_later_has_its_own_outcome() -> None:
    core = Core()
    queue = core.queue("q", max_count=1)
    core.publish(queue, numbered(1))
    refusing(core, queue, 2, 3)
    core.purge(queue)
    core.publish(queue, numbered(3))
    assert core.state.producers.refused(b"p") == (2,), "3 was taken in the end"
    assert bodies(queue.messages) == ["p3"]


def test_what_another_primary_accepted_meanwhile_was_not_refused() -> None:
    core = Core()
    queue = core.queue("q", max_count=1)
    core.publish(queue, numbered(1))
    refusing(core, queue, 2)
    core.resources.replication.became_read_only()
    core.purge(queue)
    core.publish(queue, numbered(4))
    assert core.state.producers.refused(b"p") == ()
    deduplication = core.resources.deduplication
    deduplication.note_refused(b"p", 4)
    deduplication.note_refused(b"", 5)
    assert deduplication.take_refused({b"p": 6, b"": 6}) == []


def test_of_refused_numbers_the_highest_are_kept_and_none_of_who_is_forgotten() -> None:
    producers = Producers()
    producers.advanced(1, ProducerAdvanced(b"a", 5000, 2))
    producers.were_refused(NumbersRefused(b"a", tuple(range(0, 2400, 2))))
    producers.were_refused(NumbersRefused(b"a", (1, 4999, 5000)))
    assert producers.refused(b"a") == (*range(402, 2400, 2), 4999)
    producers.check_invariants(1)
    producers.advanced(2, ProducerAdvanced(b"b", 9, 1))
    assert producers.refused(b"a") == ()
    for number in range(40):
        producers.advanced(3 + number, ProducerAdvanced(b"%d" % number, 1000, 100))
        producers.were_refused(NumbersRefused(b"%d" % number, tuple(range(1000))))
    assert [len(producers.refused(b"%d" % number)) for number in range(40)] == [0] * 20 + [1000] * 20
    producers.check_invariants(100)
    producers.forget_after(41)
    assert (producers.refused(b"39"), len(producers.refused(b"38"))) == ((), 1000)
    producers.check_invariants(100)


# --- many messages in one unit, as a proxy's come


@pytest.mark.parametrize("lives_ms", [(0, 0, 0, 0), (1000, 1000, 0, 5000), (5000, 1000, 1000, 0)])
@pytest.mark.parametrize("sequences", [(4,), (4, 5, 9), (1, 2, 3, 4), (2, 3)])
def test_the_short_way_for_a_plain_queue_writes_and_leaves_what_the_long_one_does(
    sequences: tuple[int, ...], lives_ms: tuple[int, ...]
) -> None:
    plain, limited = Core(), Core()
    found: list[tuple[object, ...]] = []
    for core, queue in ((plain, plain.queue("q")), (limited, limited.queue("q", max_count=1000))):
        core.publish(queue, numbered(3))
        core.read()
        times_ms = [core.now_ms + life_ms if life_ms else 0 for life_ms in lives_ms]
        messages = [
            numbered(each)._replace(expires_at_ms=at_ms) for each, at_ms in zip(sequences, times_ms, strict=False)
        ]
        came = publish_numbered(core.resources, queue, messages, core.now_ms)
        figures = bodies(queue.messages), core.catalog.memory_bytes, queue.messages.size, known(core), dropped(core)
        found.append((came.lsn, core.read(), [record.part for record in core.records], figures))
        core.tick(2000)
        found[-1] += (bodies(queue.messages), len(queue.messages.expiries))
        core.check()
    assert found[0] == found[1]


def test_a_consumer_is_served_what_came_the_short_way() -> None:
    core = Core(witness=False)
    queue = core.queue("q")
    consumer = core.consumer(queue)
    core.give_credit(queue, consumer)
    core.hand_out()
    publish_numbered(core.resources, queue, [numbered(1), numbered(2)], core.now_ms)
    core.hand_out()
    assert [entry.body for entry in core.inbox(consumer)] == [numbered(1).payload, numbered(2).payload]


# --- whose names they are


def owned(sequence: int, user: str, name: str = "p") -> Message:
    return numbered(sequence, name)._replace(producer=client_producer(user, name.encode()))


def test_a_key_has_one_owner_and_one_name() -> None:
    keys = [client_producer("a", b"bc"), client_producer("ab", b"c"), relayed_producer("a", b"bc"), b"bc"]
    assert len(set(keys)) == len({owner_of(key) for key in keys}) == 4
    assert [name_of(key) for key in keys] == [b"bc", b"c", b"bc", b"bc"]


def test_a_name_that_an_older_release_wrote_is_taken_over_by_who_says_it() -> None:
    """It wrote the name without a user: who sends its unconfirmed messages again after an upgrade is known."""
    core = Core()
    queue = core.queue("q", max_count=1)
    core.publish(queue, numbered(2))
    refusing(core, queue, 3)
    core.purge(queue)
    core.publish(queue, numbered(4))
    core.purge(queue)
    core.publish(queue, owned(2, "alice"), owned(4, "alice"))
    with pytest.raises(RefusedBefore):
        core.publish(queue, owned(3, "alice"))
    core.publish(queue, owned(5, "alice"))
    assert (bodies(queue.messages), dropped(core)) == (["p5"], 2)
    core.publish(queue, numbered(4))
    assert core.resources.deduplication.highest(b"p") == 4, "nobody but its owner has come further"


@pytest.mark.parametrize("in_a_transaction", [False, True])
def test_a_number_far_ahead_is_refused_whatever_way_it_comes(in_a_transaction: bool) -> None:
    core = Core()
    queue = core.queue("q")
    highest, too_high = owned(7, "alice"), owned(8 + MOST_AHEAD, "alice")
    if in_a_transaction:
        with pytest.raises(NumberTooHigh):
            core.resources.commit(transaction_of((queue, highest), (queue, too_high)), core.now_ms)
        assert len(core.state.producers) == 0
    core.publish(queue, highest)
    with pytest.raises(NumberTooHigh):
        core.publish(queue, too_high)
    core.resources.deduplication.note_refused(too_high.producer, too_high.sequence)
    core.publish(queue, owned(7 + MOST_AHEAD, "alice"))
    assert core.state.producers.refused(highest.producer) == ()


def test_a_proxys_numbers_may_leap() -> None:
    core = Core()
    queue = core.queue("q")
    for sequence in (1, 1 << 60):
        core.publish(queue, numbered(sequence)._replace(producer=relayed_producer("alice", b"proxy/1")))
    assert queue.messages.count == 2


def test_one_users_refused_numbers_push_out_none_of_another_user() -> None:
    producers = Producers()
    alice = client_producer("alice", b"p")
    producers.advanced(1, ProducerAdvanced(alice, 1000, 100))
    producers.were_refused(NumbersRefused(alice, (3, 4)))
    for number in range(40):
        mallory = client_producer("mallory", b"%d" % number)
        producers.advanced(2 + number, ProducerAdvanced(mallory, 1000, 100))
        producers.were_refused(NumbersRefused(mallory, tuple(range(1000))))
    assert producers.refused(alice) == (3, 4)
    producers.check_invariants(100)


def test_refusals_that_are_not_written_yet_push_out_none_of_another_user() -> None:
    core = Core()
    queue = core.queue("q")
    deduplication, alice = core.resources.deduplication, owned(7, "alice")
    deduplication.note_refused(alice.producer, 5)
    for number in range(30_000):
        deduplication.note_refused(client_producer("mallory", b"%d" % (number % 100)), number)
    core.publish(queue, alice)
    assert core.state.producers.refused(alice.producer) == (5,)


def test_of_too_many_the_owner_with_most_loses_the_idlest() -> None:
    producers = Producers(most=4)
    for lsn, (user, name) in enumerate([("few", "a"), ("many", "a"), ("many", "b"), ("many", "c"), ("new", "a")], 1):
        producers.advanced(lsn, ProducerAdvanced(client_producer(user, name.encode()), 1, 10))
    left = {client_producer(*each) for each in (("few", b"a"), ("many", b"b"), ("many", b"c"), ("new", b"a"))}
    assert {producer for producer, _ in producers.items()} == left
    producers.check_invariants(5)


_KEYS = st.builds(client_producer, st.sampled_from("ab"), st.sampled_from([b"1", b"2", b"3", b"4"])) | st.sampled_from(
    [b"1", b"2"]
)


@given(st.lists(_KEYS, max_size=12), st.lists(_KEYS, max_size=6, unique=True), st.integers(1, 4), st.integers(2, 7))
def test_who_will_be_pushed_out_is_who_is(before: list[bytes], coming: list[bytes], kept: int, most: int) -> None:
    producers = Producers(most)
    for lsn, producer in enumerate(before, 1):
        producers.advanced(lsn, ProducerAdvanced(producer, 1, 4))
    foreseen = producers.pushed_out_by(coming, kept)
    sizes = Counter(owner_of(producer) for producer, _ in producers.items())
    new = Counter(owner_of(producer) for producer in coming if producers.sequence_of(producer) < 0)
    idle = {owner: list(producers.idle(owner)) for owner in sizes}
    if any(producer in idle.get(owner_of(producer), [])[: foreseen.get(owner_of(producer), 0)] for producer in coming):
        return  # it is written again before: see `room_for`
    for lsn, producer in enumerate(coming, 100):
        producers.advanced(lsn, ProducerAdvanced(producer, 2, kept))
        producers.check_invariants(lsn)
    left = Counter(owner_of(producer) for producer, _ in producers.items())
    if all(count + new[owner] - foreseen.get(owner, 0) >= 0 for owner, count in sizes.items()):
        assert {owner: sizes[owner] + new[owner] - left[owner] for owner in {*sizes, *new}} == {
            owner: foreseen.get(owner, 0) for owner in {*sizes, *new}
        }


@given(st.lists(st.tuples(_KEYS, st.booleans()), max_size=30))
def test_what_is_live_is_remembered_and_a_backup_remembers_the_same(steps: list[tuple[bytes, bool]]) -> None:
    core = Core()
    queue = core.queue("q")
    core.resources.deduplication.producers = 3
    live: set[bytes] = set()
    core.resources.deduplication.is_live = live.__contains__
    for number, (producer, is_kept) in enumerate(steps, 1):
        try:
            core.publish(queue, numbered(number)._replace(producer=producer))
        except LimitReached:
            continue
        if is_kept and len(live) < 2:
            live.add(producer)
        assert all(core.state.producers.sequence_of(each) >= 0 for each in live)
    core.check()
    assert core.followed().replicated.state.producers.items() == core.state.producers.items()
