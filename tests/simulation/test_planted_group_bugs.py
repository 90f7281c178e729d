"""The checkers of groups find what they are there for: each test plants a bug in the core, and a seed must find it."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace

import pytest

from qpid_ha_broker.events import types as ev
from qpid_ha_broker.group import checks
from qpid_ha_broker.group import effects as fx
from qpid_ha_broker.group import frames as fr
from qpid_ha_broker.group.checks import Skip
from qpid_ha_broker.group.decisions import RecordDecisions
from qpid_ha_broker.group.deliveries import Deliveries
from qpid_ha_broker.group.durable import DurableLog
from qpid_ha_broker.group.effects import GroupRole
from qpid_ha_broker.group.joining import LevelingUp
from qpid_ha_broker.group.lineage import Lineage
from qpid_ha_broker.group.member import GroupMember
from qpid_ha_broker.group.ownership import Ownership
from qpid_ha_broker.group.queue_use import QueueUse
from qpid_ha_broker.model.errors import NotFound
from qpid_ha_broker.model.queues.orders import LastValue
from qpid_ha_broker.model.queues.queue import Queue
from qpid_ha_broker.model.queues.sequence import Entry
from qpid_ha_broker.model.sets import state as set_state
from qpid_ha_broker.model.sets.grouped import Grouped
from qpid_ha_broker.model.sets.state import SetState
from simulation.group_guarantees import Guarantee
from simulation.group_plan import (
    FAULTS_END_S,
    GroupFault,
    GroupFaultKind,
    GroupPlan,
    GroupQueueKind,
    draw_group_plan,
)
from simulation.planted import found_by

SEEDS_MOST = 500


def seeds() -> Iterable[GroupPlan]:
    return map(draw_group_plan, range(SEEDS_MOST))


def in_parts_and_slow(seed: int) -> GroupPlan:
    """One queue for many consumers, whose members often part from others while they lag behind what is delivered."""
    draw = random.Random(f"{seed}/in parts and slow")
    kinds = [*[(GroupFaultKind.SLOW, 2.5)] * 8, *[(GroupFaultKind.PARTITION, 0.5)] * 10]
    faults = [
        GroupFault(kind, round(draw.uniform(0.8, FAULTS_END_S), 3), for_s, draw.randrange(1 << 30))
        for kind, for_s in kinds
    ]
    return replace(
        draw_group_plan(seed), members=3, late=0, queues=1, kinds=(GroupQueueKind.PLAIN,), consumers=5, publishers=4,
        sessions=0, exclusive=(False,), prefilled=20, first_dies_early=False,
        faults=tuple(sorted(faults, key=lambda fault: fault.at_s)),
    )  # fmt: skip


def test_confirming_what_was_delivered_to_oneself_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    take_unit = Deliveries.take_unit

    def take_and_confirm(self: Deliveries, sender: str, frame: fr.Submitted) -> None:
        take_unit(self, sender, frame)
        if self._parts.log is not None:
            self._parts.log.lineage.committed_lsn = self._ctx.last_lsn

    monkeypatch.setattr(Deliveries, "take_unit", take_and_confirm)

    found_by(monkeypatch, seeds())


def test_yielding_without_the_list_of_what_is_held_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def give_up_without_list(self: GroupMember, asked: fx.YieldAsked) -> None:
        self._parts.yielding[asked.queue] += 1
        self._ctx.say(fr.QueueYielded(asked.queue, ()))

    monkeypatch.setattr(GroupMember, "give_up_queue", give_up_without_list)

    found_by(monkeypatch, seeds())


def test_not_showing_who_joins_where_links_of_sessions_are_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    shares = Ownership.shares

    def shares_without_links(self: Ownership) -> tuple[fr.QueueShare, ...]:
        return tuple(share._replace(links=()) for share in shares(self))

    monkeypatch.setattr(Ownership, "shares", shares_without_links)

    found_by(monkeypatch, seeds())


def test_two_who_come_for_an_exclusive_queue_and_both_have_it_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ownership, "user", lambda self, queue: "")

    assert found_by(monkeypatch, seeds()).problem.startswith(Guarantee.ACQUIRE)


def test_acknowledging_before_the_disk_has_it_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    store = DurableLog.store

    def store_and_believe(self: DurableLog, committed_lsn: int) -> None:
        store(self, committed_lsn)
        if self.is_kept:
            self.lsn = self._ctx.last_lsn

    monkeypatch.setattr(DurableLog, "store", store_and_believe)

    found_by(monkeypatch, seeds())


def test_skipping_for_a_reason_that_only_some_members_know_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who catches up may not have the message yet."""

    def messages_are_here(
        state: SetState, ownership: Ownership, sender: str, event: ev.Dequeued | ev.Released
    ) -> Skip | None:
        queue = state.catalog.queues_by_id.get(event.queue)
        is_here = queue is not None and len(queue.messages.find_all(event.ids)) == len(event.ids)
        return None if is_here else Skip(NotFound("some of the messages are not here"))

    for kind in (ev.Dequeued, ev.Released):
        monkeypatch.setitem(checks.CHECKS, kind, messages_are_here)

    found_by(monkeypatch, seeds())


def test_counting_a_member_before_its_queues_are_whole_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would find out by itself, at the first message that is not there; so it is made to overlook that."""

    def finish_early(self: LevelingUp) -> None:
        self._catch_up._levels.clear()
        self._catch_up.finish()
        self._log.catch_up = None

    def those_that_are_here(queue: Queue, ids: tuple[int, ...]) -> list[Entry]:
        return queue.messages.find_all(ids)

    monkeypatch.setattr(LevelingUp, "is_done", property(lambda self: True))
    monkeypatch.setattr(LevelingUp, "finish", finish_early)
    monkeypatch.setattr(set_state, "_find", those_that_are_here)

    found_by(monkeypatch, seeds())


def test_confirming_in_the_view_of_a_minority_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def who_is_here(self: Lineage) -> set[str]:
        return {*self.in_step, *self.admitting} or set(self.record.members)

    monkeypatch.setattr(Lineage, "required", property(who_is_here))

    found_by(monkeypatch, seeds())


def test_a_first_claim_that_nobody_else_may_replace_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    consider = RecordDecisions._consider_outside

    def consider_unless_claimed(self: RecordDecisions) -> None:
        if not self._parts.records.record.claimed:
            consider(self)

    monkeypatch.setattr(RecordDecisions, "_consider_outside", consider_unless_claimed)

    assert "no progress" in found_by(monkeypatch, seeds()).problem


def test_not_telling_what_a_consumer_gave_back_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def only_of_others(self: Grouped, queue: Queue, *, was_seen: bool) -> bool:
        return not self.hands_out(queue)

    monkeypatch.setattr(Grouped, "tells_returns", only_of_others)

    assert "without saying so" in found_by(monkeypatch, seeds()).problem


def test_handing_out_before_all_know_who_owns_the_queue_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def as_delivered_here(self: QueueUse, queue: int) -> bool:
        owns = self.owner(queue) == self._parts.ctx.settings.name
        return self._parts.role is GroupRole.SERVING and owns and queue not in self._parts.yielding

    monkeypatch.setattr(QueueUse, "may_hand_out", as_delivered_here)

    found_by(monkeypatch, map(in_parts_and_slow, range(SEEDS_MOST)))


def test_dropping_the_newest_value_of_a_key_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    superseded = LastValue.superseded

    def and_the_newest(self: LastValue) -> Iterable[Entry]:
        return [*superseded(self), *([*self][-1:] if len(self) > 2 else [])]

    monkeypatch.setattr(LastValue, "superseded", and_the_newest)

    found_by(monkeypatch, seeds())
