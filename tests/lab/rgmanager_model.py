"""rgmanager, as far as two scripts can tell it from the real one: what it runs, where, in which order, and what it
makes of the answers. The behaviour is that of its last version (3.1, RHEL 6), whose sources are public.

The model decides; whoever it is given as `Agents` runs the scripts. Nothing here knows about brokers. Left out:
migration, freezing, service dependencies, independent subtrees, restart counters, central processing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum, StrEnum, auto
from typing import Protocol

from lab.rgmanager_conf import ClusterConf, Fitness, Recovery, Resource, Service

Calls = Iterable[Callable[[], object]]


class Agents(Protocol):
    """What stands between rgmanager and a node: ip.sh, script.sh."""

    def run(self, node: str, service: Service, resource: Resource, action: str, depth: int) -> int:
        """start, stop or status on `node`; the exit code."""


class State(StrEnum):
    """As clustat prints it."""

    STOPPED = "stopped"
    STARTING = "starting"
    STARTED = "started"
    STOPPING = "stopping"
    ERROR = "error"
    RECOVERABLE = "recoverable"
    FAILED = "failed"
    DISABLED = "disabled"


class Request(Enum):
    """Why a start or a stop is asked for."""

    START = auto()
    ENABLE = auto()
    RELOCATE = auto()
    RECOVER = auto()
    STOP = auto()
    DISABLE = auto()


class Outcome(Enum):
    """What became of a start."""

    DONE = auto()
    FAILED = auto()
    ABORTED = auto()
    """It could not be stopped either: nobody knows what still runs."""
    ALREADY = auto()
    BACK = auto()
    """It could go nowhere, and runs where it was."""


@dataclass
class Entry:
    """What all nodes know of a service."""

    state: State = State.STOPPED
    owner: str = ""
    last_owner: str = ""
    is_new: bool = True


def in_parallel(calls: Calls) -> None:
    """Each in a thread of its own, as rgmanager has one for each service; what one raises is raised here."""
    with ThreadPoolExecutor(max_workers=32) as pool:
        for future in [pool.submit(call) for call in calls]:
            future.result()


def one_by_one(calls: Calls) -> None:
    """In the order in which they are given, for tests that look at the order."""
    for call in calls:
        call()


class Rgmanager:
    """All rgmanagers of one cluster. `online`: the nodes whose rgmanager runs, in the order of cluster.conf.

    Promise: each service has one owner at most, and its scripts run nowhere but there, except for the stop that every
    node gives every service when its rgmanager starts, or learns of a new service.
    """

    def __init__(self, conf: ClusterConf, agents: Agents, run_all: Callable[[Calls], None] = in_parallel) -> None:
        self.conf = conf
        self.online: tuple[str, ...] = ()
        self._agents = agents
        self._run_all = run_all
        self._entries = {service.name: Entry() for service in conf.services}
        self._lock = threading.Lock()
        self._now_s = 0.0
        self._checked_s: dict[tuple[str, Resource, int], float] = {}
        self._last_status: dict[tuple[str, Resource], int] = {}

    # --- looking

    def state(self, service: str) -> State:
        """As clustat prints it."""
        return self._entries[service].state

    def owner(self, service: str) -> str:
        """Empty: nobody."""
        return self._entries[service].owner

    # --- what happens to nodes

    def boot(self, *nodes: str) -> None:
        """rgmanager starts on these nodes: first it stops every service there is, then it starts what is due."""
        self._initialise(nodes, self.conf.services)
        self.online = self._in_order({*self.online, *nodes})
        for node in nodes:
            self._run_all([self._call(self._node_came, at, service, node) for service, at in self._everywhere()])

    def lose(self, node: str) -> None:
        """The node is off, and was fenced: the others take over what it had."""
        self.online = self._in_order(set(self.online) - {node})
        self._run_all([self._call(self._node_went, at, service) for service, at in self._everywhere()])

    def leave(self, node: str) -> None:
        """`service rgmanager stop`: what it owns is stopped, all at once; then the others take over."""
        owned = [service for service in self.conf.services if self.owner(service.name) == node]
        self._run_all([self._call(self._stop, node, service, Request.STOP) for service in owned])
        self.lose(node)

    def update(self, conf: ClusterConf) -> None:
        """`cman_tool version -r`, with new services in the file: each node stops them first, as at its start."""
        new = [service for service in conf.services if service.name not in self._entries]
        self.conf = conf
        self._entries.update({service.name: Entry() for service in new})
        self._initialise(self.online, new)
        self._run_all([self._call(self._consider_start, at, service) for service in new for at in self.online])

    def poll(self, now_s: float) -> None:
        """Time has passed: whose status is due is checked, where it runs; what fails is recovered."""
        self._now_s = now_s
        owners = [(service, self.owner(service.name)) for service in self.conf.services]
        self._run_all([self._call(self._check, owner, service) for service, owner in owners if owner in self.online])

    # --- what an operator does

    def enable(self, name: str, node: str) -> Outcome:
        """`clusvcadm -e NAME`, on `node`."""
        return self._start_or_relocate(node, self.conf.service(name), Request.ENABLE)

    def disable(self, name: str) -> bool:
        """`clusvcadm -d NAME`."""
        return self._stop(self.owner(name) or self.online[0], self.conf.service(name), Request.DISABLE)

    def relocate(self, name: str, to: str) -> Outcome:
        """`clusvcadm -r NAME -m TO`."""
        return self._relocate(self.owner(name), self.conf.service(name), Request.RELOCATE, to)

    # --- events, as each node takes them

    def _initialise(self, nodes: Iterable[str], services: Iterable[Service]) -> None:
        """Stop without looking at who owns it, and without saying so."""
        every = [(node, service) for node in nodes for service in services]
        self._run_all([self._call(self._operate_stop, node, service) for node, service in every])

    def _node_came(self, at: str, service: Service, node: str) -> None:
        entry = self._entries[service.name]
        if entry.state in (State.DISABLED, State.FAILED, State.RECOVERABLE):
            return
        if at == node or entry.state is State.STOPPED:
            self._consider_start(at, service)
        elif entry.owner == at and self._fitness(node, service) > self._fitness(at, service):
            self._relocate(at, service, Request.RELOCATE, node)

    def _node_went(self, at: str, service: Service) -> None:
        if self._entries[service.name].state not in (State.DISABLED, State.FAILED, State.RECOVERABLE):
            self._consider_start(at, service)

    def _consider_start(self, node: str, service: Service) -> None:
        entry = self._entries[service.name]
        if entry.state is State.STOPPED and entry.is_new and not service.autostart:
            entry.state = State.DISABLED
        if entry.state is State.DISABLED or (entry.state is State.STARTED and entry.owner == node):
            return
        if self._is_excluded(node, service):
            return
        fitness = self._fitness(node, service)
        if fitness is Fitness.BEST:
            self._start_or_relocate(node, service, Request.START)
        elif fitness is Fitness.ILLEGAL and not any(self._fitness(other, service) for other in self.online):
            self._stop(node, service, Request.STOP)  # marks it stopped: its owner is gone, and nobody else may have it

    def _check(self, owner: str, service: Service) -> None:
        if self.state(service.name) is not State.STARTED or self._status(owner, service) == 0:
            return
        if not self._stop(owner, service, Request.RECOVER):
            return
        if service.recovery is Recovery.DISABLE:
            self._stop(owner, service, Request.DISABLE)
        elif service.recovery is Recovery.RELOCATE:
            self._relocate(owner, service, Request.RECOVER)
        else:
            self._start_or_relocate(owner, service, Request.RECOVER)

    # --- starting

    def _start_or_relocate(self, node: str, service: Service, request: Request) -> Outcome:
        """A start that fails is stopped, and tried elsewhere."""
        wanted = Fitness.GOOD if request is Request.ENABLE else Fitness.BEST
        if request is not Request.RECOVER and self._fitness(node, service) < wanted:
            return Outcome.FAILED
        outcome = self._start(node, service, request)
        if outcome is not Outcome.FAILED:
            return outcome
        if not self._stop(node, service, Request.RECOVER):
            return Outcome.ABORTED
        outcome = self._relocate(node, service, Request.RECOVER)
        if outcome is Outcome.FAILED:
            self._stop(node, service, Request.STOP)
        return outcome

    def _start_here(self, node: str, service: Service, request: Request) -> Outcome:
        """A start that another node asks for: one that fails is stopped, and reported."""
        if self._fitness(node, service, among=(node,)) < Fitness.BEST or self._is_excluded(node, service):
            return Outcome.FAILED
        outcome = self._start(node, service, request)
        if outcome is Outcome.FAILED and not self._stop(node, service, Request.RECOVER):
            return Outcome.ABORTED
        return outcome

    def _start(self, node: str, service: Service, request: Request) -> Outcome:
        entry = self._entries[service.name]
        with self._lock:
            refusal = self._why_not_start(entry, request)
            if refusal is not None:
                return refusal
            entry.owner, entry.state, entry.is_new = node, State.STARTING, False
        is_up = self._operate_start(node, service)
        with self._lock:
            entry.state = State.STARTED  # also when it failed: what follows then is a stop of what was started
        return Outcome.DONE if is_up else Outcome.FAILED

    def _why_not_start(self, entry: Entry, request: Request) -> Outcome | None:
        if entry.state in (State.STOPPED, State.ERROR):
            return None
        if entry.state is State.RECOVERABLE:
            return None if request is Request.RECOVER else Outcome.ALREADY
        if entry.state is State.DISABLED:
            return None if request in (Request.ENABLE, Request.RELOCATE, Request.RECOVER) else Outcome.FAILED
        if entry.state is State.FAILED:
            return Outcome.FAILED
        return Outcome.ALREADY if entry.owner in self.online else None

    # --- moving

    def _relocate(self, node: str, service: Service, request: Request, to: str = "") -> Outcome:
        """From `node` to `to`, else to the best other one, else (unless that just failed) back to `node`."""
        if request is not Request.RECOVER and not self._stop(node, service, request):
            return Outcome.ABORTED
        remaining, attempt = set(self.online) - {node}, request
        while remaining:
            target = to if to in remaining else self._best_target(remaining, service)
            if not target:
                break
            outcome = self._start_here(target, service, attempt)
            if outcome is not Outcome.FAILED:
                return outcome
            remaining.discard(target)
            attempt = Request.RECOVER
        if request is Request.RECOVER and not remaining:
            self._finish_stop(self._entries[service.name], is_clean=True, then=State.STOPPED, recover=False)
        elif self._start(node, service, Request.RECOVER) is Outcome.DONE:
            return Outcome.BACK
        else:
            self._stop(node, service, Request.STOP)
        return Outcome.FAILED

    def _best_target(self, among: set[str], service: Service) -> str:
        """The fittest; of equals the last one in cluster.conf. Empty: none is allowed to."""
        best, highest = "", Fitness.GOOD
        for node in self._in_order(among):
            fitness = self._fitness(node, service, self._in_order(among))
            if fitness >= highest and not self._is_excluded(node, service):
                best, highest = node, fitness
        return best

    def _fitness(self, node: str, service: Service, among: tuple[str, ...] | None = None) -> Fitness:
        entry = self._entries[service.name]
        runs_on = entry.owner if entry.state is State.STARTED and entry.owner in self.online else ""
        return service.fitness(node, self.online if among is None else among, runs_on)

    def _is_excluded(self, node: str, service: Service) -> bool:
        """exclusive: alone on its node, or not there."""
        others = [each for each in self.conf.services if each is not service and self.owner(each.name) == node]
        return any(each.exclusive for each in others) or (service.exclusive and bool(others))

    # --- stopping

    def _stop(self, node: str, service: Service, request: Request) -> bool:
        """Whether it is stopped, as far as `node` is concerned."""
        entry = self._entries[service.name]
        with self._lock:
            answer = self._why_not_stop(entry, node, request)
            if answer is not None:
                return answer
            before = entry.state
            entry.state = State.ERROR if request is Request.RECOVER else State.STOPPING
        is_clean = self._operate_stop(node, service)
        disabling = request is Request.DISABLE
        forgiven = disabling and before is State.FAILED
        then = State.DISABLED if disabling else State.STOPPED
        self._finish_stop(entry, is_clean or forgiven, then, recover=request is Request.RECOVER)
        return is_clean

    def _why_not_stop(self, entry: Entry, node: str, request: Request) -> bool | None:
        """None: stop it. Else the answer without doing so."""
        if request is Request.DISABLE:
            return None
        if entry.state in (State.FAILED, State.ERROR):
            return False
        if entry.state in (State.STOPPED, State.DISABLED):
            return True
        if entry.owner in ("", node):
            return None
        if entry.owner not in self.online:
            entry.last_owner, entry.owner, entry.state = entry.owner, "", State.STOPPED
        return True

    def _finish_stop(self, entry: Entry, is_clean: bool, then: State, recover: bool) -> None:
        with self._lock:
            if entry.state not in (State.STOPPING, State.ERROR, State.RECOVERABLE):
                return
            entry.last_owner, entry.owner = entry.owner or entry.last_owner, ""
            entry.state = State.FAILED if not is_clean else State.RECOVERABLE if recover else then

    # --- the scripts

    def _operate_start(self, node: str, service: Service) -> bool:
        for resource in service.starting:
            if self._agents.run(node, service, resource, "start", 0):
                return False
            self._last_status.pop((service.name, resource), None)
            self._checked_s.update(
                {(service.name, resource, depth): self._now_s for depth in resource.status_intervals_s}
            )
        return True

    def _operate_stop(self, node: str, service: Service) -> bool:
        """Every resource, also after one that failed."""
        codes = [self._agents.run(node, service, resource, "stop", 0) for resource in service.stopping]
        return not any(codes)

    def _status(self, node: str, service: Service) -> int:
        """The first bad one, in the order of the start; one that is not due yet counts with what it said last."""
        for resource in service.starting:
            code = self._status_of(node, service, resource)
            if code:
                return code
        return 0

    def _status_of(self, node: str, service: Service, resource: Resource) -> int:
        key = (service.name, resource)
        due = [
            depth
            for depth, interval_s in resource.status_intervals_s.items()
            if self._now_s - self._checked_s[(*key, depth)] >= interval_s
        ]
        if not due:
            return self._last_status.get(key, 0)
        self._checked_s[(*key, max(due))] = self._now_s
        self._last_status[key] = self._agents.run(node, service, resource, "status", max(due))
        return self._last_status[key]

    # --- small things

    def _everywhere(self) -> list[tuple[Service, str]]:
        return [(service, node) for service in self.conf.services for node in self.online]

    def _in_order(self, nodes: set[str]) -> tuple[str, ...]:
        return tuple(node for node in self.conf.nodes if node in nodes)

    @staticmethod
    def _call(function: Callable[..., object], *arguments: object) -> Callable[[], object]:
        return lambda: function(*arguments)
