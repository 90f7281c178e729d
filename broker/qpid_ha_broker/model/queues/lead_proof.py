"""How sure a broker may be that it still writes its resource set's log, and nobody else."""

from __future__ import annotations

from enum import Enum, auto


class LeadProof(Enum):
    """What consumers who take messages of a set's queues may be given for now."""

    PROVEN = auto()
    """Whatever there is."""
    COMMITTING = auto()
    """What is committed: that takes long, and goes on."""
    MISSING = auto()
    """Nothing: somebody else may lead by now."""
