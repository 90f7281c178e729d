"""Letting go of what is no more in portions: to free the memory of a hundred thousand objects takes long."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from qpid_ha_broker.model.budget import UNLIMITED, Budget

PORTION_LENGTH: Final = 500
"""Objects that are let go of together."""


class Garbage:
    """What nobody uses any more, taken apart piece by piece."""

    def __init__(self) -> None:
        self._pieces: list[Iterator[None]] = []

    def __bool__(self) -> bool:
        return bool(self._pieces)

    def add(self, pieces: Iterator[None]) -> None:
        """`pieces` lets go of some hundred objects whenever it is asked for the next."""
        self._pieces.append(pieces)

    def go_on(self, budget: Budget = UNLIMITED) -> None:
        """Let go of a portion at least, and of all as long as `budget` is not spent."""
        while self._pieces:
            if next(self._pieces[-1], _END) is _END:
                self._pieces.pop()
            if budget.is_spent:
                break


_END: Final = object()


def emptied(collection: dict[Any, Any] | list[Any]) -> Iterator[None]:
    """Lets go of all that `collection` holds, in portions."""
    drop: Callable[[], object] = collection.popitem if isinstance(collection, dict) else collection.pop
    while collection:
        for _ in range(min(len(collection), PORTION_LENGTH)):
            drop()
        yield
