"""Whether an operator has all agents pause, for this broker's `status`: the coordinator knows."""

from __future__ import annotations

import logging
import threading
import time
from datetime import UTC, datetime
from typing import Final

from qpid_ha_broker.coordination.coordinator import Coordinator, CoordinatorError
from qpid_ha_broker.coordination.pause import PAUSE_NOTE, Pause, PauseView, encode_pause
from qpid_ha_broker.coordination.pause_change import replace_pause

log = logging.getLogger("coordinator")

LOOK_S: Final = 60.0
"""How often to look by ourselves: the coordinator says when a note has changed."""
RETRY_S: Final = 5.0


class PauseWatch:
    """What was read last, in a thread of its own, because a coordinator may hang. It decides nothing here."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator
        self._view = PauseView()
        self._is_due = threading.Event()
        self._is_ended = False

    def start(self) -> None:
        """Begin to look. A daemon: a coordinator that hangs must not keep the process from ending."""
        threading.Thread(target=self._look_forever, name="pause-watch", daemon=True).start()

    def stop(self) -> None:
        """Look no more."""
        self._is_ended = True
        self._is_due.set()

    def now(self) -> Pause | None:
        """The pause that is in force, by this machine's clock."""
        return self._view.at(datetime.now(UTC), time.monotonic())

    def replace(self, pause: Pause | None) -> Pause | None:
        """Begin this pause, or end the one there is; what it was. Blocks: not on the loop.

        Raises CoordinatorError, PauseContended.
        """
        note = "" if pause is None else encode_pause(pause)
        before = replace_pause(self._coordinator, note)
        self._view.note(note, time.monotonic())
        self._is_due.set()
        return before

    def _look_forever(self) -> None:
        stop_watching = self._coordinator.watch(self._is_due.set)
        while not self._is_ended:
            self._is_due.clear()
            try:
                self._view.note(self._coordinator.read_note(PAUSE_NOTE), time.monotonic())
                wait_s = LOOK_S
            except CoordinatorError as error:  # what was known stays; who needs the record says it louder
                log.debug("%s", error)
                wait_s = RETRY_S
            self._is_due.wait(wait_s)
        stop_watching()
