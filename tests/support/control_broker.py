"""A control socket that answers as a broker of a cluster would, and the tool that asks it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from click.testing import Result

from admin_tool import qpid_ha
from qpid_ha_broker.server.control.control import REFUSED, ControlError, ControlServer, Method, Stream

ORDERS = {"name": "orders", "messages": 3, "bytes": 300, "acquired": 1, "consumers": 1, "enqueued": 10, "dequeued": 7}

NODE1: dict[str, object] = {"name": "node1", "address": "amqp://a:5672", "state": "primary", "phase": "active"}
NODE1 |= {"generation": 3, "lsn": 100, "in_sync": ["node1", "node2"]}
CHANGE = {"state": "primary", "before": "ready", "after": "primary", "reason": "promoted"}
CLUSTER_METHODS = ("promote", "demote", "switchover", "backups", "history", "replicate", "events")


@dataclass
class ControlBroker:
    """Answers on a real control socket as a broker with one queue would, and remembers what it was asked."""

    directory: Path
    state: str = "standalone"
    asked: list[tuple[str, dict[str, object]]] = field(default_factory=list)
    heard: threading.Condition = field(default_factory=threading.Condition)

    @property
    def path(self) -> Path:
        return self.directory / "node1.sock"

    def server(self, path: Path | None = None) -> ControlServer:
        names: tuple[str, ...] = ("ping", "status", "query", "get", "set", "queues", "exchanges")
        names += CLUSTER_METHODS if self.state != "standalone" else ()
        return ControlServer(path or self.path, {name: self._method(name) for name in names})

    def wait_asked(self, name: str, times: int) -> bool:
        """Whether it was asked that, so often, within a while."""
        with self.heard:
            return self.heard.wait_for(lambda: [asked for asked, _params in self.asked].count(name) >= times, 20)

    def _method(self, name: str) -> Method:
        def method(params: dict[str, object]) -> object:
            with self.heard:
                self.asked.append((name, params))
                self.heard.notify_all()
            answer: object = getattr(self, name)(params)
            return answer

        return method

    def ping(self, params: dict[str, object]) -> object:
        return {"pong": True, "name": "node1"}

    def status(self, params: dict[str, object]) -> object:
        if params == {"all": True}:
            return [NODE1, {**NODE1, "name": "node2", "state": "ready", "phase": None}, {"address": "amqp://c:5672"}]
        return {"state": self.state, "name": "node1"}

    def query(self, params: dict[str, object]) -> object:
        if params == {"all": True}:
            return [{"name": "node1", "connections": 2}, {"name": "node2", "connections": 0, "lag": 7}]
        return {"name": "node1", "state": "standalone", "connections": 2, "enqueue-rate": 12.34, "tls": False}

    def get(self, params: dict[str, object]) -> object:
        rules = [{"pattern": "tmp.*", "replicate": "none"}, {"pattern": "*", "replicate": "messages"}]
        settings = {"log-level": "info", "auto-create": True, "replication-rules": rules}
        if "key" not in params:
            return settings
        if params["key"] not in settings:
            raise ControlError(REFUSED, "unknown key; did you mean log-level?")
        return {params["key"]: settings[str(params["key"])]}

    def set(self, params: dict[str, object]) -> object:
        answer = {"key": params["key"], "old": "info", "new": params["value"]}
        return answer if params["key"] == "log-level" else {**answer, "old": None, "notes": ["node3 is asked too"]}

    def promote(self, params: dict[str, object]) -> object:
        if not params["force"]:
            raise ControlError(REFUSED, "node1 is catching up: promote node2, or use --force")
        return {"state": "primary", "generation": 4, "text": "node1 is primary of generation 4"}

    def demote(self, params: dict[str, object]) -> object:
        return {"name": "node1", "state": "connecting"}

    def switchover(self, params: dict[str, object]) -> object:
        return {"text": f"{params.get('to', 'node2')} is primary"}

    def backups(self, params: dict[str, object]) -> object:
        lag = {"lag_messages": 12, "lag_bytes": 3400, "lag_s": 0.25}
        return [{"name": "node2", "state": "ready", "in_sync": True, "lsn": 99, **lag}]

    def history(self, params: dict[str, object]) -> object:
        times = {"started_at_ms": 86_400_000, "cause": "promoted by an operator", "forced": False}
        return [{"generation": 1, "primary": "node1", "first_lsn": 1, **times}]

    def replicate(self, params: dict[str, object]) -> object:
        return {"text": f"{params['queue']} is copied from {params['address']}"}

    def events(self, params: dict[str, object]) -> object:
        async def notes() -> AsyncIterator[object]:
            yield {"event": "state", "at_ms": 86_400_000, "name": "node1", **CHANGE}
            yield {"event": "primary", "name": "node1", "primary": "node1"}

        return Stream({"state": "ready"}, "event", notes(), lambda: None)

    def queues(self, params: dict[str, object]) -> object:
        if params["action"] == "list":
            return [ORDERS, {**ORDERS, "name": "a\x1b[31m", "arguments": {}}]
        if params.get("name") != "orders":
            raise ControlError(REFUSED, f"no queue named {params.get('name')}; see `qpid-ha queue list`")
        return {**ORDERS, "arguments": {"qpid.durable": True}}

    def exchanges(self, params: dict[str, object]) -> object:
        news = {"name": "news", "kind": "topic", "bindings": [{"queue": "orders", "key": "a.#", "arguments": {}}]}
        return [news] if params["action"] == "list" else news


@contextmanager
def control_broker(directory: Path, state: str = "standalone") -> Iterator[ControlBroker]:
    """A broker that answers in a thread of its own."""
    broker = ControlBroker(directory, state)
    with answering(broker):
        yield broker


@contextmanager
def answering(broker: ControlBroker) -> Iterator[None]:
    """One that a test has made its own way, in a thread of its own."""
    started, loop, stop = threading.Event(), asyncio.new_event_loop(), asyncio.Event()

    async def serve() -> None:
        server = broker.server()
        await server.start()
        started.set()
        await stop.wait()
        await server.close()

    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    assert started.wait(10)
    try:
        yield
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join(10)
        loop.close()


def asking(broker: ControlBroker, *words: str) -> Result:
    return qpid_ha(*words, "-b", str(broker.path))
