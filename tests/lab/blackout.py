"""Several nodes lose their power in one moment, and what there is to see when they come back."""

from __future__ import annotations

import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from lab.cluster import Cluster

BOOT_LIMIT_S: Final = 120.0
_EXPLAINED: Final = re.compile(r"\* Node: (\S+):\n(?: {4}.*\n)*? +\* broker-not-promoted\s+: (.*)\n")


def power_off(cluster: Cluster, nodes: Sequence[str]) -> None:
    """All in one moment."""
    with ThreadPoolExecutor() as pool:
        list(pool.map(cluster.lab.power_off, nodes))


def power_on(cluster: Cluster, nodes: Sequence[str], forms: Sequence[str] = ()) -> None:
    """A cluster of `forms` (default: all) forms again."""
    with ThreadPoolExecutor() as pool:
        list(pool.map(cluster.lab.power_on, nodes))
    cluster.wait_formed(forms or cluster.lab.plan.members, timeout_s=BOOT_LIMIT_S)


def explanations(cluster: Cluster) -> dict[str, str]:
    """Why the brokers of which nodes are not promoted, as crm_mon shows it."""
    return dict(_EXPLAINED.findall(cluster.text()))
