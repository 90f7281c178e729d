"""What a broker in a cluster does beside its core: keep what it drops, ask a slow coordinator, tell who listens."""

from __future__ import annotations

import asyncio
import logging
import stat
import threading
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from event_loops import in_event_loop
from qpid_ha_broker.amqp.wire.conditions import AmqpError
from qpid_ha_broker.coordination.coordinator import CoordinatorError
from qpid_ha_broker.coordination.none import NoCoordinator
from qpid_ha_broker.events.codec import decode
from qpid_ha_broker.events.types import Enqueued, QueueDeclared
from qpid_ha_broker.ha.cluster_record import ClusterRecord
from qpid_ha_broker.ha.effects import ClientsEnded, CoordinatorSeen, EndClients, Input
from qpid_ha_broker.model.logs.log import DEFAULT_SET
from qpid_ha_broker.server.clients.set_clients import SetClients
from qpid_ha_broker.server.controller.cluster_events import QUEUE_LENGTH, ClusterEvents
from qpid_ha_broker.server.peers import record_requests
from qpid_ha_broker.server.peers.record_requests import RecordAnswer, RecordRequests
from qpid_ha_broker.server.stores.discarded import DiscardedMessages


def test_what_is_dropped_is_a_small_log_of_its_own(tmp_path: Path) -> None:
    discarded = DiscardedMessages(tmp_path)
    discarded.keep("orders/é", (7, 9), (b"seven", b"nine"))
    discarded.keep("orders/é", (12,), (b"twelve",))
    (path,) = (tmp_path / "discarded").iterdir()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    found = decode(path.read_bytes())
    assert found.problem is None
    assert [(record.lsn, record.event) for record in found.records[:1]] == [(0, QueueDeclared("orders/é", {}))]
    messages = [(record.lsn, record.event.payload) for record in found.records if isinstance(record.event, Enqueued)]
    assert messages == [(7, b"seven"), (9, b"nine"), (12, b"twelve")]
    assert discarded.total == 3


def test_a_queue_with_a_long_name_can_be_kept_too(tmp_path: Path) -> None:
    DiscardedMessages(tmp_path).keep("é" * 127, (1,), (b"x",))
    assert len(list((tmp_path / "discarded").iterdir())) == 1


def test_without_a_directory_the_log_says_how_many_are_dropped(caplog: pytest.LogCaptureFixture) -> None:
    discarded = DiscardedMessages(None)
    with caplog.at_level(logging.WARNING):
        discarded.keep("q", (1, 2), (b"a", b"b"))
    assert "2 messages of queue q" in caplog.text
    assert discarded.total == 2


def test_a_directory_that_cannot_be_written_is_an_error_and_not_the_end(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "discarded").write_text("in the way")
    DiscardedMessages(tmp_path).keep("q", (1,), (b"a",))
    assert "1 message of queue q is not in the cluster's log: dropped, and could not be kept" in caplog.text


class Unwilling(NoCoordinator):
    def read(self) -> ClusterRecord:
        raise CoordinatorError("the directory is gone")


class Hanging(NoCoordinator):
    def __init__(self) -> None:
        self.release = threading.Event()

    def compare_and_set(self, expected: ClusterRecord, wanted: ClusterRecord) -> tuple[bool, ClusterRecord]:
        self.release.wait(10)
        return True, wanted


Heard = asyncio.Queue[Input | RecordAnswer]
WANTED = ClusterRecord("c", 1, "a", 1, ("a",))


async def answers(requests: RecordRequests) -> tuple[RecordAnswer, RecordAnswer]:
    heard: asyncio.Queue[RecordAnswer] = asyncio.Queue()
    requests.read_record(DEFAULT_SET, heard.put_nowait)
    first = await heard.get()
    requests.write_record(DEFAULT_SET, ClusterRecord(), WANTED, heard.put_nowait)
    return first, await heard.get()


def nobody(happened: Input) -> None:
    raise AssertionError(f"no coordinator was looked at, but {happened}")


@in_event_loop
async def test_every_request_to_a_coordinator_is_answered(monkeypatch: pytest.MonkeyPatch) -> None:
    read, written = await answers(RecordRequests(NoCoordinator(), nobody))
    assert (read, written) == (RecordAnswer(False, ClusterRecord()), RecordAnswer(True, WANTED))
    read, written = await answers(RecordRequests(Unwilling(), nobody))
    assert read == RecordAnswer(False, None, "the directory is gone")
    hanging = Hanging()
    monkeypatch.setattr(record_requests, "LIMIT_S", 0.05)
    read, written = await answers(RecordRequests(hanging, nobody))
    assert written == RecordAnswer(False, None, "the coordinator gave no answer within 0.05 s")
    hanging.release.set()


class Remembering(NoCoordinator):
    """It keeps one note, as long as nobody takes its data away."""

    def __init__(self) -> None:
        self.note = ""

    def read_note(self, name: str) -> str:
        return self.note

    def replace_note(self, name: str, expected: str, wanted: str) -> bool:
        self.note = wanted
        return True


@in_event_loop
async def test_which_coordinator_it_is_is_told_at_the_start_and_before_an_empty_record_is_believed() -> None:
    fed: Heard = asyncio.Queue()
    coordinator = Remembering()
    requests = RecordRequests(coordinator, fed.put_nowait)
    requests.start("file:/shared")
    await requests.looked()
    first = await fed.get()
    assert first == CoordinatorSeen(coordinator.note, "file:/shared")
    requests.read_record(DEFAULT_SET, fed.put_nowait)
    assert await fed.get() == RecordAnswer(False, ClusterRecord())
    coordinator.note = ""  # the mount is gone
    requests.read_record(DEFAULT_SET, fed.put_nowait)
    second = await fed.get()
    assert isinstance(second, CoordinatorSeen)
    assert second != first
    assert await fed.get() == RecordAnswer(False, ClusterRecord())
    requests.stop()


@in_event_loop
async def test_nobody_waits_for_a_coordinator_that_does_not_say_which_it_is() -> None:
    fed: Heard = asyncio.Queue()
    requests = RecordRequests(NoCoordinator(), fed.put_nowait)
    requests.start("file:/shared")
    await requests.looked()
    requests.read_record(DEFAULT_SET, fed.put_nowait)
    answer = await fed.get()
    assert isinstance(answer, RecordAnswer)
    assert answer.record is None, "what is empty there may be another one"
    requests.stop()


@in_event_loop
async def test_a_coordinator_that_hangs_is_asked_again_and_again_by_a_few_threads(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    fed: Heard = asyncio.Queue()
    hanging, before = Hanging(), set(threading.enumerate())
    requests = RecordRequests(hanging, fed.put_nowait)
    monkeypatch.setattr(record_requests, "LIMIT_S", 0.01)
    for _ in range(20):
        requests.write_record(DEFAULT_SET, ClusterRecord(), WANTED, fed.put_nowait)
        assert await fed.get() == RecordAnswer(False, None, "the coordinator gave no answer within 0.01 s")
    waiting = set(threading.enumerate()) - before
    assert len(waiting) == record_requests.HANGING_AT_MOST
    hanging.release.set()
    for thread in waiting:
        thread.join()
    requests.read_record(DEFAULT_SET, fed.put_nowait)
    assert await fed.get() == RecordAnswer(False, ClusterRecord())
    assert caplog.text.count("the coordinator gave no answer") == 1


@in_event_loop
async def test_a_listener_that_does_not_read_is_let_go_and_the_others_hear_all() -> None:
    events = ClusterEvents()
    lazy, keen = events.subscribe(), events.subscribe()
    heard = 0
    for _ in range(QUEUE_LENGTH + 1):
        events.publish("state", {"state": "ready"})
        assert (await anext(keen))["state"] == "ready"
        heard += 1
    assert heard == QUEUE_LENGTH + 1
    assert events.listeners == 1
    assert len([event async for event in lazy]) == QUEUE_LENGTH
    events.close()
    assert [event async for event in keen] == []


class ServedSet:
    """A set that is led here, and what is done to its clients, in order."""

    name = "orders"
    resources = "what orders has"

    def __init__(self) -> None:
        self.read_only = True
        self.happened: list[object] = []
        self.member = SimpleNamespace(status=SimpleNamespace(serves_clients=True))
        broker = SimpleNamespace(
            container=SimpleNamespace(directory=SimpleNamespace(primary_of=lambda name: None)),
            waiters=SimpleNamespace(refuse=lambda resources: self.happened.append("waiters are refused")),
        )
        run_turn = partial(self.happened.append, "turn")
        around: tuple[Any, Any, Any] = (broker, self, lambda: self.member.status.serves_clients)
        self.clients = SetClients(*around, self.happened.append, run_turn)
        self.clients.update()

    def end_links(self, error: AmqpError, *, browsers: bool) -> None:
        self.happened.append("links end")


@in_event_loop
async def test_clients_are_served_by_nobody_from_when_a_set_is_to_be_handed_over() -> None:
    orders = ServedSet()
    seen = [(orders.clients.is_serving, orders.read_only)]
    orders.clients.end_soon(EndClients())
    seen.append((orders.clients.is_serving, orders.read_only))
    assert seen == [(True, False), (False, True)]
    assert orders.happened == [], "but what comes in through a link may be what led to this"
    await asyncio.sleep(0)
    assert orders.happened == ["links end", "turn", ClientsEnded()]
    assert not orders.read_only, "the core is still primary, until it says otherwise"


@in_event_loop
async def test_clients_are_served_by_nobody_where_a_replica_has_ended_whatever_its_core_says() -> None:
    orders = ServedSet()
    orders.clients.end_soon(EndClients())
    orders.clients.stop()
    await asyncio.sleep(0)
    assert not orders.clients.is_serving
    assert orders.read_only
    assert orders.happened == []


@in_event_loop
async def test_who_waits_for_a_commit_hears_that_the_set_is_not_led_here_any_more() -> None:
    orders = ServedSet()
    orders.member.status.serves_clients = False
    orders.clients.update()
    orders.clients.end_now()
    assert orders.read_only
    assert orders.happened == ["links end", "waiters are refused"]
