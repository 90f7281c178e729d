"""What access control, metrics and open pages cost each message: brokers in turn, by their own processor time."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

import yaml

from bench.figures import Measurement, shown
from bench.load_client import BenchError
from bench.scenario import Scenario, create_queues
from bench.throughput import message, send_and_take
from bench.usage import Work, processor_s
from http_port import http_url, write_tokens
from qpid_ha_config.tokens import TokenRole
from running_broker import RunningBroker

RULES: Final = 50
"""Of which the last one decides."""
QUEUES: Final = 100
"""Besides the one that messages go through."""
WAYS: Final = ("alone", "again", "acl", "metrics", "page")
"""What each broker has: nothing, nothing again, then each with all that those before it have."""
LABELS: Final[Mapping[str, str]] = {
    "again": "of a second broker like it: the machine's noise",
    "acl": f"with {RULES} rules",
    "metrics": f"with {RULES} rules, scraped each second",
    "page": f"with {RULES} rules, scraped each second, two open pages",
}
ASK_FOREVER: Final = """
import json, sys, threading, time, requests
asked = json.loads(sys.stdin.readline())
session = requests.Session()
session.headers["Authorization"] = "Bearer " + asked["token"]
def listen(path):
    for _ in requests.get(asked["url"] + path, headers=session.headers, stream=True).iter_lines():
        pass
for path in asked["streams"]:
    threading.Thread(target=listen, args=(path,), daemon=True).start()
round = 0
while True:
    due_s = time.monotonic() + asked["each_s"]
    for path, method, params, every in asked["questions"]:
        if round % every:
            continue
        if method:
            body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
            answer = session.post(asked["url"] + path, json=body)
            answer.json()["result"]
        else:
            answer = session.get(asked["url"] + path)
        answer.raise_for_status()
    round += 1
    print("asked", flush=True)
    time.sleep(max(due_s - time.monotonic(), 0))
"""
"""In a process of its own: it must not share an interpreter with who measures."""


class Questions(NamedTuple):
    """What a watcher asks a broker, again and again."""

    role: TokenRole
    asked: Sequence[tuple[str, str, Mapping[str, object], int]]
    """Path; method of JSON-RPC with its params, or an empty one; in each such round."""
    each_s: float = 0.0
    """So long a round takes at least."""
    streams: Sequence[str] = ()


SCRAPE: Final = Questions(TokenRole.METRICS, [("/metrics", "", {}, 1)])
LIST: Final = Questions(TokenRole.VIEWER, [("/rpc", "queues", {"action": "list"}, 1)])
FIGURES: Final = Questions(TokenRole.VIEWER, [("/rpc", "query", {}, 1)])
SORTED: Final = Questions(
    TokenRole.VIEWER, [("/queues?sort=messages&descending=true&filter=&only=all&offset=0&count=60", "", {}, 1)]
)
OPEN_PAGES: Final = (
    Questions(
        TokenRole.VIEWER,
        [
            ("/rpc", "status", {}, 1),
            ("/rpc", "status", {"all": True}, 1),
            ("/rpc", "pause", {}, 4),
            ("/rpc", "query", {}, 4),
        ],
        each_s=3.0,
        streams=["/events"],
    ),
    SORTED._replace(each_s=3.0, streams=["/events"]),
)
"""The views of the cluster and of the queues, as their scripts ask (`refreshMs`, `FACTS_EVERY`)."""


@contextmanager
def watching(
    url: str, tokens: Mapping[TokenRole, str], questions: Questions, *, wait: bool = True
) -> Iterator[subprocess.Popen[str]]:
    """Ask all the time, from when the first round was answered (`wait`). Raises BenchError when that never is."""
    process = subprocess.Popen(
        [sys.executable, "-c", ASK_FOREVER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        if process.stdin is None or process.stdout is None:
            raise BenchError("a process without its pipes")
        asked = {**questions._asdict(), "url": url, "token": tokens[questions.role], "questions": questions.asked}
        print(json.dumps(asked), file=process.stdin, flush=True)
        if wait and not process.stdout.readline():
            raise BenchError("what was asked was not answered")
        yield process
    finally:
        process.terminate()
        process.wait()


def rounds_of(process: subprocess.Popen[str]) -> int:
    """How often a watcher that has ended was answered, but for the first time."""
    return 0 if process.stdout is None else process.stdout.read().count("asked")


class Block(NamedTuple):
    """Of one broker in one round: microseconds of its processor for each message, and messages in a second."""

    cpu_us: float
    rate: float


class WatchedBroker:
    """One of them, and those that watch it while it is its turn."""

    def __init__(self, way: str, broker: RunningBroker, tokens: Mapping[TokenRole, str]) -> None:
        self.way = way
        self._broker = broker
        self._tokens = tokens

    def run(self, count: int) -> Block:
        """Messages that go all the way, as fast as they can."""
        with self._watched():
            usage = send_and_take(self._broker, message(100), count)
        return Block(usage.brokers_s[0] / count * 1e6, count / usage.elapsed_s)

    def idle_share(self, for_s: float) -> float:
        """Of one core, in percent, that it takes while there are no messages."""
        with self._watched(), Work(partial(processor_s, self._broker.pid)) as work:
            time.sleep(for_s)
        return work.processor_s / work.elapsed_s * 100

    @contextmanager
    def _watched(self) -> Iterator[None]:
        scraped = [SCRAPE._replace(each_s=1.0)]
        watchers = {"metrics": scraped, "page": [*scraped, *OPEN_PAGES]}.get(self.way, [])
        with ExitStack() as stack:
            for questions in watchers:
                stack.enter_context(watching(http_url(self._broker), self._tokens, questions))
            yield


def _settings(way: str, tokens: Path) -> dict[str, Any]:
    if way in ("alone", "again"):
        return {}
    rules = [f"deny user{number} publish,consume orders.{number}.*" for number in range(RULES - 1)]
    settings: dict[str, Any] = {"acl": {"rules": [*rules, "allow all all"]}}
    if way != "acl":
        settings["admin"] = {"listen": "http://127.0.0.1:0", "tokens": str(tokens)}
    return settings


def measure_watched(scenario: Scenario) -> Iterator[Measurement]:
    """Messages through brokers in turn, several rounds of it: what the machine does besides meets all of them."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        tokens = write_tokens(directory / "tokens")
        watched = []
        for way in WAYS:
            config = yaml.safe_dump(_settings(way, directory / "tokens"))
            broker = stack.enter_context(RunningBroker(config=config))
            create_queues(broker.control_socket, [f"queue-{number}" for number in range(min(QUEUES, scenario.queues))])
            watched.append(WatchedBroker(way, broker, tokens))
        for each in watched:  # the first messages cost more
            each.run(scenario.messages // 10)
        idle = {each.way: each.idle_share(scenario.watched_idle_s) for each in watched}
        rounds = []
        for number in range(scenario.watched_rounds):
            order = watched if number % 2 == 0 else watched[::-1]
            rounds.append({each.way: each.run(scenario.messages) for each in order})
    yield from _compared(rounds)
    for way in ("metrics", "page"):
        note = (
            f"in {scenario.watched_idle_s:g} s without messages, where an unwatched one takes {shown(idle['alone'])} %"
        )
        value = max(idle[way] - idle["alone"], 0.0)
        yield Measurement(f"watched_{way}_share", f"share of a core that goes into it, {LABELS[way]}", value, "%", note)


def _compared(rounds: Sequence[Mapping[str, Block]]) -> Iterator[Measurement]:
    alone_us = median(each["alone"].cpu_us for each in rounds)
    note = f"median of {len(rounds)} rounds; {shown(median(each['alone'].rate for each in rounds))}/s"
    yield Measurement("watched_alone", "broker's processor for a message, unwatched", alone_us, "µs", note)
    for way, label in LABELS.items():
        cpu = [each[way].cpu_us / each["alone"].cpu_us * 100 - 100 for each in rounds]
        rates = [each[way].rate / each["alone"].rate * 100 - 100 for each in rounds]
        best = min(each[way].cpu_us for each in rounds) / min(each["alone"].cpu_us for each in rounds) * 100 - 100
        note = f"rounds {min(cpu):+.1f} to {max(cpu):+.1f} %; best of each {best:+.1f} %; rate {median(rates):+.1f} %"
        yield Measurement(f"watched_{way}", f"more processor for a message {label}", median(cpu), "%", note)
