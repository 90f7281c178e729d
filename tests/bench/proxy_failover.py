"""kill -9 of a broker that leads sets: when clients of the new primary are served again, and when those of a proxy are.

Three real brokers under `qpid-ha-agent run`. The sets have replicas on the second and the third; the first relays, and
is the controller. Each set has a client at the first, whose links are there before the kill, and one that comes to the
new primary as soon as that says in its log that it leads.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from itertools import count
from select import select
from statistics import median
from typing import Any, Final

import proton
from cproton_ffi import lib

from bench.failover import others_than
from bench.figures import Measurement
from bench.load_client import BenchError, LoadConnection
from bench.replication import fresh_cluster, port_of
from bench.scenario import Scenario
from bench.set_failover import CALM_S, GLANCE_S, SERVED_TIMEOUT_S, LogTail, queue_of, wait_whole
from bench.throughput import message
from qpid_ha_agent.control import ControlClient

_BODY_BYTES: Final = 100
_CREDIT: Final = 100


class _Clients:
    """Publishers and consumers of several queues on one connection: one message each, and when it was confirmed and
    when it came."""

    def __init__(self, port: int) -> None:
        self.connection = LoadConnection(port)
        self.confirmed_at_s: dict[str, float] = {}
        self.came_at_s: dict[str, float] = {}
        self._names = count()
        self._senders: dict[str, Any] = {}
        self._receivers: dict[str, Any] = {}
        self._unsent: dict[str, None] = {}
        self._unanswered: dict[str, Any] = {}

    def attach(self, address: str) -> None:
        """Come to that queue."""
        sender = self.connection.session.sender(f"out-{next(self._names)}")
        sender.target.address = address
        receiver = self.connection.session.receiver(f"in-{next(self._names)}")
        receiver.source.address = address
        sender.open()
        receiver.open()
        receiver.flow(_CREDIT)
        self._senders[address], self._receivers[address] = sender, receiver
        self.connection.flush()

    def wait_attached(self) -> None:
        """Until there is credit for all that are attached. Raises BenchError."""
        self.connection.wait_for(lambda: all(sender.credit for sender in self._senders.values()))

    def send(self, address: str) -> None:
        """One message to that queue, as soon as there is credit."""
        self._unsent[address] = None
        self.work()

    def work(self) -> None:
        """All that can be done without waiting. Raises BenchError when a link of ours was ended."""
        now_s = time.monotonic()
        collector = self.connection.collector
        while event := lib.pn_collector_peek(collector):
            self.connection.check(lib.pn_event_type(event))
            lib.pn_collector_pop(collector)
        for address in [address for address in self._unsent if self._senders[address].credit]:
            del self._unsent[address]
            sender = self._senders[address]
            self._unanswered[address] = sender.delivery(address)
            sender.send(message(_BODY_BYTES))
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


def measure_failover(scenario: Scenario) -> Iterator[Measurement]:
    """One kill for all sets; messages of a set's two clients come to the consumer of either."""
    with fresh_cluster(agents=True, settings={"ha": {"clients": "proxy", "min-replicas": 1}}) as cluster:
        proxy = cluster.the_primary()
        victim, heir = others_than(cluster, proxy)
        names = [f"set{number}" for number in range(scenario.proxied_sets)]
        with ControlClient(proxy.control_socket, timeout_s=30.0) as control:
            for name in names:
                replicas = [victim.name, heir.name]
                control.call("sets", action="create", name=name, preferred=victim.name, replicas=replicas)
            wait_whole(control, len(names))
            for name in names:
                for address in (queue_of(name), _own_queue_of(name)):
                    control.call("queues", action="create", name=address, arguments={"qpid.resource-set": name})
            wait_whole(control, len(names))
        behind, direct = _Clients(port_of(cluster, proxy)), _Clients(port_of(cluster, heir))
        for name in names:
            behind.attach(queue_of(name))
        behind.wait_attached()
        time.sleep(CALM_S)
        tail = LogTail(heir.log_path)
        killed_s = cluster.kill(victim)
        for name in names:
            behind.send(queue_of(name))
        _run(names, behind, direct, tail, killed_s)
        tail.close()
    yield from _figures(names, killed_s, "confirmed", direct.confirmed_at_s, behind.confirmed_at_s)
    yield from _figures(names, killed_s, "delivered", direct.came_at_s, behind.came_at_s)


def _own_queue_of(set_name: str) -> str:
    """For the client of the new primary."""
    return f"own-{set_name}"


def _run(names: list[str], behind: _Clients, direct: _Clients, tail: LogTail, killed_s: float) -> None:
    """Until all are served. Raises BenchError."""
    while any(len(found) < len(names) for each in (behind, direct) for found in (each.confirmed_at_s, each.came_at_s)):
        if time.monotonic() - killed_s > SERVED_TIMEOUT_S:
            served = len(direct.came_at_s), len(behind.came_at_s)
            raise BenchError(f"of {len(names)} sets {served} are served after {SERVED_TIMEOUT_S:g} s")
        for name in tail.led():
            if name in names:
                direct.attach(_own_queue_of(name))
                direct.send(_own_queue_of(name))
        readable, _, _ = select([behind.connection, direct.connection], [], [], GLANCE_S)
        for each in (behind, direct):
            if each.connection in readable:
                each.connection.read()
            each.work()


def _figures(
    names: list[str], killed_s: float, what: str, direct: Mapping[str, float], behind: Mapping[str, float]
) -> Iterator[Measurement]:
    label = f"kill -9 of who leads {len(names)} sets, a message {what}"
    direct_ms = [1000 * (direct[_own_queue_of(name)] - killed_s) for name in names]
    behind_ms = [1000 * (behind[queue_of(name)] - killed_s) for name in names]
    added_ms = [late - early for late, early in zip(behind_ms, direct_ms, strict=True)]
    yield Measurement(f"direct_kill_{what}", f"{label} at the new primary, median", median(direct_ms), "ms")
    yield Measurement(f"proxied_kill_{what}", f"{label} by way of a proxy, median", median(behind_ms), "ms")
    note = f"{min(added_ms):.0f} .. {max(added_ms):.0f} ms"
    yield Measurement(f"proxy_added_kill_{what}", f"{label}: added by the proxy, median", median(added_ms), "ms", note)
