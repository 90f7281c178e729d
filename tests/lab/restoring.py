"""Undoing all that a scenario may have done to a cluster."""

from __future__ import annotations

import re
from typing import Final

from lab.cluster import Cluster

_LIMIT_S: Final = 45.0


def restore(cluster: Cluster, *, has_fencing: bool) -> None:
    """In the order that lets each step succeed. Raises NotInTime, MachineError."""
    lab = cluster.lab
    lab.heal()
    lab.power_on_all()
    for member in lab.plan.members:
        if any((process.name, process.state) == ("qpidd", "T") for process in lab.processes(member)):
            cluster.thaw_broker(member)
    cluster.wait_formed(timeout_s=_LIMIT_S)
    _undo_orders(cluster, has_fencing=has_fencing)
    cluster.wait_well(timeout_s=_LIMIT_S)


def _undo_orders(cluster: Cluster, *, has_fencing: bool) -> None:
    """What an administrator has asked for, and the failures that Pacemaker remembers."""
    configuration = cluster.administer("cibadmin", "--query", "--scope", "configuration")
    fencing = str(has_fencing).lower()
    if f'name="stonith-enabled" value="{fencing}"' not in configuration:
        cluster.set_property("stonith-enabled", fencing)
    for name in ("maintenance-mode", "stonith-action", "transition-delay"):
        if f'name="{name}"' in configuration:
            cluster.delete_property(name)
    if re.search(r'id="cli-', configuration):
        cluster.unmove()
    view = cluster.view()
    for node in view.nodes:
        if node.is_standby:
            cluster.unstandby(node.name)
        if node.in_maintenance:
            cluster.administer("crm_attribute", "--node", node.name, "--name", "maintenance", "--delete")
    if view.failed_actions:
        cluster.cleanup()
