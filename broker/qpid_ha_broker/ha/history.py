"""Generation histories: which primary wrote which stretch of a log, and how far two logs are the same.

Two logs are the same as long as their generations, primaries and first LSNs are, and none of those generations is known
to have begun twice; within the last common generation up to where the shorter log ends. A generation begins twice if
its primary's store is put back to before it, and no coordinator remembers. LSNs are compared only within one generation
of one primary, which is why neither a number that is used twice nor 64 bits can ever run over into something wrong.

Source: KIP-101 (leader epochs); seed 000, LM1 and LM2.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from qpid_ha_broker.ha.frames import GenerationEntry, LogPosition

History = Sequence[GenerationEntry]
PROMOTED_BY: Final = "promoted by "
SWITCHOVER_FROM: Final = "switchover from "
"""How the cause of a generation begins that somebody asked for, or that a primary has handed over to."""


def was_asked_for(cause: str, *, forced: bool) -> bool:
    """Whether a generation began because an operator wanted it, or as a planned move; False: as a failover, or nobody
    has told why it began."""
    return forced or cause.startswith((PROMOTED_BY, SWITCHOVER_FROM))


def began_apart(mine: Sequence[int], theirs: Sequence[int]) -> int | None:
    """Index of the first generation of two logs that began at two different times; None: of no one is that known.

    A time is in ms; 0: it is not known when that generation began.
    """
    times = enumerate(zip(mine, theirs, strict=False))
    return next((at for at, (ours, others) in times if ours and others and ours != others), None)


def common_lsn(mine: History, my_last: int, theirs: History, their_last: int, apart: int | None = None) -> int:
    """The last LSN up to which both logs hold the same; 0 when they share nothing.

    `apart`: the first generation that cannot be the same, though it may look so.
    """
    shared = 0
    for ours, others in zip(mine[:apart], theirs, strict=False):
        if ours != others:
            break
        shared += 1
    if not shared:
        return 0
    return min(_end(mine, shared, my_last), _end(theirs, shared, their_last))


def _end(history: History, shared: int, last_lsn: int) -> int:
    """Where the last of the `shared` generations ends."""
    return history[shared].first_lsn - 1 if shared < len(history) else last_lsn


def problem(history: History, last_lsn: int) -> str:
    """Why no log can have this history; empty when one can."""
    generation, lsn = 0, 0
    for entry in history:
        if entry.generation <= generation:
            return f"generation {entry.generation} follows generation {generation}"
        if entry.first_lsn <= lsn:
            return f"generation {entry.generation} begins at LSN {entry.first_lsn}, not after LSN {lsn}"
        if not entry.primary:
            return f"generation {entry.generation} has no primary"
        generation, lsn = entry.generation, entry.first_lsn
    if last_lsn < lsn:
        return f"the log ends at LSN {last_lsn}, before its last generation begins at LSN {lsn}"
    if last_lsn and not history:
        return f"the log ends at LSN {last_lsn}, but nobody wrote it"
    return ""


def newest(history: History) -> int:
    """The last generation; 0 for an empty log."""
    return history[-1].generation if history else 0


class Logged(Protocol):
    """Whatever tells of a log."""

    @property
    def generation(self) -> int:
        """The newest in it; 0: it is empty."""

    @property
    def lsn(self) -> int:
        """Of its last event."""


def log_end(log: Logged) -> LogPosition:
    """Where the log ends that `log` tells of; the greatest goes furthest. The one order for the promotion verdict, for
    stores (`StoreFacts.position`), for the agents' election, and for the controller's choice, which asks for more only
    of those that are level: who is preferred, and who leads fewest sets.

    A generation has one log, of which each broker holds a beginning. The epoch of the in-sync set that a broker knows
    of is no part of the order: it says what that broker has heard to be certain, and of two that hold the same one may
    have heard less.
    """
    return LogPosition(log.generation, log.lsn)
