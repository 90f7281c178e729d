"""A transport of groups between brokers of one process: total order, views, and who is cut off."""

from __future__ import annotations

import asyncio
from collections import defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from qpid_ha_broker.server.peers.cpg_order import OrderedView
from qpid_ha_broker.server.peers.group_transport import GroupListener
from qpid_ha_broker.server.sets.group_set_member import GroupSetMember


@contextmanager
def installed() -> Iterator[GroupBus]:
    """What brokers of this process multicast goes through a bus."""
    bus = GroupBus()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(GroupSetMember, "make_transport", staticmethod(bus.port))
        yield bus


class GroupBus:
    """All groups by the UUIDs of their logs; what is sent comes to all a round of the loop later, in one order."""

    def __init__(self) -> None:
        self._members: dict[str, dict[str, BusPort]] = defaultdict(dict)
        self.problem = ""
        """Why nothing goes, as all of its ports say it; what is sent goes all the same."""
        self._waiting: deque[tuple[str, str, bytes]] = deque()

    def port(self, cluster: str, name: str, listener: GroupListener) -> BusPort:
        """As `SetHost.make_transport` makes one."""
        return BusPort(self, cluster, name, listener)

    def join(self, port: BusPort) -> None:
        members = self._members[port.cluster]
        members[port.name] = port
        self._tell(port.cluster, joined=port.name)

    def leave(self, port: BusPort) -> None:
        members = self._members[port.cluster]
        if members.get(port.name) is port:
            self._deliver_all()
            del members[port.name]
            self._tell(port.cluster, left=port.name)

    def cut_off(self, name: str) -> None:
        """Its daemon ends: the others go on, and nothing comes to it any more."""
        self._deliver_all()
        for cluster, members in self._members.items():
            port = members.pop(name)
            asyncio.get_running_loop().call_soon(port.view, OrderedView((), (), tuple(sorted(members)), ()))
            self._tell(cluster, left=name)

    def _tell(self, cluster: str, joined: str = "", left: str = "") -> None:
        self._deliver_all()
        members = self._members[cluster]
        names = tuple(sorted(members))
        gone = (left,) if left else ()
        for name, port in list(members.items()):
            came = names if name == joined else (joined,) if joined else ()
            asyncio.get_running_loop().call_soon(port.view, OrderedView(names, came, gone, gone))

    def multicast(self, port: BusPort, data: bytes) -> None:
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._deliver_all)
        self._waiting.append((port.cluster, port.name, data))

    def _deliver_all(self) -> None:
        waiting, self._waiting = self._waiting, deque()
        for cluster, sender, data in waiting:
            for port in list(self._members[cluster].values()):
                asyncio.get_running_loop().call_soon(port.batch, sender, data)


class BusPort:
    """One broker's end; see `group_transport.GroupTransport`."""

    def __init__(self, bus: GroupBus, cluster: str, name: str, listener: GroupListener) -> None:
        self.cluster, self.name = cluster, name
        self._bus, self._listener, self._is_open = bus, listener, False

    @property
    def problem(self) -> str:
        return self._bus.problem

    def start(self) -> None:
        self._is_open = True
        self._bus.join(self)

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._bus.leave(self)

    def multicast(self, data: bytes) -> None:
        if self._is_open:
            self._bus.multicast(self, data)

    def batch(self, sender: str, data: bytes) -> None:
        if self._is_open:
            self._listener.delivered(sender, data)

    def view(self, view: OrderedView) -> None:
        if self._is_open:
            self._listener.view_changed(view)
