"""The exit codes of the OCF resource agent API 1.1, and what Pacemaker makes of each.

Soft errors are recovered where the resource is, or elsewhere; hard ones keep it away from this node until somebody
cleans up; a fatal one keeps it away from all nodes. (Pacemaker Explained, "How are OCF return codes interpreted?")
"""

from __future__ import annotations

import sys
from enum import IntEnum


class OcfCode(IntEnum):
    """One per situation; the comment under each says when we use it."""

    SUCCESS = 0
    """It is so. For a monitor: a backup runs here."""
    ERR_GENERIC = 1
    """It failed here and now (soft): refused, too late, silent. Pacemaker recovers it: stop, start, or elsewhere."""
    ERR_ARGS = 2
    """A parameter does not fit this node (hard): the file or user that it names is not here. Others may have it."""
    ERR_UNIMPLEMENTED = 3
    """There is no such action (hard)."""
    ERR_PERM = 4
    """We may not (hard): an action needs root."""
    ERR_INSTALLED = 5
    """Something is not installed on this node (hard): the broker's program, Pacemaker's tools."""
    ERR_CONFIGURED = 6
    """A parameter is wrong whatever the node (fatal): nobody can start it before it is put right."""
    NOT_RUNNING = 7
    """There is no process of it. What a probe hopes for; for a recurring monitor it is a failure."""
    RUNNING_PROMOTED = 8
    """The primary runs here."""
    FAILED_PROMOTED = 9
    """It was promoted, and does not do its work: demote, stop, start, and promote the best."""
    DEGRADED_PROMOTED = 191
    """The primary runs, and something is missing: fewer replicas than ha.min-in-sync, or a virtual IP that cannot be
    put up while no backup could take over. Pacemaker shows it and recovers nothing, which is right: restarting the
    only broker that has the messages would lose them."""


def exit_reason(text: str) -> None:
    """One line that Pacemaker shows beside a failed action (`ocf_exit_reason`)."""
    print(f"ocf-exit-reason:{' '.join(text.split())}", file=sys.stderr)
