"""What a group's member needs of whatever carries its batches: see `cpg_transport` for the one over Corosync."""

from __future__ import annotations

from typing import Protocol

from qpid_ha_broker.server.peers.cpg_order import OrderedView


class GroupListener(Protocol):
    """Who is told what comes."""

    def delivered(self, sender: str, data: bytes) -> None:
        """A batch, perhaps an own one."""

    def view_changed(self, view: OrderedView) -> None:
        """Who is there from here on."""


class GroupTransport(Protocol):
    """The promise: batches come in one order to all of a view, whole, and each own one once."""

    @property
    def problem(self) -> str:
        """Why nothing goes; empty: it does."""

    def start(self) -> None:
        """Join. Raises GroupTransportError where that can never be."""

    def close(self) -> None:
        """Leave; the listener hears nothing more."""

    def multicast(self, data: bytes) -> None:
        """Send a batch after all before."""
