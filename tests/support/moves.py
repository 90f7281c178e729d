"""Moves of messages by operators, as tests of the model carry them out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from model_support import Core, TextReader
from qpid_ha_broker.model.budget import Budget
from qpid_ha_broker.model.commands.moving import PORTION_MESSAGES, QueueMove
from qpid_ha_broker.model.sets.resources import Resources

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


def backups_that_end_behind(core: Core, count: int) -> Iterator[Resources]:
    """A backup for each place behind so many records at which the log of one may end when it leads next."""
    for cut in range(count, len(core.records) + 1):
        backup = Resources(TextReader())
        for record in core.records[:cut]:
            backup.replicated.follow([record])
        backup.replicated.drop_open_unit()
        yield backup
