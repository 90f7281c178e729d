"""Somebody who relies on `watch`: looks at once, and then only when called."""

from __future__ import annotations

import threading
import time

from qpid_ha_broker.coordination.conformance.under_test import NOTES
from qpid_ha_broker.coordination.coordinator import Coordinator, CoordinatorError
from qpid_ha_broker.ha.cluster_record import ClusterRecord


class Watcher:
    """`record` and `note` are what was read after the last call; where that failed, it is tried until it does not."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator
        self._is_due = threading.Event()
        self._is_due.set()
        self._seen = threading.Condition()
        self._has_ended = False
        self.calls = 0
        self.threads: set[int] = set()
        """Which called."""
        self.record: ClusterRecord | None = None
        self.note = ""
        self._unwatch = coordinator.watch(self._called)
        threading.Thread(target=self._follow, name="watcher", daemon=True).start()

    def sees(self, record: ClusterRecord, timeout_s: float) -> bool:
        """Whether that was read within that time."""
        with self._seen:
            return self._seen.wait_for(lambda: self.record == record, timeout_s)

    def sees_note(self, text: str, timeout_s: float) -> bool:
        """The same, of the note."""
        with self._seen:
            return self._seen.wait_for(lambda: self.note == text, timeout_s)

    def unwatch(self) -> None:
        """Hear no more."""
        self._unwatch()

    def end(self) -> None:
        """Of following; the last look is over soon."""
        self._unwatch()
        self._has_ended = True
        self._is_due.set()

    def _called(self) -> None:
        self.calls += 1
        self.threads.add(threading.get_ident())
        self._is_due.set()

    def _follow(self) -> None:
        while True:
            self._is_due.wait()
            self._is_due.clear()  # what changes from now on is for the next look
            if self._has_ended:
                return
            try:
                record, note = self._coordinator.read(), self._coordinator.read_note(NOTES[0])
            except CoordinatorError:
                time.sleep(0.05)
                self._is_due.set()
                continue
            with self._seen:
                self.record, self.note = record, note
                self._seen.notify_all()
