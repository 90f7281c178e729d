"""Looks now and then whether nodes of other brokers are there that nobody uses: one that is gone is noticed then.

Nodes are looked for one by one, each at its own time, by `remote-check-interval` and chance. See
`amqp.links.remote_probe`.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from qpid_ha_broker.amqp.links.remote_probe import RemoteProbe
from qpid_ha_broker.amqp.wire.conditions import AmqpError
from qpid_ha_broker.server.proxies.far_links import ProxyHost
from qpid_ha_broker.server.proxies.remote_nodes import RemoteNodes

MOST_PROBES: Final = 10
"""Nodes that are looked for at a time."""


class UnusedNodes:
    """The promise: a node without a link is looked for about once in each interval, few of them at a time."""

    def __init__(self, broker: ProxyHost, remotes: RemoteNodes, draw: Callable[[], float]) -> None:
        """`draw`: a number from 0 to 1, another one each time."""
        self._broker = broker
        self._remotes = remotes
        self._draw = draw
        self._due_s: dict[str, float] = {}
        """By name: when it is looked for next, unless somebody uses it before."""
        self._probes: list[RemoteProbe] = []

    def tick(self) -> None:
        """Look for those whose time has come: a few, the others with the next call."""
        now_s, interval_s = time.monotonic(), self._broker.current().remote.check_interval_s
        self._probes = [probe for probe in self._probes if not probe.has_ended]
        due_s, self._due_s = self._due_s, {}
        for name, definition in self._remotes.directory.all():
            if isinstance(definition, AmqpError) or self._remotes.report(name).links:
                continue
            due = min(due_s.get(name, now_s + interval_s * (0.5 + self._draw())), now_s + 1.5 * interval_s)
            self._due_s[name] = due
            if now_s >= due and len(self._probes) < MOST_PROBES:
                del self._due_s[name]
                probe = RemoteProbe(definition.target, self._remotes, self._broker.container.clock())
                self._probes.append(probe)
                self._remotes.attach(probe, definition)
