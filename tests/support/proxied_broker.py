"""A broker as its clients see it, behind a proxy: they connect to a backup, which relays all they do to the primary."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Self

from limits import LIMIT_S
from qpid_ha_agent.control import ControlClient, ControlFailure
from running_broker import RunningBroker, StartedInWith

READY = {"primary", "ready"}


class ProxiedBroker(StartedInWith):
    """As `RunningBroker`, of two brokers in one cluster with `ha.clients: proxy`.

    Clients are at `proxy`, the backup, whose are `url`, `port` and `log()`. Queues, and with them the control socket,
    are those of `primary`.
    """

    def __init__(self, settings: Mapping[str, object] | None = None) -> None:
        given = dict(settings or {})
        self._ports = ExitStack()
        urls = [f"amqp://127.0.0.1:{self._reserve_port()}" for _ in range(2)]
        clients = str(given.pop("listen", "amqp://127.0.0.1:0"))
        cluster = {"ha.cluster": True, "ha.brokers-url": ",".join(urls), "ha.clients": "proxy"}
        self.primary, self.proxy = [
            RunningBroker({"name": name, **given, **cluster, "listen": f"{clients},{url}"})
            for name, url in zip(("primary", "proxy"), urls, strict=True)
        ]

    def _reserve_port(self) -> int:
        """A free port that stays ours until the end: bound here, and never listened on."""
        reservation = self._ports.enter_context(socket.socket())
        reservation.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reservation.bind(("127.0.0.1", 0))
        return int(reservation.getsockname()[1])

    def start(self) -> Self:
        """Start both, have the first one lead, and wait until the other one follows it."""
        for broker in (self.primary, self.proxy):
            broker.launch()
        for broker in (self.primary, self.proxy):
            broker.wait_until_it_listens()
        with ControlClient(self.primary.control_socket, timeout_s=LIMIT_S) as control:
            control.call("promote")
        deadline = time.monotonic() + LIMIT_S
        while {self._state(self.primary), self._state(self.proxy)} != READY:
            if time.monotonic() > deadline:
                raise RuntimeError(f"the two brokers are no cluster: {self.all_logs()}")
            time.sleep(0.01)
        return self

    @staticmethod
    def _state(broker: RunningBroker) -> str:
        try:
            with ControlClient(broker.control_socket, timeout_s=LIMIT_S) as control:
                answer = control.call("status")
        except ControlFailure:
            return ""
        return str(answer["state"]) if isinstance(answer, dict) else ""

    # --- as RunningBroker's

    @property
    def url(self) -> str:
        """Of the proxy."""
        return self.proxy.url

    @property
    def port(self) -> int:
        """Of the proxy."""
        return self.proxy.port

    @property
    def pid(self) -> int:
        """Of the proxy."""
        return self.proxy.pid

    @property
    def control_socket(self) -> Path:
        """Of the primary."""
        return self.primary.control_socket

    def log(self) -> str:
        """What the proxy has logged: that is whom clients talk to."""
        return self.proxy.log()

    def all_logs(self) -> str:
        """What both have logged."""
        return f"{self.primary.log()}\n{self.proxy.log()}"

    def await_log(self, pattern: str, timeout_s: float = LIMIT_S) -> bool:
        """See `RunningBroker.await_log`, of the proxy."""
        return self.proxy.await_log(pattern, timeout_s)

    def stop(self, timeout_s: float = LIMIT_S) -> int:
        """SIGTERM to both, the proxy first; 0 if both ended with it."""
        return self.proxy.stop(timeout_s) or self.primary.stop(timeout_s)

    def remove(self) -> None:
        """Stop both, if they run, and leave nothing."""
        with self._ports:
            try:
                self.proxy.remove()
            finally:
                self.primary.remove()


Served = RunningBroker | ProxiedBroker
Serve = Callable[..., AbstractContextManager[Served]]
"""Starts one of them with the settings given: see the integration tests' conftest."""
