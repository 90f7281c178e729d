"""Which sets a broker that relays has nobody for: its clients are to go to a broker that may reach more.

A broker on the small side of a split knows of a primary that it does not reach, or of none, for as long as the split
lasts. It looks just as one does whose primary is about to be replaced, so it is time that tells them apart.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, Protocol

APART_S: Final = 10.0
"""So long no link of a set has been attached where it is led: as an attach may wait. Somebody else leads by then."""
TRIES_S: Final = 1.5
"""So long links are tried in any case: a broker that is reached again has taken one by then."""
SLEPT_S: Final = 1.0
"""Between two looks: who did not look for so long has tried nothing meanwhile."""


class ContactLink(Protocol):
    """A link that is to be attached where its set is led."""

    set_name: str

    @property
    def is_attached(self) -> bool:
        """It is."""


class SetContact:
    """The promise: a set is out of reach when for APART_S none of its links was attached, and some are tried in vain.

    | of the links of a set | for | it is |
    | --- | --- | --- |
    | one is attached | | in reach |
    | none is | less than APART_S since it was in reach, or was first asked for | in reach: a failover takes a moment |
    | none is, and none was tried before the last TRIES_S | longer | in reach, perhaps again |
    | none is | longer | out of reach |
    """

    def __init__(self) -> None:
        self._apart_s: dict[str, float] = {}
        """By set: since when no link of it has been attached, and one was to be. Kept while none is tried."""
        self._tried_s: dict[str, float] = {}
        """By set: since when some are tried, without a break."""
        self._looked_s = 0.0

    def look(self, links: Iterable[ContactLink], now_s: float) -> frozenset[str]:
        """The sets that are out of reach. To be called several times in SLEPT_S while there are links."""
        slept_s, self._looked_s = now_s - self._looked_s, now_s
        if slept_s > SLEPT_S:
            self._tried_s.clear()
            self._apart_s = {name: since_s + slept_s for name, since_s in self._apart_s.items()}
        attached: set[str] = set()
        waiting: set[str] = set()
        for link in links:
            (attached if link.is_attached else waiting).add(link.set_name)
        waiting -= attached
        for name in attached:
            self._apart_s.pop(name, None)
        self._tried_s = {name: self._tried_s.get(name, now_s) for name in waiting}
        return frozenset(
            name
            for name, tried_s in self._tried_s.items()
            if now_s - tried_s >= TRIES_S and now_s - self._apart_s.setdefault(name, tried_s) >= APART_S
        )
