"""What a scenario looks at, and does, on one node: processes, the agent's own actions, what Pacemaker counts there."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from lab.cluster import BROKER, Cluster
from lab.machines import MachineError, MachineProcess

CONFIG: Final = "/etc/qpid-ha/qpid-ha.yaml"
_NO_PROCESS: Final = 0
_WATCHER: Final = re.compile(r"[^ ]*python -m qpid_ha_agent\.pacemaker\.watching ")
_ACTION_SERVER: Final = re.compile(r"[^ ]*python -m qpid_ha_agent\.ocf\.action_server ")
_FAIL_COUNT: Final = re.compile(rf"fail-count-{BROKER}#([a-z]+)_[0-9]+")


class Node:
    """One node of the cluster, which has power."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self._cluster = cluster
        self._lab = cluster.lab
        self.name = name

    # --- processes

    def broker_pid(self) -> int:
        """Of the broker, as the node counts; 0 when there is none, or no node."""
        return self._pid(lambda process: process.name == "qpidd")

    def watcher_pid(self) -> int:
        """Of the process that watches it; 0 when there is none."""
        return self._pid(lambda process: _WATCHER.match(process.arguments))

    def action_server_pid(self) -> int:
        """Of the process that has loaded the agent; 0 when there is none, or one carries an action out just now."""
        return self._pid(lambda process: _ACTION_SERVER.match(process.arguments))

    def signal(self, name: str, pid: int) -> bool:
        """Send it; whether somebody got it."""
        return self._lab.run(self.name, "kill", f"-{name}", str(pid), check=False).returncode == 0

    def _pid(self, is_sought: Callable[[MachineProcess], object]) -> int:
        with suppress(MachineError):
            found = [process.pid for process in self._lab.processes(self.name) if is_sought(process)]
            return found[0] if len(found) == 1 else _NO_PROCESS
        return _NO_PROCESS

    # --- files

    def broker_log(self) -> str:
        """What the broker, its watch and its starts have said on this node."""
        return self._lab.log(self.name, f"/var/log/qpid-ha/{self.name}.log")

    def starts(self) -> int:
        """How many brokers have begun to serve on this node."""
        return self.broker_log().count(" listens on ")

    # --- Pacemaker, as this node sees it

    def failures(self) -> dict[str, int]:
        """How often which operation of the broker has failed on this node, since the last cleanup.

        What was reported from outside (`crm_resource --fail`) is the operation asyncmon. Pacemaker 2.1 counts the first
        such report twice, once for each of the two entries that it makes in the history; here it counts once.
        """
        status = ET.fromstring(self._lab.output(self.name, "cibadmin", "--query", "--scope", "status", timeout_s=10))
        state = f"./node_state[@uname='{self.name}']/transient_attributes//nvpair"
        counted = {}
        for entry in status.iterfind(state):
            if found := _FAIL_COUNT.fullmatch(entry.get("name", "")):
                count = entry.get("value", "0").replace("INFINITY", "1000000")
                counted[found[1]] = max(1, int(count) - 1) if found[1] == "asyncmon" else int(count)
        return counted
