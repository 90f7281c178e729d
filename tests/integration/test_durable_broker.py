"""A broker with a data directory: what it confirmed survives its death, and what it cannot keep it does not confirm."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest
from proton import Delivery, Message, ProtonException, Timeout

from admin_tool import qpid_ha
from blocking_client import BlockingClient, Management, bodies
from failover_load import FailoverLoad
from kept_journal import last_block
from limits import LIMIT_S
from qpid_ha_broker.model.logs.log import DEFAULT_SET
from qpid_ha_broker.store.files import LocalDisk
from qpid_ha_broker.store.layout import segment_path
from running_agent import wait_until
from running_broker import RunningBroker

Start = Callable[..., RunningBroker]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Starts a broker on the test's data directory, again and again on the same port; all have ended in the end."""
    ports: list[int] = []
    with ExitStack() as stack:

        def begin(data_dir: Path = tmp_path, **settings: object) -> RunningBroker:
            listen = f"amqp://127.0.0.1:{ports[0] if ports else 0}"
            broker = RunningBroker({"data-dir": str(data_dir), "listen": listen, "stop-timeout": "1s", **settings})
            stack.enter_context(broker)
            ports.append(broker.port)
            return broker

        yield begin


def kill(broker: RunningBroker, client: BlockingClient | None = None) -> None:
    """SIGKILL, and wait until it is gone, and `client` knows."""
    os.kill(broker.pid, signal.SIGKILL)
    assert broker.process is not None
    broker.process.wait()
    if client is not None:
        with suppress(ProtonException):
            client.wait(lambda: client.connection.disconnected)


def complaint(data_dir: Path, *arguments: str) -> str:
    """What a broker says that must not start on `data_dir`, and ends with 1."""
    command = [sys.executable, "-m", "qpid_ha_broker.server.main", "--data-dir", str(data_dir)]
    command += ["--listen", "amqp://127.0.0.1:0", "--control-socket", str(data_dir.parent / "second.sock"), *arguments]
    found = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert found.returncode == 1
    assert "Traceback" not in found.stderr
    return found.stderr.splitlines()[-1]


def durable(body: Any, **fields: Any) -> Message:
    return Message(body, durable=True, **fields)


def confirmed(outcomes: list[Any]) -> int:
    return sum(outcome.state == Delivery.ACCEPTED for outcome in outcomes)


def facts(broker: RunningBroker) -> dict[str, Any]:
    """What `qpid-ha query` tells."""
    return dict(json.loads(qpid_ha("query", "--format", "json", QPID_HA_SOCKET=str(broker.control_socket)).stdout))


def wait_for_fact(broker: RunningBroker, client: BlockingClient, value: str) -> None:
    """Until the fact `store` is `value`; meanwhile `client` goes on sending."""
    deadline = time.monotonic() + 15
    while (found := facts(broker)["store"]) != value:
        with suppress(Timeout):
            client.connection.wait(lambda: False, timeout=0.1)
        assert time.monotonic() < deadline, f"the store is {found}, not {value}: {broker.log()}"


# --- killed


def test_killed_again_and_again_under_load_it_loses_nothing_that_it_confirmed(start: Start) -> None:
    broker = start()
    with FailoverLoad([broker.url], rate=2000, durable=True) as load:
        for _ in range(4):
            load.wait_confirmed(700)
            kill(broker)
            broker = start()
        load.wait_confirmed(100)
        audit = load.finish()

    assert audit.lost == ()
    assert audit.duplicates_unmarked == ()
    assert audit.confirmed >= 2900
    assert "Traceback" not in broker.log()


def test_a_message_expires_while_nobody_runs(start: Start) -> None:
    broker = start()
    with BlockingClient(broker.url) as client:
        client.send("q", durable("short", ttl=0.3), durable("long", ttl=600))
        kill(broker, client)
    sent_at_s = time.monotonic()

    broker = start()
    with BlockingClient(broker.url) as client:
        while time.monotonic() - sent_at_s < 0.6:
            client.browse("q")
        assert bodies(client.consume("q")) == ["long"]


def test_queues_of_the_brokers_own_log_come_back_with_their_messages(start: Start) -> None:
    broker = start()
    with BlockingClient(broker.url) as client:
        manage = Management(client)
        manage.create_queue("own", {"qpid.replicate": "none"})
        manage.create_queue("half", {"qpid.replicate": "configuration"})
        client.send("own", durable("a"), durable("b"))
        client.send("half", durable("c"))
        kill(broker, client)

    broker = start()
    with BlockingClient(broker.url) as client:
        assert bodies(client.consume("own")) == ["a", "b"]
        assert bodies(client.browse("half")) == ["c"]
        kill(broker, client)

    broker = start()
    with BlockingClient(broker.url) as client:
        assert bodies(client.browse("half")) == ["c"]


# --- what the journal tells others


def test_whoever_reads_the_journal_learns_that_the_last_message_is_certain(start: Start, tmp_path: Path) -> None:
    broker = start()
    with BlockingClient(broker.url) as client:
        client.send("q", durable("a"), durable("b"))
        wait_until(lambda: is_all_committed(tmp_path), lambda: "nothing says that the last message is certain")
        client.send("q", durable("c"))
    assert broker.stop() == 0
    assert is_all_committed(tmp_path)


def is_all_committed(data_dir: Path) -> bool:
    block = last_block(LocalDisk(data_dir / DEFAULT_SET))
    return block.committed_lsn >= block.last_lsn > 0


# --- stopped


def test_a_clean_stop_is_told_and_leaves_everything(start: Start) -> None:
    broker = start()
    with BlockingClient(broker.url) as client:
        client.send("q", durable("a"), durable("b"))
    assert broker.stop() == 0

    broker = start()
    assert "it was closed in order" in broker.log()
    with BlockingClient(broker.url) as client:
        assert bodies(client.browse("q")) == ["a", "b"]
    kill(broker)
    assert "it was not closed in order" in start().log()


def test_qpid_ha_shutdown_ends_it_in_order(start: Start) -> None:
    broker = start()
    assert qpid_ha("shutdown", QPID_HA_SOCKET=str(broker.control_socket)).stdout == "test ends\n"
    assert broker.process is not None
    assert broker.process.wait(LIMIT_S) == 0
    assert "it was closed in order" in start().log()


def test_without_a_store_a_data_directory_keeps_nothing(start: Start, tmp_path: Path) -> None:
    broker = start(**{"store.enabled": False})
    with BlockingClient(broker.url) as client:
        assert confirmed(client.send("q", durable("a"))) == 1
    assert facts(broker)["store"] == "off"
    assert not (tmp_path / "default").exists()


def test_old_files_become_a_snapshot_while_it_runs(start: Start, tmp_path: Path) -> None:
    broker = start(**{"store.segment-size": "256KiB", "store.consolidate-at": "1MiB"})
    with BlockingClient(broker.url) as client:
        sender = client.sender("q")
        sent = 0
        deadline = time.monotonic() + 30
        while not list((tmp_path / "default" / "snapshots").glob("*.snap")):
            assert time.monotonic() < deadline, broker.log()
            client.offer(sender, durable("x" * 50_000))
            sent += 1
        while (tmp_path / "default" / segment_path(1)).exists():
            assert time.monotonic() < deadline, broker.log()
            client.offer(sender, durable("x" * 1000))
            sent += 1
        kill(broker, client)

    broker = start()
    with BlockingClient(broker.url) as client:
        assert Management(client).messages("q") == sent


# --- faults


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 3 MiB."""
    place = tmp_path / "small"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=3m,mode=0700", "none", str(place)], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip("a file system of its own needs the right to mount one")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=False)


def test_on_a_full_disk_everything_waits_and_goes_on_when_there_is_room(start: Start, small_disk: Path) -> None:
    (small_disk / "ballast").write_bytes(bytes(1_500_000))
    broker = start(small_disk, **{"store.segment-size": "256KiB"})
    with BlockingClient(broker.url) as client:
        sender = client.sender("q")
        client.offer(
            sender, durable(bytes([0]) * 50_000)
        )  # the others may come at once, and be more than there is room
        deliveries = [sender.link.send(durable(bytes([number]) * 50_000)) for number in range(1, 40)]
        wait_for_fact(broker, client, "full")
        assert not all(delivery.settled for delivery in deliveries)
        assert "no room for the store" in broker.log()
        (small_disk / "ballast").unlink()
        client.wait(lambda: all(delivery.settled for delivery in deliveries))
        assert all(delivery.remote_state == Delivery.ACCEPTED for delivery in deliveries)
        wait_for_fact(broker, client, "ok")
        assert "there is room again" in broker.log()
        kill(broker, client)

    broker = start(small_disk, **{"store.segment-size": "64KiB"})
    with BlockingClient(broker.url) as client:
        assert [bytes(body)[0] for body in bodies(client.browse("q"))] == list(range(40))


def test_a_disk_that_is_full_at_the_end_does_not_hold_the_broker(start: Start, small_disk: Path) -> None:
    broker = start(small_disk, **{"store.segment-size": "256KiB"})
    with BlockingClient(broker.url) as client:
        deliveries = [client.sender("q").link.send(durable(bytes(100_000))) for _ in range(60)]
        wait_for_fact(broker, client, "full")
        confirmed_count = sum(delivery.settled for delivery in deliveries)
        assert confirmed_count < 60
        assert broker.stop(40) == 0
        assert "could not be closed in order" in broker.log()


def test_a_directory_that_cannot_be_written_is_named(small_disk: Path) -> None:
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)

    line = complaint(small_disk)

    assert str(small_disk) in line
    assert "Read-only file system" in line


def test_a_failing_disk_ends_the_broker_with_a_clear_text(start: Start, small_disk: Path) -> None:
    broker = start(small_disk, **{"store.segment-size": "256KiB"})
    with BlockingClient(broker.url) as client, suppress(ProtonException):
        assert confirmed(client.send("q", durable("a"))) == 1
        # The next file of the journal cannot be made: an error that no waiting helps against.
        journal = small_disk / "default" / "journal"
        journal.rename(small_disk / "default" / "elsewhere")
        client.send("q", *(durable(bytes(100_000)) for _ in range(20)))
    assert broker.process is not None
    assert broker.process.wait(LIMIT_S) == 1
    assert "cannot be written" in broker.log()
    assert "Traceback" not in broker.log()


def test_two_brokers_never_share_a_directory(start: Start, tmp_path: Path) -> None:
    broker = start()

    assert f"in use by another broker (pid {broker.pid})" in complaint(tmp_path)


def test_a_journal_that_was_cut_short_is_not_served_as_if_that_were_all(start: Start, tmp_path: Path) -> None:
    """The broker was killed, as for a torn end; but then a copy of its segment stopped half way."""
    broker = start()
    with BlockingClient(broker.url) as client:
        for number in range(20):
            assert confirmed(client.send("q", durable(f"message {number}"))) == 1
        kill(broker, client)
    (segment,) = (tmp_path / "default" / "journal").glob("*.log")
    os.truncate(segment, segment.read_bytes().index(b"message 10"))

    line = complaint(tmp_path)

    assert f"{segment.name}, offset " in line
    assert "the file was cut off" in line
    assert f"qpid-ha store check {tmp_path / 'default'}" in line
    checked = qpid_ha("store", "check", tmp_path)
    assert checked.exit_code == 1
    assert segment.name in checked.stdout
