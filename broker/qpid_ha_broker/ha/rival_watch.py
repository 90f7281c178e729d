"""What a primary knows of brokers at its addresses that lead another cluster, or go by another coordinator.

`other_coordinators` has the rules.
"""

from __future__ import annotations

from collections.abc import Sequence

from qpid_ha_broker.ha.context import MemberContext
from qpid_ha_broker.ha.frames import Answer
from qpid_ha_broker.ha.other_coordinators import describe, least_in_sync, with_another
from qpid_ha_broker.ha.primary import Primary
from qpid_ha_broker.ha.states import State
from qpid_ha_broker.model.logs.log import DEFAULT_SET


class RivalWatch:
    """The promise: while somebody is known to lead another cluster at an address of this one, nothing is confirmed
    unless more than half of the brokers are in sync. One for each generation that this broker leads."""

    def __init__(self, ctx: MemberContext, primary: Primary) -> None:
        self._ctx = ctx
        self._primary = primary
        self._rivals: dict[str, Answer] = {}
        """Who leads another cluster, by name, until it says that it does not, or all answer and it is not there."""
        self._others: dict[str, Answer] = {}
        """Who goes by another coordinator; until then, too."""
        self.problem = ""
        """What is wrong, with what to do; empty: nothing, as far as is known."""

    @property
    def has_rival(self) -> bool:
        """Whether somebody leads another cluster."""
        return bool(self._rivals)

    def heard(self, answers: Sequence[Answer], cluster: str, *, are_all_here: bool) -> None:
        """Others have answered. `cluster`: of this broker's log."""
        rivals = [each for each in answers if each.cluster not in ("", cluster) and each.state == State.PRIMARY]
        others = with_another(self._ctx.coordinator, answers)
        here = {each.name for each in answers}
        if are_all_here:
            here |= self._rivals.keys() | self._others.keys()
        self._rivals = {name: each for name, each in self._rivals.items() if name not in here}
        self._rivals |= {each.name: each for each in rivals}
        self._others = {name: each for name, each in self._others.items() if name not in here}
        self._others |= {each.name: each for each in others}
        self._tell(cluster)

    def forget(self, cluster: str) -> None:
        """An operator says that nobody else leads: until somebody says otherwise."""
        self._rivals.clear()
        self._tell(cluster)

    def _require(self, least: int) -> None:
        in_sync = self._primary.in_sync
        if least != in_sync.least_beside_rival:
            in_sync.require_beside_rival(least)
            self._primary.settings_changed()
            self._primary.advance()

    def _tell(self, cluster: str) -> None:
        settings = self._ctx.settings
        # Of another set the older one is set aside by itself.
        is_split = bool(self._rivals) and self._ctx.resource_set.name == DEFAULT_SET
        self._require(least_in_sync(len(settings.addresses)) if is_split else 0)
        problems = []
        if self._rivals:
            brokers = " and ".join(f"{name} (cluster {self._rivals[name].cluster})" for name in sorted(self._rivals))
            problems.append(settings.keeper.foreign_primary.format(brokers=brokers, ours=cluster))
        if self._others:
            problems.append(
                describe(self._ctx.coordinator, [self._others[name] for name in sorted(self._others)], settings.keeper)
            )
        problem = "; ".join(problems)
        if problem != self.problem:
            self.problem = problem
            self._ctx.is_status_stale = True
            self._ctx.note(
                "error" if problem else "info",
                problem or "nobody leads another cluster, or by another record, any more",
            )
