"""Sockets that nobody pays for: whoever can reach the port may open as many as he likes, and stops nobody."""

from __future__ import annotations

import resource
import socket
import time
from pathlib import Path

import psutil
import pytest
from proton import Message

from attackers import Flood
from blocking_client import BlockingClient
from qpid_ha_agent.control import ControlClient
from raw_peer import AMQP_HEADER
from running_broker import RunningBroker

DESCRIPTORS = 300
FLOOD = 400
"""More than there are descriptors."""
PATIENCE_S = 20.0
"""For whatever is asked of the broker; generous, because the machine may be busy."""


@pytest.mark.parametrize("beginning", [b"", AMQP_HEADER], ids=["silent", "after the header"])
def test_sockets_without_an_open_take_descriptors_from_nobody(tmp_path: Path, beginning: bytes) -> None:
    """With fewer descriptors than the flood has sockets: clients, the store and the control socket go on."""
    settings = {"data-dir": tmp_path / "data", "store.segment-size": "1MiB"}
    with RunningBroker(settings, descriptors=DESCRIPTORS) as broker:
        with BlockingClient(broker.url) as early, Flood(broker.port, FLOOD, beginning) as flood:
            for number in range(3):
                early.send("q", Message(b"x" * 300_000 + b"%d" % number, durable=True))
                with ControlClient(broker.control_socket, PATIENCE_S) as control:
                    facts = control.call("query")
                assert isinstance(facts, dict)
                assert facts["store"] == "ok"
                with BlockingClient(broker.url) as late:
                    late.send("q", Message(b"late %d" % number, durable=True))
            assert len(early.consume("q")) == 6
            assert flood.opened_total >= FLOOD
        assert broker.process is not None
        assert broker.process.poll() is None, broker.log()
        assert broker.stop() == 0, broker.log()
        assert "Traceback" not in broker.log(), broker.log()


def test_without_any_descriptor_it_waits_and_serves_whoever_came_meanwhile() -> None:
    """Where even the reserve is gone, a connection waits in the kernel, and the broker does not spin."""
    with RunningBroker() as broker:
        process = psutil.Process(broker.pid)
        _, hard_limit = resource.prlimit(broker.pid, resource.RLIMIT_NOFILE)
        resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, (1, hard_limit))
        with socket.create_connection(("127.0.0.1", broker.port)) as waiting:
            waiting.sendall(AMQP_HEADER)
            before, began_s = sum(process.cpu_times()[:2]), time.monotonic()
            waiting.settimeout(1.0)
            with pytest.raises(TimeoutError):
                waiting.recv(1)
            worked_s, elapsed_s = sum(process.cpu_times()[:2]) - before, time.monotonic() - began_s

            resource.prlimit(broker.pid, resource.RLIMIT_NOFILE, (hard_limit, hard_limit))

            waiting.settimeout(PATIENCE_S)
            assert waiting.recv(8) == AMQP_HEADER
        assert worked_s < elapsed_s / 4
        with BlockingClient(broker.url) as client:
            client.send("q", Message(b"served"))
