"""What Pacemaker says, read from `crm_mon --output-as=xml`."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True)
class NodeView:
    """One node of the cluster."""

    name: str
    is_online: bool
    is_pending: bool
    is_unclean: bool
    is_standby: bool
    in_maintenance: bool


@dataclass(frozen=True)
class ResourceView:
    """One instance of a resource."""

    resource: str
    agent: str
    role: str
    """Promoted, Unpromoted, Started, Stopped, or what it is on its way to, as in `pending`."""
    node: str
    """Empty when it is active nowhere."""
    has_failed: bool
    is_blocked: bool
    is_managed: bool
    pending: str


@dataclass(frozen=True)
class FailedAction:
    """A failure that nobody has cleaned up yet."""

    operation: str
    """Such as broker_monitor_2000."""
    node: str
    exit_status: str
    reason: str

    def __str__(self) -> str:
        return f"{self.operation} on {self.node}: {self.exit_status}: {self.reason}"


class Fencing(NamedTuple):
    """A node that was to be switched off; `status` is success, failed or pending."""

    node: str
    status: str
    completed: str
    """A time, as Pacemaker writes it."""


@dataclass(frozen=True)
class ClusterView:
    """One moment."""

    dc: str
    has_quorum: bool
    nodes: tuple[NodeView, ...]
    resources: tuple[ResourceView, ...]
    failed_actions: tuple[FailedAction, ...]
    fencings: tuple[Fencing, ...]

    def online(self) -> list[str]:
        """Names of the nodes that take part."""
        return sorted(node.name for node in self.nodes if node.is_online and not node.is_pending)

    def instances(self, resource: str) -> list[ResourceView]:
        """Of a primitive, wherever it runs."""
        return [each for each in self.resources if each.resource == resource]

    def where(self, resource: str, *roles: str) -> list[str]:
        """The nodes where an instance is in one of these roles, and is well."""
        return sorted(
            each.node for each in self.instances(resource) if each.role in roles and each.node and not each.has_failed
        )

    def times_fenced(self, node: str) -> set[str]:
        """When it was switched off."""
        return {each.completed for each in self.fencings if (each.node, each.status) == (node, "success")}

    def promoted(self, resource: str = "broker") -> list[str]:
        """The nodes where it is promoted: one, if all is well."""
        return self.where(resource, "Promoted")

    def unpromoted(self, resource: str = "broker") -> list[str]:
        """The nodes where it runs, and is not promoted."""
        return self.where(resource, "Unpromoted", "Started")


def read_view(text: str) -> ClusterView:
    """From crm_mon's XML. Raises ValueError when it is none."""
    try:
        root = ET.fromstring(text)
    except ET.ParseError as problem:
        raise ValueError(f"crm_mon wrote no XML: {problem}") from problem
    dc = root.find("summary/current_dc")
    return ClusterView(
        dc=dc.get("name", "") if dc is not None else "",
        has_quorum=dc is not None and _yes(dc, "with_quorum"),
        nodes=tuple(_node(element) for element in root.findall("nodes/node")),
        resources=tuple(_resources(root)),
        failed_actions=tuple(_failures(root)),
        fencings=tuple(
            Fencing(event.get("target", ""), event.get("status", ""), event.get("completed", ""))
            for event in root.findall("fence_history/fence_event")
        ),
    )


def _yes(element: ET.Element, name: str) -> bool:
    return element.get(name) == "true"


def _node(element: ET.Element) -> NodeView:
    return NodeView(
        name=element.get("name", ""),
        is_online=_yes(element, "online"),
        is_pending=_yes(element, "pending"),
        is_unclean=_yes(element, "unclean"),
        is_standby=_yes(element, "standby"),
        in_maintenance=_yes(element, "maintenance"),
    )


def _resources(root: ET.Element) -> Iterator[ResourceView]:
    for element in root.findall("resources//resource"):
        node = element.find("node")
        yield ResourceView(
            resource=element.get("id", "").partition(":")[0],
            agent=element.get("resource_agent", ""),
            role=element.get("role", ""),
            node=node.get("name", "") if node is not None else "",
            has_failed=_yes(element, "failed"),
            is_blocked=_yes(element, "blocked"),
            is_managed=_yes(element, "managed"),
            pending=element.get("pending", ""),
        )


def _failures(root: ET.Element) -> Iterator[FailedAction]:
    for element in root.findall("failures/failure"):
        yield FailedAction(
            operation=element.get("op_key", element.get("id", "")),
            node=element.get("node", ""),
            exit_status=element.get("exitstatus", ""),
            reason=element.get("exitreason", ""),
        )
