"""The thread that writes: the loop never waits for a disk, and a disk never waits for the loop.

What was appended while a write and its sync were under way goes with the next ones, however much it is, and after each
sync the loop is told up to where everything is on disk. So the fewer syncs the disk allows, the more each covers.

The loop lets go of the interpreter whenever it looks for input, so this thread gets it often enough: with Python's
switch interval of 5 ms confirmations come neither later nor fewer than with a tenth or a fiftieth of it.
"""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Final, NamedTuple, Protocol

from qpid_ha_broker.store.blocks import BLOCK_HEADER_BYTES, BlockKind
from qpid_ha_broker.store.errors import StoreError
from qpid_ha_broker.store.files import FULL
from qpid_ha_broker.store.journal import Journal

log = logging.getLogger("store")

IDLE_S: Final = 0.05
"""Nothing came for so long: time to say on disk that all is there, and to prepare the next segment."""
RETRY_S: Final = 0.5
"""Between two attempts to write to a full disk."""
GROUP_BYTES: Final = 8 * 1024 * 1024
"""What one sync carries at most, so that confirmations come in portions that clients can follow."""


class JournalPiece(NamedTuple):
    """A block for the journal. `ticket`: how many pieces there were, this one included."""

    ticket: int
    kind: BlockKind
    first_lsn: int
    last_lsn: int
    committed_lsn: int
    left_out: int
    data: bytes


class Job(NamedTuple):
    """Other work with files, done when all pieces before it are on disk. A full disk has it done again."""

    action: Callable[[], object]
    done: Callable[[], None]


class WriterListener(Protocol):
    """Who hears, on the loop, how far things are."""

    def synced(self, ticket: int) -> None:
        """All pieces up to that one are on disk."""

    def filled(self, shortage: OSError | None) -> None:
        """There is no room on the disk, or no file descriptor: everything waits; None: there is some again."""

    def failed(self, text: str) -> None:
        """Nothing is written any more, and what of the last pieces is on disk nobody knows."""


class StoreWriter:
    """The promise: `synced` names only pieces that are on disk, and with each all before it."""

    def __init__(self, journal: Journal, listener: WriterListener, loop: asyncio.AbstractEventLoop) -> None:
        self._journal = journal
        self._listener = listener
        self._loop = loop
        self._items: SimpleQueue[JournalPiece | Job | None] = SimpleQueue()
        self._staged_ticket = 0
        self._given_bytes = self._written_bytes = 0
        """Each is changed by one thread only."""
        self._is_full = False
        self._give_up = threading.Event()
        self._thread = threading.Thread(target=self._run, name="store writer", daemon=True)

    def start(self) -> None:
        """Begin to write."""
        self._thread.start()

    def append(self, piece: JournalPiece) -> None:
        """Have `piece` written. From the loop only."""
        self._given_bytes += BLOCK_HEADER_BYTES + len(piece.data)
        self._items.put(piece)

    @property
    def waiting_bytes(self) -> int:
        """How much of what was given to `append` is not on disk."""
        return self._given_bytes - self._written_bytes

    def run(self, action: Callable[[], object], done: Callable[[], None] = lambda: None) -> None:
        """Have `action` done on the thread once all before is on disk, and `done` on the loop after it."""
        self._items.put(Job(action, done))

    def finish(self, timeout_s: float) -> bool:
        """Do all that was asked, and end; blocks. Whether that was possible in time: a full disk may last."""
        self._items.put(None)
        self._thread.join(timeout_s)
        ended = not self._thread.is_alive()
        self._give_up.set()
        self._thread.join(RETRY_S * 4)
        return ended

    # --- on the thread

    def _run(self) -> None:
        try:
            while self._write_next():
                pass
        except _GivenUpError:
            pass
        except (OSError, StoreError) as error:
            self._tell(self._listener.failed, str(error))
        except Exception as error:
            log.exception("a bug: %s", error)
            self._tell(self._listener.failed, f"a bug in the store ({type(error).__name__}); the log has it")

    def _write_next(self) -> bool:
        """One group. False: that was the last."""
        items = self._take()
        goes_on = True
        for item in items:
            if isinstance(item, JournalPiece):
                self._journal.stage(*item[1:])
                self._staged_ticket = item.ticket
                if self._journal.staged_bytes > GROUP_BYTES:
                    self._sync()
                continue
            self._sync()
            if item is None:
                goes_on = False
            else:
                self._insist(item.action)
                self._tell(item.done)
        self._sync()
        return goes_on

    def _take(self) -> list[JournalPiece | Job | None]:
        """All that waits; while there is nothing, what can be done beside."""
        try:
            items = [self._items.get(timeout=IDLE_S)]
        except Empty:
            if not self._journal.is_dead:
                self._journal.mark()
                self._journal.prepare_spare()
            items = [self._items.get()]
        with suppress(Empty):
            for _ in range(self._items.qsize()):
                items.append(self._items.get_nowait())
        return items

    def _sync(self) -> None:
        if self._journal.is_dead or not self._journal.staged_bytes:
            return
        ticket, length = self._staged_ticket, self._journal.staged_bytes
        self._insist(self._journal.flush)
        self._written_bytes += length
        self._tell(self._listener.synced, ticket)

    def _insist(self, action: Callable[[], object]) -> None:
        """Do it, again and again while there is no room or no descriptor: what waits is neither lost nor confirmed."""
        while True:
            try:
                action()
            except OSError as error:
                if error.errno not in FULL:
                    raise
                self._show_full(error)
                if self._give_up.wait(RETRY_S):
                    raise _GivenUpError from None
            else:
                self._show_full(None)
                return

    def _show_full(self, shortage: OSError | None) -> None:
        if self._is_full is not (shortage is not None):
            self._is_full = shortage is not None
            self._tell(self._listener.filled, shortage)

    def _tell(self, what: Callable[..., None], *arguments: object) -> None:
        with suppress(RuntimeError):  # the loop is gone, and everybody who could be told with it
            self._loop.call_soon_threadsafe(what, *arguments)


class _GivenUpError(Exception):
    """The broker ends, and the disk is still full."""
