"""Which resource set a queue belongs to, and which broker leads that set: what the container asks of the cluster."""

from __future__ import annotations

from typing import NamedTuple, Protocol


class ServerAddress(NamedTuple):
    """Where clients find a broker."""

    broker: str
    """Its name, which is its container id."""
    host: str
    port: int


class SetDirectory(Protocol):
    """What is known of all sets of the cluster, whether they are hosted here or not."""

    @property
    def has_many_sets(self) -> bool:
        """There are sets beside `default`: every broker lets clients in, and tells them where what it has not is."""

    def set_of(self, queue_name: str) -> str | None:
        """The set of a queue that does not belong to `default`; None: there is no such queue."""

    def primary_of(self, set_name: str) -> ServerAddress | None:
        """The broker that leads a set; None: nobody is known to."""


class OneSet:
    """The directory of a broker that knows of no set but `default`."""

    @property
    def has_many_sets(self) -> bool:
        """No."""
        return False

    def set_of(self, queue_name: str) -> str | None:
        """No other set has any queue."""
        return None

    def primary_of(self, set_name: str) -> ServerAddress | None:
        """Not known here: clients are sent away before they could ask."""
        return None
