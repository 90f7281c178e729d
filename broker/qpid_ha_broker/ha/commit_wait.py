"""Since when a primary commits nothing, although something waits for that, and what it waits for: for operators."""

from __future__ import annotations

from typing import NamedTuple

from qpid_ha_broker.ha.in_sync import InSyncSet


class CommitStall(NamedTuple):
    """A primary has committed nothing for `stalled_s`, and `why`."""

    stalled_s: float
    why: str


class CommitWatch:
    """Looks at one generation's log each time that it grows or more of it is committed."""

    def __init__(self) -> None:
        self.write_problem = ""
        """Why a change of the in-sync set is not recorded, as its keeper said; empty: none was tried in vain."""
        self._since_s: float | None = None
        """When the oldest event that is not committed was seen, or the last one was committed; None: all are."""
        self._committed_lsn = 0

    def look(self, clock_s: float, last_lsn: int, committed_lsn: int) -> None:
        """The log goes up to `last_lsn`."""
        if committed_lsn >= last_lsn:
            self._since_s = None
        elif self._since_s is None or committed_lsn > self._committed_lsn:
            self._since_s = clock_s
        self._committed_lsn = committed_lsn

    def stalled_s(self, clock_s: float) -> float | None:
        """For how long; None: nothing waits."""
        return None if self._since_s is None else clock_s - self._since_s


def why_uncommitted(in_sync: InSyncSet, last_lsn: int, write_problem: str, store_problem: str = "") -> str:
    """What is waited for. `write_problem`: as of `CommitWatch`; `store_problem`: why this store takes nothing."""
    whys = []
    if not in_sync.is_large_enough:
        whys.append(in_sync.why_too_small())
    behind = in_sync.behind(last_lsn)
    if in_sync.primary in behind:
        because = f": {store_problem}" if store_problem else ""
        whys.append(f"the store of {in_sync.primary} has not written it yet{because}")
    others = [name for name in behind if name != in_sync.primary]
    if others:
        whys.append(f"{' and '.join(others)}, in sync, did not acknowledge it")
    if in_sync.awaits_record:
        who = " and ".join(sorted(in_sync.awaited)) or "a broker that was started anew since"
        because = f": {write_problem}" if write_problem else ""
        whys.append(f"that {who} left the in-sync set is not recorded{because}")
    return "; ".join(whys) or "what was written a moment ago is on its way"
