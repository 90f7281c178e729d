"""What a group costs beside a set with a primary, in one run: rates and latency at one member, the gap after a kill.

As root: it starts a Corosync on loopback, of which a machine has one at a time.
"""

from __future__ import annotations

import re
import select
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from statistics import median
from typing import NamedTuple

from bench.figures import Measurement
from bench.latency import RATE_PER_S, counted_ms, run_pace
from bench.load_client import TIMEOUT_S, BenchError, LoadConnection, Publisher, Subscriber
from bench.replication import BURST, READY_TIMEOUT_S, SLOT_S, Bursts, fresh_cluster, port_of
from bench.scenario import Scenario
from bench.throughput import (
    QUEUE,
    SIZES,
    WINDOW,
    Flow,
    fill,
    message,
    publish,
    publish_and_consume,
    send_all,
    take_all,
)
from bench.usage import Usage
from http_port import HttpPort, http_url, write_tokens
from one_corosync import corosync
from qpid_ha_config.tokens import TokenRole
from qpid_ha_demo.cluster import LocalBroker, LocalCluster
from qpid_ha_demo.corosync_daemon import CorosyncDaemon, what_is_missing
from qpid_ha_demo.groups import BROKERS, GroupDemo
from qpid_ha_demo.stage import Stage
from running_cluster import RunningCluster
from sets_cluster import create_queue, create_set, sets_of, wait_whole

STRATEGIES = ("primary", "group")
SET = "measured"
SLICE_MS = 20.0
"""The default of `group.ownership-slice`."""
SETTLED_S = 1.0
_GLANCE_S = 0.02


def measure_groups(scenario: Scenario) -> Iterator[Measurement]:
    """All of it. Raises BenchError where there is no Corosync."""
    if problem := what_is_missing():
        raise BenchError(problem)
    yield from _measure_rates(scenario)
    yield from _measure_latency(scenario)
    yield from _measure_everywhere(scenario)
    yield from _measure_shared_queue(scenario)
    yield from _measure_moves(scenario)
    yield from _measure_joining(scenario)
    yield from _measure_kills(scenario)


class Measured(NamedTuple):
    """Three brokers, and what orders the multicasts of a group: its processor time is the group's, too."""

    cluster: RunningCluster
    corosync: CorosyncDaemon

    @property
    def brokers(self) -> list[LocalBroker]:
        """The first leads the set, where somebody does."""
        return list(self.cluster.brokers)

    def port(self, at: int) -> int:
        """Of the broker with that number."""
        return port_of(self.cluster, self.brokers[at])

    def usage(self) -> Usage:
        """Of all of them."""
        first, *others = self.brokers
        return Usage(first.pid, [broker.pid for broker in others], daemons={"corosync": self.corosync.pid})


@contextmanager
def three_brokers(
    strategy: str, queues: Sequence[str] = (QUEUE,), clients: str = "redirect", settings: Mapping[str, object] = {}
) -> Iterator[Measured]:
    """With a set of that strategy; the first is its primary where it has one. `clients`: what becomes of those who
    come to another broker."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="qpid-ha-bench-")))
        daemon = stack.enter_context(corosync(directory))
        cluster = stack.enter_context(fresh_cluster(count=BROKERS, settings={"ha": {"clients": clients}, **settings}))
        preferred = {"preferred": cluster.broker(0).name} if strategy == "primary" else {}
        create_set(cluster, SET, strategy=strategy, **preferred)
        wait_whole(cluster, 0, SET)
        for queue in queues:
            create_queue(cluster, 0, queue, SET)
        yield Measured(cluster, daemon)


def _measure_rates(scenario: Scenario) -> Iterator[Measurement]:
    count = scenario.messages
    for size in SIZES:
        of_primary: dict[str, float] = {}
        for strategy in STRATEGIES:
            with three_brokers(strategy) as measured:
                port = measured.port(0)
                for what in ("enqueue", "dequeue"):
                    usage = measured.usage()
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
    of_primary: dict[str, float] = {}
    for strategy in STRATEGIES:
        with three_brokers(strategy) as measured:
            usage = measured.usage()
            pace = run_pace(scenario, measured.port(0), usage)
        for word, share in (("p50", 0.5), ("p99", 0.99)):
            label = f"{strategy}, {RATE_PER_S:,}/s, send to confirmation, {word}"
            value_ms = counted_ms(pace.to_confirmation, share)
            yield Measurement(f"{strategy}_confirmation_{word}", label, value_ms, "ms", usage.note_for(len(pace.late)))
            if strategy == "group":
                label = f"group, {RATE_PER_S:,}/s, {word}, times a primary's"
                yield Measurement(f"group_confirmation_{word}_ratio", label, value_ms / of_primary[word], "x")
            of_primary.setdefault(word, value_ms)


def _measure_everywhere(scenario: Scenario) -> Iterator[Measurement]:
    """A publisher and a consumer at each broker, a queue each; with a primary also all of them at that."""
    queues = [f"{QUEUE}-{number}" for number in range(BROKERS)]
    rates: dict[str, float] = {}
    for way, strategy, clients in (
        ("at its primary", "primary", "redirect"),
        ("through proxies", "primary", "proxy"),
        ("at each member", "group", "redirect"),
    ):
        with three_brokers(strategy, queues, clients) as measured, ExitStack() as stack:
            is_spread = clients == "proxy" or strategy == "group"
            flows = [
                _flow(stack, measured.port(at if is_spread else 0), queue, scenario.messages // BROKERS)
                for at, queue in enumerate(queues)
            ]
            usage = measured.usage()
            with usage:
                publish_and_consume(*flows)
        count = scenario.messages // BROKERS * BROKERS
        rates[way] = count / usage.elapsed_s
        label = f"{strategy}, three publishers and consumers {way}, 100 B"
        yield Measurement(f"group_three_{way.replace(' ', '_')}", label, rates[way], "/s", usage.note_for(count))
    for way in ("at its primary", "through proxies"):
        label, share = (
            f"group, three publishers and consumers, of a primary set {way}",
            rates["at each member"] / rates[way],
        )
        yield Measurement(f"group_three_of_{way.replace(' ', '_')}", label, 100 * share, "%")


def _flow(stack: ExitStack, port: int, queue: str, count: int) -> Flow:
    outgoing, incoming = (stack.enter_context(LoadConnection(port)) for _ in range(2))
    return Flow(Publisher(outgoing, queue), Subscriber(incoming, queue, WINDOW), message(100), count)


def _measure_shared_queue(scenario: Scenario) -> Iterator[Measurement]:
    """A full queue, and one consumer; then the same with a consumer at each member."""
    count, rates = scenario.messages, list[float]()
    for consumers in (1, BROKERS):
        with three_brokers("group") as measured, ExitStack() as stack:
            fill(measured.port(0), count)
            connections = [stack.enter_context(LoadConnection(measured.port(at))) for at in range(consumers)]
            subscribers = [Subscriber(connection, QUEUE, WINDOW) for connection in connections]
            usage = measured.usage()
            with usage:
                shares = _share(subscribers, count)
        rates.append(count / usage.elapsed_s)
        label = f"group, one queue, a consumer at {consumers} of its members, 100 B"
        yield Measurement(f"group_shared_{consumers}", label, rates[-1], "/s", usage.note_for(count))
    label = f"the same, {BROKERS} consumers: rate, of that of one"
    yield Measurement("group_shared_rate", label, 100 * rates[1] / rates[0], "%")
    label, even = "the least served of them gets, of an even share", count / BROKERS
    note = ", ".join(f"{share:,}" for share in shares)
    yield Measurement("group_shared_least", label, 100 * min(shares) / even, "%", note)


def _share(subscribers: Sequence[Subscriber], count: int) -> list[int]:
    """Have `count` messages accepted by whoever is given them; how many each one was."""
    received = [0] * len(subscribers)
    for subscriber in subscribers:
        subscriber.start()
    while sum(received) < count:
        readable, _, _ = select.select([subscriber.connection for subscriber in subscribers], [], [], TIMEOUT_S)
        if not readable:
            raise BenchError(f"{sum(received):,} of {count:,} messages came, and no more")
        for at, subscriber in enumerate(subscribers):
            if subscriber.connection in readable:
                subscriber.connection.read()
                received[at] += subscriber.take()
                subscriber.connection.flush()
    return received


def _measure_moves(scenario: Scenario) -> Iterator[Measurement]:
    """A queue with consumers at two members, to which a message a millisecond comes: it moves at the end of each
    slice, and that begins with a message."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="qpid-ha-bench-")))
        tokens = write_tokens(directory / "tokens")
        admin = {"admin": {"listen": "http://127.0.0.1:0", "tokens": str(directory / "tokens")}}
        measured = stack.enter_context(three_brokers("group", settings=admin))
        ports = [HttpPort(http_url(broker), tokens) for broker in measured.brokers]
        *connections, outgoing = (stack.enter_context(LoadConnection(measured.port(at))) for at in range(BROKERS))
        subscribers = [Subscriber(connection, QUEUE, WINDOW) for connection in connections]
        publisher = Publisher(outgoing, QUEUE)
        for subscriber in subscribers:
            subscriber.start()
        _trickle(publisher, subscribers, SETTLED_S)
        before, began_s = _moves(ports), time.monotonic()
        _trickle(publisher, subscribers, scenario.calm_s)
        moves, elapsed_s = _moves(ports) - before, time.monotonic() - began_s
    if not moves:
        raise BenchError("the queue does not move")
    each_ms = 1000 * elapsed_s / moves
    note = f"{moves:,} moves, one each {each_ms:.1f} ms"
    yield Measurement("group_move", "a move of a queue, beyond its slice", each_ms - SLICE_MS, "ms", note)


def _trickle(publisher: Publisher, subscribers: Sequence[Subscriber], for_s: float) -> None:
    payload, end_s = message(100), time.monotonic() + for_s
    while time.monotonic() < end_s:
        publisher.send(payload)
        publisher.connection.flush()
        readable, _, _ = select.select(
            [publisher.connection, *(each.connection for each in subscribers)], [], [], 0.001
        )
        for connection in readable:
            connection.read()
        publisher.confirmed()
        for subscriber in subscribers:
            subscriber.take()
            subscriber.connection.flush()
        time.sleep(0.001)


def _moves(ports: Sequence[HttpPort]) -> int:
    """How often a member came to hand out from a queue, over all of them."""
    texts = [port.get("/metrics", TokenRole.METRICS).text for port in ports]
    pattern = rf'^qpid_ha_set_group_queue_moves_total{{set="{SET}"}} (\d+)'
    return sum(int(value) for text in texts for value in re.findall(pattern, text, re.MULTILINE))


def _measure_joining(scenario: Scenario) -> Iterator[Measurement]:
    """A member comes back empty while messages are queued, and another one goes on at full speed."""
    with three_brokers("group") as (cluster, _):
        joiner = cluster.brokers[2]
        port = port_of(cluster, cluster.the_primary())
        fill(port, scenario.deep_messages)
        cluster.kill(joiner)
        with LoadConnection(port) as connection:
            publisher = Publisher(connection, QUEUE)
            publish(publisher, message(100), BURST)
            calm_until_s = time.monotonic() + scenario.calm_s
            before = Bursts(publisher, lambda: time.monotonic() < calm_until_s)
            joining = threading.Thread(target=_join, args=(cluster, joiner), daemon=True)
            joining.start()
            during = Bursts(publisher, joining.is_alive)
        if not _is_whole(cluster):
            raise BenchError("the member did not come back in time")
    rates = f"{before.rate:,.0f}/s before, {during.rate:,.0f}/s during {during.elapsed_s:.1f} s"
    note = f"{rates}; {scenario.deep_messages:,} queued"
    yield Measurement(
        "group_join_share",
        "publish rate while a member joins, of that before",
        100 * during.rate / before.rate,
        "%",
        note,
    )
    label = f"the same, in its worst {SLOT_S:g} s"
    yield Measurement("group_join_least", label, 100 * during.least_rate / before.rate, "%")
    yield Measurement(
        "group_join_stall",
        "the longest wait for a confirmation meanwhile",
        during.longest_s * 1000,
        "ms",
        f"{before.longest_s * 1000:.0f} ms before",
    )


def _join(cluster: RunningCluster, joiner: LocalBroker) -> None:
    joiner.start()
    deadline_s = time.monotonic() + READY_TIMEOUT_S
    while not _is_whole(cluster) and time.monotonic() < deadline_s:
        time.sleep(_GLANCE_S)


def _is_whole(cluster: RunningCluster) -> bool:
    row = sets_of(cluster.the_primary()).get(SET, {})
    return len(row.get("in_sync", ())) == BROKERS and not row["problem"]


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
