"""A broker with more messages than memory: in a process of its own, with files that come and go beneath it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import proton
import pytest

from bench.load_client import LoadConnection, Publisher, Subscriber
from qpid_ha_agent.control import ControlClient
from running_broker import RunningBroker

Start = Callable[..., RunningBroker]
COUNT = 24_000
BODY_BYTES = 2048
BACKLOG_BYTES = COUNT * BODY_BYTES
PATIENCE_S = 30.0


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a broker with little memory on the test's data directory, again and again; all have ended in the end."""
    with ExitStack() as stack:

        def begin(**settings: object) -> RunningBroker:
            given = {
                "data-dir": str(tmp_path / "data"), "store.memory": "5MB", "store.segment-size": "1MB",
                "stop-timeout": "1s", **settings,
            }  # fmt: skip
            return stack.enter_context(RunningBroker(given))

        yield begin


def numbered(number: int) -> bytes:
    body = f"{number:010d}".encode().ljust(BODY_BYTES, b".")
    return bytes(proton.Message(body=body, durable=True).encode())


def fill(broker: RunningBroker, count: int = COUNT) -> None:
    """Messages 0, 1, ... into the queue `q`, all confirmed."""
    with LoadConnection(broker.port) as connection:
        publisher = Publisher(connection, "q")
        sent = confirmed = 0
        while confirmed < count:
            for _ in range(min(publisher.credit, 200 - (sent - confirmed), count - sent)):
                publisher.send(numbered(sent))
                sent += 1
            connection.flush()
            connection.read()
            confirmed += publisher.confirmed()


def empty(broker: RunningBroker, count: int = COUNT) -> list[int]:
    """What `q` gives, each accepted."""
    found: list[int] = []
    with LoadConnection(broker.port) as connection:
        subscriber = Subscriber(connection, "q", 500)
        subscriber.start()
        while len(found) < count:
            connection.read()
            subscriber.take(lambda payload: found.append(number_of(payload)))
            connection.flush()
        subscriber.finish()
    return found


def number_of(payload: bytes) -> int:
    message = proton.Message()
    message.decode(payload)
    assert isinstance(message.body, bytes | memoryview)
    body = bytes(message.body)
    assert body[10:] == b"." * (BODY_BYTES - 10)
    return int(body[:10])


def facts(broker: RunningBroker) -> dict[str, Any]:
    with ControlClient(broker.control_socket) as client:
        answer = client.call("query")
    assert isinstance(answer, dict)
    return answer


def until(broker: RunningBroker, holds: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
    """What the broker says of itself once that holds."""
    deadline = time.monotonic() + PATIENCE_S
    while not holds(found := facts(broker)):
        assert time.monotonic() < deadline, found
        time.sleep(0.05)
    return found


def deleted_files(broker: RunningBroker) -> int:
    """How many files that are no more it still has open."""
    count = 0
    for each in Path(f"/proc/{broker.pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            count += "(deleted)" in os.readlink(each)  # noqa: PTH115 - it is no path any more
    return count


def test_a_backlog_takes_far_less_memory_than_it_is_large(start: Start) -> None:
    broker = start()
    fill(broker)
    found = until(broker, lambda each: each["paged_bytes"] > BACKLOG_BYTES * 0.7)
    assert found["messages"] == COUNT
    # Not what is resident: that also has what was there at the peak, and was not given back to the system.
    assert found["memory_bytes"] < BACKLOG_BYTES * 0.5
    assert empty(broker) == list(range(COUNT))
    assert facts(broker)["paged_in_total"] >= BACKLOG_BYTES * 0.7


def test_a_restart_leaves_on_disk_what_does_not_fit(start: Start) -> None:
    broker = start()
    fill(broker)
    os.kill(broker.pid, signal.SIGKILL)
    assert broker.process is not None
    broker.process.wait()
    broker = start()
    found = facts(broker)
    assert found["messages"] == COUNT
    assert found["paged_bytes"] > BACKLOG_BYTES * 0.7
    assert found["peak_resident_bytes"] < 60_000_000 + BACKLOG_BYTES * 0.7
    assert empty(broker) == list(range(COUNT))


def test_files_are_folded_beneath_messages_that_lie_in_them(start: Start, tmp_path: Path) -> None:
    broker = start(**{"store.consolidate-at": "4MB"})
    fill(broker)
    until(broker, lambda each: each["snapshots"] > 0)
    deadline = time.monotonic() + PATIENCE_S
    while deleted_files(broker):
        assert time.monotonic() < deadline, "the room of deleted files is not given back"
        time.sleep(0.1)
    assert empty(broker) == list(range(COUNT))
    assert facts(broker)["unreadable_messages"] == 0
