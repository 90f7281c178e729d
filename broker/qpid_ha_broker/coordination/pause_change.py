"""Beginning and ending a pause of all agents: one note replaces another, whoever else does so at the same time."""

from __future__ import annotations

from typing import Final

from qpid_ha_broker.coordination.coordinator import Coordinator
from qpid_ha_broker.coordination.pause import PAUSE_NOTE, Pause, decode_pause

ATTEMPTS: Final = 5
"""Of two operators at once, one is later."""


class PauseContended(Exception):
    """Somebody else changes the pause again and again."""


def replace_pause(coordinator: Coordinator, note: str) -> Pause | None:
    """Have `note` be the pause (empty: there is none); the one before. Blocks.

    Raises CoordinatorError, PauseContended.
    """
    for _ in range(ATTEMPTS):
        before = coordinator.read_note(PAUSE_NOTE)
        if before == note or coordinator.replace_note(PAUSE_NOTE, before, note):
            return decode_pause(before)
    problem = "somebody else changes the pause at the same time: look at `qpid-ha status`, and try again"
    raise PauseContended(problem)
