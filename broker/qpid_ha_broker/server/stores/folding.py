"""When old files of the journal are folded into a snapshot: by a process of its own, so nobody here waits for it."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from itertools import takewhile
from pathlib import Path
from typing import Final, Protocol

from qpid_ha_broker.server.runtime.set_log import SetLog
from qpid_ha_broker.server.stores.pager import Pager
from qpid_ha_broker.server.stores.writer import FoldingShare, JournalWriter
from qpid_ha_broker.store.files import Disk, bytes_of
from qpid_ha_broker.store.journal import ClosedSegment, Journal
from qpid_ha_broker.store.layout import segment_path, snapshot_path

LOOK_S: Final = 0.25
"""Between two looks at how much there is to fold."""
PATIENCE_S: Final = 60.0
"""After a failure."""
STOP_LIMIT_S: Final = 5.0


class FoldingRun(Protocol):
    """One attempt to fold the journal of a store."""

    def run(self) -> str:
        """Fold. Blocks; what went wrong, empty: nothing did. Raises OSError."""

    def stop(self) -> None:
        """Have `run` return soon. From another thread."""


BeginFolding = Callable[[Path, int], FoldingRun]
"""Of the store in a directory, up to the segment of that number, which is not folded."""


class FoldingProcess:
    """By `store.consolidator`, which would hold the interpreter."""

    def __init__(self, directory: Path, upto: int) -> None:
        self._arguments = str(directory), "--upto", str(upto)
        self._process: subprocess.Popen[bytes] | None = None

    def run(self) -> str:
        """See `FoldingRun`."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "qpid_ha_broker.store.consolidator", *self._arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
        _, errors = self._process.communicate()
        code = self._process.returncode
        return "" if code == 0 else errors.decode("utf-8", "replace").strip()[-500:] or f"exit code {code}"

    def stop(self) -> None:
        """See `FoldingRun`."""
        if self._process is not None:
            self._process.terminate()


class Folding:
    """The promise: a file is deleted only when a snapshot that has all of it is on disk. A failure costs room only."""

    def __init__(
        self,
        writer: JournalWriter,
        journal: Journal,
        place: tuple[Path, Disk],
        begin: BeginFolding,
        share: FoldingShare,
        pager: Pager | None = None,
    ) -> None:
        """`place`: the store's directory, and what is in it."""
        self.limit_bytes = 1 << 62
        self._writer = writer
        self._journal = journal
        self._directory, self._disk = place
        self._log = SetLog(logging.getLogger("store"), self._directory.name)
        self._begin = begin
        self._share = share
        self._pager = pager
        self._looked_at = self._seen = -1
        """What the writer had been given when files were looked at last, and as of when it is known what was seen."""
        self._task: asyncio.Task[None] | None = None
        self._run: FoldingRun | None = None
        self._look_at = self._fold_at = 0.0
        self._has_stopped = False
        self._closed = tuple(journal.closed_segments())
        """Those of earlier lives of this broker, too."""
        self._snapshot_bytes = 0
        self._total = 0

    def facts(self) -> dict[str, object]:
        """What `query` tells of it."""
        return {
            "journal_closed_bytes": sum(segment.bytes for segment in self._closed),
            "snapshot_bytes": self._snapshot_bytes,
            "snapshots": self._total,
        }

    def tick(self, committed_lsn: int) -> bool:
        """Begin, if there is enough that will not change any more. Whether that may change although the writer is given
        nothing, and `committed_lsn` and the limit are the same."""
        now = time.monotonic()
        if self._has_stopped or now < self._look_at:
            return True
        self._look_at = now + LOOK_S
        may_fold = self._may_fold(now)
        if self._writer.given != self._looked_at or (may_fold and self._ready(committed_lsn)):
            self._looked_at = self._writer.given + 1  # with the look itself
            # Also while one is folded: payloads wait for files to be closed.
            self._writer.run(self._look, partial(self._looked, self._looked_at, committed_lsn), is_short=True)
        return not may_fold or not self._seen == self._looked_at == self._writer.given

    def _may_fold(self, now: float) -> bool:
        return now >= self._fold_at and self._task is None and self._share.has_room

    def _ready(self, committed_lsn: int) -> list[ClosedSegment]:
        """What will not change any more, if that is enough; else nothing."""
        ready = list(takewhile(lambda segment: segment.last_lsn <= committed_lsn, self._closed))
        enough = max(self._share.limit_bytes(self.limit_bytes), self._snapshot_bytes)
        return ready if sum(segment.bytes for segment in ready) >= enough else []

    def _look(self) -> None:
        """On the writer's thread."""
        self._closed = tuple(self._journal.closed_segments())

    def _looked(self, looked_at: int, committed_lsn: int) -> None:
        """On the loop: these will not change any more. Fold, if there is enough of what was committed before the look.

        What was seen earlier would not do: some of that may have been taken back since, and what is committed may have
        its LSNs. What the writer was given before the look tells of that, and what is committed is not taken back.
        """
        self._seen = looked_at
        if self._pager is not None:
            self._pager.closed([segment_path(segment.number) for segment in self._closed])
        ready = self._ready(committed_lsn)
        if ready and self._may_fold(time.monotonic()) and not self._has_stopped:
            self._task = asyncio.get_running_loop().create_task(self._fold(ready[-1].number + 1))

    def drop_before(self, number: int) -> None:
        """Snapshot `number` is on disk: what lies before it is not needed any more."""
        try:
            in_use = frozenset() if self._pager is None else self._pager.replaced(number)
        except OSError as error:
            self._log.warning("old files of the journal are not deleted yet (later again): %s", error)
            asyncio.get_running_loop().call_later(PATIENCE_S, self.drop_before, number)
            return
        self._writer.run(partial(self._journal.drop_before, number, in_use))
        self._writer.run(self._look)

    async def _fold(self, upto: int) -> None:
        began = time.monotonic()
        run = self._run = self._begin(self._directory, upto)
        self._share.running += 1
        try:
            problem = await asyncio.to_thread(run.run)
            if problem:
                self._log.warning("old files of the journal were not folded (later again): %s", problem)
                self._fold_at = time.monotonic() + PATIENCE_S
                return
            self._snapshot_bytes = bytes_of(self._disk, snapshot_path(upto))
            self._total += 1
            self.drop_before(upto)
            took_s = time.monotonic() - began
            self._log.info(
                "the journal before file %d is now a snapshot of %d bytes (%.1f s)", upto, self._snapshot_bytes, took_s
            )
        except OSError as error:
            self._log.warning("old files of the journal were not folded (later again): %s", error)
            self._fold_at = time.monotonic() + PATIENCE_S
        finally:
            self._share.running -= 1
            self._task = self._run = None

    async def stop(self) -> None:
        """Let go of what is under way; an unfinished snapshot is none."""
        run, task = self._run, self._task
        self._has_stopped = True
        if run is not None:
            run.stop()
        if task is not None:
            await asyncio.wait([task], timeout=STOP_LIMIT_S)
