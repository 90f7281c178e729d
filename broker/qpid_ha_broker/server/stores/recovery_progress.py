"""What an operator sees of a recovery that takes long: lines in the log, and on a terminal a bar."""

from __future__ import annotations

import logging
import sys
import time
from types import TracebackType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from rich.progress import Progress

log = logging.getLogger("store")

QUIET_S: Final = 2.0
"""Nobody is told of a recovery that is done in that time."""
LINE_S: Final = 5.0
"""Between two lines of the log."""
LOOK_S: Final = 0.1


class RecoveryProgress:
    """`with RecoveryProgress() as progress: ... progress.show(done_bytes, total_bytes)`, as often as you like."""

    def __init__(self) -> None:
        self._began = self._looked = time.monotonic()
        self._next_line = self._began + QUIET_S
        self._bar: Progress | None = None

    def __enter__(self) -> RecoveryProgress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None:
            self._bar.stop()

    def show(self, done_bytes: int, total_bytes: int) -> None:
        """Tell, if it is time."""
        now = time.monotonic()
        if now - self._looked < LOOK_S or now < self._began + QUIET_S:
            return
        self._looked = now
        if sys.stderr.isatty():
            self._draw(done_bytes, total_bytes)
        elif now >= self._next_line:
            self._next_line = now + LINE_S
            percent = 100 * done_bytes // max(total_bytes, 1)
            log.info("recovering: %d%% of %d MB", percent, total_bytes >> 20)

    def _draw(self, done_bytes: int, total_bytes: int) -> None:
        if self._bar is None:
            # They take 40 ms to load, at each start, and few starts draw.
            from rich.console import Console
            from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

            columns = (TextColumn("recovering"), BarColumn(), DownloadColumn(), TimeRemainingColumn())
            self._bar = Progress(*columns, console=Console(stderr=True), transient=True)
            self._bar.add_task("recovering", total=total_bytes)
            self._bar.start()
        self._bar.update(self._bar.task_ids[0], completed=done_bytes, total=total_bytes)
