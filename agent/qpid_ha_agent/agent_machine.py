"""What an agent has of the machine on which it runs: threads, its broker's process, and the way to ask that one.

A simulation gives it another one, and everything else of `runner.Runner` is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from qpid_ha_agent.broker_process import BrokerProcess
from qpid_ha_agent.broker_talk import BrokerTalk
from qpid_ha_agent.lock import start_thread


class AgentMachine:
    """The machine itself."""

    make_talk: type[BrokerTalk] = BrokerTalk

    def find_broker(self, control_socket: Path, older_than_s: float) -> BrokerProcess | None:
        """See `BrokerProcess.find`. Raises BrokerProcessError."""
        return BrokerProcess.find(control_socket, older_than_s)

    def start_broker(self, command: Sequence[str]) -> BrokerProcess:
        """See `BrokerProcess.start`. Raises BrokerProcessError."""
        return BrokerProcess.start(command)

    def start_thread(self, work: Callable[[], object], name: str) -> None:
        """See `lock.start_thread`."""
        start_thread(work, name)


THIS_MACHINE: Final = AgentMachine()
