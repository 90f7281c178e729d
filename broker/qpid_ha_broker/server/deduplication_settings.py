"""What an operator can decide about producers that number their messages."""

from __future__ import annotations

from dataclasses import dataclass, field

from qpid_ha_broker.model.producers import DEFAULT_PRODUCERS, MOST_PRODUCERS
from qpid_ha_broker.server.setting_fields import described
from qpid_ha_broker.server.setting_kinds import count


@dataclass(frozen=True)
class DeduplicationSettings:
    """The section `deduplication`. Of a cluster, that of the primary counts."""

    producers: int = field(
        default=DEFAULT_PRODUCERS,
        metadata=described("deduplication.producers", count(0, MOST_PRODUCERS), changeable=True),
    )
    """So many are remembered; who sent nothing for longest is forgotten. 0: the annotations mean nothing."""
