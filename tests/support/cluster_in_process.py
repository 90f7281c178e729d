"""Real brokers on loopback in the event loop of the test: one by itself, or a whole cluster."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from limits import LIMIT_S
from qpid_ha_agent.control import ControlClient
from qpid_ha_broker.ha.states import State
from qpid_ha_broker.server.broker import Broker
from qpid_ha_broker.server.sets.membership import Membership
from qpid_ha_config.settings import BrokerSettings

PATIENCE_S = 5.0
"""For an answer of another broker: all of them share a process, and the machine may be busy."""


class InProcessBroker:
    """`async with InProcessBroker(tmp_path) as node1:` serves clients at `url`, by default in no cluster.

    `settings` are keys of the configuration file.
    """

    def __init__(self, directory: Path, settings: Mapping[str, object] | None = None) -> None:
        (port,) = free_ports(1)
        self.url = f"amqp://127.0.0.1:{port}"
        self._socket = directory / "broker.sock"
        values = {"name": "node1", "listen": self.url, "control-socket": str(self._socket), "stop-timeout": 1}
        self.broker = Broker(BrokerSettings.from_values({**values, **(settings or {})}))

    async def __aenter__(self) -> Self:
        await self.broker.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        if not self.broker.is_stopping:
            await self.broker.stop()

    async def ask(self, method: str, /, **params: object) -> Any:
        """What its control socket answers. Raises Refused."""
        with ControlClient(self._socket, LIMIT_S) as client:
            return await asyncio.to_thread(client.call, method, **params)


class InProcessCluster:
    """`async with InProcessCluster(tmp_path, "a", "b") as cluster:`: brokers by name, each looking for a primary."""

    def __init__(self, directory: Path, *names: str, **settings: object) -> None:
        self._directory = directory
        self._settings = settings
        self.ports = dict(zip(names, free_ports(len(names)), strict=True))
        self.brokers: dict[str, Broker] = {}

    async def __aenter__(self) -> InProcessCluster:
        for name in self.ports:
            await self.start(name)
        return self

    async def __aexit__(self, *_: object) -> None:
        for name in list(self.brokers):
            await self.stop(name)

    async def start(self, name: str, **settings: object) -> Broker:
        """Start the broker `name`, or start it anew."""
        url = ",".join(f"127.0.0.1:{port}" for port in self.ports.values())
        values = {
            "name": name,
            "listen": f"amqp://127.0.0.1:{self.ports[name]}",
            "control-socket": str(self._directory / f"{name}.sock"),
            "stop-timeout": 1,
            "ha.cluster": True,
            "ha.brokers-url": f"amqp://{url}",
            "ha.backup-timeout": "2s",
            "link-heartbeat-interval": "200ms",
            **{
                key.replace("__", ".").replace("_", "-"): value for key, value in {**self._settings, **settings}.items()
            },
        }
        broker = self.brokers[name] = Broker(BrokerSettings.from_values(values))
        await broker.start()
        member = self.member(name).member
        member.settings = replace(member.settings, ask_limit_s=PATIENCE_S)
        return broker

    async def stop(self, name: str) -> None:
        """Stop it as SIGTERM would."""
        await self.brokers.pop(name).stop()

    def member(self, name: str) -> Membership:
        """The part of the broker in the cluster."""
        membership = self.brokers[name].membership
        if membership is None:
            raise ValueError(f"{name} is in no cluster")
        return membership

    def url(self, name: str) -> str:
        """Where its clients connect."""
        return f"amqp://127.0.0.1:{self.ports[name]}"

    async def ask(self, name: str, method: str, /, **params: object) -> Any:
        """What the control socket of the broker answers. Raises Refused."""
        with ControlClient(self._directory / f"{name}.sock", LIMIT_S) as client:
            return await asyncio.to_thread(client.call, method, **params)

    async def reach(self, name: str, state: State) -> None:
        """Come back when the broker is in `state`."""
        await self.see(name, lambda: self.member(name).member.status.state is state)

    async def see(self, name: str, condition: Callable[[], bool]) -> None:
        """Come back when `condition` holds, looking whenever something has changed at the broker."""
        events = self.member(name).events.subscribe()
        try:
            async with asyncio.timeout(LIMIT_S):
                while not condition():
                    await anext(events)
        finally:
            events.close()

    async def form(self, primary: str) -> None:
        """A first start: promote one, and wait for the others."""
        await self.ask(primary, "promote")
        for name in self.brokers:
            if name != primary:
                await self.reach(name, State.READY)
        everybody = tuple(sorted(self.brokers))
        await eventually(lambda: self.member(primary).member.status.members == everybody)

    async def form_with_controller(self, primary: str) -> None:
        """As `form`; the primary of `default` is the controller, and all know it when this comes back."""
        await self.form(primary)
        for name in self.brokers:
            await self.knows_controller(name)

    async def knows_controller(self, name: str) -> None:
        """Come back when the broker can ask the controller."""
        sets = self.brokers[name].sets
        assert sets is not None
        client = sets.client
        await eventually(lambda: not client.problem)


async def eventually(condition: Callable[[], object]) -> None:
    """For what is announced by no event: look at every round of the loop."""
    async with asyncio.timeout(LIMIT_S):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.002)


_given_ports: set[int] = set()


def free_ports(count: int) -> list[int]:
    """Ports that nobody uses now, and that were not given before: who has those may not listen yet."""
    found: list[int] = []
    sockets = []
    try:
        while len(found) < count:
            sockets.append(socket.create_server(("127.0.0.1", 0)))
            port = sockets[-1].getsockname()[1]
            if port not in _given_ports:
                _given_ports.add(port)
                found.append(port)
        return found
    finally:
        for each in sockets:
            each.close()
