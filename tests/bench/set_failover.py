"""kill -9 of a broker that leads a third of many resource sets: when each of them confirms again, and what it costs.

Three real brokers under `qpid-ha-agent run`. A publisher comes to each set as soon as its new primary's log says that
it leads: with one for each set that tries again and again before that, the machine would be busy with clients that are
sent away.
"""

from __future__ import annotations

import itertools
import re
import time
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from select import select
from statistics import median
from typing import Any, Final, NamedTuple

import proton
from cproton_ffi import lib

from bench.failover import calm_primary, others_than
from bench.figures import Measurement
from bench.load_client import BenchError, LoadConnection
from bench.replication import fresh_cluster, port_of
from bench.scenario import Scenario
from bench.store import disk_directory
from bench.throughput import message
from bench.usage import processor_s
from qpid_ha_agent.control import ControlClient
from qpid_ha_demo.cluster import LocalBroker
from running_cluster import RunningCluster

LEADS: Final = re.compile(rb"set (\S+): status change: \S+ -> primary")
"""In a broker's log."""
GLANCE_S: Final = 0.002
AGAIN_S: Final = 0.005
"""Until a publisher that was refused tries again."""
SERVED_TIMEOUT_S: Final = 30.0
PLACED_TIMEOUT_S: Final = 120.0
CALM_S: Final = 3.0
"""Until members of sets are at rest."""
CONTROLLED_SETS: Final = 12
BODY_BYTES: Final = 100
_CREDIT: Final = 100


class QueueClients:
    """Publishers of several queues on one connection: one message each, and when it was confirmed.

    With `consumes` each queue has a consumer, too, and it is noted when its first message came. A publisher whose link
    the broker ends comes again with `tries_again`; without, that is an error.
    """

    def __init__(self, port: int, *, consumes: bool = False, tries_again: bool = False) -> None:
        self.connection = LoadConnection(port)
        self.confirmed_at_s: dict[str, float] = {}
        self.came_at_s: dict[str, float] = {}
        """Both by address."""
        self._consumes, self._tries_again = consumes, tries_again
        self._names = itertools.count()
        self._senders: dict[str, proton.Sender] = {}
        self._receivers: dict[str, Any] = {}
        self._unsent: dict[str, None] = {}
        self._unanswered: dict[str, Any] = {}
        self._again_s: dict[str, float] = {}

    def attach(self, address: str) -> None:
        """Come to that queue."""
        sender = self._senders[address] = self.connection.session.sender(f"out-{next(self._names)}")
        sender.target.address = address
        sender.open()
        if self._consumes:
            receiver = self._receivers[address] = self.connection.session.receiver(f"in-{next(self._names)}")
            receiver.source.address = address
            receiver.open()
            receiver.flow(_CREDIT)
        self.connection.flush()

    def wait_attached(self) -> None:
        """Until there is credit for all that are attached. Raises BenchError."""
        self.connection.wait_for(lambda: all(sender.credit for sender in self._senders.values()))

    def send(self, address: str) -> None:
        """One message to that queue, as soon as there is credit."""
        self._unsent[address] = None
        self.work()

    def work(self) -> None:
        """All that can be done without waiting. Raises BenchError when the broker has ended what may not end."""
        now_s = time.monotonic()
        collector = self.connection.collector
        while event := lib.pn_collector_peek(collector):
            if not self._tries_again:
                self.connection.check(lib.pn_event_type(event))
            lib.pn_collector_pop(collector)
        self._come_again(now_s)
        for address in [address for address in self._unsent if self._senders[address].credit]:
            del self._unsent[address]
            sender = self._senders[address]
            self._unanswered[address] = sender.delivery(address)
            sender.send(message(BODY_BYTES))
            sender.advance()
        for address, delivery in list(self._unanswered.items()):
            if delivery.remote_state == proton.Delivery.ACCEPTED:
                del self._unanswered[address]
                delivery.settle()
                self.confirmed_at_s[address] = now_s
        for address, receiver in self._receivers.items():
            while (current := receiver.current) is not None and not current.partial:
                receiver.recv(current.pending)
                receiver.advance()
                current.update(proton.Delivery.ACCEPTED)
                current.settle()
                self.came_at_s.setdefault(address, now_s)
        self.connection.flush()

    def _come_again(self, now_s: float) -> None:
        """Those whose link was ended: their message is sent again."""
        for address in [address for address, again_s in self._again_s.items() if now_s >= again_s]:
            del self._again_s[address]
            self.attach(address)
            self._unsent[address] = None
        for address, sender in self._senders.items():
            if sender.state & proton.Endpoint.REMOTE_CLOSED and sender.state & proton.Endpoint.LOCAL_ACTIVE:
                sender.close()
                if address not in self.confirmed_at_s:
                    self._unsent.pop(address, None)
                    self._unanswered.pop(address, None)
                    self._again_s[address] = now_s + AGAIN_S


class LogTail:
    """What a broker's log says from now on."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb")
        self._file.seek(0, 2)
        self._rest = b""

    def led(self) -> list[str]:
        """The sets that it leads since the last call."""
        *lines, self._rest = (self._rest + self._file.read()).split(b"\n")
        return [found[1].decode() for found in map(LEADS.search, lines) if found]

    def close(self) -> None:
        """Read no more."""
        self._file.close()


def queue_of(set_name: str) -> str:
    """The one that each set has."""
    return f"q-{set_name}"


def place(cluster: RunningCluster, count: int) -> list[str]:
    """Sets on all brokers, in sync, each with a queue; their primaries on all brokers in turn. Their names."""
    controller = cluster.the_primary()
    names = [f"set{number}" for number in range(count)]
    brokers = [broker.name for broker in cluster.brokers]
    with ControlClient(controller.control_socket, timeout_s=30.0) as control:
        for number, name in enumerate(names):
            control.call("sets", action="create", name=name, preferred=brokers[number % len(brokers)])
        wait_whole(control, count)
        for name in names:
            control.call("queues", action="create", name=queue_of(name), arguments={"qpid.resource-set": name})
        wait_whole(control, count)
    return names


def primaries(cluster: RunningCluster) -> dict[str, str]:
    """By set, the broker that leads it."""
    with ControlClient(cluster.the_primary().control_socket, timeout_s=30.0) as control:
        return {row["name"]: row["primary"] for row in rows(control)}


def rows(control: ControlClient) -> list[dict[str, Any]]:
    """All sets, as the controller shows them."""
    found = control.call("sets", action="list")
    if not isinstance(found, list):
        raise BenchError(f"sets answered {found!r}")
    return found


def wait_whole(control: ControlClient, count: int) -> None:
    """Until each set has all it wants. Raises BenchError."""
    deadline_s = time.monotonic() + PLACED_TIMEOUT_S
    while (states := Counter(str(row["state"]) for row in rows(control))) != {"ok": count}:
        if time.monotonic() > deadline_s:
            raise BenchError(f"sets are not in sync after {PLACED_TIMEOUT_S:g} s: {states}")
        time.sleep(0.5)


class Gap(NamedTuple):
    """Of one kill; seconds since then."""

    lost: int
    """Sets that the killed broker led."""
    led_s: list[float]
    """Of each set, when another broker led it."""
    confirmed_s: list[float]
    """Of each set, when it confirmed a message."""
    processor_s: float
    """Of the other brokers, until the last was confirmed."""
    most: int
    """Sets that one of them leads then, old ones and new ones."""


def kill(cluster: RunningCluster, victim: LocalBroker) -> Gap:
    """SIGKILL to that broker; its agent starts it again. Raises BenchError."""
    lost = {name for name, primary in primaries(cluster).items() if primary == victim.name}
    heirs = others_than(cluster, victim)
    counter = partial(processor_s, *(heir.pid for heir in heirs))
    publishers = {broker.name: QueueClients(port_of(cluster, broker), tries_again=True) for broker in heirs}
    tails = {broker.name: LogTail(broker.log_path) for broker in heirs}
    time.sleep(CALM_S)
    led_s: dict[str, float] = {}
    used_s = counter()
    killed_s = cluster.kill(victim)
    while sum(len(each.confirmed_at_s) for each in publishers.values()) < len(lost):
        now_s = time.monotonic()
        if now_s - killed_s > SERVED_TIMEOUT_S:
            missing = sorted(lost - led_s.keys())
            raise BenchError(f"{len(led_s)} of {len(lost)} sets are led after {SERVED_TIMEOUT_S:g} s: {missing[:5]}")
        for name, tail in tails.items():
            for set_name in tail.led():
                if set_name in lost:
                    led_s[set_name] = now_s - killed_s
                    publishers[name].attach(queue_of(set_name))
                    publishers[name].send(queue_of(set_name))
        for each in publishers.values():
            each.work()
        readable, _, _ = select([each.connection for each in publishers.values()], [], [], GLANCE_S)
        for each in publishers.values():
            if each.connection in readable:
                each.connection.read()
                each.work()
    used_s = counter() - used_s
    confirmed = [at_s - killed_s for each in publishers.values() for at_s in each.confirmed_at_s.values()]
    for name, each in publishers.items():
        each.connection.close()
        tails[name].close()
    most = max(Counter(primaries(cluster).values()).values())
    return Gap(len(lost), sorted(led_s.values()), sorted(confirmed), used_s, most)


def measure_kill_primaries(scenario: Scenario) -> Iterator[Measurement]:
    """In memory, and with stores; not the controller, which has to be followed by another one first."""
    yield from kills(scenario, None, "sets_kill", "in memory")
    with disk_directory() as directory:
        yield from kills(scenario, directory, "sets_kill_stored", "with stores")


def measure_kill_controller(scenario: Scenario) -> Iterator[Measurement]:
    """The broker that leads `default`: the next controller has heard of nobody when it begins."""
    count = CONTROLLED_SETS
    with fresh_cluster(agents=True) as cluster:
        place(cluster, count)
        gap = kill(cluster, calm_primary(cluster))
    label = f"kill -9 of the controller, which leads {gap.lost} of {count} sets"
    note = f"led: first {gap.led_s[0]:.3f} s, last {gap.led_s[-1]:.3f} s"
    yield Measurement("sets_kill_controller_last", f"{label}: all confirm", gap.confirmed_s[-1], "s", note)
    most = f"{label}: most that one broker leads then"
    yield Measurement("sets_kill_controller_most", most, gap.most, "sets")


def kills(scenario: Scenario, stores: Path | None, key: str, where: str) -> Iterator[Measurement]:
    """One broker of a cluster of its own."""
    count = scenario.failed_over_sets
    with fresh_cluster(agents=True, stores=stores) as cluster:
        place(cluster, count)
        controller = calm_primary(cluster)
        gap = kill(cluster, others_than(cluster, controller)[0])
    label = f"kill -9 of who leads {gap.lost:,} of {count:,} sets, {where}"
    note = f"led: first {gap.led_s[0]:.3f} s, median {median(gap.led_s):.3f} s, last {gap.led_s[-1]:.3f} s"
    yield Measurement(f"{key}_first", f"{label}: the first confirms", gap.confirmed_s[0], "s", note)
    yield Measurement(f"{key}_median", f"{label}: half confirm", median(gap.confirmed_s), "s", "")
    yield Measurement(f"{key}_last", f"{label}: all confirm", gap.confirmed_s[-1], "s", "")
    note = f"{gap.processor_s:.2f} s of the two other brokers, until all confirm"
    yield Measurement(f"{key}_cost", f"{label}: processor for each", 1000 * gap.processor_s / gap.lost, "ms", note)
