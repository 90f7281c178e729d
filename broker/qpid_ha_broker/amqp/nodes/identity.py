"""Who is at the other end of a connection."""

from __future__ import annotations

import ipaddress
from typing import NamedTuple

from qpid_ha_broker.events.joined_names import joined
from qpid_ha_broker.model.exchanges.broker_events import Fact
from qpid_ha_broker.model.exchanges.exchange import Origin
from qpid_ha_broker.model.sets.following import owner_name


class ClientNames(NamedTuple):
    """What a client is called by that publishes, subscribes, or has a queue alone."""

    user: str
    """Who it has proved to be; empty: nobody."""
    container: str
    connection_parts: tuple[str, str]
    """The broker to which it is connected, and what that calls the connection."""

    @property
    def connection(self) -> str:
        """A name that no other connection to any broker has. Of three parts, where that of a client has two."""
        return joined((*self.connection_parts, ""))

    @property
    def client(self) -> str:
        """Of all connections of one user and container id."""
        return owner_name(self.user, self.container)

    @property
    def origin(self) -> Origin:
        """Of what it publishes."""
        return self.connection, self.client


class PeerIdentity(NamedTuple):
    """What a peer's open and its login have said of it, once it has opened."""

    address: str
    """`host:port` of its socket."""
    user: str
    """Who it has proved to be; empty: nobody."""
    is_admin: bool
    """Marked for administration: let in everywhere, also where clients are not served."""
    is_broker: bool = False
    """Another broker of the cluster, which it has proved: by the login of the cluster's brokers, or where they have
    none, by the secret of those of this machine."""
    container: str = ""
    connection: str = ""
    """A name that no other connection of the broker has; with the next one see `ClientNames`."""
    broker: str = ""
    """To which it is connected."""

    @property
    def text(self) -> str:
        """Who that is, for operators."""
        return f"{self.user or 'anonymous'} at {self.address}"

    @property
    def facts(self) -> dict[str, Fact]:
        """The same, for who watches: see `broker_events`."""
        of_peer = {"user": self.user, "container": self.container, "peer": self.address}
        return {**of_peer, "administration": self.is_admin}

    @property
    def is_local(self) -> bool:
        """Whether the client has connected through loopback: from this machine."""
        try:
            address = ipaddress.ip_address(self.address.rpartition(":")[0].strip("[]"))
        except ValueError:
            return False
        mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
        return (mapped or address).is_loopback
