"""What everybody gets from a broker that still loads its store, and how it ends or goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from proton import ConnectionException, Message, symbol

from blocking_client import BlockingClient
from cluster_in_process import free_ports
from qpid_ha_agent.control import ControlClient, ControlFailure, RequestRefused
from qpid_ha_broker.amqp.wire.peer_frames import ADMIN_PROPERTY
from qpid_ha_broker.ha.states import State
from running_agent import wait_until
from slow_store import HOLD_VARIABLE

AT_ONCE_S = 5.0
"""On a busy machine; what has to be waited for without it is the hold, which does not end by itself."""
QPIDD = "import slow_store; from qpid_ha_broker.server.main import main; main()"


class LoadingBroker:
    """A broker whose store is loaded only while `hold` is not there."""

    def __init__(self, directory: Path, **settings: object) -> None:
        self.socket, self.hold, self.log = directory / "s", directory / "hold", directory / "log"
        given = {
            "name": "test", "listen": "amqp://127.0.0.1:0", "control-socket": self.socket,
            "data-dir": directory / "data", **{key.replace("__", "."): value for key, value in settings.items()},
        }  # fmt: skip
        self._command = [sys.executable, "-c", QPIDD]
        for key, value in given.items():
            self._command += ["--set", f"{key}={value}"]
        self._environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), HOLD_VARIABLE: str(self.hold)}
        self.process: subprocess.Popen[bytes] | None = None

    def start(self, state: State) -> None:
        """Until it says that it is in `state`."""
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(
                self._command, stdout=output, stderr=output, env=self._environment, start_new_session=True
            )
        self.reach(state)

    def reach(self, state: State) -> None:
        wait_until(lambda: self.state() == state, lambda: self.log.read_text())

    def state(self) -> object:
        try:
            return self.ask("status")["state"]
        except ControlFailure:
            return None

    def ask(self, method: str, **params: object) -> Any:
        with ControlClient(self.socket, AT_ONCE_S) as client:
            return client.call(method, **params)

    @property
    def url(self) -> str:
        return str(self.ask("query")["listening"])

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        if self.process is None:
            return 0
        self.process.send_signal(number)
        return self.process.wait(AT_ONCE_S)


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[LoadingBroker]:
    """One that has been used and has ended, and cannot load what it has kept."""
    loading = LoadingBroker(tmp_path)
    loading.start(State.STANDALONE)
    with BlockingClient(loading.url) as client:
        client.send("orders", Message("kept", durable=True))
    assert loading.end() == 0
    loading.hold.touch()
    yield loading
    loading.hold.unlink(missing_ok=True)
    if loading.process is not None:
        loading.process.kill()
        loading.process.wait()


def test_a_loading_broker_says_how_far_it_is_and_serves_all_it_kept_afterwards(broker: LoadingBroker) -> None:
    broker.start(State.LOADING)

    wait_until(lambda: broker.ask("status")["store_bytes"] > 0, broker.log.read_text)
    assert broker.ask("ping") == {"pong": True, "name": "test"}
    assert broker.ask("query")["state"] == "loading"
    with pytest.raises(
        RequestRefused, match=r"is loading its store \(0% of \d+ MB\), and queues has to wait"
    ) as refused:
        broker.ask("queues")
    assert isinstance(refused.value.data, dict)
    assert refused.value.data.items() <= {"reason": "loading", **broker.ask("status")}.items()
    with pytest.raises(ConnectionException, match="disconnected"):  # so that it tries its next address
        BlockingClient(broker.url)
    with pytest.raises(ConnectionException, match=r"amqp:connection:forced.*test is loading its store"):
        BlockingClient(broker.url, properties={symbol(ADMIN_PROPERTY): True})

    broker.hold.unlink()
    broker.reach(State.STANDALONE)
    with BlockingClient(broker.url) as client:
        assert [message.body for message in client.consume("orders")] == ["kept"]
    assert broker.ask("queues")[0]["name"] == "orders"
    assert broker.end() == 0


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_loading_broker_ends_at_once_and_its_store_is_as_it_was(
    broker: LoadingBroker, number: signal.Signals
) -> None:
    broker.start(State.LOADING)
    assert broker.end(number) == 0
    assert not broker.socket.exists()

    broker.hold.unlink()
    broker.start(State.STANDALONE)
    assert broker.ask("query")["messages"] == 1
    assert "was not closed in order" not in broker.log.read_text()


def test_a_loading_broker_can_be_told_to_end_through_its_control_socket(broker: LoadingBroker) -> None:
    broker.start(State.LOADING)
    with pytest.raises(RequestRefused, match="leave --cluster out"):
        broker.ask("shutdown", cluster=True)
    assert broker.ask("shutdown") == {"name": "test", "text": "test ends"}
    assert broker.process is not None
    assert broker.process.wait(AT_ONCE_S) == 0


def test_a_store_that_cannot_be_loaded_ends_the_broker_with_the_reason(broker: LoadingBroker) -> None:
    broker.start(State.LOADING)
    (segment,) = (broker.hold.parent / "data").glob("default/**/*1.*")
    with segment.open("r+b") as file:
        file.seek(100)
        file.write(b"not what was written there")

    broker.hold.unlink()

    assert broker.process is not None
    assert broker.process.wait(AT_ONCE_S) == 1
    assert "qpidd: the store in" in broker.log.read_text().splitlines()[-1]
    assert not broker.socket.exists()


def test_a_loading_broker_of_a_cluster_is_nobody_yet_to_the_others(tmp_path: Path) -> None:
    (port, other) = free_ports(2)
    broker = LoadingBroker(
        tmp_path,
        listen=f"amqp://127.0.0.1:{port}", ha__cluster=True,
        **{"ha__brokers-url": f"amqp://127.0.0.1:{port},127.0.0.1:{other}"},
    )  # fmt: skip
    broker.hold.touch()
    broker.start(State.LOADING)
    try:
        (row,) = broker.ask("status", all=True)
        assert (row["name"], row["state"], row["lsn"], row["members"]) == ("test", "loading", 0, [])
        with pytest.raises(RequestRefused, match="promote has to wait"):
            broker.ask("promote")
        broker.hold.unlink()
        broker.reach(State.CONNECTING)
        assert len(broker.ask("status", all=True)) == 2
    finally:
        assert broker.end() == 0
