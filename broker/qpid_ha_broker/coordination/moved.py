"""A coordinator that may have moved elsewhere: whoever finds a pointer in place of the record goes on where it leads.

A pointer is a record whose cluster says so: `moved:UUID:URL`. While a cluster moves from A to B (`qpid-ha coordinator
migrate`), in this order:

1. B holds a pointer to A. So who is told of B already is led to A, which holds the record.
2. A's record becomes a pointer to B by compare-and-set, with the record's numbers and names in it. From then on nothing
   is confirmed at A; for a moment both point to each other, and whoever reads waits.
3. B's pointer becomes the record.

Leases at A count as lost from the moment when their holder has seen the pointer.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Final, NamedTuple

from qpid_ha_broker.coordination.coordinator import PRIMARY_LEASE, Coordinator, CoordinatorError, Lease
from qpid_ha_broker.ha.cluster_record import ClusterRecord
from qpid_ha_config.coordinator import CoordinatorUrl
from qpid_ha_config.errors import SettingsError
from qpid_ha_config.settings import CoordinatorSettings

log = logging.getLogger("coordinator")

_MARK: Final = "moved:"
_UNDER_WAY_S: Final = 2.0
"""Two pointers that lead to each other are waited for so long."""
_LOOK_S: Final = 0.02

OpenOne = Callable[[CoordinatorSettings], Coordinator]


class Pointer(NamedTuple):
    """Where a cluster's record is; `record` is what was there in its place, empty if nothing was."""

    url: str
    record: ClusterRecord


def encode_pointer(url: str, record: ClusterRecord) -> ClusterRecord:
    """A record that holds both."""
    return record._replace(cluster=f"{_MARK}{record.cluster}:{url}")


def decode_pointer(record: ClusterRecord) -> Pointer | None:
    """The inverse; None for a record that is none."""
    if not record.cluster.startswith(_MARK):
        return None
    cluster, _, url = record.cluster.removeprefix(_MARK).partition(":")
    return Pointer(url, record._replace(cluster=cluster))


class _Watch:
    """One `watch`, wherever the coordinator is."""

    def __init__(self, changed: Callable[[], None]) -> None:
        self.changed = changed
        self.end: Callable[[], None] = lambda: None


class MovingCoordinator:
    """The promise: nothing that it confirms was written where the record is no more."""

    def __init__(self, settings: CoordinatorSettings, open_one: OpenOne) -> None:
        self._settings = settings
        self._open_one = open_one
        self._url = str(settings.url)
        self._opened = {self._url: open_one(settings)}
        """By URL; those that were left stay open, because other threads may be in the middle of a call."""
        self._mutex = threading.RLock()
        self._watches: list[_Watch] = []
        self._is_look_due = True
        """The record may have become a pointer since it was read last."""

    @property
    def look_interval_s(self) -> float:
        """Of where it is."""
        return self.current.look_interval_s

    @property
    def current(self) -> Coordinator:
        """Where the record was when it was read last."""
        with self._mutex:
            return self._opened[self._url]

    def read(self) -> ClusterRecord:
        """The record, wherever it is. Raises CoordinatorError."""
        until_s = time.monotonic() + _UNDER_WAY_S
        visited: list[Coordinator] = []
        while True:
            current = self.current
            self._is_look_due = False  # what changes from now on is for the next look
            try:
                record = current.read()
            except CoordinatorError:
                self._is_look_due = True
                raise
            pointer = decode_pointer(record)
            if pointer is None:
                return record
            if current in visited:
                if time.monotonic() > until_s:
                    raise CoordinatorError(
                        f"the coordinator is being moved between {self._url} and {pointer.url}, and whoever did that "
                        "was interrupted: repeat `qpid-ha coordinator migrate` with the same words"
                    )
                time.sleep(_LOOK_S)
            visited.append(current)
            self._go(current, pointer.url)

    def compare_and_set(self, expected: ClusterRecord, wanted: ClusterRecord) -> tuple[bool, ClusterRecord]:
        """Where the record is. Raises CoordinatorError."""
        while True:
            current = self.current
            done, there = current.compare_and_set(expected, wanted)
            if done or decode_pointer(there) is None:
                return done, there
            self.read()

    def read_note(self, name: str) -> str:
        """Where the record is. Raises CoordinatorError."""
        if self._is_look_due:
            self.read()
        return self.current.read_note(name)

    def replace_note(self, name: str, expected: str, wanted: str) -> bool:
        """Where the record is before and afterwards. Raises CoordinatorError."""
        self.read()
        while True:
            current = self.current
            done = current.replace_note(name, expected, wanted)
            self.read()
            if current is self.current:
                return done
            if done and self.current.read_note(name) == wanted:  # it was copied
                return True

    def watch(self, changed: Callable[[], None]) -> Callable[[], None]:
        """Wherever it is, and when it moves."""
        watch = _Watch(changed)
        with self._mutex:
            self._watches.append(watch)
            watch.end = self.current.watch(partial(self._heard, watch))
        return partial(self._unwatch, watch)

    def lease(self, holder: str, name: str = PRIMARY_LEASE) -> Lease:
        """Raises CoordinatorError where it has none to give."""
        return MovingLease(self, holder, name)

    def close(self) -> None:
        """Of wherever it was."""
        with self._mutex:
            for coordinator in self._opened.values():
                coordinator.close()

    def _heard(self, watch: _Watch) -> None:
        self._is_look_due = True
        watch.changed()

    def _unwatch(self, watch: _Watch) -> None:
        with self._mutex:
            if watch in self._watches:
                self._watches.remove(watch)
            watch.end()

    def _go(self, origin: Coordinator, url: str) -> None:
        """From `origin`, unless another thread was faster. Raises CoordinatorError."""
        with self._mutex:
            if self.current is not origin:
                return
            if url not in self._opened:
                self._opened[url] = self._open(url)
                log.warning("the coordinator has moved to %s: change ha.coordinator in the configuration", url)
            self._url = url
            for watch in self._watches:
                watch.end()
                watch.end = self.current.watch(partial(self._heard, watch))
            callbacks = [watch.changed for watch in self._watches]
        for changed in callbacks:
            changed()

    def _open(self, url: str) -> Coordinator:
        try:
            return self._open_one(replace(self._settings, url=CoordinatorUrl.parse(url)))
        except (SettingsError, ValueError) as error:
            raise CoordinatorError(f"the coordinator has moved to {url}, which cannot be used here: {error}") from None


class MovingLease:
    """The promise: it is held only where the record is, as far as its holder knows."""

    def __init__(self, coordinator: MovingCoordinator, holder: str, name: str) -> None:
        self._coordinator = coordinator
        self._holder = holder
        self._name = name
        self._place = coordinator.current
        self._lease = self._place.lease(holder, name)

    def try_lock(self) -> bool:
        """Where the record is. Raises CoordinatorError."""
        self._follow()
        return self._lease.try_lock()

    def acquire(self, cancel: threading.Event) -> bool:
        """Wait where the record is, and go on elsewhere if it has moved. Raises CoordinatorError.

        Who waits for somebody at the old place is let in there once that one has seen the pointer.
        """
        while True:
            self._follow()
            try:
                is_ours = self._lease.acquire(cancel)
            except CoordinatorError:
                if self._is_here():
                    raise
                continue
            if not is_ours:
                return False
            try:
                self._coordinator.read()
            except CoordinatorError:
                self._lease.release()
                raise
            if self._is_here():
                return True

    def is_held(self) -> bool:
        """Never where the record is no more."""
        return self._is_here() and self._lease.is_held()

    def renew(self) -> None:
        """Raises CoordinatorError."""
        if self._is_here():
            self._lease.renew()

    def last_renewal(self) -> str:
        """Raises CoordinatorError."""
        self._follow()
        return self._lease.last_renewal()

    def holder(self) -> str:
        """Raises CoordinatorError."""
        self._follow()
        return self._lease.holder()

    def release(self) -> None:
        """Wherever it is held."""
        self._lease.release()

    def _is_here(self) -> bool:
        return self._place is self._coordinator.current

    def _follow(self) -> None:
        """Raises CoordinatorError."""
        if not self._is_here():
            self._lease.release()
            self._place = self._coordinator.current
            self._lease = self._place.lease(self._holder, self._name)
