"""A machine with two brokers against one with one: what the same messages cost, and a link at the wrong worker.

Two machines, and two queues, each in a set with a replica on either machine. With one worker each both sets have their
primaries at one broker, with two each has one of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.figures import Measurement
from bench.load_client import LoadConnection, Publisher, Subscriber
from bench.scenario import Scenario
from bench.throughput import SIZES, WINDOW, Flow, message, publish_and_consume
from bench.usage import Usage
from qpid_ha_config.workers import worker_name
from running_machines import RunningMachines, Worker

QUEUES = ("one", "two")
_FIRST, _SECOND = "node1", "node2"


@contextmanager
def two_machines(workers: int) -> Iterator[RunningMachines]:
    """The first leads all sets."""
    settings = {"ha.clients": "proxy", "ha.min-replicas": 2}
    with (
        TemporaryDirectory(prefix="qpid-ha-bench-") as directory,
        RunningMachines(Path(directory), 2, workers, settings, stores=False) as cluster,
    ):
        controller = cluster.primary()
        for number, name in enumerate(QUEUES):
            leads, follows = (worker_name(machine, 1 + number % workers) for machine in (_FIRST, _SECOND))
            controller.ask("sets", action="create", name=name, preferred=leads, replicas=[leads, follows])
            controller.ask("queues", action="create", name=name, arguments={"qpid.resource-set": name})
        cluster.wait_whole(*QUEUES)
        yield cluster


def measure_workers(scenario: Scenario) -> Iterator[Measurement]:
    """In and out at once; all brokers' processor time is what counts, for two machines share this one's cores."""
    for size in SIZES:
        cost_us = {}
        for workers in (1, 2):
            with two_machines(workers) as cluster:
                places = {
                    name: cluster.workers[worker_name(_FIRST, 1 + at % workers)] for at, name in enumerate(QUEUES)
                }
                usage = _run(scenario, cluster, places, size)
            cost_us[workers] = sum(usage.brokers_s) / (len(QUEUES) * scenario.messages) * 1e6
            label = f"{workers} worker{'s' * (workers > 1)} on each of two machines, in and out, {size} B"
            note = f"{len(QUEUES) * scenario.messages / usage.elapsed_s:,.0f}/s on this machine's cores"
            yield Measurement(f"workers_{workers}_{size}", f"processor time, {label}", cost_us[workers], "µs", note)
        ratio = cost_us[2] / cost_us[1]
        yield Measurement(f"workers_ratio_{size}", f"the same with two workers, of that with one, {size} B", ratio, "x")
    yield from _measure_wrong_worker(scenario)


def _measure_wrong_worker(scenario: Scenario) -> Iterator[Measurement]:
    for size in SIZES:
        with two_machines(2) as cluster:
            right, wrong = (cluster.workers[worker_name(_FIRST, number)] for number in (1, 2))
            direct = _run(scenario, cluster, {"one": right}, size)
            relayed = _run(scenario, cluster, {"one": wrong}, size)
        more_us = (sum(relayed.brokers_s) - sum(direct.brokers_s)) / scenario.messages * 1e6
        share = 100 * direct.elapsed_s / relayed.elapsed_s
        note = f"{sum(direct.brokers_s) / scenario.messages * 1e6:.1f} µs at the right one, all brokers"
        label = f"a link at the wrong worker costs, in and out, {size} B"
        yield Measurement(f"wrong_worker_cost_{size}", label, more_us, "µs", note)
        yield Measurement(f"wrong_worker_share_{size}", f"its rate of that at the right one, {size} B", share, "%")


def _run(scenario: Scenario, cluster: RunningMachines, places: dict[str, Worker], size: int) -> Usage:
    """Messages in and out of each queue, over connections to that worker's own port."""
    pids = [worker.pid for worker in cluster.workers.values()]
    with ExitStack() as stack:
        flows = []
        for queue, worker in places.items():
            port = cluster.own_port(worker.name)
            publisher, subscriber = (stack.enter_context(LoadConnection(port)) for _ in range(2))
            ends = Publisher(publisher, queue), Subscriber(subscriber, queue, WINDOW)
            flows.append(Flow(*ends, message(size), scenario.messages))
        with Usage(pids[0], pids[1:]) as usage:
            publish_and_consume(*flows)
    return usage
