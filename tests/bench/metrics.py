"""What it costs to be watched: how long a scrape takes, and how long a message waits beside questions."""

from __future__ import annotations

import asyncio
import gc
import tempfile
import time
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path

import uvloop

from bench.figures import Measurement
from bench.latency import percentile, run_pace
from bench.load_client import BenchError
from bench.scenario import Scenario, create_queues
from bench.usage import Usage, Work, processor_s
from bench.watched import FIGURES, LIST, SCRAPE, SORTED, Questions, rounds_of, watching
from http_port import HttpPort, http_url, write_tokens
from qpid_ha_broker.server.broker import Broker
from qpid_ha_broker.server.command_line import tame_garbage_collector
from qpid_ha_broker.server.http.http_admin import open_admin_port
from qpid_ha_config.settings import BrokerSettings
from qpid_ha_config.tokens import TokenRole
from running_broker import RunningBroker

MANY, MOST = 1_000, 10_000
SCRAPES = 20
WATCHED: Mapping[str, tuple[str, Questions]] = {
    "scrape": ("a scrape", SCRAPE),
    "list": ("`queues list`", LIST),
    "figures": ("`query`", FIGURES),
    "sorted": ("the page's list", SORTED),
}
"""What is asked without a pause, one after the other."""


def measure_metrics(scenario: Scenario) -> Iterator[Measurement]:
    """Scrape a broker with 1,000 queues, then with 10,000 while 1,000 messages a second go through it."""
    many, most = min(MANY, scenario.queues), min(MOST, scenario.queues)
    with tempfile.TemporaryDirectory() as directory:
        tokens = write_tokens(Path(directory) / "tokens")
        settings = {"admin.listen": "http://127.0.0.1:0", "admin.tokens": f"{directory}/tokens"}
        with RunningBroker(settings) as broker:
            port = HttpPort(http_url(broker), tokens)
            create_queues(broker.control_socket, [f"queue-{number}" for number in range(many)])
            yield _scrape(port, broker.pid, "scrape_1k", many)
            create_queues(broker.control_socket, [f"queue-{number}" for number in range(many, most)])
            yield _scrape(port, broker.pid, "scrape_10k", most)
            yield from _stall(broker, port, scenario, most)
        yield from uvloop.run(_held(Path(directory), tokens, most, scenario.held_s))


def _scrape(port: HttpPort, pid: int, key: str, queues: int) -> Measurement:
    scrapes, size = [], 0
    port.get("/metrics", TokenRole.METRICS)
    for _ in range(SCRAPES):
        with Work(partial(processor_s, pid)) as work:
            answer = port.get("/metrics", TokenRole.METRICS)
        scrapes.append(work)
        if answer.status_code != 200:
            raise BenchError(f"no figures: {answer.status_code}")
        size = len(answer.content)
    times_s = [work.elapsed_s for work in scrapes]
    cpu_ms = sum(work.processor_s for work in scrapes) / SCRAPES * 1000
    note = f"median of {SCRAPES}, worst {max(times_s) * 1000:.0f}; {cpu_ms:.0f} ms of processor; {size / 1000:,.0f} kB"
    return Measurement(key, f"scrape of {queues:,} queues", percentile(times_s, 0.5) * 1000, "ms", note)


def _stall(broker: RunningBroker, port: HttpPort, scenario: Scenario, queues: int) -> Iterator[Measurement]:
    """Confirmations alone, beside questions without a pause, and alone again: the machine has its own stalls."""
    before = _confirmations(broker, scenario)
    for key, (name, questions) in WATCHED.items():
        with watching(port.url, port.tokens, questions) as watcher:
            beside = _confirmations(broker, scenario)
        after = _confirmations(broker, scenario)
        answers = rounds_of(watcher)
        for share_name, share in (("p99", 0.99), ("p99.9", 0.999), ("max", 1.0)):
            first, value, second = (percentile(run, share) * 1000 for run in (before, beside, after))
            note = f"without {first:.1f} before and {second:.1f} after; {answers} answers"
            label = f"confirmation beside {name} of {queues:,} queues, {share_name}"
            yield Measurement(f"{key}_stall_{share_name}", label, value, "ms", note)
        before = after


async def _held(directory: Path, tokens: dict[TokenRole, str], queues: int, for_s: float) -> list[Measurement]:
    """How long what is asked keeps the loop from everybody else, in processor time: what a message waits on a machine
    that has nothing else to do. A broker in this process, and somebody who wants a turn all the time."""
    settings = {
        "name": "held", "listen": "amqp://127.0.0.1:0", "control-socket": f"{directory}/held.sock",
        "admin.listen": "http://127.0.0.1:0", "admin.tokens": f"{directory}/tokens",
    }  # fmt: skip
    broker = Broker(BrokerSettings.from_values(settings))
    await broker.start()
    admin = await open_admin_port(broker)
    found, thresholds = [], gc.get_threshold()
    try:
        for number in range(queues):
            broker.container.management.administration.create_queue(f"queue-{number}")
        await asyncio.sleep(1)
        tame_garbage_collector()
        alone_s = await _waits(for_s)
        for key, (name, questions) in WATCHED.items():
            with watching(admin.addresses[0], tokens, questions, wait=False):
                beside_s = await _waits(for_s)
            note = f"p99.9 {percentile(beside_s, 0.999) * 1000:.2f} ms; without {max(alone_s) * 1000:.2f} ms"
            label = f"longest that {name} of {queues:,} queues holds the loop, processor time"
            found.append(Measurement(f"{key}_stall", label, max(beside_s) * 1000, "ms", note))
    finally:
        gc.set_threshold(*thresholds)
        gc.unfreeze()
        await admin.close()
        await broker.stop()
    return found


async def _waits(for_s: float) -> list[float]:
    waits_s, end_s = [], time.perf_counter() + for_s
    while time.perf_counter() < end_s:
        began_s = time.thread_time()
        await asyncio.sleep(0)
        waits_s.append(time.thread_time() - began_s)
    return waits_s


def _confirmations(broker: RunningBroker, scenario: Scenario) -> list[float]:
    confirmed_s = run_pace(scenario, broker.port, Usage(broker.pid)).to_confirmation
    return confirmed_s[len(confirmed_s) // 10 :]
