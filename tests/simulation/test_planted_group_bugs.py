"""The checkers of groups find what they are there for: each test plants a bug in the core, and a cluster of brokers
finds it."""

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
from simulation.groups.guarantees import Guarantee
from simulation.groups.plan import GroupKind, GroupPlan, GroupQueueKind, draw_group_fault, draw_group_plan, in_order
from simulation.planted import found_by


def in_parts_and_late(seed: int) -> GroupPlan:
    """One queue for many consumers, whose members part from others now and then, while some hear of things later."""
    draw = random.Random(f"{seed}/in parts and late")
    late = [draw_group_fault(draw, GroupKind.ORDER_LATE)._replace(at_s=0.1, for_s=8.0) for _ in range(6)]
    parted = [draw_group_fault(draw, GroupKind.ORDER_SPLIT)._replace(for_s=0.3) for _ in range(3)]
    apart = [fault._replace(at_s=at_s + draw.random()) for fault, at_s in zip(parted, (1.0, 3.5, 6.0), strict=True)]
    return replace(
        draw_group_plan(seed), brokers=3, replicas=((0, 1, 2),), kinds=(GroupQueueKind.PLAIN,), exclusive=(False,),
        consumers=5, publishers=4, sessions=0, consumed_after_s=0.0, first_dies_early=False, chunk_messages=1000,
        faults=in_order([*late, *apart]), power_cuts=(),
    )  # fmt: skip


def those_that_are_here(queue: Queue, ids: tuple[int, ...]) -> list[Entry]:
    return queue.messages.find_all(ids)


def test_confirming_what_was_delivered_to_oneself_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    take_unit = Deliveries.take_unit

    def take_and_confirm(self: Deliveries, sender: str, frame: fr.Submitted) -> None:
        take_unit(self, sender, frame)
        if self._parts.log is not None:
            self._parts.log.lineage.committed_lsn = self._ctx.last_lsn

    monkeypatch.setattr(Deliveries, "take_unit", take_and_confirm)

    found_by(monkeypatch, map(draw_group_plan, (0, 1)))


def test_yielding_without_the_list_of_what_is_held_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def give_up_without_list(self: GroupMember, asked: fx.YieldAsked) -> None:
        self._parts.yielding[asked.queue] += 1
        self._ctx.say(fr.QueueYielded(asked.queue, ()))

    monkeypatch.setattr(GroupMember, "give_up_queue", give_up_without_list)

    found_by(monkeypatch, map(draw_group_plan, (1, 0)))


def test_not_showing_who_joins_where_links_of_sessions_are_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    shares = Ownership.shares

    def shares_without_links(self: Ownership) -> tuple[fr.QueueShare, ...]:
        return tuple(share._replace(links=()) for share in shares(self))

    monkeypatch.setattr(Ownership, "shares", shares_without_links)
    monkeypatch.setattr(set_state, "_find", those_that_are_here)

    found_by(monkeypatch, map(draw_group_plan, (2, 21)))


def test_two_who_come_for_an_exclusive_queue_and_both_have_it_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Ownership, "user", lambda self, queue: "")

    assert found_by(monkeypatch, map(draw_group_plan, (3, 6))).problem.startswith(Guarantee.ACQUIRE)


def test_acknowledging_before_the_disk_has_it_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    store = DurableLog.store

    def store_and_believe(self: DurableLog, committed_lsn: int) -> None:
        store(self, committed_lsn)
        if self.is_kept:
            self.lsn = self._ctx.last_lsn

    monkeypatch.setattr(DurableLog, "store", store_and_believe)

    found_by(monkeypatch, map(draw_group_plan, (0, 1)))


def test_skipping_for_a_reason_that_only_some_members_know_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who catches up may not have the message yet. It would find out by itself, at the first one that is not there; so
    it is made to overlook that."""

    def messages_are_here(
        state: SetState, ownership: Ownership, sender: str, event: ev.Dequeued | ev.Released
    ) -> Skip | None:
        queue = state.catalog.queues_by_id.get(event.queue)
        is_here = queue is not None and len(queue.messages.find_all(event.ids)) == len(event.ids)
        return None if is_here else Skip(NotFound("some of the messages are not here"))

    for kind in (ev.Dequeued, ev.Released):
        monkeypatch.setitem(checks.CHECKS, kind, messages_are_here)
    monkeypatch.setattr(set_state, "_find", those_that_are_here)

    found_by(monkeypatch, map(draw_group_plan, (2, 0)))


def test_counting_a_member_before_its_queues_are_whole_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """It would find out by itself, at the first message that is not there; so it is made to overlook that."""

    def finish_early(self: LevelingUp) -> None:
        self._catch_up._levels.clear()
        self._catch_up.finish()
        self._log.catch_up = None

    monkeypatch.setattr(LevelingUp, "is_done", property(lambda self: True))
    monkeypatch.setattr(LevelingUp, "finish", finish_early)
    monkeypatch.setattr(set_state, "_find", those_that_are_here)

    found_by(monkeypatch, map(draw_group_plan, (0, 1)))


def test_confirming_in_the_view_of_a_minority_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def who_is_here(self: Lineage) -> set[str]:
        return {*self.in_step, *self.admitting} or set(self.record.members)

    monkeypatch.setattr(Lineage, "required", property(who_is_here))

    found_by(monkeypatch, map(draw_group_plan, (0, 3)))


def test_a_first_claim_that_nobody_else_may_replace_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    consider = RecordDecisions._consider_outside

    def consider_unless_claimed(self: RecordDecisions) -> None:
        if not self._parts.records.record.claimed:
            consider(self)

    monkeypatch.setattr(RecordDecisions, "_consider_outside", consider_unless_claimed)

    assert "is outside in group" in found_by(monkeypatch, map(draw_group_plan, (4,))).problem


def test_not_telling_what_a_consumer_gave_back_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def only_of_others(self: Grouped, queue: Queue, *, was_seen: bool) -> bool:
        return not self.hands_out(queue)

    monkeypatch.setattr(Grouped, "tells_returns", only_of_others)

    assert "without saying so" in found_by(monkeypatch, map(draw_group_plan, (5,))).problem


def test_handing_out_before_all_know_who_owns_the_queue_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def as_delivered_here(self: QueueUse, queue: int) -> bool:
        owns = self.owner(queue) == self._parts.ctx.settings.name
        return self._parts.role is GroupRole.SERVING and owns and queue not in self._parts.yielding

    monkeypatch.setattr(QueueUse, "may_hand_out", as_delivered_here)

    found_by(monkeypatch, map(in_parts_and_late, (0, 1)))


def test_dropping_the_newest_value_of_a_key_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    superseded = LastValue.superseded

    def and_the_newest(self: LastValue) -> Iterable[Entry]:
        return [*superseded(self), *([*self][-1:] if len(self) > 2 else [])]

    monkeypatch.setattr(LastValue, "superseded", and_the_newest)

    found_by(monkeypatch, map(draw_group_plan, (10,)))
