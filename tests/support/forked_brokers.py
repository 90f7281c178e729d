"""Brokers that a test need not wait for while they import: see `fork_server`.

Those under an agent are started by it, and not by the test: they import.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import BinaryIO

from fork_server import ForkServer
from qpid_ha_demo.cluster import LocalBroker, Process
from running_broker import QPIDD, RunningBroker, start_qpidd
from running_cluster import RunningCluster

_SERVER = ForkServer("qpid_ha_broker.server.main", "qpid_ha_broker.server.command_line")


def _python_settings() -> dict[str, str]:
    """What Python reads when it starts, and not when it is forked."""
    return {name: value for name, value in os.environ.items() if name.startswith("PYTHON")}


_SETTINGS = _python_settings()


class ForkedBroker(LocalBroker):
    """One of a cluster. A test that has it started by another command, or gives Python other settings, means that."""

    def start_process(self, output: BinaryIO) -> Process:
        """With its outputs there."""
        arguments = ["--config", str(self.config)]
        if self.command != [sys.executable, *QPIDD, *arguments] or _python_settings() != _SETTINGS:
            return super().start_process(output)
        return _SERVER.spawn(arguments, output, new_session=True)


def _spawn(arguments: Sequence[str], output: BinaryIO) -> Process:
    return (_SERVER.spawn if _python_settings() == _SETTINGS else start_qpidd)(arguments, output)


def have_brokers_forked() -> None:
    """From now on, in this process."""
    RunningBroker.spawn = staticmethod(_spawn)  # else it would be a method
    RunningCluster.broker_kind = ForkedBroker
