"""Stories about a broker in no cluster: a member whose in-sync set is itself, for good."""

from __future__ import annotations

from typing import Any

import pytest

from model_support import NOW_MS, TextReader, message
from qpid_ha_broker.events.codec import LogRecord, decode
from qpid_ha_broker.events.types import ExchangeDeclared, GenerationStarted, InSyncChanged, QueueDeclared
from qpid_ha_broker.ha import effects as fx
from qpid_ha_broker.ha.frames import StoreOrigin
from qpid_ha_broker.ha.member import Member
from qpid_ha_broker.ha.replica import Held, Restored
from qpid_ha_broker.ha.roles import NEEDS_CLUSTER, STANDALONE_REFUSAL
from qpid_ha_broker.ha.settings import MemberSettings
from qpid_ha_broker.ha.states import State
from qpid_ha_broker.model.commands.configuration import Configuration
from qpid_ha_broker.model.queues.queue import Queue
from qpid_ha_broker.model.sets.resources import Resources

WITH_STORE = MemberSettings("a", "a-1", (), has_store=True)
WITHOUT_STORE = MemberSettings("a", "a-1", ())
REQUESTS: dict[type[Any], fx.Input] = {
    fx.PromoteAsked: fx.PromoteAsked(7),
    fx.DemoteAsked: fx.DemoteAsked(7),
    fx.SwitchoverAsked: fx.SwitchoverAsked(7, ""),
    fx.DropAsked: fx.DropAsked(7, "b", "it is gone"),
    fx.ShutdownAsked: fx.ShutdownAsked(7, "uuid"),
}
FROM_A_CLUSTER = (GenerationStarted(4, "b", "uuid", 0, False, "b was first"), InSyncChanged(9, ("a", "b")))


class Alone:
    """The member and its effects; `turn` is what a driver does at the end of each."""

    def __init__(self, settings: MemberSettings = WITH_STORE, *log: Any, held: tuple[Held, ...] = ()) -> None:
        self.resources = Resources(TextReader())
        for event in log:
            self.resources.replicated.write(event)
        restored = Restored(StoreOrigin.DIRTY, held) if log else None
        self.member = Member(settings, self.resources.replicated, lambda: 0.5, lambda: NOW_MS, restored)
        self.began = self.feed(fx.Started())

    def feed(self, happened: fx.Input) -> list[fx.Effect]:
        effects = self.member.handle(happened, 1.0)
        self.member.check_invariants()
        return effects

    def turn(self) -> list[fx.Persist]:
        effects = self.feed(fx.TurnEnded(self.resources.replicated.log.take_batch()))
        return [effect for effect in effects if isinstance(effect, fx.Persist)]

    def queue(self) -> Queue:
        return Configuration(self.resources).declare_queue("orders", {})


def test_it_leads_at_once_and_asks_nobody() -> None:
    alone = Alone()
    assert alone.member.status.state is State.STANDALONE
    assert alone.resources.replication.read_only == ""
    assert alone.began == [fx.TurnDue(), fx.StatusChanged(alone.member.status)]


def test_a_member_that_knows_of_others_leads_nobody_before_it_is_promoted() -> None:
    member = Member(
        MemberSettings("a", "a-1", ("b:5672",)), Resources(TextReader()).replicated, lambda: 0.5, lambda: NOW_MS
    )
    member.handle(fx.Started(), 1.0)
    assert member.status.state is State.CONNECTING


def test_time_makes_it_ask_nobody_either() -> None:
    alone = Alone()
    for _ in range(100):
        assert [effect for effect in alone.feed(fx.TurnEnded(None)) if not isinstance(effect, fx.TurnDue)] == []


@pytest.mark.parametrize("kind", NEEDS_CLUSTER)
def test_what_needs_other_brokers_is_refused_with_what_to_do(kind: type[Any]) -> None:
    alone = Alone()
    assert alone.feed(REQUESTS[kind]) == [fx.Answered(7, False, STANDALONE_REFUSAL)]
    assert "ha.cluster" in STANDALONE_REFUSAL
    assert alone.member.status.state is State.STANDALONE


def test_what_it_writes_is_committed_once_its_store_has_it() -> None:
    alone = Alone()
    (keep,) = alone.turn()
    alone.feed(fx.Persisted(keep.number))
    token = alone.resources.publish(alone.queue(), message("a"), NOW_MS)
    (keep,) = alone.turn()
    assert keep.last_lsn == token.lsn
    assert not token.is_committed
    alone.feed(fx.Persisted(keep.number))
    assert token.is_committed


def test_without_a_store_nothing_is_encoded_for_nobody() -> None:
    alone = Alone(WITHOUT_STORE)
    assert alone.resources.publish(alone.queue(), message("a"), NOW_MS).is_committed
    assert not alone.resources.replicated.log.pending
    assert alone.turn() == []


def test_a_new_log_begins_with_the_standard_exchanges_and_no_generation() -> None:
    (keep,) = Alone().turn()
    assert {type(record.event) for record in decode(keep.data).records} == {ExchangeDeclared}
    assert (keep.first_lsn, keep.last_lsn) == (1, 5)


def test_the_log_of_a_cluster_is_gone_on_with_as_it_is() -> None:
    alone = Alone(WITH_STORE, *FROM_A_CLUSTER)
    assert (alone.member.status.generation, alone.member.status.epoch, alone.member.status.members) == (
        4,
        9,
        ("a", "b"),
    )
    (keep,) = alone.turn()
    assert {type(record.event) for record in decode(keep.data).records} == {ExchangeDeclared}
    alone.feed(fx.Persisted(keep.number))
    assert alone.resources.replicated.log.committed_lsn == keep.last_lsn


def test_what_nobody_may_have_confirmed_counts_because_there_is_nobody_to_say_otherwise() -> None:
    held = (Held(3, [LogRecord(3, QueueDeclared("q", {}), False)]),)
    alone = Alone(WITH_STORE, *FROM_A_CLUSTER, held=held)
    assert list(alone.resources.catalog.queues) == ["q"]
    assert alone.resources.replicated.log.last_lsn == 3 + 5  # the standard exchanges


def test_its_end_is_a_clean_one_after_all_that_was_written() -> None:
    alone = Alone()
    (keep,) = alone.turn()
    alone.feed(fx.Persisted(keep.number))
    alone.queue()
    kinds = [type(effect) for effect in alone.feed(fx.Stopping())]
    assert kinds == [fx.Persist, fx.CleanEnd, fx.StateChanged, fx.StatusChanged]
    assert alone.member.status.state is State.STOPPING
