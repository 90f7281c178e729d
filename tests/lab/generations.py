"""Who was primary, as those say it who decide it: the cluster's record in the CIB, and each broker's history."""

from __future__ import annotations

import re
from typing import Any, Final

from lab.cluster import Cluster, NotInTime
from qpid_ha_broker.coordination.cib_record import decode
from qpid_ha_broker.ha.cluster_record import ClusterRecord

_QUERY: Final = ("crm_attribute", "--type", "crm_config", "--set-name", "qpid-ha", "--name", "record", "--query")
_VALUE: Final = re.compile(r"value=(\S+)")


def record(cluster: Cluster, node: str) -> ClusterRecord:
    """What that node's copy of the CIB says; an empty one when it says nothing. Raises MachineError."""
    found = _VALUE.search(cluster.lab.run(node, *_QUERY, check=False, timeout_s=10).stdout)
    return decode(found[1]) if found else ClusterRecord()


def history(cluster: Cluster, node: str) -> list[dict[str, Any]]:
    """The generations that this node's broker knows, the oldest first. Raises MachineError."""
    return list(cluster.ask(node, "history"))


def _told_to_all(generations: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    """When and why one began is known to those who were there; a broker that catches up is not told."""
    return [(each["generation"], each["primary"], each["first_lsn"]) for each in generations]


def wait_agreed(cluster: Cluster, *members: str) -> ClusterRecord:
    """Until all nodes that are on have one record, with these members in sync (default: all of the plan), and one
    history that ends with the record's generation and primary; that record. Raises NotInTime."""
    wanted = tuple(sorted(members or cluster.lab.plan.members))
    records: dict[str, ClusterRecord] = {}
    histories: dict[str, list[tuple[Any, ...]]] = {}

    def have_agreed() -> bool:
        records.update({node: record(cluster, node) for node in cluster.lab.members_on()})
        histories.update({node: _told_to_all(history(cluster, node)) for node in wanted})
        told, *others = histories.values()
        if len(set(records.values())) != 1 or any(other != told for other in others):
            return False
        found = next(iter(records.values()))
        return tuple(sorted(found.members)) == wanted and told[-1][:2] == (found.generation, found.primary)

    try:
        cluster.wait(have_agreed, f"one record with {', '.join(wanted)} in sync, and one history that ends with it")
    except NotInTime as problem:
        problem.add_note(f"records: {records}\nhistories: {histories}")
        raise
    return next(iter(records.values()))
