"""Whether a primary can prove that it still leads: who cannot hands out nothing.

Others replace a primary of which they hear nothing: one that was stopped, or is cut off with a minority. It learns of
its successor later. What it writes meanwhile nobody will ever have committed: whoever got it would get a copy from the
successor, without a mark. And what was committed before, the successor gives to others. The safety property: what a
consumer is given is committed, and is given no longer than `silence_s` after all in sync, one of whom would be the
successor, were with this primary, and once one of them owes it an acknowledgement no longer than `unproven_s`. Both are
less than what others need to replace it.

    1. What this primary writes is acknowledged by all in sync, soon or at least now and then (a disk is slow, or a
       backup): it leads, and consumers get what is committed (`PROVEN`).
    2. The oldest event that is not committed was sent more than `unproven_s` ago, and nothing was committed for as
       long: consumers wait as publishers do (`MISSING`), until a backup that is silent has left the in-sync set, or
       this primary has found out that it was replaced.
    3. This process was stopped, or nothing was heard of a backup in sync for longer than one needs to say that it is
       there: acknowledgements that come now may have been sent before. It begins to count again (`MISSING` till then)
       once something is committed that was sent since. Where there is nothing to send, an empty unit is written. One
       that has left in sync counts as silent until that is recorded: until then it may be promoted.
    4. The in-sync set is this primary alone, and that is recorded: nobody could replace it now, it need not prove
       anything, and consumers get what is committed (`PROVEN`). Not what is on its way to its disk or to others: it may
       lead next itself when it has started anew, or somebody who joins in this moment, and both would lack that.
    5. The broker is standalone: consumers get what there is (`ALONE`), and do not wait for its disk.

One moment is left: a backup that has acknowledged something and is promoted before that is seen here. What is given in
it is committed, so the successor has the mark (`model.queues.handout_marks`) that says so.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Final

from qpid_ha_broker.ha.backup_link import BackupLink
from qpid_ha_broker.ha.context import MemberContext
from qpid_ha_broker.ha.in_sync import InSyncSet
from qpid_ha_broker.model.queues.lead_proof import LeadProof

STRETCHES: Final = 4
"""In `unproven_s`: what is sent within one counts as sent at its beginning."""


class LeadershipProof:
    """Of one generation. Times are `now_s`, which goes on while this process is stopped."""

    def __init__(self, ctx: MemberContext, in_sync: InSyncSet, links: Mapping[int, BackupLink]) -> None:
        self._ctx = ctx
        self._in_sync = in_sync
        self._links = links
        self._uncommitted: deque[tuple[int, float]] = deque()
        """First LSN of each stretch of the log that is not committed yet to its end, and when that was sent."""
        self._sent_lsn = ctx.resource_set.log.last_lsn
        self._committed_lsn = in_sync.committed_lsn
        self._committed_s = ctx.now_s
        """When more was committed last."""
        self._with_all_s = ctx.now_s
        """When all in sync were with this primary, as far as commits tell."""
        self._doubted_s = ctx.now_s
        """When it was doubted last whether it leads."""
        self._doubted_lsn: int | None = None
        """What was sent up to there may have been acknowledged before that; None: there is no doubt."""

    # --- the log

    def sent(self, first_lsn: int, last_lsn: int) -> None:
        """A batch goes to the backups."""
        now_s, stretches = self._ctx.now_s, self._uncommitted
        self._sent_lsn = last_lsn
        if not stretches or now_s - stretches[-1][1] > self._ctx.settings.unproven_s / STRETCHES:
            stretches.append((first_lsn, now_s))

    def committed(self, lsn: int) -> None:
        """All in sync hold the log up to there."""
        stretches = self._uncommitted
        self._committed_lsn, self._committed_s = lsn, self._ctx.now_s
        while len(stretches) > 1 and stretches[1][0] <= lsn + 1:
            if stretches[0][0] <= lsn:
                self._with_all_s = stretches[0][1]
            stretches.popleft()
        if stretches and stretches[0][0] <= lsn:
            self._with_all_s = stretches[0][1]
        if lsn >= self._sent_lsn:
            stretches.clear()
        if self._doubted_lsn is not None and lsn > self._doubted_lsn:
            self._doubted_lsn = None

    # --- what it comes to

    def look(self, now_s: float, woke_s: float) -> LeadProof:
        """What consumers may be given now. `woke_s`: when this process went on after it was stopped last."""
        if self._ctx.settings.is_standalone:
            return LeadProof.ALONE
        if len(self._in_sync.members) == 1 and not self._in_sync.awaits_record:
            self._doubted_lsn = None
            return LeadProof.PROVEN
        if woke_s > self._doubted_s or (self._doubted_lsn is None and self._is_somebody_silent(now_s)):
            self._doubted_s, self._doubted_lsn = now_s, self._sent_lsn
        if self._doubted_lsn is not None:
            self._have_something_sent()
            return LeadProof.MISSING
        unproven_s = self._ctx.settings.unproven_s
        if not self._uncommitted or now_s - max(self._uncommitted[0][1], self._committed_s) <= unproven_s:
            return LeadProof.PROVEN
        return LeadProof.MISSING

    def _is_somebody_silent(self, now_s: float) -> bool:
        """Whether nothing was heard of a backup in sync since long, or of one that may still be promoted. Where none
        says now and then that it is there, commits alone tell."""
        silent_s = self._ctx.settings.silence_s
        if now_s - self._with_all_s <= silent_s:
            return False
        if not self._ctx.settings.has_heartbeats or self._in_sync.awaited:
            return True
        clock_s = self._ctx.clock_s + max(now_s - self._ctx.now_s, 0.0)
        return any(
            clock_s - backup.heard_s > silent_s for backup in self._links.values() if backup.name in self._in_sync
        )

    def _have_something_sent(self) -> None:
        """So that somebody can acknowledge it: an empty unit changes nothing, and every release reads it."""
        resource_set = self._ctx.resource_set
        if resource_set.log.last_lsn == self._doubted_lsn:
            resource_set.submit(())
