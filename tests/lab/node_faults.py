"""Runs on a machine of the lab: the faults of a coordinator's conformance, for its option --coordinator-faults.

A partition with this machine alone in it, made by the machine itself: it takes CAP_NET_ADMIN.
"""

from __future__ import annotations

import subprocess
import time

from qpid_ha_broker.coordination.coordinator import CoordinatorError
from qpid_ha_broker.coordination.pacemaker import PacemakerCoordinator

TABLE = "inet alone"
RULES = f"""
table {TABLE} {{
    chain hears {{ type filter hook input priority 0; iifname != "lo" drop; }}
    chain says {{ type filter hook output priority 0; oifname != "lo" drop; }}
}}
"""
LIMIT_S = 30.0
GLANCE_S = 0.1


class Partition:
    """Cut and restored when Pacemaker has found out: until then a copy of the configuration is what it was."""

    def __init__(self) -> None:
        self._is_cut = False
        self._coordinator = PacemakerCoordinator()

    def cut(self) -> None:
        """Raises TimeoutError."""
        subprocess.run(["nft", "-f", "-"], input=RULES, text=True, check=True)
        self._is_cut = True
        self._wait(has_quorum=False)

    def restore(self) -> None:
        """Raises TimeoutError."""
        if self._is_cut:
            subprocess.run(["nft", "delete", "table", *TABLE.split()], check=True)
            self._is_cut = False
            self._wait(has_quorum=True)

    def _wait(self, *, has_quorum: bool) -> None:
        end_s = time.monotonic() + LIMIT_S
        while self._is_answered() != has_quorum:
            if time.monotonic() > end_s:
                raise TimeoutError(f"after {LIMIT_S:g} s this node has {'no' if has_quorum else 'still a'} quorum")
            time.sleep(GLANCE_S)

    def _is_answered(self) -> bool:
        try:
            self._coordinator.read()
        except CoordinatorError:
            return False
        return True


partition = Partition()
