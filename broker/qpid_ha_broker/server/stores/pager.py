"""Gives paging its turns: files are read in threads, what it does to messages is cut into slices of a few milliseconds.

Wanted: a broker whose backlog is larger than its memory, and clients that notice nothing of it but that a consumer of
old messages waits for the disk now and then. So the loop itself never reads a payload, and never works on paging for
longer than a slice.

A snapshot that was not read at the start is read once soon after, block by block: damage shows then, and not when a
consumer comes to it. Its index is removed, so the next start reads all of it, refuses it, and says what to do.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final

from qpid_ha_broker.model.paging import BodyPiece, BodyRequest, Paging, StretchRequest, Tally
from qpid_ha_broker.model.queues.paged import BodyDamaged, BodyRef, read_bodies
from qpid_ha_broker.model.sets.catalog import Catalog
from qpid_ha_broker.store.bodies import Bodies, is_before
from qpid_ha_broker.store.errors import StoreError
from qpid_ha_broker.store.layout import snapshot_path

log = logging.getLogger("store")

SLICE_S: Final = 0.002
FAR: Final = 1.25
"""Times the memory that may be used: beyond it publishers are outrunning us, and a slice is four times as long."""
PAUSE_S: Final = 1.0
PAUSE_S_MAX: Final = 60.0
"""When going through a file gained little, nothing is gone through again for a while, and then for a longer one."""
THREADS: Final = 2
"""That read, of a broker: more would only have the disk look in more places."""
RETRY_S: Final = 0.2
"""Between two attempts to read without file descriptors."""
CHECK_PAUSE_S: Final = 0.005
"""Between two blocks of a snapshot that is looked through: 1 MiB each, while others wait for the same disk."""
_CHECKED: Final = "checked"
"""Instead of a next block."""
WORTHWHILE_BYTES: Final = 64 * 1024
"""For less than this no file is read again."""


class Pager:
    """The promise: the loop never waits for a payload, and no message is given out before its payload is here.

    Everything is called on the loop's thread. `damaged` hears of each message that cannot be read back: that one stays
    in its place, and with it all that is behind it, so whoever hears should see to it that another broker takes over.
    """

    def __init__(
        self,
        catalog: Catalog,
        bodies: Bodies,
        memory_bytes: int,
        schedule_turn: Callable[[], None],
        damaged: Callable[[BodyDamaged], None],
        threads: ThreadPoolExecutor | None = None,
    ) -> None:
        """`threads`: those in which files are read, shared with the pagers of other sets; None: some of its own."""
        self.paging = Paging(catalog, memory_bytes)
        self._catalog = catalog
        self._bodies = bodies
        self._schedule_turn = schedule_turn
        self._damaged = damaged
        self._threads = ThreadPoolExecutor(THREADS, "pager") if threads is None else threads
        self._has_own_threads = threads is None
        self._replaced = 0
        """Files before that number are no more."""
        self._known: set[str] = set()
        """Files that were told of and not replaced since."""
        self._fresh: deque[str] = deque()
        self._left: dict[str, int] = {}
        """Bytes that may leave another time, by file that was gone through."""
        self._outdated: set[str] = set()
        """Files that were replaced: what points to them should point to a newer one."""
        self._to_move: deque[str] = deque()
        self._visit: _Visit | None = None
        self._check: Iterator[BodyDamaged | None] | None = None
        """Reads a snapshot."""
        self._pause_s, self._not_before_s = PAUSE_S, 0.0
        self._is_stopped = False
        self.freed_total = self.returned_total = 0

    # --- what the store tells

    def start(self, number: int) -> None:
        """The store was loaded, and segment `number` is the first that is written now."""
        self.paging.find_queues()
        self.closed(self._bodies.files_before(number))

    def closed(self, names: Iterable[str]) -> None:
        """These are written no more, and all of them is on disk; the oldest first. Known ones may be among them."""
        new = [name for name in names if name not in self._known and not is_before(name, self._replaced)]
        self._known.update(new)
        self._fresh.extend(new)

    def replaced(self, number: int) -> frozenset[str]:
        """Snapshot `number` is on disk; what is older may be deleted when this has returned. Raises OSError.

        Returns those files that are still read from: delete them, too, but write over none of them, as it would be done
        to a segment that is used again.
        """
        old = {name for name in (*self._known, *self._bodies.names) if is_before(name, number)}
        self._replaced = number
        self._bodies.hold(old)
        self._known -= old
        self._outdated |= old
        self._fresh = deque(name for name in self._fresh if name not in old)
        self._left = {name: left for name, left in self._left.items() if name not in old}
        if self._visit is not None and self._visit.name in old:
            self._end_visit()
        self._to_move = deque([snapshot_path(number)])
        self._known.add(snapshot_path(number))
        return frozenset(old.intersection(self._bodies.names))

    def stop(self) -> None:
        """Do nothing more."""
        self._is_stopped = True
        self._end_visit()
        if self._has_own_threads:
            self._threads.shutdown(wait=False, cancel_futures=True)

    def facts(self) -> dict[str, object]:
        """What `qpid-ha query` shows."""
        return {
            "paged_bytes": self.paging.paged_bytes,
            "paged_out_total": self.freed_total,
            "paged_in_total": self.returned_total,
            "unreadable_messages": self.paging.unreadable,
        }

    # --- turns

    def tick(self) -> None:
        """Four times a second or so."""
        self.paging.find_queues()
        self._outdated &= set(self._bodies.names)
        self._begin_visit()
        if self._bodies.unchecked and self._check is None and not self._is_stopped:
            name = self._bodies.unchecked[0]
            self._check = self._bodies.checked(name)
            self._check_next(name, self._check)

    # --- looking for damage

    def _check_next(self, name: str, check: Iterator[BodyDamaged | None]) -> None:
        if self._is_stopped:
            return
        reading = asyncio.get_running_loop().run_in_executor(self._threads, next, check, _CHECKED)
        reading.add_done_callback(lambda done: self._block_checked(name, check, done))

    def _block_checked(
        self, name: str, check: Iterator[BodyDamaged | None], done: asyncio.Future[BodyDamaged | str | None]
    ) -> None:
        if self._is_stopped or done.cancelled():
            return
        problem = done.exception()
        if isinstance(problem, OSError | StoreError):
            log.warning("%s was not looked through for damage, because it cannot be read: %s", name, problem)
            self._end_check(name)
        elif problem is not None:
            raise problem
        elif (result := done.result()) is None:
            asyncio.get_running_loop().call_later(CHECK_PAUSE_S, self._check_next, name, check)
        else:
            self._end_check(name)
            if isinstance(result, BodyDamaged):
                self._tell([result])

    def _end_check(self, name: str) -> None:
        self._check = None
        self._bodies.unchecked.remove(name)

    def _tell(self, damaged: Sequence[BodyDamaged]) -> None:
        """Of what cannot be read back."""
        for problem in damaged:
            log.error("%s; check the store with: qpid-ha store check", problem)
            asyncio.get_running_loop().run_in_executor(self._threads, self._distrust, problem.file)
            self._damaged(problem)

    def _distrust(self, name: str) -> None:
        try:
            self._bodies.distrust(name)
        except OSError as error:
            log.warning("the index of %s cannot be removed, so the next start does not read all of it: %s", name, error)

    def turn(self) -> None:
        """After each turn of the broker: request what consumers come to, and let payloads leave when it is too much."""
        if self.paging.has_paged and not self._is_stopped:
            requests = self.paging.wanted()
            if requests:
                self._request(requests)
            if stretches := self.paging.stretches():
                self._request_stretches(stretches)
        if self._visit is None and self.paging.is_over:
            self._begin_visit()

    def _request(self, requests: list[BodyRequest]) -> None:
        refs = [request.ref for request in requests]
        reading = asyncio.get_running_loop().run_in_executor(self._threads, self._read_bodies, refs)
        reading.add_done_callback(lambda done: self._arrived(requests, done))

    def _request_stretches(self, requests: list[StretchRequest]) -> None:
        for request in requests:
            reading = asyncio.get_running_loop().run_in_executor(self._threads, request.cold.read)
            reading.add_done_callback(partial(self._stretch_arrived, request))

    def _stretch_arrived(self, request: StretchRequest, done: asyncio.Future[list[bytes] | None]) -> None:
        if self._is_stopped or done.cancelled():
            return
        bodies = done.result()
        self.paging.stretch_brought(request, bodies)
        if bodies is not None:
            self._note_left(request.cold.source.name, request.cold.body_bytes)
            self.returned_total += request.cold.body_bytes
        for queue in self.paging.waiting():
            self._catalog.wake(queue)
        self._schedule_turn()

    def _read_bodies(self, refs: list[BodyRef]) -> list[bytes | BodyDamaged]:
        """In a thread. A lack of file descriptors says nothing of a message: it is read once there are some."""
        while True:
            results = read_bodies(refs)
            lacking = any(isinstance(result, BodyDamaged) and result.is_shortage for result in results)
            if not lacking or self._is_stopped:
                return results
            time.sleep(RETRY_S)

    def _arrived(self, requests: list[BodyRequest], done: asyncio.Future[list[bytes | BodyDamaged]]) -> None:
        if self._is_stopped or done.cancelled():
            return
        results = done.result()
        for request in requests:
            self._note_left(request.ref.source.name, request.ref.size)
        damaged = self.paging.brought(requests, results)
        self.returned_total += sum([len(result) for result in results if isinstance(result, bytes)])
        for queue in self.paging.waiting():
            self._catalog.wake(queue)
        self._tell(damaged)
        self._schedule_turn()

    # --- going through files

    def _begin_visit(self) -> None:
        """Go through a file, if there is a reason, and one that promises something."""
        if self._is_stopped:
            return
        if self._visit is not None:
            if self._visit.is_paused and (self.paging.is_over or self._to_move):
                self._visit.is_paused = False
                self._read_piece(self._visit)
            return
        is_move = bool(self._to_move)
        name = self._next_file()
        if name is not None:
            self._left.pop(name, None)
            self._visit = _Visit(name, self._bodies.pieces(name), is_move=is_move)
            self._read_piece(self._visit)

    def _next_file(self) -> str | None:
        if self._to_move:
            return self._to_move.popleft()
        if not self.paging.is_over:
            return None
        if self._fresh:
            return self._fresh.popleft()
        if time.monotonic() < self._not_before_s:
            return None
        name = max(self._left, key=self._left.__getitem__, default=None)
        return name if name is not None and self._left[name] >= WORTHWHILE_BYTES else None

    def _note_left(self, name: str, size: int) -> None:
        """So much of a file is in memory and may leave another time."""
        if name not in self._outdated:
            self._left[name] = self._left.get(name, 0) + size

    def _read_piece(self, visit: _Visit) -> None:
        reading = asyncio.get_running_loop().run_in_executor(self._threads, next, visit.pieces, None)
        reading.add_done_callback(lambda done: self._piece_read(visit, done))

    def _piece_read(self, visit: _Visit, done: asyncio.Future[BodyPiece | None]) -> None:
        if done.cancelled():
            return
        problem = done.exception()
        if visit is not self._visit:  # its file was replaced meanwhile, and may be no more
            return
        if isinstance(problem, OSError | StoreError):
            log.warning("messages in %s stay in memory, because it cannot be read: %s", visit.name, problem)
            self._end_visit()
        elif problem is not None:
            raise problem
        elif (piece := done.result()) is None:
            self._finish_visit(visit)
        else:
            visit.steps = self.paging.visit(piece, self._outdated, visit.tally)
            self._work(visit)

    def _work(self, visit: _Visit) -> None:
        """A slice; the next one comes after whatever else the loop has to do."""
        if visit is not self._visit:
            return
        is_far = self._catalog.memory_bytes > FAR * self.paging.memory_bytes
        until = time.perf_counter() + (4 * SLICE_S if is_far else SLICE_S)
        for _ in visit.steps:
            if time.perf_counter() >= until:
                asyncio.get_running_loop().call_soon(self._work, visit)
                return
        visit.is_paused = self.paging.is_enough and not visit.is_move and not self._to_move
        if not visit.is_paused:
            self._read_piece(visit)

    def _finish_visit(self, visit: _Visit) -> None:
        tally = visit.tally
        log.debug("%s: %s", visit.name, tally)
        self._note_left(visit.name, tally.left)
        if tally.freed >= WORTHWHILE_BYTES:
            self._pause_s, self._not_before_s = PAUSE_S, 0.0
        elif not self._fresh:
            self._not_before_s = time.monotonic() + self._pause_s
            self._pause_s = min(self._pause_s * 2, PAUSE_S_MAX)
        self._end_visit()
        if self.paging.is_over or self._to_move:
            self._begin_visit()

    def _end_visit(self) -> None:
        if self._visit is not None:
            self.freed_total += self._visit.tally.freed
            self._visit = None


class _Visit:
    """One way through a file."""

    __slots__ = ("is_move", "is_paused", "name", "pieces", "steps", "tally")

    def __init__(self, name: str, pieces: Iterator[BodyPiece], *, is_move: bool) -> None:
        self.name = name
        self.is_move = is_move
        """What pointed to older files is to point to this one: it is gone through to its end."""
        self.is_paused = False
        self.pieces = pieces
        self.steps: Iterator[None] = iter(())
        self.tally = Tally()
