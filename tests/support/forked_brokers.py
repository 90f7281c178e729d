"""Brokers that a test need not wait for while they import: see `fork_server`.

Those under an agent are started by it, and not by the test: they import.
"""

from __future__ import annotations

from typing import BinaryIO

from fork_server import ForkServer
from qpid_ha_demo.cluster import LocalBroker, Process
from running_broker import RunningBroker
from running_cluster import RunningCluster

_QPIDD = ForkServer("qpid_ha_broker.server.main", "qpid_ha_broker.server.command_line")


class ForkedBroker(LocalBroker):
    """One of a cluster."""

    def start_process(self, output: BinaryIO) -> Process:
        """With its outputs there."""
        if self.has_agent:
            return super().start_process(output)
        return _QPIDD.spawn(["--config", str(self.config)], output, new_session=True)


def have_brokers_forked() -> None:
    """From now on, in this process."""
    RunningBroker.spawn = _QPIDD.spawn
    RunningCluster.broker_kind = ForkedBroker
