"""A human with docs/runbooks in hand: decides when brokers honestly refuse, and only then."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, Protocol, TypeVar

from qpid_ha_broker.ha.cluster_record import ClusterRecord
from qpid_ha_broker.ha.effects import Input, PromoteAsked
from qpid_ha_broker.ha.frames import LogPosition, StoreOrigin
from qpid_ha_broker.ha.member import Member
from qpid_ha_broker.ha.states import State
from simulation.violations import Violation

LOOKS_BEFORE_FORCE = 10


class OperatedNode(Protocol):
    """A broker, as an operator sees it."""

    name: str

    @property
    def member(self) -> Member:
        """Of the set that nobody leads."""

    def ask_for(self, make: Callable[[int], Input], answered: Callable[[bool, str], None]) -> None:
        """An operator's request."""


Node = TypeVar("Node", bound=OperatedNode)


class Operator(Generic[Node]):
    """Overrides a refusal by all brokers, for the best of them. What that one lacks is given up; `given_up` is told so.

    Where nothing was damaged, brokers that have their stores back have no right to refuse: that is a Violation.
    """

    def __init__(
        self,
        nodes: Sequence[Node],
        has_store: bool,
        has_promises: Callable[[], bool],
        is_damaged: Callable[[], bool],
        given_up: Callable[[Node], None],
        settled: Callable[[Node], None],
        set_aside: Callable[[Node], None],
        set_rival_aside: Callable[[Node], None],
        record: Callable[[], ClusterRecord],
        delete_record: Callable[[], None],
    ) -> None:
        self._nodes = nodes
        self._has_store = has_store
        self._has_promises = has_promises
        self._is_damaged = is_damaged
        self._given_up = given_up
        self._set_aside = set_aside
        """For a store that is of another cluster; Raises Violation where none was put back."""
        self._set_rival_aside = set_rival_aside
        """For a primary that the record no longer names. Raises Violation where none was put back."""
        self._record = record
        self._delete_record = delete_record
        """For one that is of another cluster; Raises Violation where none was damaged."""
        self.settled = settled
        """To be called when the promotion of whomever `choose` chose was answered."""
        self._have_all_refused = False
        self._looks_at_problem = self._looks_at_rival = 0

    def look_at_rivals(self, leading: Sequence[Node]) -> None:
        """Two lead, the record names one of them, and the other one says that it cannot replace that."""
        record = self._record()
        others = [
            node
            for node in leading
            if (node.name, node.member.status.generation) != (record.primary, record.generation)
        ]
        rival = others[0] if len(leading) == 2 and len(others) == 1 and others[0].member.status.problem else None
        self._looks_at_rival = self._looks_at_rival + 1 if rival is not None else 0
        if rival is not None and self._looks_at_rival >= LOOKS_BEFORE_FORCE:
            self._looks_at_rival = 0
            self._set_rival_aside(rival)

    def look_at_primary(self, primary: Node, healthy: int) -> None:
        """It may say that it cannot replace a lost record, because of somebody who was in sync. All are here again, and
        it says so still: then that one's memory is gone for good."""
        is_everybody_here = healthy == len(self._nodes)
        is_stuck = is_everybody_here and primary.member.status.problem
        self._looks_at_problem = self._looks_at_problem + 1 if is_stuck else 0
        if self._looks_at_problem >= LOOKS_BEFORE_FORCE:
            self._looks_at_problem = 0
            if self._deletes_record_before(primary):
                return
            self._given_up(primary)
            primary.ask_for(lambda request: PromoteAsked(request, force=True), lambda done, text: None)

    def forget_refusals(self) -> None:
        """Somebody leads, or somebody has died: that all have refused means nothing any more."""
        self._have_all_refused = False

    def choose(self, candidates: list[Node], holders: list[Node], refusals: list[str]) -> Node | None:
        """Whom to promote by force; None: nobody yet, ask them all again. `holders`: of the last in-sync set."""
        if self._has_store and self._has_promises():
            return self._choose_with_stores(candidates, refusals)
        with_data = [node for node in candidates if node.member.status.generation]
        if not with_data and len(candidates) < len(self._nodes):
            return None  # whoever is out of sight may hold something: an empty one would begin a cluster of its own
        best = _best(holders or candidates)
        if self._deletes_record_before(best):
            return None
        if not holders:
            self._given_up(best)
        return best

    def _deletes_record_before(self, leading: Node) -> bool:
        """A record of a cluster that came to nothing; there is no other one that uses this coordinator."""
        if not _cluster_of(leading) or self._record().cluster in ("", _cluster_of(leading)):
            return False
        self._delete_record()
        return True

    def _choose_with_stores(self, candidates: list[Node], refusals: list[str]) -> Node | None:
        """Once all stores are back, one of them may lead, unless something was damaged.

        But for a cluster whose first primary lost its power before its first write, and which has promised nothing. Who
        follows a primary whose machine lost its power takes a while to notice.
        """
        are_all_back = len(candidates) == len(self._nodes)
        might_lead = are_all_back and not any(node.member.status.state is State.CATCHUP for node in candidates)
        if not (self._have_all_refused and might_lead):
            self._have_all_refused = might_lead
            return None
        if not self._is_damaged():
            raise Violation(f"nobody may lead, though all stores are back: {refusals}")
        best = _best(candidates)
        strangers = [node for node in candidates if _cluster_of(node) not in ("", _cluster_of(best))]
        for node in strangers:
            self._set_aside(node)
        if strangers or self._deletes_record_before(best):
            return None
        self._given_up(best)
        return best


def _cluster_of(node: OperatedNode) -> str:
    return node.member.status.cluster


def _best(nodes: Sequence[Node]) -> Node:
    """One with data that does not say that it lacks messages; among those the highest generation, then the highest
    position, then one that was not restarted."""

    def rank(node: Node) -> tuple[bool, bool, LogPosition, bool]:
        member = node.member
        return (
            bool(member.status.generation),
            member.answer().complete,
            member.position,
            member.status.store is StoreOrigin.MEMORY,
        )

    return max(nodes, key=rank)
