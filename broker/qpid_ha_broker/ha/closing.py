"""Ending a whole cluster in good order: clients first, then everybody level, then one mark on every store.

Like closing a shop with several tills: no new customers, every till counts up to the same last receipt, and each ledger
is signed with the same words; whoever opens one of them next morning can see that no other ledger goes further.

Source: seed 000, "Interaction with the store", clean shutdown.
"""

from __future__ import annotations

from qpid_ha_broker.ha.effects import Answered, CleanEnd, EndClients, ShutdownAsked
from qpid_ha_broker.ha.frames import Shutdown
from qpid_ha_broker.ha.primary import Primary
from qpid_ha_broker.ha.surroundings import Surroundings

PATIENCE_S = 5.0
"""Beyond `backup-timeout`, after which a silent backup is not waited for any more."""


class Closing:
    """The promise: a store is marked only when all in-sync brokers hold the same, to the last event."""

    def __init__(self, around: Surroundings) -> None:
        self._around = around
        self._asked: ShutdownAsked | None = None
        self._are_clients_gone = False
        self._began_s = 0.0

    @property
    def is_under_way(self) -> bool:
        """Whether clients are being ended for this."""
        return self._asked is not None

    def begin(self, asked: ShutdownAsked) -> None:
        """An operator wants it of this primary."""
        if self._asked is not None:
            self._answer(asked.request, False, "the cluster is being shut down already: wait for that")
            return
        self._asked, self._are_clients_gone, self._began_s = asked, False, self._around.clock_s
        self._around.note("info", "the cluster is shut down: clients are sent away")
        self._around.effects.append(EndClients())

    def clients_ended(self) -> None:
        """The log's last event is written: see `go_on`."""
        self._are_clients_gone = True

    def go_on(self, primary: Primary) -> bool:
        """Mark the stores as soon as everybody is level; whether that is done, and this broker ends."""
        last_lsn = self._around.resources.log.last_lsn
        if self._asked is None or not self._are_clients_gone:
            return False
        if primary.in_sync.committed_lsn < last_lsn or primary.in_sync.awaits_filing:
            if self._around.clock_s - self._began_s > self._around.settings.backup_timeout_s + PATIENCE_S:
                self._give_up(primary)
            return False
        for backup in primary.links.values():
            uuid = self._asked.uuid if backup.name in primary.in_sync and backup.is_level else ""
            self._around.send(backup.link, Shutdown(primary.generation, last_lsn, uuid))
        names = ", ".join(primary.in_sync.members)
        self._answer(self._asked.request, True, f"{names} hold the same up to LSN {last_lsn}, and end")
        self._around.effects.append(CleanEnd(self._asked.uuid))
        return True

    def forget(self) -> None:
        """This broker is primary no more."""
        if self._asked is not None:
            asked, self._asked = self._asked, None
            self._answer(asked.request, False, "this broker stopped being primary: ask the next one")

    def _give_up(self, primary: Primary) -> None:
        if self._asked is not None:
            asked, self._asked = self._asked, None
            text = f"not all of {', '.join(primary.in_sync.members)} came level: see `qpid-ha backups`, then try again"
            self._answer(asked.request, False, text)

    def _answer(self, request: int, done: bool, text: str) -> None:
        self._around.effects.append(Answered(request, done, text))
