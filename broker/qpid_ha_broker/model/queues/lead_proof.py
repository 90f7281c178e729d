"""How sure a broker may be that it still writes its resource set's log, and nobody else."""

from __future__ import annotations

from enum import Enum, auto


class LeadProof(Enum):
    """What consumers who take messages of a set's queues may be given for now."""

    ALONE = auto()
    """Whatever there is, on disk or not: the broker is in no cluster, or keeps that for itself."""
    PROVEN = auto()
    """What is committed: whoever leads next has it, this broker too when it has started anew."""
    MISSING = auto()
    """Nothing: somebody else may lead by now."""
