"""Brokers that a test need not wait for while they import: see `fork_server`.

Those under an agent are started by it, and not by the test: they import.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from functools import cache
from typing import BinaryIO

from fork_server import ForkServer
from qpid_ha_demo.cluster import LocalBroker, Process
from running_broker import QPIDD, RunningBroker
from running_cluster import RunningCluster


@cache
def _server_for(python_settings: frozenset[tuple[str, str]]) -> ForkServer:
    return ForkServer("qpid_ha_broker.server.main", "qpid_ha_broker.server.command_line")


def _spawn(arguments: Sequence[str], output: BinaryIO, *, new_session: bool = False) -> Process:
    """Of a server of its own where Python's settings are others: it reads them at its start, not when it is forked."""
    settings = frozenset((name, value) for name, value in os.environ.items() if name.startswith("PYTHON"))
    return _server_for(settings).spawn(arguments, output, new_session=new_session)


class ForkedBroker(LocalBroker):
    """One of a cluster. A test that has it started by another command means that."""

    def start_process(self, output: BinaryIO) -> Process:
        """With its outputs there."""
        arguments = ["--config", str(self.config)]
        if self.command != [sys.executable, *QPIDD, *arguments]:
            return super().start_process(output)
        return _spawn(arguments, output, new_session=True)


def have_brokers_forked() -> None:
    """From now on, in this process."""
    RunningBroker.spawn = staticmethod(_spawn)  # else it would be a method
    RunningCluster.broker_kind = ForkedBroker
