"""Moves of messages by operators, as tests of the model carry them out."""

from __future__ import annotations

from typing import Final

from model_support import Core
from qpid_ha_broker.model.budget import Budget
from qpid_ha_broker.model.commands.moving import PORTION_MESSAGES, QueueMove

SPENT: Final = Budget(lambda: 0.0, 0.0)
"""One portion is carried out with it."""
COUNT: Final = 2 * PORTION_MESSAGES + 1
"""Messages: three portions."""


def moved(core: Core, move: QueueMove) -> QueueMove:
    """To its end."""
    core.resources.work.run()
    assert (move.written is None) is (move.failure is not None)
    core.check()
    return move
