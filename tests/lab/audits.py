"""What has to hold after every scenario, kept apart from scenarios, so that it cannot be kind."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from lab.cluster import Cluster
from lab.cluster_view import ClusterView
from lab.machines import MachineError
from lab.plan import CLIENT, VIRTUAL_ADDRESS

_REST_LIMIT_S: Final = 60.0
"""On a busy machine a node may be fenced for a moment's cut, and has to boot."""
_GLANCE_S: Final = 0.3
_SHOWN_ALIKE: Final = ("generation", "epoch", "last_lsn", "queues", "exchanges", "messages", "message_bytes")
"""What brokers that hold the same say the same of."""
_BROKER: Final = re.compile(r"/qpidd( |$)")
_WATCHER: Final = re.compile(r"qpid_ha_agent\.pacemaker\.watching|qpid-ha-agent watch")
_ACTION_SERVER: Final = re.compile(r"qpid_ha_agent\.ocf\.action_server")
_OURS: Final = re.compile(r"qpid")

Audit = Callable[[Cluster, ClusterView], Iterator[str]]


class AuditFailed(Exception):
    """Something that has to hold does not."""


def check(cluster: Cluster, explained: Sequence[str] = (), timeout_s: float = _REST_LIMIT_S) -> None:
    """All audits, as soon as the cluster is at rest. `explained`: patterns of failed actions that the scenario caused.

    Raises AuditFailed when there still is a complaint after `timeout_s`.
    """
    deadline = time.monotonic() + timeout_s
    while complaints := list(audit(cluster, explained)):
        if time.monotonic() > deadline:
            listed = "\n  ".join(complaints)
            raise AuditFailed(f"after {timeout_s:g} s of rest:\n  {listed}\n{cluster.diagnosis()}")
        time.sleep(_GLANCE_S)


def audit(cluster: Cluster, explained: Sequence[str] = ()) -> Iterator[str]:
    """Every complaint there is now."""
    try:
        view = cluster.view()
        for one in (_one_primary, _one_address, _equal_replicas, _no_stray_process):
            yield from one(cluster, view)
        yield from _no_unexplained_failure(view, explained)
    except MachineError as problem:
        yield str(problem)


def _one_primary(cluster: Cluster, view: ClusterView) -> Iterator[str]:
    """Pacemaker and the brokers have to agree on it."""
    promoted = view.promoted()
    if len(promoted) != 1:
        yield f"one node has to be promoted, not {promoted or 'none'}"
    active = promoted + view.unpromoted()
    states = {node: cluster.state(node) for node in active}
    primaries = [node for node, state in states.items() if state == "primary"]
    if primaries not in ([], promoted):
        yield f"promoted is {promoted}, but {primaries} say that they are primary"
    for node in view.unpromoted():
        if states[node] != "ready":
            yield f"{node} is {states[node]}, not ready"


def _one_address(cluster: Cluster, view: ClusterView) -> Iterator[str]:
    """Clients find the primary and nothing else."""
    holders = cluster.holders()
    if holders != view.promoted():
        yield f"{VIRTUAL_ADDRESS} is on {holders or 'no node'}, promoted is {view.promoted()}"


def _equal_replicas(cluster: Cluster, view: ClusterView) -> Iterator[str]:
    """At rest a backup holds what its primary holds, no more and no less."""
    facts = {node: cluster.broker(node) for node in view.promoted() + view.unpromoted()}
    for name in _SHOWN_ALIKE:
        values = {node: seen.get(name) for node, seen in facts.items()}
        if len(set(values.values())) > 1:
            yield f"the replicas differ in {name}: {values}"
    queues = {node: cluster.queue_depths(node) for node in facts}
    if len({tuple(sorted(depths.items())) for depths in queues.values()}) > 1:
        yield f"the replicas differ in their queues: {queues}"


@dataclass(frozen=True)
class Processes:
    """Those of this project on one machine."""

    brokers: list[str]
    watchers: list[str]
    action_servers: list[str]
    others: list[str]


def processes(cluster: Cluster, machine: str) -> Processes:
    """What runs there. Raises MachineError."""
    lines = [f"{each.state} {each.pid} {each.arguments}" for each in cluster.lab.processes(machine)]
    found = [line for line in lines if _OURS.search(line) and "lab.netns.node_boot" not in line]
    brokers = [line for line in found if _BROKER.search(line)]
    watchers = [line for line in found if _WATCHER.search(line)]
    servers = [line for line in found if _ACTION_SERVER.search(line)]
    others = [line for line in found if line not in (*brokers, *watchers, *servers)]
    return Processes(brokers, watchers, servers, others)


def _no_stray_process(cluster: Cluster, view: ClusterView) -> Iterator[str]:
    """A broker, its watcher and its action server where Pacemaker runs one, nothing where it does not, and no action
    left hanging."""
    active = view.promoted() + view.unpromoted()
    for machine in (*cluster.lab.members_on(), CLIENT):
        found = processes(cluster, machine)
        wanted = 1 if machine in active else 0
        if len(found.brokers) != wanted:
            yield f"{machine} should run {wanted} broker: {found.brokers}"
        if len(found.watchers) != wanted:
            yield f"{machine} should run {wanted} watcher: {found.watchers}"
        if len(found.action_servers) != wanted:  # more: one of them carries an action out
            yield f"{machine} should run {wanted} action server: {found.action_servers}"
        if found.others:
            yield f"{machine} should not run {found.others}"


def _no_unexplained_failure(view: ClusterView, explained: Sequence[str]) -> Iterator[str]:
    """Every failure that Pacemaker remembers was this scenario's doing."""
    for action in view.failed_actions:
        if not any(re.search(pattern, str(action)) for pattern in explained):
            yield f"unexplained failed action: {action}"
    for resource in view.resources:
        if resource.is_blocked:
            yield f"{resource.resource} is blocked on {resource.node}"
    for node in view.nodes:
        if node.is_unclean:
            yield f"{node.name} is unclean"
