"""How a channel between two brokers came to its end, as far as the broker at the other end has said why.

On the wire a reason is a text, of the AMQP close or of a sub-channel's end, and most of them are for people only. Those
in `end_of` are part of the protocol: every release sends them as they are here. Whoever feeds `LinkLost` makes a value
of the text, and nobody behind that looks at the text.
"""

from __future__ import annotations

from enum import Enum, auto
from typing import Final

STOPPING: Final = "stopping"
"""What a member says on its channels when it ends in order."""
_FIRST_WORDS: Final = ("HELLO: ", "FOLLOW: ")
"""What `sealed_frames` begins with where it says why such a frame cannot be read."""


class LinkEnd(Enum):
    """Why a channel is gone."""

    LOST = auto()
    """Nothing is known that would keep the other broker from coming back at once."""
    STOPPING = auto()
    """The other member ends in order, with its process or because its broker keeps no replica of the set any more:
    nobody has to wait for it."""
    UNREADABLE = auto()
    """The other broker could not read the first word that it was sent: it is of an older release, perhaps."""
    NOT_LET_IN = auto()
    """The other broker does not let us in as who we are."""
    NO_PLACE = auto()
    """The other broker has no place for one more."""


def end_of(said: str) -> LinkEnd:
    """Of what the other member itself gave as its reason."""
    if said == STOPPING:
        return LinkEnd.STOPPING
    return LinkEnd.UNREADABLE if said.startswith(_FIRST_WORDS) else LinkEnd.LOST
