"""The table of roles and inputs is whole: each input and each frame has a cell for each role, each cell a method."""

from __future__ import annotations

from typing import get_args

import pytest

from model_support import NOW_MS, TextReader
from qpid_ha_broker.ha import effects as fx
from qpid_ha_broker.ha import frames as fr
from qpid_ha_broker.ha import roles
from qpid_ha_broker.ha.context import MemberContext
from qpid_ha_broker.ha.member import Member
from qpid_ha_broker.ha.replica import Restored, StreamError
from qpid_ha_broker.ha.roles import (
    TABLE,
    ActiveRole,
    Candidate,
    Connecting,
    Following,
    Leader,
    MemberParts,
    RoleRow,
    UnexpectedInput,
)
from qpid_ha_broker.ha.settings import MemberSettings
from qpid_ha_broker.ha.states import State
from qpid_ha_broker.model.sets.resources import Resources
from small_cluster import SmallCluster, three

ROLES: dict[str, type[ActiveRole]] = {
    "connecting": Connecting,
    "following": Following,
    "candidate": Candidate,
    "leader": Leader,
}
KINDS = [*get_args(fx.Input), *get_args(fr.Frame)]


@pytest.mark.parametrize("kind", KINDS)
def test_each_input_and_each_frame_has_a_row(kind: type) -> None:
    assert kind in TABLE


def test_there_is_no_row_for_anything_else() -> None:
    assert set(TABLE) == set(KINDS)


@pytest.mark.parametrize("column", ROLES)
def test_each_cell_names_a_method_of_its_role(column: str) -> None:
    role = ROLES[column]
    assert role.column == column
    missing = [kind for kind, row in TABLE.items() if not callable(getattr(role, getattr(row, column), None))]
    assert missing == []


def test_each_role_has_a_column() -> None:
    assert tuple(ROLES) == RoleRow._fields


def test_an_input_without_a_row_is_a_bug_that_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(roles.HANDLERS["connecting"], fx.Ticked)
    parts = MemberParts(
        MemberContext(SETTINGS, Resources(TextReader()).replicated, lambda: 0.5, lambda: NOW_MS), Restored(MEMORY)
    )
    with pytest.raises(KeyError):
        parts.role.handle(fx.Ticked())


def test_so_is_one_that_cannot_happen_in_a_role() -> None:
    cluster = three()
    with pytest.raises(UnexpectedInput, match="Started while primary"):
        cluster["a"].member.handle(fx.Started(), cluster.now_s)


SETTINGS = MemberSettings("a", "a-1", ("a:5672", "b:5672"))
MEMORY = fr.StoreOrigin.MEMORY


def test_who_is_refused_goes_on_as_the_standby_that_it_was() -> None:
    member = Member(SETTINGS, Resources(TextReader()).replicated, lambda: 0.5, lambda: NOW_MS)
    member.handle(fx.Started(), 1.0)
    before = member.role
    (asked,) = [effect for effect in member.handle(fx.PromoteAsked(1), 1.0) if isinstance(effect, fx.Ask)]
    assert isinstance(member.role, Candidate)
    member.handle(fx.PeersAnswered(asked.question.number, (), ("b:5672",)), 1.0)
    assert member.role is before
    assert member.status.state is State.CONNECTING
    assert "cannot be asked" in member.status.problem


def test_a_candidate_follows_its_primary_until_that_hands_over() -> None:
    """What the old primary confirms meanwhile is in the log of the one that takes over."""
    cluster = three()
    a, b = cluster["a"], cluster["b"]
    a.declare("q")
    cluster.settle()
    b.handle(fx.PromoteAsked(1))
    assert isinstance(b.member.role, Candidate)
    a.publish("q", "while b is asking")
    a.turn()
    link = cluster.link("b", "a")
    (frame,) = [what for what in b.inbox if isinstance(what, fx.FrameReceived) and what.link == link]
    b.inbox.remove(frame)
    b.handle(frame)
    assert isinstance(b.member.role, Candidate)
    assert b.member.position.lsn == a.member.position.lsn
    cluster.settle()
    assert b.is_in(State.PRIMARY)
    assert b.bodies("q") == ["while b is asking"]


def test_the_status_is_told_once_for_each_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """A message changes nothing that the status shows, so nothing is asked and nothing is told."""
    cluster: SmallCluster = three()
    a = cluster["a"]
    a.declare("q")
    cluster.settle()
    looks: list[str] = []
    look = Member._look

    def counting(self: Member) -> fx.MemberStatus:
        looks.append(self.settings.name)
        return look(self)

    monkeypatch.setattr(Member, "_look", counting)
    monkeypatch.setattr(Member, "check_invariants", lambda self: None)
    a.publish("q", "1")
    cluster.run()
    assert a.committed == a.member.position.lsn
    assert looks == []


def test_a_backup_that_refuses_its_primarys_stream_says_so_until_it_is_level(monkeypatch: pytest.MonkeyPatch) -> None:
    """It connects anew at once, and again: an operator saw "connecting" and no reason."""
    cluster = three()
    b = cluster["b"]
    with monkeypatch.context() as damaged:
        damaged.setattr(b.member._parts.replica, "append", _does_not_fit)
        cluster["a"].declare("q")
        cluster.run()
        problem = b.member.status.problem
        assert "the stream of the primary at a:5672 does not fit: LSN 9 is missing" in problem
        cluster.wait(5)
        assert b.member.status.problem == problem, "however often it connects anew"

    cluster.settle()

    assert (b.state, b.member.status.problem) == (State.READY, "")


def _does_not_fit(batch: fr.Batch) -> None:
    raise StreamError("LSN 9 is missing")


def test_who_asks_again_for_the_same_promotion_hears_what_comes_of_it() -> None:
    """An order that was given twice, because the first one took long, is no refusal."""
    member = Member(SETTINGS, Resources(TextReader()).replicated, lambda: 0.5, lambda: NOW_MS)
    member.handle(fx.Started(), 1.0)
    effects = member.handle(fx.PromoteAsked(1, failover=True), 1.0)
    (asked,) = [effect for effect in effects if isinstance(effect, fx.Ask)]

    assert member.handle(fx.PromoteAsked(2, failover=True), 1.5) == []
    answers = [
        effect
        for effect in member.handle(fx.PeersAnswered(asked.question.number, (), ("b:5672",)), 2.0)
        if isinstance(effect, fx.Answered)
    ]

    assert [(answer.request, answer.done) for answer in answers] == [(1, False), (2, False)]
    assert answers[0].text == answers[1].text


@pytest.mark.parametrize(
    ("first", "second"),
    [(fx.PromoteAsked(1), fx.PromoteAsked(2, True)), (fx.PromoteAsked(1, failover=True), fx.PromoteAsked(2))],
    ids=["with force", "also from a primary that lives"],
)
def test_who_asks_for_more_than_the_promotion_that_is_under_way_is_told_to_wait(
    first: fx.PromoteAsked, second: fx.PromoteAsked
) -> None:
    member = Member(SETTINGS, Resources(TextReader()).replicated, lambda: 0.5, lambda: NOW_MS)
    member.handle(fx.Started(), 1.0)
    member.handle(first, 1.0)

    (answer,) = member.handle(second, 1.5)

    assert isinstance(answer, fx.Answered)
    assert (answer.request, answer.done) == (2, False)
    assert "wait for that" in answer.text
