"""Sockets that nobody pays for: whoever can reach the port may open as many as he likes, and stops nobody."""

from __future__ import annotations

from pathlib import Path

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
