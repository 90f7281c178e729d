"""When a replica may go that the cluster map does not name any more: once that is committed. Pure.

What a primary of `default` has written, and what it has sent, counts at once in the map of each broker; if it dies
before it is committed, the next one may not have it, and the set is there as before. Whoever had acted on it would have
lost its part of it: its log, and which generation it has promised to whom.
"""

from __future__ import annotations

from collections.abc import Iterable


class Removals:
    """The promise: a replica goes only when it is committed that the map does not name it."""

    def __init__(self) -> None:
        self._noticed: dict[str, int] = {}
        """By set: the last LSN of the map's log when it was noticed that the replica is not named."""

    @property
    def waiting(self) -> Iterable[str]:
        """Sets of which that is not committed yet: to be looked at again."""
        return self._noticed

    def may_go(self, name: str, last_lsn: int, committed_lsn: int) -> bool:
        """Whether the replica of `name`, which is not named, goes now. LSNs of the map's log: where it ends here, and
        how far it is known to be committed."""
        if committed_lsn < self._noticed.setdefault(name, last_lsn):
            return False
        del self._noticed[name]
        return True

    def forget(self, name: str) -> None:
        """It is named, again perhaps, or there is no replica of it any more."""
        self._noticed.pop(name, None)
