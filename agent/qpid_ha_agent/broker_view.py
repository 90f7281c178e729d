"""What an agent has heard from one broker process, and for how long it has heard nothing. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from qpid_ha_broker.ha.states import State

if TYPE_CHECKING:
    from qpid_ha_broker.ha.cluster_record import ClusterRecord

MOST = 0.5
"""Of a silence."""
OBSERVER_PAUSE_S = 5.0
"""Longer than a failover takes."""


class BrokerView:
    """`state` is what the broker answered last; an answer to a question that is older than what we know is ignored."""

    def __init__(self, started_at_s: float = 0.0) -> None:
        self.state: State | None = None
        self.has_data = False
        self._observed_until_s: float | None = None
        """When it was last known to observe, if it has had no other part than that and looking for a primary since."""
        self._generation: int | None = 0
        """The newest in its log; None: it has changed since the last answer."""
        self.is_shut_down = False
        """It ends because the whole cluster is shut down."""
        self.store_problem = ""
        """Why its store takes nothing; empty: it does."""
        self._unwritable_since_s = 0.0
        self.is_alone = False
        """Nobody else is in sync, by its own log."""
        self.primary = ""
        """Who the broker says is primary; empty when it knows none, or is it."""
        self._unanswered_since_s: float | None = started_at_s
        self._known_since_s = started_at_s
        self._worked_s = self._worked_before_s = 0.0

    @property
    def generation(self) -> int | None:
        """The newest in its log; None: not asked since that has changed."""
        return self._generation

    def silent_s(self, now_s: float) -> float:
        """How long the oldest question without an answer has been asked."""
        return 0.0 if self._unanswered_since_s is None else max(0.0, now_s - self._unanswered_since_s)

    def unwritable_s(self, now_s: float) -> float:
        """How long its store has taken nothing, as it said last; 0: it does."""
        return max(0.0, now_s - self._unwritable_since_s) if self.store_problem else 0.0

    def is_disowned(self, name: str, record: ClusterRecord | None) -> bool:
        """Whether the broker, `name`, says that it is primary, and the record another one, of a newer generation."""
        if self.state is not State.PRIMARY or self._generation is None or record is None:
            return False
        return record.primary != name and record.generation > self._generation

    def ask(self, now_s: float) -> None:
        """A question goes out."""
        if self._unanswered_since_s is None:
            self._unanswered_since_s = now_s

    def answer_otherwise(self) -> None:
        """The broker said something, though not how it is: its process has its turns, and is not to be taken for one
        that hangs."""
        self._unanswered_since_s = None

    def note_work(self, worked_s: float) -> None:
        """How long the process has had a processor, or waited for one, in all its life."""
        self._worked_s = worked_s
        if self._unanswered_since_s is None:
            self._worked_before_s = worked_s

    def is_working(self, now_s: float) -> bool:
        """Whether it did so for most of its silence."""
        return self._worked_s - self._worked_before_s > self.silent_s(now_s) * MOST

    def answer(self, status: object, asked_at_s: float) -> None:
        """What `status` answered to a question of `asked_at_s`; what cannot be understood is no answer."""
        if not isinstance(status, dict) or status.get("state") not in list(State):
            return
        self._unanswered_since_s = None
        if asked_at_s < self._known_since_s:
            return
        self.state = State(status["state"])
        if self.state is State.OBSERVER:
            self._observed_until_s = asked_at_s
        elif self.state is not State.CONNECTING:
            self._observed_until_s = None
        lsn, primary = status.get("lsn"), status.get("primary")
        self.has_data = isinstance(lsn, int) and lsn > 0
        generation = status.get("generation")
        self._generation = generation if isinstance(generation, int) else 0
        problem, unwritable_s = status.get("store_problem"), status.get("unwritable_s")
        self.store_problem = problem if isinstance(problem, str) else ""
        members = status.get("members")
        self.is_alone = isinstance(members, list) and len(members) < 2
        self._unwritable_since_s = asked_at_s - (unwritable_s if isinstance(unwritable_s, int | float) else 0.0)
        self.primary = primary if isinstance(primary, str) and self.state is not State.PRIMARY else ""

    def pause_s(self, now_s: float) -> float:
        """How long others shall have to be promoted: this broker was not in sync, and would hardly be."""
        return 0.0 if self._observed_until_s is None else max(0.0, self._observed_until_s + OBSERVER_PAUSE_S - now_s)

    def hear(self, event: object) -> None:
        """A notification of `events`: what comes as the broker's last words counts even if nobody asked."""
        params = event.get("params") if isinstance(event, dict) else None
        if isinstance(params, dict) and params.get("shut_down") is True:
            self.is_shut_down = True

    def assume(self, state: State, now_s: float) -> None:
        """A request succeeded: so it is, whatever was answered to a question that was asked before."""
        self.state, self._known_since_s, self._generation = state, now_s, None
        self._unanswered_since_s = None

    def forgive(self, now_s: float) -> None:
        """Count a silence from now on."""
        self._worked_before_s = self._worked_s
        if self._unanswered_since_s is not None:
            self._unanswered_since_s = now_s
