"""What a group costs beside a set with a primary, in one run: rates and latency at one member, the gap after a kill.

As root: it starts a Corosync on loopback, of which a machine has one at a time.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median

from bench.figures import Measurement
from bench.latency import RATE_PER_S, counted_ms, run_pace
from bench.load_client import BenchError
from bench.replication import fresh_cluster, port_of
from bench.scenario import Scenario
from bench.throughput import QUEUE, SIZES, send_all, take_all
from bench.usage import Usage
from one_corosync import corosync
from qpid_ha_demo.cluster import LocalCluster
from qpid_ha_demo.corosync_daemon import what_is_missing
from qpid_ha_demo.groups import BROKERS, GroupDemo
from qpid_ha_demo.stage import Stage
from running_cluster import RunningCluster
from sets_cluster import create_queue, create_set, wait_whole

STRATEGIES = ("primary", "group")
SET = "measured"


def measure_groups(scenario: Scenario) -> Iterator[Measurement]:
    """All of it. Raises BenchError where there is no Corosync."""
    if problem := what_is_missing():
        raise BenchError(problem)
    yield from _measure_rates(scenario)
    yield from _measure_latency(scenario)
    yield from _measure_kills(scenario)


@contextmanager
def three_brokers(strategy: str) -> Iterator[RunningCluster]:
    """With a set of that strategy; clients go to the first, which is its primary where it has one."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="qpid-ha-bench-")))
        stack.enter_context(corosync(directory))
        cluster = stack.enter_context(fresh_cluster(count=BROKERS))
        preferred = {"preferred": cluster.broker(0).name} if strategy == "primary" else {}
        create_set(cluster, SET, strategy=strategy, **preferred)
        wait_whole(cluster, 0, SET)
        create_queue(cluster, 0, QUEUE, SET)
        yield cluster


def _measure_rates(scenario: Scenario) -> Iterator[Measurement]:
    count = scenario.messages
    for size in SIZES:
        of_primary: dict[str, float] = {}
        for strategy in STRATEGIES:
            with three_brokers(strategy) as cluster:
                first, *others = cluster.brokers
                port = port_of(cluster, first)
                for what in ("enqueue", "dequeue"):
                    usage = Usage(first.pid, [broker.pid for broker in others])
                    name = f"group-{strategy}-{what}-{size}"
                    if what == "enqueue":
                        send_all(scenario, port, usage, name, size)
                    else:
                        take_all(scenario, port, usage, name)
                    rate = count / usage.elapsed_s
                    label = f"{strategy}, {what}, {size} B"
                    yield Measurement(f"{strategy}_{what}_{size}", label, rate, "/s", usage.note_for(count))
                    if strategy == "group":
                        share = 100 * rate / of_primary[what]
                        label = f"group, {what}, {size} B, of a primary's rate"
                        yield Measurement(f"group_{what}_share_{size}", label, share, "%")
                    of_primary.setdefault(what, rate)


def _measure_latency(scenario: Scenario) -> Iterator[Measurement]:
    for strategy in STRATEGIES:
        with three_brokers(strategy) as cluster:
            first, *others = cluster.brokers
            usage = Usage(first.pid, [broker.pid for broker in others])
            pace = run_pace(scenario, port_of(cluster, first), usage)
        for word, share in (("p50", 0.5), ("p99", 0.99)):
            label = f"{strategy}, {RATE_PER_S:,}/s, send to confirmation, {word}"
            value_ms = counted_ms(pace.to_confirmation, share)
            yield Measurement(f"{strategy}_confirmation_{word}", label, value_ms, "ms", usage.note_for(len(pace.late)))


def _measure_kills(scenario: Scenario) -> Iterator[Measurement]:
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="qpid-ha-bench-")))
        stack.enter_context(corosync(directory))
        settings = {"ha": {"failure-timeout": "1s"}}
        demo = GroupDemo(Stage(), stack.enter_context(LocalCluster(directory, BROKERS, settings=settings)))
        stack.callback(demo.stop)
        demo.start()
        losses = demo.play(
            -(-scenario.kills // 4)
        )  # each time a broker dies its agent waits longer before it starts it again
        if not demo.settle():
            raise BenchError("a promise was broken: see the account")
    for led_default in (False, True):
        of_these = [loss for loss in losses if loss.led_default is led_default]
        victim = "the member that leads default" if led_default else "another member"
        for what, gaps_s in (
            ("publishers", [loss.publishers_s for loss in of_these]),
            ("consumers", [loss.consumers_s for loss in of_these]),
        ):
            for word, value_s in (("median", median(gaps_s)), ("worst", max(gaps_s))):
                key = f"group_kill_{'leader_' if led_default else ''}{what}_{word}"
                label = f"kill -9 of {victim}: longest gap of {what} at the others, {word} of {len(of_these)}"
                yield Measurement(key, label, value_s * 1000, "ms")
