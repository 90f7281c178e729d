"""The states of a broker, and which may follow which: a table, because a missing row is a bug that must show.

Source: seed 000, "Broker discovery and lifecycle"; docs/states.md has a paragraph for each state, and a diagram that is
drawn from `TRANSITIONS`.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

UNWRITABLE_S: Final = 2.0
"""A store that takes nothing for so long does not have a moment: another broker should lead, if one is in sync."""


class State(StrEnum):
    """What a broker is to its cluster, in the words that `qpid-ha status` prints."""

    LOADING = "loading"
    STANDALONE = "standalone"
    CONNECTING = "connecting"
    CATCHUP = "catchup"
    OBSERVER = "observer"
    READY = "ready"
    PRIMARY = "primary"
    STOPPING = "stopping"


class Phase(StrEnum):
    """Of a primary: whether backups of the last in-sync set are still waited for."""

    RECOVERING = "recovering"
    ACTIVE = "active"


class Cause(StrEnum):
    """Why a state is left."""

    LOADED = "store loaded"
    LOADED_ALONE = "store loaded, and ha.cluster is off"
    WELCOMED = "welcomed by the primary"
    CAUGHT_UP = "caught up"
    NOT_WAITED_FOR = "not waited for"
    LINK_LOST = "link lost"
    PROMOTED = "promoted"
    DEMOTED = "demoted"
    STOPPED = "stopped"


TRANSITIONS: Final[dict[tuple[State, Cause], State]] = {
    (State.LOADING, Cause.LOADED): State.CONNECTING,
    (State.LOADING, Cause.LOADED_ALONE): State.STANDALONE,
    (State.CONNECTING, Cause.WELCOMED): State.CATCHUP,
    (State.CATCHUP, Cause.CAUGHT_UP): State.READY,
    (State.CATCHUP, Cause.NOT_WAITED_FOR): State.OBSERVER,
    (State.READY, Cause.NOT_WAITED_FOR): State.OBSERVER,
    (State.OBSERVER, Cause.CAUGHT_UP): State.READY,
    (State.OBSERVER, Cause.LINK_LOST): State.CONNECTING,
    (State.CATCHUP, Cause.LINK_LOST): State.CONNECTING,
    (State.READY, Cause.LINK_LOST): State.CONNECTING,
    (State.READY, Cause.PROMOTED): State.PRIMARY,
    (State.CONNECTING, Cause.PROMOTED): State.PRIMARY,
    (State.CATCHUP, Cause.PROMOTED): State.PRIMARY,
    (State.OBSERVER, Cause.PROMOTED): State.PRIMARY,
    (State.PRIMARY, Cause.DEMOTED): State.CONNECTING,
    (State.LOADING, Cause.STOPPED): State.STOPPING,
    (State.STANDALONE, Cause.STOPPED): State.STOPPING,
    (State.CONNECTING, Cause.STOPPED): State.STOPPING,
    (State.CATCHUP, Cause.STOPPED): State.STOPPING,
    (State.OBSERVER, Cause.STOPPED): State.STOPPING,
    (State.READY, Cause.STOPPED): State.STOPPING,
    (State.PRIMARY, Cause.STOPPED): State.STOPPING,
}
"""Out of catch-up, or as an observer, a broker is promoted only by force."""


LEADING: Final = (State.PRIMARY, State.STANDALONE)
"""The states of a broker that writes its log and serves clients."""


class UnknownTransition(Exception):
    """A bug: no row of the table says what should happen; the text has the states so far."""


class StateMachine:
    """The promise: `state` changes only as `TRANSITIONS` says."""

    HISTORY_LENGTH: Final = 20

    def __init__(self, state: State) -> None:
        self.state = state
        self.history: list[str] = [state.value]

    def move(self, cause: Cause) -> tuple[State, State]:
        """Before and after. Raises UnknownTransition."""
        before = self.state
        after = TRANSITIONS.get((before, cause))
        if after is None:
            raise UnknownTransition(f"{before} does not know {cause.value!r}; so far: {' '.join(self.history)}")
        self.state = after
        self.history = [*self.history, f"-({cause.value})-> {after}"][-self.HISTORY_LENGTH :]
        return before, after


def diagram() -> str:
    """The table as a Mermaid diagram, for docs/states.md."""
    rows = [f"    {before} --> {after}: {cause.value}" for (before, cause), after in TRANSITIONS.items()]
    return "\n".join(["stateDiagram-v2", *rows])
