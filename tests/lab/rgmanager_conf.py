"""What rgmanager reads from /etc/cluster/cluster.conf: nodes, failover domains, resources, services.

Only what it acts on. A name that leads nowhere is an error here, although rgmanager only logs it: an example must not
have one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import IntEnum, StrEnum
from pathlib import Path
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

START_LEVELS = {"ip": 7, "script": 9}
"""service.sh: what has the lower level is started first; status checks go the same way."""
STOP_LEVELS = {"script": 1, "ip": 2}
STATUS_INTERVALS_S = {"ip": {0: 20, 10: 60}, "script": {0: 30}}
"""By depth of the check, as ip.sh and script.sh declare them."""
POLL_INTERVAL_S = 10
"""How often rgmanager looks whose status is due; `status_poll_interval` of <rm> beats it."""


class ConfigurationError(Exception):
    """rgmanager could not use this file, or would not do what it says."""


class Fitness(IntEnum):
    """How well a failover domain likes a node for a service."""

    ILLEGAL = 0
    GOOD = 1
    BETTER = 2
    BEST = 3


class Recovery(StrEnum):
    """What becomes of a service whose status check failed."""

    RESTART = "restart"
    RELOCATE = "relocate"
    DISABLE = "disable"


@dataclass(frozen=True)
class Domain:
    """Nodes, and their priority: 1 is the best, 0 (none given) counts as better than that."""

    name: str
    priorities: Mapping[str, int]
    ordered: bool = False
    restricted: bool = False
    nofailback: bool = False

    def fitness(self, node: str, online: tuple[str, ...], runs_on: str) -> Fitness:
        """Of a node that is online."""
        priorities = [self.priorities[each] for each in online if each in self.priorities]
        if node not in self.priorities:
            unwanted = Fitness.GOOD if priorities else Fitness.BEST
            return Fitness.ILLEGAL if self.restricted else unwanted
        is_elsewhere = self.nofailback and runs_on not in ("", node)
        if self.priorities[node] <= min(priorities):
            return Fitness.BETTER if is_elsewhere else Fitness.BEST
        stays = self.nofailback and runs_on == node
        return Fitness.BEST if stays or not self.ordered else Fitness.BETTER


@dataclass(frozen=True, eq=False)
class Resource:
    """One <ip> or <script>."""

    kind: str
    name: str
    attributes: Mapping[str, str]
    status_intervals_s: Mapping[int, int]


@dataclass(frozen=True)
class Service:
    """One <service>, its resources in the order of the file."""

    name: str
    resources: tuple[Resource, ...]
    domain: Domain | None = None
    recovery: Recovery = Recovery.RESTART
    autostart: bool = True
    exclusive: bool = False

    @property
    def starting(self) -> tuple[Resource, ...]:
        """In the order in which they are started and checked."""
        return tuple(sorted(self.resources, key=lambda resource: START_LEVELS[resource.kind]))

    @property
    def stopping(self) -> tuple[Resource, ...]:
        """In the order in which they are stopped; of one kind, the last comes first."""
        backwards = self.resources[::-1]
        return tuple(sorted(backwards, key=lambda resource: STOP_LEVELS[resource.kind]))

    def fitness(self, node: str, online: tuple[str, ...], runs_on: str) -> Fitness:
        """How well the domain likes `node` if only `online` can be had; `runs_on`: where it is started, or empty."""
        if node not in online:
            return Fitness.ILLEGAL
        return Fitness.BEST if self.domain is None else self.domain.fitness(node, online, runs_on)


@dataclass(frozen=True)
class ClusterConf:
    """The whole file."""

    nodes: tuple[str, ...]
    services: tuple[Service, ...]
    poll_interval_s: int = POLL_INTERVAL_S

    def service(self, name: str) -> Service:
        """By its name."""
        return next(service for service in self.services if service.name == name)

    def without(self, *names: str) -> ClusterConf:
        """The file before these services were written into it."""
        return replace(self, services=tuple(each for each in self.services if each.name not in names))


def read_conf(path: Path) -> ClusterConf:
    """Raises ConfigurationError."""
    return parse_conf(path.read_text(encoding="utf-8"))


def parse_conf(text: str) -> ClusterConf:
    """The content of a cluster.conf. Raises ConfigurationError."""
    try:
        cluster = ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        raise ConfigurationError(f"this is not XML: {error}") from None
    manager = cluster.find("rm")
    if cluster.tag != "cluster" or manager is None:
        raise ConfigurationError("expected <cluster> with <rm> in it")
    nodes = tuple(each.attrib["name"] for each in cluster.iterfind("clusternodes/clusternode"))
    domains = {each.attrib["name"]: _domain(each, nodes) for each in manager.iterfind("failoverdomains/*")}
    shared = {(each.kind, each.name): each for each in _resources(manager.find("resources"), {})}
    services = tuple(_service(each, domains, shared) for each in manager.iterfind("service"))
    return ClusterConf(nodes, services, int(manager.get("status_poll_interval", POLL_INTERVAL_S)))


def _service(element: Element, domains: Mapping[str, Domain], shared: Mapping[tuple[str, str], Resource]) -> Service:
    domain = element.get("domain")
    if domain is not None and domain not in domains:
        raise ConfigurationError(f"service {element.attrib['name']} is in domain {domain}, which is not there")
    return Service(
        element.attrib["name"],
        tuple(_resources(element, shared)),
        domains[domain] if domain is not None else None,
        Recovery(element.get("recovery", "restart")),
        _is_true(element, "autostart", default=True),
        _is_true(element, "exclusive"),
    )


def _resources(parent: Element | None, shared: Mapping[tuple[str, str], Resource]) -> Iterator[Resource]:
    for element in parent if parent is not None else ():
        if element.tag not in START_LEVELS:
            raise ConfigurationError(f"this model knows nothing of <{element.tag}>")
        reference = element.get("ref")
        if reference is None:
            yield _resource(element)
        elif (element.tag, reference) in shared:
            yield shared[element.tag, reference]
        else:
            raise ConfigurationError(f"<{element.tag} ref={reference!r}> leads to nothing in <resources>")


def _resource(element: Element) -> Resource:
    intervals = dict(STATUS_INTERVALS_S[element.tag])
    for action in element.iterfind("action[@name='status']"):
        depth, interval_s = action.attrib["depth"], int(action.attrib["interval"])
        intervals.update(dict.fromkeys(intervals if depth == "*" else [int(depth)], interval_s))
    primary = "address" if element.tag == "ip" else "name"
    return Resource(element.tag, element.attrib[primary], dict(element.attrib), intervals)


def _domain(element: Element, nodes: tuple[str, ...]) -> Domain:
    priorities = {
        each.attrib["name"]: int(each.get("priority", "0")) for each in element.iterfind("failoverdomainnode")
    }
    strangers = sorted(set(priorities) - set(nodes))
    if strangers:
        raise ConfigurationError(f"domain {element.attrib['name']} has {', '.join(strangers)}: no such clusternode")
    flags = {flag: _is_true(element, flag) for flag in ("ordered", "restricted", "nofailback")}
    return Domain(element.attrib["name"], priorities, **flags)


def _is_true(element: Element, name: str, default: bool = False) -> bool:
    return element.get(name, "1" if default else "0") in ("1", "yes")
