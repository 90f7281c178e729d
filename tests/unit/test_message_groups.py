"""Stories about groups of messages: one consumer at a time has a group, in its order, and nobody starves."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable
from itertools import pairwise
from random import Random
from types import FrameType
from typing import Any

import pytest

from model_support import Core, bodies, message, transaction_of, wants
from qpid_ha_broker.events.types import Acquired, QueueUpdated, Scalar
from qpid_ha_broker.model.errors import InvalidArgument
from qpid_ha_broker.model.queues import message_groups
from qpid_ha_broker.model.queues.dispatcher import Consumer, Dispatcher
from qpid_ha_broker.model.queues.lead_proof import LeadProof
from qpid_ha_broker.model.queues.message_groups import IDLE_PARTS, LOOKED_LENGTH, GroupPosition
from qpid_ha_broker.model.queues.queue import Queue
from qpid_ha_broker.model.queues.sequence import Entry, SessionOwner
from qpid_ha_broker.model.sets.resources import release_unseen
from qpid_ha_broker.model.transactions.transaction import Message, Transaction


def of(group: str, *texts: str) -> list[Message]:
    return [message(text, group=group) for text in texts]


def last_of(group: str, text: str) -> Message:
    return message(text, group=group, last="yes")


def two_consumers(core: Core, queue: Queue, credit: int = 1000) -> tuple[Consumer, Consumer]:
    consumers = core.consumer(queue), core.consumer(queue)
    for consumer in consumers:
        core.give_credit(queue, consumer, credit)
    return consumers


def taken(core: Core, consumers: Iterable[Consumer]) -> list[list[str]]:
    core.hand_out()
    return [bodies(core.inbox(consumer)) for consumer in consumers]


def groups_of(texts: Iterable[str]) -> set[str]:
    return {text[0] for text in texts}


def accepting(queue: Queue, *entries: Entry) -> Transaction:
    transaction = Transaction()
    for entry in entries:
        transaction.accept(queue, entry, None)
    return transaction


# --- who has a group


def test_all_of_a_group_go_to_one_consumer_in_order_and_groups_are_shared() -> None:
    core = Core()
    queue = core.queue("q")
    for n in range(5):
        for group in "abcd":
            core.publish(queue, *of(group, f"{group}{n}"))
    first, second = taken(core, two_consumers(core, queue))
    assert not groups_of(first) & groups_of(second)
    assert (len(groups_of(first)), len(groups_of(second))) == (2, 2)
    for texts in (first, second):
        for group in groups_of(texts):
            assert [text for text in texts if text[0] == group] == [f"{group}{n}" for n in range(5)]


def test_a_group_stays_with_its_consumer_also_when_nothing_of_it_is_there() -> None:
    core = Core()
    queue = core.queue("q")
    consumers = two_consumers(core, queue)
    owners = []
    for n in range(6):
        core.publish(queue, *of("a", f"a{n}"))
        core.hand_out()
        for consumer in consumers:
            entries = core.inbox(consumer)
            core.resources.accept(queue, entries)
            owners += [consumer] * len(entries)
    assert len(owners) == 6
    assert len(set(owners)) == 1


def test_messages_of_no_group_go_to_whoever_has_credit() -> None:
    core = Core()
    queue = core.queue("q")
    core.publish(queue, *of("a", "a0", "a1"), "x", "y", "z", *of("a", "a2"))
    first, second = taken(core, two_consumers(core, queue))
    assert sorted(first + second) == ["a0", "a1", "a2", "x", "y", "z"]
    assert len([texts for texts in (first, second) if "a" in groups_of(texts)]) == 1
    assert "x" in first + second
    assert first
    assert second


def test_a_consumer_without_credit_holds_up_its_groups_alone() -> None:
    core = Core()
    queue = core.queue("q")
    slow, quick = core.consumer(queue), core.consumer(queue)
    core.publish(queue, *of("a", "a0", "a1", "a2"))
    assert bodies(core.take(queue, slow, 1)) == ["a0"]
    core.publish(queue, *of("b", "b0"), *of("a", "a3"), *of("b", "b1"))
    assert bodies(core.take(queue, quick)) == ["b0", "b1"]
    assert bodies(core.take(queue, slow)) == ["a1", "a2", "a3"]


def test_the_groups_of_one_that_leaves_are_for_others_once_its_messages_are_back() -> None:
    core = Core()
    queue = core.queue("q")
    leaver, heir = core.consumer(queue), core.consumer(queue)
    core.publish(queue, *of("a", "a0", "a1", "a2", "a3"))
    held = core.take(queue, leaver, 2)
    assert core.take(queue, heir) == []
    core.resources.release(queue, held, failed=True)
    core.leave(queue, leaver)
    entries = core.take(queue, heir)
    assert bodies(entries) == ["a0", "a1", "a2", "a3"]
    assert [queue.is_redelivered(entry) for entry in entries] == [True, True, False, False]
    core.check()


def test_what_comes_back_in_portions_is_not_overtaken() -> None:
    core = Core()
    queue = core.queue("q")
    leaver, heir = core.consumer(queue), core.consumer(queue)
    core.publish(queue, *(each for n in range(700) for each in of("a", f"a{n:03}")))
    held = core.take(queue, leaver, 600)
    core.leave(queue, leaver)
    core.resources.release_in_portions(queue, leaver, held, failed=True)
    assert core.take(queue, heir) == []
    core.resources.work.run()
    assert bodies(core.take(queue, heir)) == [f"a{n:03}" for n in range(700)]


def test_a_group_that_is_closed_goes_to_anybody_once_its_messages_are_answered() -> None:
    core = Core()
    queue = core.queue("q")
    owner, other = core.consumer(queue), core.consumer(queue)
    core.publish(queue, *of("a", "a0"), last_of("a", "a1"), *of("a", "a2"))
    entries = core.take(queue, owner)
    assert bodies(entries) == ["a0", "a1"]
    assert core.take(queue, other) == []
    core.resources.accept(queue, entries[:1])
    assert core.take(queue, other) == []
    core.resources.accept(queue, entries[1:])
    assert bodies(core.take(queue, other)) == ["a2"]
    assert core.take(queue, owner) == []


def test_who_waits_for_a_blocked_group_is_woken_by_the_answer() -> None:
    core = Core()
    queue = core.queue("q")
    owner, other = core.consumer(queue), core.consumer(queue)
    core.publish(queue, last_of("a", "a0"), *of("a", "a1"))
    entries = core.take(queue, owner, 1)
    core.give_credit(queue, other)
    core.hand_out()
    assert not core.resources.has_work
    core.resources.accept(queue, entries)
    core.hand_out()
    assert bodies(core.inbox(other)) == ["a1"]


def test_a_message_that_comes_back_comes_again_before_later_ones_and_to_its_owner() -> None:
    core = Core()
    queue = core.queue("q")
    owner, other = core.consumer(queue), core.consumer(queue)
    core.publish(queue, *of("a", "a0", "a1", "a2"))
    first, second = core.take(queue, owner, 2)
    core.resources.release(queue, [first], failed=False)
    assert core.take(queue, other) == []
    assert bodies(core.take(queue, owner)) == ["a0", "a2"]
    core.resources.accept(queue, [second])


def accepted_by_one_that_left(core: Core) -> tuple[Transaction, Consumer]:
    """A transaction has accepted the first of a group's two messages, and its consumer has gone; another one has
    credit."""
    queue = core.queue("q")
    leaver, heir = core.consumer(queue), core.consumer(queue)
    core.publish(queue, *of("a", "a0", "a1"))
    transaction = accepting(queue, *core.take(queue, leaver, 1))
    core.leave(queue, leaver)
    core.give_credit(queue, heir)
    return transaction, heir


def test_what_a_transaction_has_accepted_blocks_its_group_when_the_consumer_has_gone() -> None:
    core = Core()
    transaction, heir = accepted_by_one_that_left(core)
    assert taken(core, [heir]) == [[]]
    core.resources.commit(transaction, core.now_ms)
    assert taken(core, [heir]) == [["a1"]]


def test_a_transaction_that_is_rolled_back_brings_its_group_back_in_order() -> None:
    core = Core()
    transaction, heir = accepted_by_one_that_left(core)
    core.resources.roll_back(transaction)
    assert taken(core, [heir]) == [["a0", "a1"]]


def test_a_session_that_holds_something_of_a_group_has_the_group_when_it_is_back() -> None:
    core = Core()
    queue = core.queue("q")

    def attach() -> Consumer:
        return core.add_consumer(queue, _SessionsConsumer())

    session, other = attach(), core.consumer(queue)
    core.publish(queue, *of("a", "a0", "a1", "a2"))
    held = core.take(queue, session, 1)
    core.leave(queue, session)
    assert core.take(queue, other) == []
    again = attach()
    assert core.take(queue, other) == []
    assert bodies(core.take(queue, again)) == ["a1", "a2"]
    core.resources.accept(queue, held)


@pytest.mark.parametrize("choosy", [False, True])
def test_what_a_session_holds_since_before_anybody_was_there_blocks_its_group(choosy: bool) -> None:
    """As after a failover: whoever comes first finds that out, though it takes only some messages."""
    core = Core()
    queue = core.queue("q")
    core.publish(queue, *of("a", "a0", "a1"), *of("b", "b0"))
    session = core.add_consumer(queue, _SessionsConsumer())
    held = core.take(queue, session, 1)
    core.leave(queue, session)
    consumer = core.consumer(queue, accepts=wants("") if choosy else None)
    assert bodies(core.take(queue, consumer)) == ["b0"]
    core.give_credit(queue, consumer)
    core.hand_out()
    core.resources.accept(queue, held)
    assert taken(core, [consumer]) == [["a1"]]


def test_a_consumer_that_joins_gets_new_groups_and_takes_none_away() -> None:
    core = Core()
    queue = core.queue("q")
    early = core.consumer(queue)
    core.publish(queue, *of("a", "a0"), *of("b", "b0"))
    core.resources.accept(queue, core.take(queue, early))
    late = core.consumer(queue)
    core.give_credit(queue, early)
    core.give_credit(queue, late)
    core.publish(queue, *of("a", "a1"), *of("b", "b1"), *of("c", "c0"), *of("d", "d0"))
    first, second = taken(core, [early, late])
    assert {"a1", "b1"} <= set(first)
    assert second in (["c0"], ["d0"], ["c0", "d0"])


# --- what comes when


def test_what_was_there_before_the_first_group_is_handed_out_as_before() -> None:
    core = Core()
    queue = core.queue("q")
    core.publish(queue, "x", "y")
    consumers = two_consumers(core, queue, 1)
    assert sorted(text for texts in taken(core, consumers) for text in texts) == ["x", "y"]
    core.publish(queue, *of("a", "a0", "a1"))
    for consumer in consumers:
        core.give_credit(queue, consumer)
    assert sorted(map(len, taken(core, consumers))) == [0, 2]


def test_the_first_message_of_a_group_has_the_queue_remember_it_for_the_next_primary() -> None:
    core = Core()
    queue = core.queue("q")
    core.publish(queue, "x")
    core.read()
    core.publish(queue, *of("a", "a0"))
    marked, _ = core.read()
    assert marked == QueueUpdated(queue.id, {"$grouped": True})
    core.publish(queue, *of("a", "a1"))
    assert len(core.read()) == 1
    followed = core.followed().catalog.queues["q"]
    assert followed.arguments.keeps_groups
    assert core.queue("q") is queue, "who declares it again finds it"
    core.check()


@pytest.mark.parametrize("way", ["exchange", "transaction", "move", "expiring", "numbered"])
def test_a_message_of_a_group_is_noticed_whatever_way_it_comes(way: str) -> None:
    core = Core()
    queue = core.queue("q")
    (each,) = of("a", "a0")
    if way == "exchange":
        core.publish(core.exchange("x", "fanout", queue), each)
    elif way == "transaction":
        core.resources.commit(transaction_of((queue, each)), core.now_ms)
    elif way == "move":
        dying = core.queue("dying", alternate_exchange=core.exchange("x", "fanout", queue).name, message_groups=False)
        core.publish(dying, each)
        core.resources.reject(dying, core.take(dying, core.consumer(dying)))
    elif way == "expiring":
        core.publish(queue, message("a0", group="a", ttl_ms=1000))
    else:
        core.publish(queue, each._replace(producer=b"p", sequence=1))
    assert queue.arguments.keeps_groups
    assert queue.messages.count == 1


def test_a_queue_that_is_to_know_no_groups_shares_its_messages() -> None:
    core = Core()
    queue = core.queue("q", message_groups=False)
    core.publish(queue, *of("a", *(f"a{n}" for n in range(6))))
    assert sorted(map(len, taken(core, two_consumers(core, queue)))) == [3, 3]


def test_groups_can_be_switched_on_and_off_while_consumers_are_there() -> None:
    core = Core()
    queue = core.queue("q", message_groups=False)
    consumers = two_consumers(core, queue, 1)
    core.publish(queue, *of("a", *(f"a{n}" for n in range(9))))
    assert sorted(map(len, taken(core, consumers))) == [1, 1]
    core.configuration.update_queue("q", {"qpid.message_groups": True})
    for consumer in consumers:
        core.give_credit(queue, consumer, 2)
    assert taken(core, consumers) == [[], []], "both have something of the group"
    core.resources.accept(queue, [entry for entry in queue.messages if entry.holder is not None])
    assert sorted(map(len, taken(core, consumers))) == [0, 2]
    core.configuration.update_queue("q", {"qpid.message_groups": None})
    core.configuration.update_queue("q", {"qpid.message_groups": False})
    for consumer in consumers:
        core.give_credit(queue, consumer, 2)
    assert sorted(map(len, taken(core, consumers))) == [2, 2]


def test_a_fair_share_and_groups_exclude_each_other() -> None:
    core = Core()
    with pytest.raises(InvalidArgument, match="part the messages of a group"):
        core.queue("q", priorities=2, fairshare=1, message_groups=True)
    queue = core.queue("q", priorities=2, fairshare=1)
    core.publish(queue, *of("a", "a0"))
    assert not queue.arguments.keeps_groups


def test_of_a_queue_with_priorities_higher_ones_of_a_group_come_first() -> None:
    core = Core()
    queue = core.queue("q", priorities=10)
    owner, other = core.consumer(queue), core.consumer(queue)
    core.publish(queue, *of("a", "a0", "a1"))
    core.take(queue, owner, 1)
    core.publish(queue, message("b0", priority=1, group="b"), message("a9", priority=9, group="a"))
    assert bodies(core.take(queue, other)) == ["b0"]
    assert bodies(core.take(queue, owner)) == ["a9", "a1"]


def test_what_expires_is_passed() -> None:
    core = Core()
    queue = core.queue("q")
    owner, other = core.consumer(queue), core.consumer(queue)
    core.publish(queue, *of("a", "a0"), message("a1", ttl_ms=1000, group="a"), *of("a", "a2"))
    core.take(queue, owner, 1)
    assert core.take(queue, other) == []
    core.tick(2000)
    assert bodies(core.take(queue, owner)) == ["a2"]
    core.check()


def test_a_ring_drops_what_is_put_aside() -> None:
    core = Core()
    queue = core.queue("q", max_count=3, policy_type="ring")
    owner, other = core.consumer(queue), core.consumer(queue)
    core.publish(queue, *of("a", "a0", "a1"))
    held = core.take(queue, owner, 1)
    assert core.take(queue, other) == []
    core.publish(queue, *of("a", "a2"), *of("a", "a3"), *of("b", "b0"))
    assert bodies(core.take(queue, other)) == ["b0"]
    core.resources.accept(queue, held)
    assert bodies(core.take(queue, owner)) == ["a3"]
    core.check()


def test_a_consumer_with_a_selector_owns_its_groups_with_what_it_does_not_take() -> None:
    core = Core()
    queue = core.queue("q")
    choosy, other = core.consumer(queue, accepts=wants("!")), core.consumer(queue)
    core.publish(queue, *of("a", "a0", "a1!", "a2"), *of("b", "b0"))
    got = core.take(queue, choosy)
    assert bodies(got) == ["a1!"]
    assert bodies(core.take(queue, other)) == ["b0"]
    core.resources.release(queue, got, failed=False)
    core.leave(queue, choosy)
    assert bodies(core.take(queue, other)) == ["a0", "a1!", "a2"]


def test_a_selector_finds_what_it_had_passed_when_that_becomes_free() -> None:
    core = Core()
    queue = core.queue("q")
    owner, choosy = core.consumer(queue), core.consumer(queue, accepts=wants("!"))
    core.publish(queue, *of("a", "a0", "a1!", "a2!"))
    held = core.take(queue, owner, 1)
    core.give_credit(queue, choosy)
    assert taken(core, [choosy]) == [[]]
    core.resources.accept(queue, held)
    core.leave(queue, owner)
    assert taken(core, [choosy]) == [["a1!", "a2!"]]


def test_what_is_due_later_holds_up_nobody_who_takes_only_some() -> None:
    core = Core()
    queue = core.queue("q")
    choosy = core.consumer(queue, accepts=wants("!"))
    core.publish(queue, message("later!", group="a", delay_ms=1000), message("now!", group="a"))
    core.give_credit(queue, choosy)
    assert taken(core, [choosy]) == [["now!"]]
    core.tick(after_ms=1000)
    assert taken(core, [choosy]) == [["later!"]]


def test_what_was_never_sent_is_its_owners_still() -> None:
    core = Core()
    queue = core.queue("q")
    owner, other = core.consumer(queue), core.consumer(queue)
    core.publish(queue, *of("a", "a0", "a1", "a2"))
    held = core.take(queue, owner)
    release_unseen(core.resources, queue, held[1:])
    assert core.take(queue, other) == []
    assert bodies(core.take(queue, owner)) == ["a1", "a2"]


def test_who_takes_by_another_way_has_the_group_to_itself() -> None:
    """A client of another broker that has a message still since before a failover: see `OutgoingLink._reclaim`."""
    core = Core()
    queue = core.queue("q")
    core.publish(queue, *of("a", "a0", "a1"))
    returned, other = core.consumer(queue), core.consumer(queue)
    (entry,) = queue.messages.find_all([queue.messages.newest_before(1 << 62, 2)[0].id])
    queue.messages.hold(entry, returned)
    assert core.take(queue, other) == []
    assert bodies(core.take(queue, returned)) == ["a1"]


# --- limits


def test_nobody_looks_at_messages_of_others_again(monkeypatch: pytest.MonkeyPatch) -> None:
    core = Core()
    queue = core.queue("q")
    consumers = [core.consumer(queue) for _ in range(10)]
    count, looked = 3000, 0
    core.publish(queue, *(each for n in range(count) for each in of(f"g{n % 100}", f"{n}")))
    reader = queue.dispatcher.groups
    assert reader is not None
    read = reader.read

    def counted(payload: bytes) -> object:
        nonlocal looked
        looked += 1
        return read(payload)

    monkeypatch.setattr(reader, "read", counted)
    delivered = 0
    while delivered < count:
        for consumer in consumers:
            core.give_credit(queue, consumer, 3)
        core.hand_out()
        for consumer in consumers:
            entries = core.inbox(consumer)
            delivered += len(entries)
            core.resources.accept(queue, entries)
    assert looked == count


def test_one_who_finds_only_messages_of_others_stops_now_and_then() -> None:
    core = Core()
    queue = core.queue("q")
    owner, other = core.consumer(queue), core.consumer(queue)
    core.publish(queue, *of("a", "a0"))
    core.take(queue, owner, 1)
    core.publish(queue, *of("a", *("a" * (2 * LOOKED_LENGTH))), *of("b", "b0"))
    core.give_credit(queue, other)
    assert core.resources.hand_out(core.now_ms, 100) == []
    assert core.resources.has_work
    assert taken(core, [other]) == [["b0"]]


def test_no_more_than_so_many_are_put_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_groups, "ASIDE_MOST", 5)
    core = Core()
    queue = core.queue("q")
    owner, other = core.consumer(queue), core.consumer(queue)
    core.publish(queue, *of("a", *(f"a{n}" for n in range(9))), *of("b", "b0"))
    held = core.take(queue, owner, 1)
    core.give_credit(queue, other)
    assert taken(core, [other]) == [[]]
    assert not core.resources.has_work
    core.give_credit(queue, owner, 3)
    assert taken(core, [owner, other]) == [["a1", "a2", "a3"], ["b0"]]
    core.resources.accept(queue, held)


def test_a_group_of_which_nothing_was_there_for_long_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_groups, "IDLE_MOST", 2)
    core = Core()
    queue = core.queue("q")
    owner, other = core.consumer(queue), core.consumer(queue)
    core.publish(queue, *(each for n in range(4) for each in of(f"g{n}", f"{n}")))
    core.resources.accept(queue, core.take(queue, owner))
    core.publish(queue, *of("g0", "old"), *of("g3", "new"))
    assert bodies(core.take(queue, other)) == ["old"]
    assert bodies(core.take(queue, owner)) == ["new"]


def test_groups_are_forgotten_some_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who looks for the first of a dictionary steps over all that has gone from it since it was made."""
    monkeypatch.setattr(message_groups, "IDLE_MOST", 1000)
    core = Core()
    queue = core.queue("q")
    consumer = core.consumer(queue)
    counts = []
    for n in range(1001):
        core.publish(queue, *of(f"g{n}", f"{n}"))
        core.resources.accept(queue, core.take(queue, consumer))
        counts.append(len(consumer.position.groups) if isinstance(consumer.position, GroupPosition) else 0)
    assert counts[-2:] == [1000, 1001 - 1000 // IDLE_PARTS]


@pytest.mark.parametrize("most", [100, 1_000_000])
def test_a_wake_looks_at_nothing_of_a_long_group_whose_consumer_has_no_credit(
    monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    """However long it is, whether all of it is put aside or not, and however many others have credit."""
    monkeypatch.setattr(message_groups, "ASIDE_MOST", most)
    steps = {wake_beside_a_long_group(messages, idle) for messages, idle in [(300, 9), (3000, 9), (3000, 99)]}
    assert len(steps) == 1, steps
    asked, reads, looks = steps.pop()
    assert asked <= 2
    assert reads <= 2
    assert looks <= 5


def wake_beside_a_long_group(messages: int, idle: int) -> tuple[int, int, int]:
    """How often a consumer is asked, a group read, and a message looked at, when one more message comes."""
    core = Core()
    queue = core.queue("q")
    owner = core.consumer(queue)
    core.publish(queue, *of("a", "a0"))
    assert bodies(core.take(queue, owner, 1)) == ["a0"]
    core.publish(queue, *(each for n in range(messages) for each in of("a", f"a{n + 1}")))
    for _ in range(idle):
        core.give_credit(queue, core.consumer(queue))
    core.hand_out()
    calls = Counter[str]()

    def count(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            calls[frame.f_code.co_qualname] += 1

    core.publish(queue, *of("a", "another"))
    sys.setprofile(count)
    try:
        core.hand_out()
    finally:
        sys.setprofile(None)
    assert not core.resources.has_work
    return calls["Dispatcher._serve"], calls["TextReader.group"], calls["HistoryCursor.peek"]


def test_one_message_of_a_group_for_a_thousand_consumers_is_looked_for_by_two_of_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    core, asked = Core(), 0
    queue = core.queue("q")
    consumers = [core.consumer(queue) for _ in range(1000)]
    for consumer in consumers:
        core.give_credit(queue, consumer)
    serve = Dispatcher._serve

    def counted(dispatcher: Dispatcher, *arguments: Any) -> list[Entry]:
        nonlocal asked
        asked += 1
        return serve(dispatcher, *arguments)

    monkeypatch.setattr(Dispatcher, "_serve", counted)
    core.publish(queue, *of("a", "a0"))
    core.hand_out()
    assert (asked, queue.messages.acquired) == (2, 1)
    core.publish(queue, *of("a", "a1"))
    core.hand_out()
    owner = next(consumer for consumer in consumers if core.inbox(consumer))
    assert (asked <= 6, queue.messages.acquired, owner.credit) == (True, 2, 998)


def test_one_who_joins_looks_at_nothing_that_others_have() -> None:
    core = Core()
    queue = core.queue("q")
    core.publish(queue, *(each for n in range(50) for each in of(f"g{n}", f"{n}")))
    core.take(queue, core.consumer(queue))
    groups = queue.dispatcher.groups
    assert groups is not None
    groups.out = _NotWalked(groups.out)
    assert core.take(queue, core.consumer(queue)) == []


class _NotWalked(dict[Entry, Any]):
    def items(self) -> Any:
        raise AssertionError("it may be a million")


def test_groups_cost_nothing_where_nobody_takes() -> None:
    core = Core()
    queue = core.queue("q")
    core.publish(queue, *of("a", "a0"))
    consumers: list[Consumer] = []
    for is_watched in (False, True, False):
        assert (queue.messages.groups is not None) is is_watched
        if is_watched:
            core.leave(queue, consumers.pop())
        else:
            consumers.append(core.consumer(queue))


# --- all together


@pytest.mark.parametrize("seed", range(30))
def test_no_two_have_a_group_each_is_in_order_and_nobody_starves(seed: int) -> None:
    crowd = _Crowd(Random(seed))
    for _ in range(400):
        crowd.step()
    crowd.finish()


@pytest.mark.parametrize("seed", range(30))
def test_what_is_taken_together_is_what_would_be_taken_one_by_one(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def outcome() -> list[list[tuple[int, str]]]:
        crowd = _Crowd(Random(seed))
        for _ in range(400):
            crowd.step()
        return crowd.handed_out

    together = outcome()
    monkeypatch.setattr(GroupPosition, "take", lambda _self, _taker, _wanted, _last, window, _taken: window)
    assert together == outcome()
    assert any(together)


def test_nobody_is_given_what_is_not_committed_yet_be_it_put_aside_or_not() -> None:
    core = Core()
    queue = core.queue("q")
    owner, other = core.consumer(queue), core.consumer(queue)
    core.publish(queue, *of("a", "a0"))
    core.take(queue, owner, 1)
    core.publish(queue, *of("a", "a1", "a2"), *of("b", "b1", "b2"))
    *_, second, _, fourth = [entry.id for entry in queue.messages]
    core.give_credit(queue, owner)
    core.give_credit(queue, other)

    def given(shown_lsn: int) -> list[list[str]]:
        handed_out, _ = queue.dispatcher.hand_out(core.now_ms, 100, shown_lsn, proof=LeadProof.PROVEN)
        return sorted(bodies(entries) for _, entries in handed_out)

    assert given(second - 1) == [["a1"]]
    assert given(fourth - 1) == [["a2"], ["b1"]]
    assert given(fourth) == [["b2"]]


def test_who_owns_many_groups_is_given_several_new_ones_in_a_row_and_few_more_than_others() -> None:
    core = Core()
    queue = core.queue("q")
    consumers = [core.consumer(queue) for _ in range(5)]
    core.publish(queue, *[message(f"{at}", group=f"g{at}") for at in range(1000)])
    rows = []
    for consumer in consumers:
        core.give_credit(queue, consumer)
    for _, entries, _ in core.resources.hand_out(core.now_ms, 1000):
        ids = [entry.id for entry in entries]
        rows.append(sum(later == id + 1 for id, later in pairwise(ids)))
        assert abs(len(entries) - 200) <= 200 // 8
    assert max(rows) > 100, "each was given one at a time"


class _SessionsConsumer(Consumer):
    session_owner = SessionOwner(1, "3f2b", "link")


_ARGUMENTS: list[dict[str, Scalar]] = [{}, {}, {"priorities": 4}, {"message_groups": True}]


class _Crowd:
    """Consumers that come, go and answer as they like. Consumers with a selector take what they take in order."""

    def __init__(self, random: Random) -> None:
        self.random = random
        self.core = Core(log_acquisitions=random.random() < 0.5)
        arguments = random.choice(_ARGUMENTS)
        self.queue = self.core.queue("q", **arguments)
        self.is_leveled = "priorities" in arguments
        self.held: dict[Consumer, list[Entry]] = {}
        self.handed_out: list[list[tuple[int, str]]] = []
        """At each time, to the how manieth of the consumers which message."""
        self.sent = 0
        self.finished: dict[str, list[int]] = {}
        self.transactions: list[tuple[Transaction, list[Entry]]] = []

    def step(self) -> None:
        core, queue, random = self.core, self.queue, self.random
        choice = random.random()
        if choice < 0.3:
            group = random.choice("abcdefgh")
            self.sent += 1
            text, priority, kind = f"{group}{self.sent:05}", random.choice([4, 4, 4, 9]), random.random()
            if kind < 0.1:
                core.publish(queue, message(text, priority=priority))
            elif kind < 0.2:
                core.publish(queue, message(text, priority=priority, group=group, last="yes"))
            else:
                core.publish(queue, message(text, priority=priority, group=group))
        elif choice < 0.36 and len(self.held) < 5:
            accepts = None if random.random() < 0.8 else (lambda payload: payload[-1] % 2 == 0)
            self.held[core.consumer(queue, accepts=accepts)] = []
        elif self.held:
            self._act(random.choice(list(self.held)), choice)
        self._hand_out()

    def _act(self, consumer: Consumer, choice: float) -> None:
        core, queue, random, held = self.core, self.queue, self.random, self.held[consumer]
        if choice < 0.6:
            core.give_credit(queue, consumer, random.randint(1, 5))
        elif choice < 0.7 and held:
            core.resources.release(queue, [held.pop(random.randrange(len(held)))], failed=False)
        elif choice < 0.75 and held:
            entry = held.pop(random.randrange(len(held)))
            core.resources.release(queue, [entry], failed=False)
            assert queue.dispatcher.decline(consumer, entry)
        elif choice < 0.78 and held:
            transaction = accepting(queue, held[0])
            self.transactions.append((transaction, [held.pop(0)]))
        elif choice < 0.8 and self.transactions:
            transaction, _ = self.transactions.pop(0)
            if random.random() < 0.5:
                core.resources.commit(transaction, core.now_ms)
            else:
                core.resources.roll_back(transaction)
        elif choice < 0.84:
            core.resources.release(queue, self.held.pop(consumer), failed=True)
            core.leave(queue, consumer)
        elif held:
            core.resources.accept(queue, [held.pop(random.randrange(len(held)))])

    def _hand_out(self) -> None:
        core, queue = self.core, self.queue
        while core.resources.has_work:
            handed_out: list[tuple[int, str]] = []
            self.handed_out.append(handed_out)
            for consumer, entries, _ in core.resources.hand_out(core.now_ms, self.random.choice([1, 2, 100])):
                for entry in entries:
                    self._check_may_have(consumer, entry)
                    handed_out.append((list(self.held).index(consumer), entry.resident_body().decode()))
                    self.held[consumer].append(entry)
        queue.messages.check_invariants()
        if queue.dispatcher.groups is not None:
            queue.dispatcher.groups.check_invariants()

    def _check_may_have(self, consumer: Consumer, entry: Entry) -> None:
        group = group_of(entry)
        if not group or not self.queue.arguments.keeps_groups:
            return
        others = [each for other, held in self.held.items() if other is not consumer for each in held]
        others += [each for _, held in self.transactions for each in held if each.holder is not consumer]
        in_doubt = [each for each in others if group_of(each) == group and each.body is not None]
        mine = {each for _, held in self.transactions for each in held}
        assert not [each for each in in_doubt if each not in mine], "somebody else has something of that group"
        if self.is_leveled or consumer.accepts is not None or consumer in self.queue.dispatcher._declined:
            return
        waiting = [each for each in self.queue.messages if group_of(each) == group and each.holder is None]
        assert all(each.id > entry.id for each in waiting), "an earlier one of the group waits"

    def finish(self) -> None:
        """All answer, and one comes that takes whatever is there."""
        core, queue = self.core, self.queue
        for transaction, _ in self.transactions:
            core.resources.roll_back(transaction)
        for consumer in self.held:
            core.give_credit(queue, consumer)
        self.transactions.clear()
        patient = core.consumer(queue)
        self.held[patient] = []
        for leaver in [*[each for each in self.held if each is not patient], None]:
            for _ in range(20):
                core.give_credit(queue, patient)
                for held in self.held.values():
                    core.resources.accept(queue, [entry for entry in held if entry.body is not None])
                    held.clear()
                self._hand_out()
            if leaver is not None:
                core.resources.accept(queue, self.held.pop(leaver))
                core.leave(queue, leaver)
        assert queue.messages.count == 0, "somebody waits for ever"
        core.check()


def group_of(entry: Entry) -> str:
    assert entry.body is not None
    payload = entry.resident_body().decode()
    return payload.split("group=")[1][0] if "group=" in payload else ""


def test_acquisitions_are_logged_as_ever() -> None:
    core = Core(log_acquisitions=True)
    queue = core.queue("q")
    core.publish(queue, *of("a", "a0"))
    core.read()
    core.take(queue, core.consumer(queue))
    assert [type(event) for event in core.read()] == [Acquired]
