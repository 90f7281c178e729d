"""Puts what happens before a core, one input at a time, and has what it wants carried out in its order.

A *core* is pure: inputs in, effects out (`ha.member`, `group.member`). It is never entered twice: what happens while
its effects are carried out waits for its turn.
"""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from qpid_ha_broker.store.errors import StoreError

log = logging.getLogger("cluster")

Action = Callable[[Any], None]
"""Carries one kind of effect out."""


class CoreLoop:
    """The promise: inputs reach the core in the order in which they happen, and effects are carried out in theirs.

    `handle`: the core's. `give_up`: called once, with the reason, where it must not go on: its store has failed, or
    there is a bug; nothing that waits is carried out then. `rests`: called when nothing is left to do.
    """

    def __init__(
        self,
        handle: Callable[[Any, float], Iterable[Any]],
        give_up: Callable[[str], None],
        rests: Callable[[], None],
    ) -> None:
        self.actions: Mapping[type, Action] = {}
        """By kind of effect."""
        self._handle = handle
        self._give_up = give_up
        self._rests = rests
        self._inputs: deque[Any] = deque()
        self._effects: Iterator[Any] = iter(())
        """What is left to do of the last input."""
        self._is_held = False
        self._is_feeding = False

    def feed(self, happened: Any) -> None:
        """Put it before the core, after all before it, and do what it wants."""
        self._inputs.append(happened)
        if not self._is_feeding and not self._is_held:
            self.go_on()

    def hold(self) -> None:
        """Of an action: until `go_on` nothing more is carried out, because what it began is not complete yet."""
        self._is_held = True

    def go_on(self) -> None:
        """Carry out what is left, and put the inputs that wait before the core, until one of the effects holds it."""
        self._is_feeding, self._is_held = True, False
        try:
            while self._carry_out_effects() and self._inputs:
                self._effects = iter(self._handle(self._inputs.popleft(), time.monotonic()))
        except StoreError as error:
            self.end(str(error))
        except Exception as error:  # whatever state the core is in now, it must not speak for this broker any more
            log.exception("a bug: %s", error)
            self.end(f"a bug in the cluster's logic ({type(error).__name__}); the log has it")
        finally:
            self._is_feeding = False
        self._rests()

    def _carry_out_effects(self) -> bool:
        """Whether all of them could be."""
        for effect in self._effects:
            self.actions[type(effect)](effect)
            if self._is_held:
                return False
        return True

    def end(self, reason: str) -> None:
        """Nothing more is put before the core, or carried out."""
        self._inputs.clear()
        self._effects = iter(())
        self._give_up(reason)
