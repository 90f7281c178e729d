"""A queue with many consumers, such as a shared subscription: each has its turn, and a message alone costs no more than
with few."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from model_support import Core, bodies, wants
from qpid_ha_broker.model.queues.dispatcher import MANY, Consumer, Dispatcher
from qpid_ha_broker.model.queues.lead_proof import LeadProof
from qpid_ha_broker.model.queues.queue import Queue
from qpid_ha_broker.model.queues.sequence import Entry, SessionOwner


class OfSession(Consumer):
    """Of a client's session."""

    session_owner = SessionOwner(1, "session", "link")


class CountedConsumers(list[Consumer]):
    """Counts how many of them are looked at."""

    looks = 0

    def __iter__(self) -> Iterator[Consumer]:
        for consumer in super().__iter__():
            self.looks += 1
            yield consumer

    def __getitem__(self, at: Any) -> Any:
        self.looks += 1
        return super().__getitem__(at)


def many(core: Core, queue: Queue, count: int = 1000, credit: int = 1000) -> list[Consumer]:
    consumers = [core.consumer(queue) for _ in range(count)]
    for consumer in consumers:
        core.give_credit(queue, consumer, credit)
    core.hand_out()
    return consumers


def handed(queue: Queue, shown_lsn: int, proof: LeadProof = LeadProof.ALONE) -> list[Consumer]:
    return [consumer for consumer, _ in queue.dispatcher.hand_out(0, 100, shown_lsn, proof=proof)[0]]


def test_a_message_alone_is_given_to_one_of_a_thousand_without_a_look_at_the_others() -> None:
    core = Core()
    queue = core.queue("q")
    consumers = many(core, queue)
    queue.dispatcher.consumers = counted = CountedConsumers(consumers)
    for number in range(100):
        core.publish(queue, f"{number}")
        assert handed(queue, 0) == [consumers[number]]
    assert counted.looks <= 200


def test_a_message_that_is_not_committed_is_looked_at_by_one_of_a_thousand(monkeypatch: pytest.MonkeyPatch) -> None:
    core, asked, serve = Core(), 0, Dispatcher._serve

    def counting(dispatcher: Dispatcher, *arguments: object) -> list[Entry]:
        nonlocal asked
        asked += 1
        return serve(dispatcher, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Dispatcher, "_serve", counting)
    queue = core.queue("q")
    consumers = many(core, queue)
    asked = 0
    lsn = core.publish(queue, "m")
    assert handed(queue, lsn - 1, LeadProof.PROVEN) == []
    assert (asked, queue.dispatcher.awaits_commit) == (1, True)
    assert handed(queue, lsn, LeadProof.PROVEN) == consumers[:1]


def test_one_with_a_session_is_given_what_is_not_committed_though_others_are_not() -> None:
    core = Core()
    queue = core.queue("q")
    many(core, queue)
    mine = core.add_consumer(queue, OfSession())
    core.give_credit(queue, mine)
    lsn = core.publish(queue, "m")
    assert handed(queue, lsn - 1, LeadProof.PROVEN) == [mine]


def test_messages_that_come_one_by_one_go_to_all_that_have_credit_in_turn_also_when_some_leave() -> None:
    core = Core()
    queue = core.queue("q")
    consumers = many(core, queue, MANY + 8)
    for consumer in consumers[::3]:
        consumer.credit = 0
    there = [consumer for consumer in consumers if consumer.credit]
    turn = []
    for number in range(3 * len(there)):
        core.publish(queue, f"{number}")
        turn += handed(queue, 0)
    assert turn == 3 * there
    core.publish(queue, "one", "two")
    assert handed(queue, 0) == there[:2]
    core.leave(queue, consumers[0])  # it had its turn, and the others have theirs still
    core.publish(queue, "three")
    assert handed(queue, 0) == [there[2]]


@pytest.mark.parametrize("seed", range(20))
def test_nothing_stays_that_somebody_would_take_and_who_reads_by_ids_sees_all(seed: int) -> None:
    draw, core = random.Random(seed), Core()
    queue, published = core.queue("q"), list[str]()
    wanted = [draw.choice("abc") if draw.random() < 0.2 else "" for _ in range(draw.randint(MANY, 2 * MANY))]
    takers = {core.consumer(queue, accepts=wants(letter) if letter else None): letter for letter in wanted}
    reader = core.consumer(queue, browsing=True, after=0)
    core.give_credit(queue, reader)
    for number in range(60):
        for consumer in draw.sample(list(takers), draw.choice([0, 1, 5, len(takers)])):
            core.give_credit(queue, consumer, draw.randint(0, 3))
        texts = [f"{draw.choice('abcd')}{number}.{each}" for each in range(draw.choice([0, 1, 1, 2, 30]))]
        published += texts
        core.publish(queue, *texts)
        core.hand_out(draw.choice([1, 2, 100]))
        entries = list(queue.messages)
        assert bodies(core.inbox(reader)) == texts
        free = [text for entry, text in zip(entries, bodies(entries), strict=True) if entry.is_free]
        assert not [text for text in free for taker, letter in takers.items() if taker.credit and letter in text]
    given = [text for consumer in takers for text in bodies(core.inbox(consumer))]
    assert sorted(given + free) == sorted(published), "each to one of them"
    queue.messages.check_invariants()
