"""Undoing all that a scenario may have done to a cluster."""

from __future__ import annotations

from typing import Final

from lab.cluster import Cluster

_LIMIT_S: Final = 45.0


def restore(cluster: Cluster) -> None:
    """In the order that lets each step succeed. Raises NotInTime, MachineError."""
    lab = cluster.lab
    lab.heal()
    lab.power_on_all()
    for member in lab.plan.members:
        lab.run(member, "pkill", "-CONT", "-x", "qpidd", check=False)
    cluster.wait_formed(timeout_s=_LIMIT_S)
    if not cluster.is_pristine():
        cluster.undo_orders()
    cluster.wait_well(timeout_s=_LIMIT_S)
