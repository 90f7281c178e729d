"""Stories about clients' sessions on the bare core: what their consumers hold, and what follows from the log."""

from __future__ import annotations

from random import Random

import pytest

from catchup_support import Pair
from kept_core import KeptCore, recovered
from model_support import NOW_MS, Core, bodies, held_picture, message
from qpid_ha_broker.events import types as ev
from qpid_ha_broker.model.logs.log import COMMITTED
from qpid_ha_broker.model.queues.dispatcher import Handout
from qpid_ha_broker.model.queues.queue import Queue
from qpid_ha_broker.model.queues.sequence import Entry, SessionOwner
from qpid_ha_broker.model.sessions import SessionRegistry
from qpid_ha_broker.model.sets.resources import Resources
from qpid_ha_broker.model.sets.session_messages import held_for, release_held
from qpid_ha_broker.model.sets.state import ReplayError, SetState
from qpid_ha_broker.model.transactions.transaction import Transaction
from session_support import FIRST, SECOND, SessionTaker, session_event, taker


def held(core: Core | Resources, queue: Queue, link: str = "link") -> list[int]:
    """Ids, in the order in which they went out."""
    resources = core.resources if isinstance(core, Core) else core
    return [entry.id for entry in held_for(resources, queue, SessionOwner(1, FIRST, link))]


def taken(core: Core, queue: Queue, count: int, consumer: SessionTaker | None = None) -> list[Entry]:
    return core.take(queue, consumer or taker(core, queue), count)


# --- what is held


def first_of_two_accepted(core: Core) -> tuple[Queue, list[Entry], Transaction]:
    """A session has both messages of a queue, and has accepted the first in a transaction that is open."""
    queue = core.queue("q")
    core.publish(queue, *"ab")
    consumer = taker(core, queue)
    entries = taken(core, queue, 2, consumer)
    transaction = Transaction()
    transaction.accept(queue, entries[0], consumer)
    return queue, entries, transaction


def test_what_a_session_gets_is_written_before_it_goes_out_and_others_pay_nothing() -> None:
    core = Core()
    queue = core.queue("q")
    core.publish(queue, *"abcd")
    plain = core.consumer(queue)
    core.give_credit(queue, plain, 1)
    (other,) = core.resources.hand_out(core.now_ms, 100)
    assert other.written is COMMITTED
    core.read()
    consumer = taker(core, queue)
    core.give_credit(queue, consumer, 2)
    (handout,) = core.resources.hand_out(core.now_ms, 100)
    ids = tuple(entry.id for entry in handout.entries)
    assert core.read() == [ev.SessionAcquired(queue.id, 1, FIRST, "link", ids)]
    assert not handout.written.is_committed
    core.commit()
    assert handout.written.lsn <= core.log.committed_lsn
    core.check()


def test_a_backup_knows_whose_they_are_and_gives_them_to_nobody_else() -> None:
    core = Core()
    queue = core.queue("q")
    core.publish(queue, *"abc")
    ids = [entry.id for entry in taken(core, queue, 2)]
    backup = Core(core.followed(), witness=False)
    there = backup.catalog.queues["q"]
    assert held(backup, there) == ids
    assert backup.consume(there) == ["c"]
    assert bodies(held_for(backup.resources, there, SessionOwner(1, FIRST, "link"))) == ["a", "b"]


@pytest.mark.parametrize("how", ["accept", "reject", "release", "fail", "delete", "transaction"])
def test_what_leaves_or_comes_back_is_held_no_more(how: str) -> None:
    core = Core()
    queue = core.queue("q")
    core.publish(queue, *"abc")
    consumer = taker(core, queue)
    entries = taken(core, queue, 3, consumer)
    gone, kept = entries[:2], [entries[2].id]
    if how in ("accept", "reject"):
        getattr(core.resources, how)(queue, gone)
    elif how == "delete":
        core.configuration.delete_queue("q")
        kept = []
    elif how == "transaction":
        transaction = Transaction()
        for entry in gone:
            transaction.accept(queue, entry, consumer)
        core.resources.commit(transaction, core.now_ms)
    else:
        core.resources.release(queue, gone, failed=how == "fail")
    assert held(core, queue) == kept
    assert len(core.catalog.holdings) == (1 if kept else 0)
    core.check()


def test_a_release_that_counts_no_failure_is_written_for_what_is_held_and_for_nothing_else() -> None:
    core = Core()
    queue = core.queue("q")
    core.publish(queue, *"ab")
    (mine,) = taken(core, queue, 1)
    (plain,) = core.take(queue, core.consumer(queue), 1)
    core.read()
    core.resources.release(queue, [plain], failed=False)
    assert core.read() == []
    core.resources.release(queue, [mine], failed=False)
    assert core.read() == [ev.Released(queue.id, (mine.id,), False)]
    core.check()


def given_to_somebody_without_a_session(core: Core, queue: Queue) -> Handout:
    plain = core.consumer(queue)
    core.give_credit(queue, plain, 2)
    (handout,) = core.resources.hand_out(core.now_ms, 100)
    return handout


def test_what_a_session_gives_back_goes_to_nobody_without_one_before_that_is_committed() -> None:
    """For a next primary that does not know of it the session has it still: two would (seed 9001656 of proxies)."""
    core = Core()
    queue = core.queue("q")
    core.publish(queue, *"ab")
    (mine,) = taken(core, queue, 1)
    core.commit()
    core.resources.release(queue, [mine], failed=False)

    handout = given_to_somebody_without_a_session(core, queue)
    assert bodies(handout.entries) == ["a", "b"]
    assert not handout.written.is_committed
    core.commit()
    assert handout.written.lsn <= core.log.committed_lsn

    core.publish(queue, "c")
    assert given_to_somebody_without_a_session(core, queue).written.is_committed, "nothing was given back since"
    assert not core.catalog.holdings.given_back


def test_who_leads_again_waits_for_nothing_of_his_earlier_lead() -> None:
    """Its log may have ended earlier since, and nothing may come that has that LSN."""
    core = Core()
    queue = core.queue("q")
    core.publish(queue, "a")
    (mine,) = taken(core, queue, 1)
    core.resources.release(queue, [mine], failed=False)
    core.resources.replicated.take_over(NOW_MS, 0)

    assert given_to_somebody_without_a_session(core, queue).written is COMMITTED


def test_a_transaction_that_is_rolled_back_leaves_the_session_what_it_had() -> None:
    core = Core()
    queue, entries, transaction = first_of_two_accepted(core)
    transaction.accept(queue, entries[1], None)  # settled: its client has it no more
    core.resources.roll_back(transaction)
    assert held(core, queue) == [entries[0].id]
    assert core.consume(queue) == ["b"]
    (link,) = core.catalog.holdings
    release_held(core.resources, link, failed=False)
    assert core.consume(queue) == ["a"], "once the session is over it goes to others"
    core.check()


def test_who_had_a_message_has_it_no_more_when_another_link_acquires_it() -> None:
    core = Core()
    queue = core.queue("q")
    core.publish(queue, *"ab")
    a, b = taken(core, queue, 2)
    core.resources.replicated.write(ev.SessionAcquired(queue.id, 1, FIRST, "other", (b.id, a.id)))
    assert held(core, queue) == []
    assert held(core, queue, "other") == [b.id, a.id]
    core.check()


def test_what_an_open_transaction_has_accepted_is_not_given_back_under_it() -> None:
    core = Core()
    queue, _, transaction = first_of_two_accepted(core)
    (link,) = core.catalog.holdings
    release_held(core.resources, link, failed=True)
    assert core.consume(queue) == ["b"]
    core.resources.commit(transaction, core.now_ms)
    assert queue.messages.count == 0
    core.check()


def test_what_was_never_sent_for_a_session_that_ends_does_not_count_and_what_was_seen_does() -> None:
    core = Core()
    queue = core.queue("q")
    core.publish(queue, *"ab")
    sent, kept = taken(core, queue, 2)
    sent.acquired_before = True
    (link,) = core.catalog.holdings
    release_held(core.resources, link, failed=True)
    assert [entry.delivery_count for entry in (sent, kept)] == [1, 0]
    assert kept.acquired_before, "it comes back late"
    core.check()


def test_what_is_held_since_another_broker_led_may_have_been_sent() -> None:
    core = Core()
    queue = core.queue("q")
    core.publish(queue, "a")
    taken(core, queue, 1)
    core = Core(core.followed())
    core.resources.replicated.take_over(core.now_ms, 0)
    (link,) = core.catalog.holdings
    (entry,) = core.catalog.queues["q"].messages
    release_held(core.resources, link, failed=True)
    assert entry.delivery_count == 1


def test_what_a_session_holds_stays_held_where_another_broker_leads_now() -> None:
    core = Core()
    queue = core.queue("q")
    core.publish(queue, *"ab")
    entries = taken(core, queue, 2)
    core.resources.replication.read_only = "another one leads"
    core.resources.accept(queue, entries[:1])
    core.resources.release(queue, entries[1:], failed=True)
    assert held(core, queue) == [entry.id for entry in entries]
    assert all(entry.holder is not None for entry in entries)


def test_messages_are_held_in_the_order_in_which_they_went_out_last() -> None:
    core = Core()
    queue = core.queue("q")
    core.publish(queue, *"abc")
    consumer = taker(core, queue)
    a, b, c = taken(core, queue, 3, consumer)
    core.resources.release(queue, [a], failed=False)
    taken(core, queue, 1, consumer)
    assert held(core, queue) == [b.id, c.id, a.id]
    assert held_picture(core.followed().sets) == held_picture(core.sets)


def test_a_queue_of_which_a_session_holds_messages_keeps_its_level() -> None:
    core = Core()
    queue = core.queue("q")
    core.publish(queue, *"ab")
    taken(core, queue, 1)
    (text,) = core.configuration.set_replication([("q", "none")], "messages")  # type: ignore[list-item,arg-type]
    assert "1 of its messages are held for sessions" in text
    core.check()


# --- the registry


def started(sets: SetState, name: str = FIRST) -> int:
    sets.apply(7, ev.SessionStarted(name, "zoë", 60_000, NOW_MS))
    return 7


def test_a_session_is_what_its_events_say() -> None:
    state = Core().state
    session = started(state)
    state.apply(8, ev.SessionDetached(session, NOW_MS + 5))
    waiting = state.sessions.by_name[FIRST]
    assert not waiting.is_over(NOW_MS + 60_004)
    assert waiting.is_over(NOW_MS + 60_005)
    state.apply(9, ev.SessionResumed(session, 2, 1000, NOW_MS + 10))
    resumed = state.sessions.by_id[session]
    assert (resumed.epoch, resumed.timeout_ms, resumed.is_attached) == (2, 1000, True)
    assert not resumed.is_over(NOW_MS * 2)
    state.apply(10, ev.SessionEnded(session, False))
    assert len(state.sessions) == 0
    state.sessions.check_invariants()


@pytest.mark.parametrize(
    "event", [ev.SessionStarted(FIRST, "", 1, 1), ev.SessionDetached(8, 1), ev.SessionEnded(8, True)]
)
def test_what_does_not_fit_the_registry_does_not_fit_the_log(event: ev.SessionEvent) -> None:
    state = Core().state
    started(state)
    with pytest.raises(ReplayError):
        state.apply(9, event)


@pytest.mark.parametrize("seed", range(5))
def test_a_registry_is_the_same_after_its_events_were_written_anew(seed: int) -> None:
    random, registry = Random(seed), SessionRegistry()
    for lsn in range(1, 40):
        registry.apply(lsn, session_event(random, registry))
        registry.check_invariants()
    again = SessionRegistry()
    for lsn, event in registry.events(40):
        again.apply(lsn, event)
    assert again.by_id == registry.by_id
    assert again.waiting == registry.waiting


# --- where state comes from elsewhere than the log


def test_after_a_restart_the_session_holds_what_is_there_of_what_it_held() -> None:
    core = KeptCore()
    queue = core.queue("q")
    core.publish(queue, message("a", durable=True), "transient", message("b", durable=True), message("c", durable=True))
    a, _, b = taken(core, queue, 3)
    core.resources.replicated.write(ev.SessionStarted(FIRST, "", 60_000, NOW_MS))
    core.keep()
    resources, _ = recovered(core.disk)
    there = resources.catalog.queues["q"]
    assert held(resources, there) == [a.id, b.id]
    assert Core(resources, witness=False).consume(there) == ["c"]
    assert list(resources.replicated.state.sessions.by_name) == [FIRST]
    resources.catalog.holdings.check_invariants([there])


def test_a_backup_that_compares_has_what_is_held_also_of_what_came_later() -> None:
    pair = Pair()
    queue = pair.primary.queue("a")
    pair.primary.publish(queue, *"abcdef")
    pair.part()
    consumer = taker(pair.primary, queue)
    first = pair.primary.take(queue, consumer, 2)
    pair.meet(max_messages=2)
    pair.primary.take(queue, consumer, 3)
    pair.primary.resources.release(queue, first[:1], failed=False)
    pair.finish()
    there = pair.backup.catalog.queues["a"]
    assert held(pair.backup, there) == held(pair.primary, queue) != []
    pair.backup.catalog.holdings.check_invariants([there])


def test_a_comparison_that_comes_to_nothing_leaves_what_is_here_held_by_whoever_holds_it() -> None:
    pair = Pair()
    queue = pair.primary.queue("a")
    pair.primary.publish(queue, *"abcd")
    taken(pair.primary, queue, 2)
    pair.part()
    pair.meet()
    pair.catch_up.abandon()
    there = pair.backup.catalog.queues["a"]
    assert held(pair.backup, there) == held(pair.primary, queue)
    there.messages.check_invariants()
    pair.backup.catalog.holdings.check_invariants([there])


def test_nobody_holds_anything_once_the_holdings_are_cleared() -> None:
    core = Core()
    queue = core.queue("q")
    core.publish(queue, *"abc")
    taken(core, queue, 2)
    core.catalog.holdings.clear()
    core.state.sessions.clear()
    core.catalog.holdings.check_invariants([queue])
    assert core.consume(queue) == ["a", "b", "c"]
    queue.messages.check_invariants()


# --- whatever happens in whatever order


@pytest.mark.parametrize("seed", range(12))
def test_whatever_sessions_do_a_backup_that_takes_over_at_any_point_holds_the_same(seed: int) -> None:
    """Sessions take, answer, come back and end; between any two steps the next primary may have to go on."""
    random, core = Random(seed), Core()
    queues = [core.queue("q"), core.queue("r", delivery_limit=2), core.queue("s", priorities=3)]
    for _ in range(60):
        _do_something(random, core, random.choice(queues))
        core.check()
        if random.random() < 0.15:  # a failover
            records = core.records
            core = Core(core.followed())
            core.records = records
            queues = [core.catalog.queues[queue.name] for queue in queues]
    for link in core.catalog.holdings:
        release_held(core.resources, link, failed=False)
    assert len(core.catalog.holdings) == 0
    assert all(entry.holder is None for queue in queues for entry in queue.messages)
    core.check()


def _do_something(random: Random, core: Core, queue: Queue) -> None:
    name, link = random.choice([FIRST, SECOND]), random.choice("ab")
    mine = held_for(core.resources, queue, SessionOwner(1, name, link))
    some = random.sample(mine, random.randint(0, len(mine)))
    match random.choice(["publish", "take", "take", "accept", "accept", "release", "fail", "end", "plain"]):
        case "publish":
            core.publish(queue, *[message(str(n), priority=random.randint(0, 9)) for n in range(random.randint(1, 6))])
        case "take":
            consumer = taker(core, queue, name, link)
            new = core.take(queue, consumer, random.randint(1, 4))
            core.leave(queue, consumer)
            assert not {entry.id for entry in new} & {entry.id for entry in mine}, "given twice"
            after = held_for(core.resources, queue, SessionOwner(1, name, link))
            assert after == mine + new, "what it had comes first"
        case "accept" if some:
            core.resources.accept(queue, some)
        case "release" if some:
            core.resources.release(queue, some, failed=False)
        case "fail" if some:
            core.resources.release(queue, some, failed=True)
        case "end":
            for each in core.catalog.holdings:
                if each.name == name:
                    release_held(core.resources, each, failed=True)
        case "plain":
            core.consume(queue, 2)
