"""SIGTERM: what can be settled is settled, everybody is told, and the process is gone in time, whatever clients do."""

from __future__ import annotations

import asyncio
import signal
import time
from pathlib import Path

import pytest
from proton.utils import ConnectionClosed

from blocking_client import BlockingClient, bodies
from limits import LIMIT_S
from qpid_ha_broker.server.broker import Broker
from qpid_ha_config.addresses import Address
from qpid_ha_config.settings import BrokerSettings
from raw_peer import (
    ACCEPTED,
    BEGIN,
    CLOSE,
    DISPOSITION,
    FLOW,
    READS_REFUSALS,
    RECEIVER,
    SASL_HEADER,
    SENDER,
    TRANSFER,
    Frame,
    RawPeer,
    attach,
    begin,
    credit,
    frame,
    message,
    transfer,
)
from running_broker import RunningBroker

STOP_TIMEOUT_S = 1.0
GRACE_S = 8.0
"""For the process to end once it has decided to; generous, because the machine may be busy."""


def terminate(broker: RunningBroker) -> float:
    """Send SIGTERM; returns when that was."""
    if broker.process is None:
        raise RuntimeError("the broker was not started")
    broker.process.send_signal(signal.SIGTERM)
    return time.monotonic()


def exit_code(broker: RunningBroker) -> int:
    if broker.process is None:
        raise RuntimeError("the broker was not started")
    return broker.process.wait(STOP_TIMEOUT_S + GRACE_S + 10)


def sending(broker: RunningBroker, address: str) -> RawPeer:
    peer = RawPeer(broker.port)
    peer.open(desired=READS_REFUSALS)
    peer.send(begin() + attach("publisher", 0, SENDER, address))
    peer.expect(FLOW)
    return peer


def until_close(peer: RawPeer) -> list[Frame]:
    """All frames up to the broker's close."""
    frames = [peer.next_frame()]
    while frames[-1].code != CLOSE:
        frames.append(peer.next_frame())
    return frames


def test_clients_that_read_refusals_are_told_and_the_process_ends_with_success() -> None:
    with RunningBroker() as broker, BlockingClient(broker.url, desired_capabilities=READS_REFUSALS) as client:
        client.send("q", "x")
        terminate(broker)

        with pytest.raises(ConnectionClosed) as told:
            client.wait(lambda: False)

        assert told.value.condition == "amqp:connection:forced"
        assert "stopping" in str(told.value)
        client.close()
        assert exit_code(broker) == 0
        assert "stopped" in broker.log()
        assert "Traceback" not in broker.log()


def test_for_other_clients_the_stream_ends_so_that_they_reconnect_by_themselves() -> None:
    with RunningBroker() as broker, RawPeer(broker.port) as peer:
        peer.open()
        terminate(broker)

        assert peer.read_to_end() == b""

        peer.close()
        assert exit_code(broker) == 0
        assert "sent away: broker test is stopping" in broker.log()


def test_a_client_that_does_not_answer_the_close_is_dropped_after_two_seconds() -> None:
    with RunningBroker({"stop-timeout": "60s"}) as broker, sending(broker, "q") as stubborn:
        began = terminate(broker)
        until_close(stubborn)

        assert exit_code(broker) == 0

        assert 2 <= time.monotonic() - began < 2 + GRACE_S


def settled_deliveries(frames: list[Frame]) -> set[int]:
    """The deliveries that the broker has settled as accepted in `frames`."""
    settled: set[int] = set()
    for found in frames:
        if found.code == DISPOSITION:
            first = int(found.fields[1])
            last = first if found.fields[2] is None else int(found.fields[2])
            assert found.fields[3] is True
            assert found.fields[4].descriptor == ACCEPTED
            settled |= set(range(first, last + 1))
    return settled


def test_what_a_witness_has_seen_is_settled_before_the_close(tmp_path: Path) -> None:
    """The store answers, and before the broker has come round to telling the publisher, it is told to stop."""
    count = 50
    settings = BrokerSettings(
        listen=(Address("amqp", "127.0.0.1", 0),), control_socket=tmp_path / "control.sock", stop_timeout_s=1.0
    )

    async def stop_when_the_store_has_answered() -> list[Frame]:
        broker = Broker(settings)
        log = broker.container.default.resources.replicated.log
        await broker.start()
        peer = await asyncio.to_thread(RawPeer, int(broker.listening[0].rpartition(":")[2]))
        try:
            await asyncio.to_thread(peer.open, desired=READS_REFUSALS)
            peer.send(begin() + attach("publisher", 0, SENDER, "q"))
            await asyncio.to_thread(peer.expect, FLOW)
            log.add_witness("store")
            last_lsn = log.last_lsn + count
            peer.send(b"".join(transfer(0, number, message(b"x")) for number in range(count)))
            async with asyncio.timeout(10):
                while log.last_lsn < last_lsn:  # noqa: ASYNC110 - a log tells nobody when it is written
                    await asyncio.sleep(0)
            log.acknowledge("store", last_lsn)
            stopping = asyncio.create_task(broker.stop())
            frames = await asyncio.to_thread(until_close, peer)
            peer.send(frame(CLOSE, []))
            await stopping
        finally:
            peer.close()
        return frames

    frames = asyncio.run(stop_when_the_store_has_answered())

    assert settled_deliveries(frames) == set(range(count))
    assert frames[-1].error[0] == "amqp:connection:forced"


def test_a_client_that_does_not_react_does_not_hold_the_process() -> None:
    settings: dict[str, object] = {"stop-timeout": f"{STOP_TIMEOUT_S}s"}
    with RunningBroker(settings) as broker, sending(broker, "q") as stubborn, RawPeer(broker.port) as half_open:
        half_open.send(SASL_HEADER)
        began = terminate(broker)

        assert exit_code(broker) == 0

        assert time.monotonic() - began < STOP_TIMEOUT_S + GRACE_S
        assert until_close(stubborn)[-1].error[0] == "amqp:connection:forced"
        assert stubborn.read_to_end() == b""


def test_a_consumer_that_does_not_read_does_not_hold_the_process() -> None:
    settings: dict[str, object] = {"stop-timeout": f"{STOP_TIMEOUT_S}s"}
    with RunningBroker(settings) as broker, RawPeer(broker.port, receive_buffer=4096) as stalled:
        with BlockingClient(broker.url) as client:
            client.send("q", *["x" * 100_000] * 50)
        stalled.open()
        stalled.send(begin() + attach("consumer", 0, RECEIVER, "q") + credit(0, 1000))
        stalled.expect(TRANSFER)
        began = terminate(broker)

        assert exit_code(broker) == 0

        assert time.monotonic() - began < STOP_TIMEOUT_S + GRACE_S
        assert "Traceback" not in broker.log()


def test_nobody_new_is_let_in_while_it_stops() -> None:
    with RunningBroker({"stop-timeout": "3s"}) as broker, sending(broker, "q") as stubborn:
        terminate(broker)
        until_close(stubborn)

        with pytest.raises((OSError, EOFError)), RawPeer(broker.port) as late:
            late.open()

        stubborn.send(frame(CLOSE, []))
        assert exit_code(broker) == 0


def test_a_second_signal_changes_nothing() -> None:
    with RunningBroker({"stop-timeout": f"{STOP_TIMEOUT_S}s"}) as broker, sending(broker, "q") as stubborn:
        terminate(broker)
        until_close(stubborn)
        terminate(broker)

        assert exit_code(broker) == 0
        assert "Traceback" not in broker.log()


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_the_next_broker_starts_on_the_same_port_socket_and_directory(tmp_path: Path, how: signal.Signals) -> None:
    settings: dict[str, object] = {
        "data-dir": str(tmp_path / "data"),
        "control-socket": str(tmp_path / "c.sock"),
        "stop-timeout": f"{STOP_TIMEOUT_S}s",
    }
    with RunningBroker(settings) as first, sending(first, "q"):
        if first.process is not None:
            first.process.send_signal(how)
            first.process.wait(LIMIT_S)
    assert (tmp_path / "c.sock").exists() is (how == signal.SIGKILL)

    with RunningBroker({**settings, "listen": first.url}) as second, BlockingClient(first.url) as client:
        client.send("q", "x")
        assert bodies(client.consume("q")) == ["x"]
        assert second.url == first.url


def test_ctrl_c_stops_as_sigterm_does() -> None:
    with RunningBroker() as broker:
        if broker.process is not None:
            broker.process.send_signal(signal.SIGINT)
        assert exit_code(broker) == 0


def test_begin_is_answered_until_the_end() -> None:
    """A client that is told to go may still finish its sentence."""
    with RunningBroker({"stop-timeout": "3s"}) as broker, RawPeer(broker.port) as peer:
        peer.open(desired=READS_REFUSALS)
        peer.send(begin())
        peer.expect(BEGIN)
        terminate(broker)
        peer.expect(CLOSE)
        peer.send(begin(1) + attach("late", 0, SENDER, "q", channel=1) + frame(CLOSE, []))
        assert exit_code(broker) == 0
        assert "Traceback" not in broker.log()
