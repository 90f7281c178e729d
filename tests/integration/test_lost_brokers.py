"""How the controller of a cluster finds out that a broker is gone, and what becomes of a controller that raises.

A broker is gone when its connection is lost and nobody listens there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cluster_in_process import InProcessCluster, eventually
from event_loops import in_event_loop
from model_support import TextReader
from qpid_ha_broker.amqp.wire.peer_frames import Channel
from qpid_ha_broker.cluster import control_frames as cf
from qpid_ha_broker.cluster import messages as ms
from qpid_ha_broker.cluster.placement import Placement
from qpid_ha_broker.ha.effects import Ask, Input, PeersAnswered
from qpid_ha_broker.ha.frames import Answer
from qpid_ha_broker.model.sets.resources import Resources
from qpid_ha_broker.server.controller import controller_service
from qpid_ha_broker.server.controller.controller_service import ControllerService
from qpid_ha_broker.server.controller.leader_questions import LeaderQuestions
from qpid_ha_broker.server.peers.loopback_channel import LoopbackChannel
from qpid_ha_broker.server.runtime.steady_clock import SteadyClock

ANSWER = Answer(
    number=0, name="b", instance="b/1", cluster="uuid", state="primary", generation=3, epoch=1, members=("b",), lsn=7,
    complete=True, promised=0, promised_to="", granted=True, text="", newest_members=("b",), min_in_sync=1,
)  # fmt: skip


class RecordingCore:
    """Decides nothing, and remembers what happened; raises while it has a `bug`."""

    def __init__(self) -> None:
        self.happened: list[ms.ControllerInput] = []
        self.facts: dict[str, object] = {}
        self.has_bug = False
        self.effects: list[ms.ControllerEffect] = []
        """Of the next input."""

    def handle(self, happened: ms.ControllerInput, now_s: float) -> list[ms.ControllerEffect]:
        self.happened.append(happened)
        if self.has_bug:
            raise ZeroDivisionError(type(happened).__name__)
        effects, self.effects = self.effects, []
        return effects

    def change_settings(self, settings: ms.ControllerSettings, placement: Placement) -> None:
        """There are none."""

    def kinds(self) -> list[type]:
        return [type(each) for each in self.happened]


class OneAnswer:
    """Carries each question to a broker that says this."""

    def __init__(self, **says: object) -> None:
        self._says = says
        self.asked: list[Ask] = []

    def ask_for(self, effect: Ask, feed: Callable[[Input], None]) -> None:
        self.asked.append(effect)
        answers = (ANSWER._replace(**self._says),) if self._says else ()  # type: ignore[arg-type]
        feed(PeersAnswered(effect.question.number, answers, () if answers else effect.addresses))


class ReportingBroker:
    """The other end of a control channel."""

    def __init__(self, port: int) -> None:
        identity = ms.BrokerIdentity("b", "uuid-b", "b/1", f"amqp://127.0.0.1:{port}", "", "", "1.0")
        self._report = ms.BrokerReport(identity, 1, True, 1 << 30, ())

    def opened(self, channel: Channel) -> None:
        channel.send(cf.encode(cf.Reported(self._report)))

    def received(self, channel: Channel, data: bytes) -> None:
        """What the controller says does not matter."""

    def closed(self, channel: Channel, reason: str) -> None:
        """Nor does that."""


async def controller(questions: OneAnswer | None = None) -> tuple[ControllerService, RecordingCore]:
    """One that decides for a cluster of which nobody has been heard of yet."""
    core, resources = RecordingCore(), Resources(TextReader())
    default = resources.replicated
    resources.replication.read_only = ""
    default.catalog.clock.go_on(5000, 1000)
    container = SimpleNamespace(default=default, steady=SteadyClock(lambda: 7.0, lambda: 1.0))
    host: Any = SimpleNamespace(schedule_turn=lambda: None, container=container)
    service = ControllerService(host, "a", lambda: core, default, LeaderQuestions(questions or OneAnswer(), "a", "a/1"))
    service.begin(1)
    return service, core


async def lose(service: ControllerService, core: RecordingCore, port: int) -> None:
    """Broker `b`, which said that it listens at that port, reports, and its connection is lost."""
    channel = LoopbackChannel.open(ReportingBroker(port), service)
    await eventually(lambda: ms.ReportReceived in core.kinds())
    channel.close("connection reset")
    await eventually(lambda: ms.BrokerDisconnected in core.kinds())


async def listener(accepted: asyncio.Event) -> asyncio.Server:
    """Somebody who takes connections at a port of this machine."""

    async def accept(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()
        accepted.set()

    return await asyncio.start_server(accept, "127.0.0.1", 0)


@in_event_loop
async def test_the_controller_goes_by_the_clock_of_default_as_the_one_before_it_and_not_by_the_time_of_day() -> None:
    service, core = await controller()
    (began,) = [each for each in core.happened if isinstance(each, ms.ControllerBegan)]
    assert began.message_time_ms == 7000 + 4000
    service.end("the test is over")


@in_event_loop
async def test_one_that_takes_no_connection_any_more_is_gone_and_the_core_hears_so() -> None:
    server = await listener(asyncio.Event())
    port = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    service, core = await controller()

    await lose(service, core, port)
    await eventually(lambda: ms.BrokerRefuses in core.kinds())

    at = core.kinds().index(ms.BrokerRefuses)
    assert core.happened[at] == ms.BrokerRefuses("b", "b/1")
    assert core.kinds()[at + 1] is ms.TimePassed  # it need not wait for the next tick
    service.end("the test is over")


@in_event_loop
async def test_of_one_that_still_takes_connections_nothing_is_said() -> None:
    accepted = asyncio.Event()
    async with await listener(accepted) as server:
        service, core = await controller()
        await lose(service, core, server.sockets[0].getsockname()[1])
        await accepted.wait()
        await eventually(lambda: ms.TimePassed in core.kinds())  # its time is over
        assert ms.BrokerRefuses not in core.kinds()
        service.end("the test is over")


@in_event_loop
async def test_a_process_that_ends_may_take_one_more_connection_before_it_takes_none() -> None:
    async def accept(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server.close()
        writer.transport.abort()

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    service, core = await controller()
    await lose(service, core, server.sockets[0].getsockname()[1])
    await eventually(lambda: ms.BrokerRefuses in core.kinds())
    service.end("the test is over")


@in_event_loop
async def test_one_that_a_new_controller_has_not_heard_of_is_looked_for_at_once() -> None:
    server = await listener(asyncio.Event())
    port = server.sockets[0].getsockname()[1]
    server.close()
    await server.wait_closed()
    service, core = await controller()
    core.effects.append(ms.LookForBroker("b", f"amqp://127.0.0.1:{port}"))
    service.tick()
    await eventually(lambda: ms.BrokerRefuses("b", "") in core.happened)
    assert core.kinds()[-1] is ms.TimePassed
    service.end("the test is over")


@pytest.mark.parametrize(
    ("says", "leads"),
    [
        ({"state": "primary"}, True),
        ({"state": "ready"}, False),
        ({"state": "primary", "name": "c"}, False),
        ({"state": "primary", "granted": False}, False),
        ({}, False),
    ],
    ids=["leads", "follows", "another broker", "a stranger", "no answer"],
)
@in_event_loop
async def test_only_who_says_that_he_leads_the_set_has_answered_the_controller(
    says: dict[str, object], leads: bool
) -> None:
    questions = OneAnswer(**says)
    service, core = await controller(questions)
    core.effects.append(ms.AskBroker("b", "127.0.0.1:1", "orders", "uuid", 3, 0.5))
    service.tick()
    (asked,) = questions.asked
    assert (asked.addresses, asked.limit_s, asked.question.set) == (("127.0.0.1:1",), 0.5, "orders")
    assert ms.BrokerAnswered("b", "orders", 3 if leads else 0) in core.happened
    service.end("the test is over")


@in_event_loop
async def test_a_primary_without_a_channel_to_the_controller_answers_it_and_goes_on_leading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with InProcessCluster(tmp_path, "a", "b", "c", ha__failure_timeout="500ms") as cluster:
        await cluster.form("a")
        controller, sets = cluster.brokers["a"].sets, cluster.brokers["b"].sets
        assert controller is not None
        assert sets is not None
        await eventually(lambda: len(controller.service._channels) == 3)
        told = await controller.client.ask("set-create", {"name": "orders", "preferred": "b"})
        assert told.done, told.text
        await eventually(lambda: sets.leads("orders"))
        core = controller.service.core
        handle, answers = core.handle, []

        def count(happened: ms.ControllerInput, now_s: float) -> list[ms.ControllerEffect]:
            if isinstance(happened, ms.BrokerAnswered):
                answers.append(happened)
            return handle(happened, now_s)

        monkeypatch.setattr(core, "handle", count)
        sets.client.follow(None)
        await eventually(lambda: len(answers) >= 5)  # each after a half of the time-out

        assert set(answers) == {ms.BrokerAnswered("b", "orders", 1)}
        assert (sets.leads("orders"), sets.map.brokers["b"].up) == (True, True)


@pytest.mark.parametrize("address", ["", "amqp://", "amqp://host.invalid:1"])
@in_event_loop
async def test_an_address_that_leads_nowhere_proves_nothing(address: str) -> None:
    service, core = await controller()
    await service._look_whether_gone("b", "b/1", address)
    assert ms.BrokerRefuses not in core.kinds()
    service.end("the test is over")


@in_event_loop
async def test_a_controller_that_raises_is_given_up_and_begins_anew_later(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The broker leads `default` all the same: its next primary would meet the same input."""
    monkeypatch.setattr(controller_service, "RETRY_S", 0.0)
    service, core = await controller()
    answers: list[ms.AnswerRequest] = []
    service.request(ms.DrainBroker("b"), answers.append)
    core.has_bug = True
    service.tick()
    assert "has stopped deciding because of a bug (ZeroDivisionError)" in service.problem
    assert service.facts == {"controller_problem": service.problem}
    assert [(answer.done, answer.text) for answer in answers] == [(False, service.problem)]
    channel = LoopbackChannel.open(ReportingBroker(1), service)
    await eventually(lambda: not channel.is_open)  # nobody is listened to meanwhile

    core.has_bug = False
    service.tick()
    assert service.is_active
    assert core.kinds()[-1] is ms.ControllerBegan
    assert service.facts == core.facts
    service.end("the test is over")
    assert "ZeroDivisionError: TimePassed" in caplog.text
