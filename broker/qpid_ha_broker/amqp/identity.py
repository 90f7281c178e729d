"""Who is at the other end of a connection."""

from __future__ import annotations

from typing import NamedTuple


class PeerIdentity(NamedTuple):
    """What a peer's open and its login have said of it, once it has opened."""

    address: str
    """`host:port` of its socket."""
    user: str
    """Who it has proved to be; empty: nobody."""
    is_admin: bool
    """Marked for administration: let in everywhere, also where clients are not served."""
