"""A node that the cluster can reach, and the other brokers cannot: firewall rules about AMQP alone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from lab.cluster import Cluster
from lab.plan import AMQP_PORT

_TABLE: Final = "inet lab_amqp"


@contextmanager
def severed(cluster: Cluster, node: str) -> Iterator[None]:
    """Connections with its broker end at once, and new ones are refused."""
    with _rule(cluster, node, "reject with tcp reset"):
        yield


@contextmanager
def _rule(cluster: Cluster, node: str, verdict: str) -> Iterator[None]:
    chains = "\n".join(
        f"chain {hook} {{ type filter hook {hook} priority 0; "
        f"tcp dport {AMQP_PORT} {verdict}; tcp sport {AMQP_PORT} {verdict}; }}"
        for hook in ("input", "output")
    )
    cluster.lab.run(node, "nft", "-f", "-", stdin=f"table {_TABLE} {{\n{chains}\n}}\n")
    try:
        yield
    finally:
        cluster.lab.run(node, "nft", "delete", "table", *_TABLE.split())
