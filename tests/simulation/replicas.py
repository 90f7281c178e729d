"""What all replicas of a set have in common at rest."""

from __future__ import annotations

from model_support import replicated_picture
from qpid_ha_broker.ha.member import Member
from qpid_ha_broker.model.sets.resources import Resources


def replica_picture(member: Member, resources: Resources) -> dict[str, object]:
    """What must be the same everywhere. When and why a generation began is told only to who was there; to which other
    queues a message came, who has restarted may not know."""
    generations = [(entry["generation"], entry["primary"], entry["first_lsn"]) for entry in member.history()]
    return {
        **replicated_picture(resources.sets, any_restarted=True),
        "generations": generations,
        "lsn": resources.replicated.log.last_lsn,
    }


def first_difference(one: dict[str, object], other: dict[str, object]) -> str:
    """In what they differ, first; empty: in nothing."""
    return next((what for what in one if one[what] != other[what]), "")
