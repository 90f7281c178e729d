"""Whether a primary tells in the log what an older release cannot read: how far queues were handed out, messages that
are due later, and what consumers say of messages that they give back.

1. All that follow, and all that are in sync, have said that they can: it begins, and says what has gone out so far.
2. One comes that cannot: it ends, and that broker compares what both hold, without the events about it.
3. Nobody follows, and nobody else is in sync: as 1, for the store and for who comes later.

Messages that are due later are refused as long as one follows that cannot read them. One that is away may have a later
release when it is back; else it cannot follow.

What consumers say of messages is left out as long as one follows that cannot read it. One that comes later compares
what both hold, without that.
"""

from __future__ import annotations

from collections.abc import Collection

from qpid_ha_broker.ha.backup_link import BackupLink
from qpid_ha_broker.ha.context import MemberContext
from qpid_ha_broker.ha.in_sync import InSyncSet


class MarkTelling:
    """The promise: no broker is sent an event about marks that has not said that it reads them."""

    def __init__(self, ctx: MemberContext) -> None:
        self._ctx = ctx
        self._set = ctx.resource_set

    def backup_came(self, backup: BackupLink) -> None:
        """Before it is sent anything."""
        if not backup.hello.reads_marks and self._set.state.marks.is_told:
            self._ctx.note(
                "info", f"backup {backup.name} is older: after a failover all that is queued goes out marked"
            )
            self._set.end_marks()
            self._ctx.want_turn()

    def backups_are(self, backups: Collection[BackupLink]) -> None:
        """One came, or went."""
        older = sorted({backup.name for backup in backups if not backup.hello.reads_schedules})
        why = f"delayed delivery has to wait until {', '.join(older)} has this release, too" if older else ""
        self._set.state.marks.why_no_delay = why
        self._set.state.marks.tells_annotations = all(backup.hello.reads_annotations for backup in backups)

    def turn_ended(self, backups: Collection[BackupLink], in_sync: InSyncSet) -> None:
        """Begin, once nothing is against it."""
        if self._set.state.marks.is_told or not self._set.log.is_witnessed:
            return
        readers = {backup.name for backup in backups if backup.hello.reads_marks}
        if len(readers) == len(backups) and readers.issuperset({*in_sync.members} - {in_sync.primary}):
            self._set.begin_marks()
            self._ctx.want_turn()
