"""Commands that one broker passes on to another: who may, once, and what is said where no answer comes."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import pytest

from access_support import controlled, open_to_all
from event_loops import in_event_loop
from qpid_ha_broker.access.audit import AuditChannel, Caller
from qpid_ha_broker.access.operations import OPERATIONS
from qpid_ha_broker.ha.frames import Answer, Question, StoreOrigin, Topic
from qpid_ha_broker.server.control.control import CALLER, NOT_ALLOWED, ControlError, ControlServer
from qpid_ha_broker.server.peers.peer_asker import Outcome, Unanswered
from qpid_ha_broker.server.sets.forwarded_commands import CommandPlace, ForwardedCommands, is_passed_on

PLACE = CommandPlace("b", "amqp://b")
OLGA = Caller(AuditChannel.AMQP, "olga", "192.0.2.1")


class Wire:
    """Carries questions to another broker, loses answers, and puts a question twice."""

    def __init__(self) -> None:
        self.other: ForwardedCommands | None = None
        self.told: str | None = None
        self.times = 1
        self.loses = False

    def question(self, topic: Topic, request: str = "") -> Question:
        return Question(0, topic, "a", "", "", 0, 0, "", request=request)

    async def ask(self, question: Question, addresses: list[str], limit_s: float) -> Outcome:
        text = self.told
        if self.other is not None:
            answers = await asyncio.gather(*(self.other.asked(question.request) for _ in range(self.times)))
            text = json.dumps(answers[0])
            assert answers == [answers[0]] * self.times
        if self.loses or text is None:
            return {addresses[0]: Unanswered("no answer within 25 s")}
        return {addresses[0]: answer(text)}


def answer(text: str) -> Answer:
    return Answer(
        0, "b", "", "", "primary", 0, 0, (), (), 0, complete=True, promised=0, promised_to="", granted=True, text=text,
        min_in_sync=1, store=StoreOrigin.MEMORY,
    )  # fmt: skip


class Pair:
    """Broker `a` passes on to `b`, whose rules are these, and whose methods only count."""

    def __init__(self, *rules: str) -> None:
        access = controlled(*rules) if rules else open_to_all()
        self.done: list[tuple[str, Mapping[str, object], Caller | None]] = []
        self.recorded: list[Any] = []
        self.server = ControlServer(None, {"queues": self._queues}, record=lambda *act: self.recorded.append(act))  # type: ignore[arg-type]
        self.wire = Wire()
        self.wire.other = ForwardedCommands("b", self.wire, lambda: self.server, access)
        self.passing_on = ForwardedCommands("a", self.wire, lambda: self.server, open_to_all())

    async def _queues(self, params: dict[str, object]) -> object:
        assert is_passed_on()
        await asyncio.sleep(0)
        self.done.append(("queues", params, CALLER.get()))
        if params.get("name") == "none":
            raise ControlError(-32000, "there is no queue none", {"reason": "not-found"})
        return {"purged": len(self.done)}

    async def ask(self, caller: Caller = OLGA, method: str = "queues", **params: object) -> object:
        CALLER.set(caller)
        return await self.passing_on.pass_on(method, params, PLACE)


@in_event_loop
async def test_it_is_done_there_for_the_one_who_asked_here_and_audited_so() -> None:
    pair = Pair("allow olga administer", "allow olga purge orders")
    assert await pair.ask(action="purge", name="orders") == {"purged": 1}
    caller = pair.done[0][2]
    assert caller == Caller(AuditChannel.CLUSTER, "olga", "192.0.2.1", via=("a",))
    assert [(act[0], act[1]) for act in pair.recorded] == [(caller, "queues")]


@in_event_loop
async def test_a_refusal_there_is_the_refusal_here() -> None:
    with pytest.raises(ControlError, match="there is no queue none") as refused:
        await Pair().ask(action="purge", name="none")
    assert refused.value.data == {"reason": "not-found"}


@in_event_loop
async def test_a_question_that_comes_twice_is_carried_out_once_and_another_one_again() -> None:
    pair = Pair()
    pair.wire.times = 3
    assert await pair.ask(action="purge", name="orders") == {"purged": 1}
    assert await pair.ask(action="purge", name="orders") == {"purged": 2}


@in_event_loop
async def test_of_what_only_looks_no_answer_is_kept() -> None:
    pair = Pair()
    await pair.ask(action="peek", name="orders")
    assert pair.wire.other is not None
    assert not pair.wire.other._answers
    await pair.ask(action="purge", name="orders")
    assert len(pair.wire.other._answers) == 1


@in_event_loop
async def test_where_no_answer_comes_it_is_said_that_it_may_have_been_done() -> None:
    pair = Pair()
    pair.wire.loses = True
    with pytest.raises(ControlError, match=r"b at amqp://b gave no answer .*whether it was done is not known"):
        await pair.ask(action="purge", name="orders")
    assert len(pair.done) == 1
    with pytest.raises(ControlError) as refused:
        await pair.ask(action="peek", name="orders")
    assert "not known" not in str(refused.value)


@pytest.mark.parametrize(
    ("rules", "problem"),
    [
        (("allow olga all",), "administer"),
        (("allow olga administer", "allow eve all"), "purge"),
        (("deny all all", "deny all administer"), "administer"),
    ],
)
@in_event_loop
async def test_who_may_not_there_may_not_through_another_broker_either(rules: tuple[str, ...], problem: str) -> None:
    pair = Pair(*rules)
    with pytest.raises(ControlError, match=problem) as refused:
        await pair.ask(action="purge", name="orders")
    assert refused.value.code == NOT_ALLOWED
    assert not pair.done


@in_event_loop
async def test_who_may_use_the_socket_of_a_machine_of_the_cluster_is_vouched_for_by_its_broker() -> None:
    pair = Pair("deny all all", "deny all administer")
    socket = Caller(AuditChannel.CONTROL_SOCKET, "root", pid=1, uid=0)
    assert await pair.ask(socket, action="purge", name="orders") == {"purged": 1}


@pytest.mark.parametrize(("method", "params"), [("shutdown", {}), ("promote", {"force": True}), ("no-such", {})])
@in_event_loop
async def test_what_is_not_for_a_primary_is_not_passed_on(method: str, params: dict[str, object]) -> None:
    with pytest.raises(ControlError, match="not passed on"):
        await Pair().ask(OLGA, method, **params)


@in_event_loop
async def test_an_older_release_tells_its_facts_and_is_named() -> None:
    pair = Pair()
    pair.wire.other, pair.wire.told = None, json.dumps({"name": "b", "queues": 5})
    with pytest.raises(ControlError, match="is of a release to which nothing is passed on: ask it"):
        await pair.ask(action="purge", name="orders")
    for noise in ("", "[]", "5", '{"command": 5}', '{"command": "{}"}', '{"command": "["}'):
        pair.wire.told = noise
        with pytest.raises(ControlError):
            await pair.ask(action="purge", name="orders")


@in_event_loop
async def test_what_is_too_long_for_a_question_is_refused_before_it_is_put() -> None:
    pair = Pair()
    with pytest.raises(ControlError, match="too long to be passed on: ask b"):
        await pair.ask(action="create", name="q", arguments={"x": "y" * 300_000})
    assert not pair.done


@in_event_loop
async def test_what_is_no_command_is_left_to_whoever_tells_facts() -> None:
    passing_on = Pair().passing_on
    for request in ("", "x", "[]", "{}", '{"key": "a", "value": 1}', '{"command": 5}'):
        assert await passing_on.asked(request) is None


def test_all_that_only_a_primary_can_do_is_passed_on() -> None:
    passed_on = {row.text for actions in OPERATIONS.by_method.values() for row in actions.values() if row.is_passed_on}
    assert passed_on == {
        "backups", "sessions end", "queues create", "queues delete", "queues update", "queues purge", "queues peek",
        "queues payload", "queues publish", "queues move", "queues copy", "queues retry", "queues redirect",
        "exchanges create", "exchanges delete", "exchanges bind", "exchanges unbind",
    }  # fmt: skip
