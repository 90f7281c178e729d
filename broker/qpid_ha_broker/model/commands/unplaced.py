"""What commands on a group have submitted, and what does not count yet: nobody may be told that it is there, or gone.

| what was submitted is | whoever asks for it meanwhile |
| --- | --- |
| on its way | is told so (`BeingMade`), and what to wait for; nothing is submitted twice |
| there | finds it |
| skipped | is told why, once; who asks again submits anew |
| lost with this member's part in the group | submits anew |
"""

from __future__ import annotations

from typing import Final

from qpid_ha_broker.model.errors import BeingMade, NotPrimary, fresh
from qpid_ha_broker.model.logs.log import Commitment

MAX_AWAITED: Final = 1000
"""Names, but for those that are on their way: of the others, the oldest are forgotten."""


class UnplacedNames:
    """The promise: what is on its way under a name is submitted once."""

    def __init__(self) -> None:
        self._awaited: dict[str, Commitment] = {}

    def submitted(self, name: str, written: Commitment) -> BeingMade:
        """Something of that name was asked for."""
        if len(self._awaited) >= MAX_AWAITED:
            self._awaited = {name: awaited for name, awaited in self._awaited.items() if _is_on_its_way(awaited)}
        self._awaited[name] = written
        return _being_made(name, written)

    def check(self, name: str) -> None:
        """Nothing of that name is there. Raises BeingMade while it is on its way, and then why it did not come."""
        awaited = self._awaited.get(name)
        if awaited is None:
            return
        if _is_on_its_way(awaited):
            raise _being_made(name, awaited)
        del self._awaited[name]  # it came, and is gone again; or it failed
        failure = awaited.failure
        if failure is not None and not isinstance(failure, NotPrimary):  # nobody here knows what became of it
            raise fresh(failure)


def _is_on_its_way(written: Commitment) -> bool:
    return written.failure is None and not written.is_committed


def _being_made(name: str, written: Commitment) -> BeingMade:
    return BeingMade(f"{name} is being made: ask again", written)
