"""Who may follow a primary as its backup, and when one that fell silent is waited for again.

A backup that stops for a while and comes back costs publishers `ha.backup-timeout` each time that it does. So one that
was given up because of its silence is sent everything when it is back, but counts only after it has been level, and has
answered, for a while: `ha.backup-timeout` after the first time, twice as long after each other one. Where fewer are in
sync than publishers need, it counts at once.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from qpid_ha_broker.ha import frames as fr
from qpid_ha_broker.ha.backup_link import BackupLink
from qpid_ha_broker.ha.context import MemberContext
from qpid_ha_broker.ha.history import problem

_NOTED_MOST: Final = 64
LONGEST_PROBATION_S: Final = 60.0
LONGEST_OF_ONLY_ONE_S: Final = 10.0
"""The same where the primary is alone otherwise: if it is lost meanwhile, nobody may lead."""
FORGIVEN_S: Final = 600.0
"""Without having been silent: then the next time counts as the first one."""


class BackupAdmission:
    """Of one generation's primary."""

    def __init__(self, ctx: MemberContext) -> None:
        self._ctx = ctx
        self._noted: dict[str, str] = {}
        """By process: what was logged of it when it was refused. It asks again and again."""
        self._silences: dict[str, tuple[int, float]] = {}
        """By name: how often it was silent for too long, and when last."""

    def why_refused(self, links: Iterable[BackupLink], hello: fr.Hello, cluster: str) -> fr.Refused | None:
        """Why this one may not follow; None: it may. `cluster`: that of this primary's log."""
        refused = _why_refused(self._ctx, links, hello, cluster)
        if refused is None:
            self._noted.pop(hello.instance, None)
        elif self._noted.get(hello.instance) != refused.text:
            if len(self._noted) >= _NOTED_MOST:
                self._noted.clear()
            self._noted[hello.instance] = refused.text
            self._ctx.note("warning", f"backup {hello.name} refused: {refused.text}")
        return refused

    def was_silent(self, name: str) -> None:
        """That backup was given up because nothing came from it, or it did not read."""
        times, last_s = self._silences.get(name, (0, 0.0))
        is_forgiven = self._ctx.clock_s - last_s > FORGIVEN_S
        self._silences[name] = 1 if is_forgiven else times + 1, self._ctx.clock_s

    def probation_s(self, name: str) -> float:
        """So long it has to be level, and to answer, before it is waited for."""
        times, _ = self._silences.get(name, (0, 0.0))
        if not times:
            return 0.0
        return float(min(self._ctx.settings.backup_timeout_s * 2 ** min(times - 1, 16), LONGEST_PROBATION_S))


def _why_refused(ctx: MemberContext, links: Iterable[BackupLink], hello: fr.Hello, cluster: str) -> fr.Refused | None:
    def refused(code: fr.RefusalCode, text: str) -> fr.Refused:
        return fr.Refused(code, text, "")

    if hello.version != fr.PROTOCOL_VERSION:
        text = f"it speaks version {hello.version} of the protocol, the primary {fr.PROTOCOL_VERSION}: upgrade it"
        return refused(fr.RefusalCode.VERSION, text)
    if hello.set != ctx.resource_set.name:
        return refused(fr.RefusalCode.NO_SET, f"there is no resource set {hello.set} here")
    if hello.cluster and hello.cluster != cluster:
        text = ctx.settings.keeper.foreign_backup.format(theirs=hello.cluster, ours=cluster)
        return refused(fr.RefusalCode.OTHER_CLUSTER, text)
    wrong = problem(hello.history, hello.last_lsn)
    if wrong or hello.applied_lsn > hello.last_lsn:
        return refused(fr.RefusalCode.BAD_HISTORY, f"no log has such a history: {wrong or 'applied beyond its end'}")
    alive_since_s = ctx.clock_s - ctx.settings.link_timeout_s
    is_twin = any(
        backup.name == hello.name and backup.instance != hello.instance and backup.heard_s > alive_since_s
        for backup in links
    )
    if is_twin or hello.name == ctx.settings.name:
        text = f"another broker is called {hello.name}: give each its own `name`"
        return refused(fr.RefusalCode.SAME_NAME, text)
    return None
