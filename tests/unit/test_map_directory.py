"""Where a broker sends the clients of sets that it does not serve, and what it asks the controller before that."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest

from event_loops import in_event_loop
from qpid_ha_broker.amqp.nodes.directory import ServerAddress
from qpid_ha_broker.cluster import messages as ms
from qpid_ha_broker.cluster_map import ClusterMap
from qpid_ha_broker.events import types as ev
from qpid_ha_broker.ha.effects import MemberStatus
from qpid_ha_broker.ha.frames import StoreOrigin
from qpid_ha_broker.ha.states import State
from qpid_ha_broker.server.controller import controller_directory
from qpid_ha_broker.server.controller.controller_directory import ControllerDirectory
from qpid_ha_broker.server.controller.map_directory import MapDirectory

BETA = ServerAddress("beta", "beta.example", 5672)


def a_map(primary: str) -> ClusterMap:
    """Of two brokers, with a set that `primary` leads."""
    there = ClusterMap()
    events: list[ev.MapEvent] = [
        ev.BrokerRegistered(name, "u", f"amqp://{name}.example:5672", "", "", "0.3") for name in ("alpha", "beta")
    ]
    events.append(ev.SetPlaced("orders", ("alpha", "beta"), (), "", 0, 0))
    events.append(ev.SetRecorded("orders", "c", 1, primary, 1, (primary,), False))
    for lsn, event in enumerate(events, start=1):
        there.apply(lsn, event)
    return there


def status(primary: str, address: str) -> MemberStatus:
    """Of the member of `default`."""
    state = State.PRIMARY if primary == "alpha" else State.READY
    return MemberStatus(state, None, 1, 1, (), "", (), primary, address, "", StoreOrigin.MEMORY, False, "", "", False)


@pytest.mark.parametrize(
    ("recorded", "expected"),
    [("beta", BETA), ("alpha", None), ("gamma", None)],
    ids=["another leads it", "this broker is to, or hands over", "one that nobody knows"],
)
def test_clients_are_sent_to_another_broker_or_nowhere(recorded: str, expected: ServerAddress | None) -> None:
    directory = MapDirectory("alpha", a_map(recorded), lambda: status("beta", "amqp://beta.example:5672"))
    assert directory.primary_of("orders") == expected


@pytest.mark.parametrize(
    ("primary", "address", "expected"),
    [("beta", "amqp://beta.example:5672", BETA), ("alpha", "amqp://alpha.example:5672", None), ("", "", None)],
)
def test_so_are_those_of_default(primary: str, address: str, expected: ServerAddress | None) -> None:
    directory = MapDirectory("alpha", a_map("beta"), lambda: status(primary, address))
    assert directory.primary_of("default") == expected


# --- a queue that is not in the map here


class AskedController:
    """Answers where a queue is, when the test says so."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def ask(self, method: str, params: Mapping[str, Any]) -> ms.AnswerRequest:
        self.asked.append(f"{method} {params['name']}")
        return ms.AnswerRequest(1, True, "", {"set": await self.answer})


def locating(story: Callable[[ControllerDirectory, AskedController, list[object]], Awaitable[None]]) -> None:
    """Two clients wait for the queue `new`; what they are told is in the list."""

    async def begin() -> None:
        host: Any = SimpleNamespace(current=lambda: SimpleNamespace(name="alpha"), schedule_turn=lambda: None)
        client: Any = AskedController()
        directory = ControllerDirectory(host, a_map("beta"), lambda: status("beta", ""), client)
        told: list[object] = []
        for _ in range(2):
            wait = directory.locate("new")
            assert wait is not None
            wait.add(lambda error: told.append(error))
            await asyncio.sleep(0)
        assert client.asked == ["queue-locate new"]
        await story(directory, client, told)
        assert told == [None, None], "each attaches again"

    in_event_loop(begin)()


def test_a_queue_that_the_controller_knows_is_waited_for_until_the_map_here_has_it() -> None:
    async def story(directory: ControllerDirectory, client: AskedController, told: list[object]) -> None:
        client.answer.set_result("orders")
        for _ in range(5):
            await asyncio.sleep(0)
        assert told == []
        directory.queue_changed("new")
        for _ in range(5):
            await asyncio.sleep(0)

    locating(story)


def test_of_a_queue_that_is_nowhere_the_controller_is_not_asked_again_at_once() -> None:
    async def story(directory: ControllerDirectory, client: AskedController, told: list[object]) -> None:
        client.answer.set_result("")
        for _ in range(5):
            await asyncio.sleep(0)
        assert directory.locate("new") is None
        assert directory.locate("another") is not None

    locating(story)


def test_an_answer_that_does_not_come_is_waited_for_no_longer_than_a_client_needs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(controller_directory, "LOCATING_LIMIT_S", 0.001)

    async def story(directory: ControllerDirectory, client: AskedController, told: list[object]) -> None:
        while not told:  # noqa: ASYNC110
            await asyncio.sleep(0)

    locating(story)
