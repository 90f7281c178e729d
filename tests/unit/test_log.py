"""Stories about witnesses: nothing counts as told before all of them have seen it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from model_support import NOW_MS, WITNESS, Core, message, read_batch, transaction_of
from qpid_ha_broker.events.codec import LogRecord, decode
from qpid_ha_broker.events.types import Enqueued, Event, QueueDeleted, TransactionCommitted
from qpid_ha_broker.model.logs.log import CommitToken, Log


def event_of(number: int) -> Event:
    return QueueDeleted(number)


def log_with(*witnesses: str) -> Log:
    log = Log()
    for name in witnesses:
        log.add_witness(name)
    return log


def write(log: Log, count: int) -> None:
    for number in range(count):
        log.append(event_of(number))


def test_with_nobody_listening_what_is_written_is_committed() -> None:
    log = Log(last_lsn=41)
    assert log.append(event_of(1)) == log.last_lsn == log.committed_lsn == 42
    assert log.take_batch() is None


def test_a_witness_that_acknowledges_later_holds_back_what_is_committed() -> None:
    log = log_with("store")
    write(log, 5)
    assert log.committed_lsn == 0
    log.acknowledge("store", 3)
    assert log.committed_lsn == 3
    log.acknowledge("store", 5)
    assert log.committed_lsn == log.last_lsn


def test_the_slowest_of_several_witnesses_decides_in_whichever_order_they_answer() -> None:
    log = log_with("store", "backup", "group")
    write(log, 10)
    seen = []
    for name, lsn in (("group", 10), ("store", 4), ("backup", 7), ("store", 9), ("backup", 10), ("store", 10)):
        log.acknowledge(name, lsn)
        seen.append(log.committed_lsn)
    assert seen == [0, 0, 4, 7, 9, 10]


def test_an_older_acknowledgement_that_comes_late_takes_nothing_back() -> None:
    log = log_with("store")
    write(log, 5)
    log.acknowledge("store", 5)
    log.acknowledge("store", 2)
    assert log.committed_lsn == 5


def test_without_the_witness_that_was_removed_the_others_decide() -> None:
    log = log_with("store", "backup")
    write(log, 5)
    log.acknowledge("store", 4)
    assert log.committed_lsn == 0
    log.remove_witness("backup")
    assert log.committed_lsn == 4
    assert len(read_batch(log)) == 5
    with pytest.raises(KeyError):
        log.acknowledge("backup", 5)
    log.remove_witness("store")
    assert log.committed_lsn == 5


def test_when_the_last_witness_goes_nothing_is_kept_for_nobody() -> None:
    log = log_with("store")
    write(log, 5)
    log.remove_witness("store")
    write(log, 5)
    assert log.take_batch() is None
    log.add_witness("backup")
    log.append(event_of(7))
    assert [record.lsn for record in read_batch(log)] == [11]


def test_a_new_witness_answers_for_what_comes_after_it() -> None:
    log = log_with("store")
    write(log, 5)
    log.acknowledge("store", 5)
    log.add_witness("backup")
    assert log.committed_lsn == 5
    write(log, 1)
    log.acknowledge("store", 6)
    assert log.committed_lsn == 5
    with pytest.raises(ValueError, match="backup"):
        log.add_witness("backup")


def test_a_witness_that_claims_to_have_seen_the_future_is_refused() -> None:
    log = log_with("store")
    write(log, 1)
    with pytest.raises(ValueError, match="store acknowledged LSN 2, but the log ends at 1"):
        log.acknowledge("store", 2)
    assert log.committed_lsn == 0


def test_each_batch_is_what_was_written_since_the_last_one() -> None:
    log = log_with("store")
    write(log, 3)
    assert [record.lsn for record in read_batch(log)] == [1, 2, 3]
    assert log.take_batch() is None
    write(log, 1)
    assert [record.lsn for record in read_batch(log)] == [4]


def test_a_unit_is_its_parts_and_what_closes_it() -> None:
    log = log_with("store")
    write(log, 1)
    events = [event_of(7), event_of(8)]
    assert log.append_unit(events) == [2, 3]
    assert read_batch(log)[1:] == [
        LogRecord(2, events[0], True),
        LogRecord(3, events[1], True),
        LogRecord(4, TransactionCommitted(2), False),
    ]


steps = st.lists(
    st.one_of(
        st.tuples(st.just("write"), st.integers(1, 3)),
        st.tuples(st.just("unit"), st.integers(1, 3)),
        st.tuples(st.just("take"), st.just(0)),
        st.tuples(st.just("acknowledge"), st.integers(0, 100)),
        st.tuples(st.sampled_from(["join", "leave"]), st.integers(0, 2)),
    ),
    max_size=60,
)


@given(steps)
def test_a_batch_holds_exactly_what_was_written_and_committed_never_goes_back(steps: list[tuple[str, int]]) -> None:
    log = log_with("always")
    seen: dict[str, int] = {"always": 0}
    written: list[LogRecord] = []
    read: list[LogRecord] = []
    committed = 0
    for number, (kind, argument) in enumerate(steps):
        name = f"w{argument}"
        if kind == "write":
            written += [LogRecord(log.append(event_of(number)), event_of(number), False) for _ in range(argument)]
        elif kind == "unit":
            written += [
                LogRecord(lsn, event_of(number), True) for lsn in log.append_unit([event_of(number)] * argument)
            ]
            written.append(LogRecord(log.last_lsn, TransactionCommitted(argument), False))
        elif kind == "take":
            read += read_batch(log)
        elif kind == "acknowledge":
            name = sorted(seen)[argument % len(seen)]
            lsn = min(argument, log.last_lsn)
            log.acknowledge(name, lsn)
            seen[name] = max(seen[name], lsn)
        elif kind == "join" and name not in seen:
            log.add_witness(name)
            seen[name] = log.last_lsn
        elif kind == "leave" and name in seen:
            log.remove_witness(name)
            del seen[name]
        assert log.committed_lsn == min(seen.values()) >= committed
        committed = log.committed_lsn
    assert read + read_batch(log) == written


# --- the four hooks of a queue


def waits_for(core: Core, token: CommitToken) -> bool:
    """Whether `token` is withheld now, and told once the witness has acknowledged exactly that much."""
    core.log.acknowledge(WITNESS, token.lsn - 1)
    withheld = not token.is_committed
    core.log.acknowledge(WITNESS, token.lsn)
    return withheld and token.is_committed


def test_a_publisher_hears_when_the_witness_has_the_message() -> None:
    core = Core()
    queue = core.queue("q")
    assert waits_for(core, core.resources.publish(queue, message("a"), NOW_MS))
    many = core.exchange("all", "fanout", queue, core.queue("brief", message_ttl_ms=1000))
    token = core.resources.publish_to_exchange(many, message("two events, one unit"), "", NOW_MS)
    assert token == core.log.written
    assert waits_for(core, token)


def test_a_consumer_gets_its_message_when_the_witness_knows_that_it_does() -> None:
    core = Core(log_acquisitions=True)
    queue = core.queue("q")
    core.publish(queue, "a")
    core.give_credit(queue, core.consumer(queue))
    (handout,) = core.resources.hand_out(NOW_MS, 10)
    assert waits_for(core, handout.written)
    assert waits_for(core, core.resources.release(queue, handout.entries, failed=False))


def test_a_consumer_is_settled_when_the_witness_has_forgotten_the_message() -> None:
    core = Core()
    queue = core.queue("q")
    core.publish(queue, *"abc")
    consumer = core.consumer(queue)
    assert waits_for(core, core.resources.accept(queue, core.take(queue, consumer, 1)))
    assert waits_for(core, core.resources.release(queue, core.take(queue, consumer, 1), failed=True))
    assert waits_for(core, core.resources.reject(queue, core.take(queue, consumer, 1)))


def test_a_transaction_is_told_when_the_witness_has_all_of_it() -> None:
    core = Core()
    queue = core.queue("q")
    token = core.resources.commit(transaction_of((queue, "a"), (queue, "b")), NOW_MS)
    assert token == core.log.written
    assert waits_for(core, token)


def test_what_a_witness_reads_is_what_was_written_byte_by_byte() -> None:
    core = Core()
    queue = core.queue("q")
    lsn = core.publish(queue, "ä")
    batch = core.log.take_batch()
    assert batch is not None
    declared, enqueued = decode(batch.data).records
    assert declared.lsn == queue.id
    assert enqueued == LogRecord(lsn, Enqueued((queue.id,), ";;ä".encode(), False, 4, 0, ""), False)


def test_a_log_that_was_reset_goes_on_from_there_and_owes_nobody_what_it_had() -> None:
    log = log_with("store")
    write(log, 5)
    log.reset(2)
    assert (log.take_batch(), log.last_lsn, log.committed_lsn) == (None, 2, 2)
    write(log, 1)
    assert [record.lsn for record in read_batch(log)] == [3]
    assert log.committed_lsn == 2
