"""What a link does and what it waits for, as an operator sees it."""

from __future__ import annotations

from enum import Enum
from typing import NamedTuple


class WaitsFor(Enum):
    """What has to happen before the next message can go over a link; the value is how it is shown."""

    NOTHING = ""
    CREDIT = "no credit"
    """Of a consumer: its client has asked for no more. Of a publisher: the broker gives it none just now."""
    MESSAGES = "no message"
    ACTIVE_CONSUMER = "another consumer is the active one"
    """Of a queue of which one consumer alone is given messages."""
    MATCHING_MESSAGES = "no message that its selector takes"
    ANSWERS = "its client has to answer messages first"
    SOCKET = "its client reads too slowly"
    COMMIT = "backups or the disk have to confirm"
    BODIES = "messages are read from the disk"
    OTHER_CLIENTS = "clients that had messages before come first"
    MEMORY = "the broker's memory is full"
    RATE = "rate limit"
    """Of a publisher: its user may send no more just now."""
    PRIMARY = "a primary of its resource set"
    FAR_BROKER = "the broker that it is relayed to"


class LinkState(NamedTuple):
    """Of one link. `credit` and `unsettled` count messages."""

    node: str
    """The queue or exchange; empty: none, as of an anonymous relay."""
    credit: int
    """That may still be sent, by whichever end sends."""
    unsettled: int
    """Sent, and not settled."""
    waits_for: WaitsFor = WaitsFor.NOTHING
    relayed_for: str = ""
    """The client at another broker, whose link it is; empty: it is the peer's own."""
    relayed_to: str = ""
    """The broker that it goes on to; empty: it ends here."""
