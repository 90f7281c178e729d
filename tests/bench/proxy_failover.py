"""kill -9 of a broker that leads sets: when clients of the new primary are served again, and when those of a proxy are.

Three real brokers under `qpid-ha-agent run`. The sets have replicas on the second and the third; the first relays, and
is the controller. Each set has a client at the first, whose links are there before the kill, and one that comes to the
new primary as soon as that says in its log that it leads.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from select import select
from statistics import median

from bench.failover import others_than
from bench.figures import Measurement
from bench.load_client import BenchError
from bench.replication import fresh_cluster, port_of
from bench.scenario import Scenario
from bench.set_failover import CALM_S, GLANCE_S, SERVED_TIMEOUT_S, LogTail, QueueClients, queue_of, wait_whole
from qpid_ha_agent.control import ControlClient


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
        behind, direct = (QueueClients(port_of(cluster, broker), consumes=True) for broker in (proxy, heir))
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


def _run(names: list[str], behind: QueueClients, direct: QueueClients, tail: LogTail, killed_s: float) -> None:
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
