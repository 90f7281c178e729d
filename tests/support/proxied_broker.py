"""A broker as its clients see it, behind a proxy: they connect to a backup, which relays all they do to the primary."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, ExitStack
from typing import Self

from limits import LIMIT_S
from polling import wait_until
from qpid_ha_agent.control import ControlClient, ControlFailure
from qpid_ha_demo.running import reserve_port
from running_broker import RunningBroker

READY = {"primary", "ready"}


class ProxiedBroker(RunningBroker):
    """Two brokers of one cluster with `ha.clients: proxy`: this one is the proxy, whose are `url`, `port` and `log()`.

    Queues, and with them the control socket, are those of `primary`.
    """

    def __init__(self, settings: Mapping[str, object] | None = None) -> None:
        given = dict(settings or {})
        self._ports = ExitStack()
        urls = [f"amqp://127.0.0.1:{reserve_port(self._ports)}" for _ in range(2)]
        clients = str(given.pop("listen", "amqp://127.0.0.1:0"))
        given |= {"ha.cluster": True, "ha.brokers-url": ",".join(urls), "ha.clients": "proxy"}
        self.primary = RunningBroker({"name": "primary", **given, "listen": f"{clients},{urls[0]}"})
        super().__init__({"name": "proxy", **given, "listen": f"{clients},{urls[1]}"})
        self._own_socket, self.control_socket = self.control_socket, self.primary.control_socket

    def start(self) -> Self:
        """Start both, have the first one lead, and wait until the other one follows it."""
        self.primary.launch()
        self.launch()
        self.primary.wait_until_it_listens()
        self.wait_until_it_listens()
        with ControlClient(self.primary.control_socket, timeout_s=LIMIT_S) as control:
            control.call("promote")
        wait_until(lambda: self._states() == READY, self.all_logs)
        return self

    def _states(self) -> set[str]:
        states = set()
        for path in (self.primary.control_socket, self._own_socket):
            try:
                with ControlClient(path, timeout_s=LIMIT_S) as control:
                    answer = control.call("status")
            except ControlFailure:
                continue
            states.add(str(answer["state"]) if isinstance(answer, dict) else "")
        return states

    def all_logs(self) -> str:
        """What both have logged."""
        return f"{self.primary.log()}\n{self.log()}"

    def stop(self, timeout_s: float = LIMIT_S) -> int:
        """SIGTERM to both, the proxy first; 0 if both ended with it."""
        return super().stop(timeout_s) or self.primary.stop(timeout_s)

    def remove(self) -> None:
        """Stop both, if they run, and leave nothing."""
        with self._ports:
            try:
                super().remove()
            finally:
                self.primary.remove()


Served = RunningBroker
Serve = Callable[..., AbstractContextManager[Served]]
"""Starts one of them with the settings given: see the integration tests' conftest."""
