"""How sure a broker may be that it still writes its resource set's log, and nobody else."""

from __future__ import annotations

from enum import Enum, auto


class LeadProof(Enum):
    """What consumers who take messages of a set's queues may be given for now."""

    ALONE = auto()
    """Whatever there is: nobody could lead instead."""
    PROVEN = auto()
    """What is committed: whoever leads next has it."""
    MISSING = auto()
    """Nothing: somebody else may lead by now."""
