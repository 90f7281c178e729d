"""Logs that an operator can read, one line per event:

    2026-01-31T03:00:00.123Z warning connection peer=127.0.0.1:5555 sent a frame of 70000 bytes; the limit is 65536

Much of what is logged was chosen by a peer (container ids, addresses, error texts). What does not print is
escaped and what is long is cut, so nobody can forge a line, steer a terminal, or fill the disk with one event.
"""

from __future__ import annotations

import contextlib
import logging
import logging.handlers
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator
from io import TextIOWrapper
from pathlib import Path
from typing import TextIO

from qpid_ha_broker.amqp.connections.container import LogNotice
from qpid_ha_broker.diagnosis.commands import Reader, complete_text
from qpid_ha_config.errors import SettingsError

NOTES_AT_ONCE = 300
"""Lines about clients that are let in, after a quiet time; then one a second."""
ELSEWHERE_S = 60.0
"""Between two lines about links that belong where another broker leads, or nobody."""
BUGS_LOGGED = 100
"""Places in the code of which a bug is logged with its traceback: a peer can have it come up as often as it likes."""
_LONGEST_MESSAGE = 4000
_NOT_OURS = ("asyncio",)
"""Libraries whose chatter is of use only to who debugs the broker itself."""


class LineFormatter(logging.Formatter):
    """UTC time, level, the last part of the logger's name, the message.

    A traceback follows (indented, so that its lines are no events) for a bug, that is for `logger.exception`,
    and for every exception that a record carries when `tracebacks` is on. Commands in a message are complete for
    `reader`.
    """

    def __init__(self, tracebacks: bool, reader: Reader) -> None:
        super().__init__()
        self._tracebacks = tracebacks
        self.reader = reader

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line, plus its traceback if it may have one."""
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        name = record.name.rpartition(".")[2]
        level = record.levelname.lower()
        message = complete_text(record.getMessage(), self.reader)
        line = f"{seconds}.{int(record.msecs):03d}Z {level} {name} {printable(message)}"
        if record.exc_info and (self._tracebacks or record.levelno >= logging.ERROR):
            trace = self.formatException(record.exc_info)
            line += "".join(f"\n    {printable(part)}" for part in trace.splitlines())
        return line


def printable(text: str) -> str:
    """The text with whatever is not printable escaped (as Python would), and cut when it is very long."""
    if len(text) > _LONGEST_MESSAGE:
        text = f"{text[:_LONGEST_MESSAGE]}... ({len(text)} characters)"
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode("ascii") for char in text)


class _SaysWhatIsMissing(logging.Handler):
    """A full disk is no reason to end: what could be written nowhere is counted, and owned up to once there is room."""

    _missing = 0
    _problem = ""

    def emit(self, record: logging.LogRecord) -> None:
        """Write the line, wherever it can be written."""
        missing = self._missing
        try:
            super().emit(record)
        except OSError:  # the directory is gone: opening the file again is not under logging's own care
            self.handleError(record)
        if missing and self._missing == missing:
            self._missing = 0
            text = "lines are missing before this one: the log could not be written %d times: %s"
            super().emit(logging.LogRecord("log", logging.WARNING, "", 0, text, (missing, self._problem), None))

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 (logging's name)
        """Called while the error is being handled."""
        problem = sys.exc_info()[1]
        if isinstance(problem, OSError):
            self._missing += 1
            self._problem = problem.strerror or str(problem)
        else:
            super().handleError(record)


class Output(_SaysWhatIsMissing, logging.StreamHandler[TextIO]):
    """stderr: of a broker that a resource manager has started, this is a file, too."""


LOG_MODE = 0o640
"""Of a log file that we make: in it are names of users, queues and addresses."""


class LogFile(_SaysWhatIsMissing, logging.handlers.WatchedFileHandler):
    """A log file; what the disk does not take goes to stderr, and the broker goes on."""

    def _open(self) -> TextIOWrapper:
        """Called by the base class. A file that is there keeps its mode."""
        descriptor = os.open(self.baseFilename, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, LOG_MODE)
        return TextIOWrapper(os.fdopen(descriptor, "ab"), encoding=self.encoding, errors=self.errors)

    _fails = _failed_before = False

    def emit(self, record: logging.LogRecord) -> None:
        """Write the line, wherever it can be written."""
        self._failed_before, self._fails = self._fails, False
        super().emit(record)

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802 (logging's name)
        """Called while the error is being handled."""
        self._fails = True
        problem = sys.exc_info()[1]
        try:
            if not self._failed_before:
                print(f"log-file {self.baseFilename}: {problem}; lines come here until it works again", file=sys.stderr)
            print(self.format(record), file=sys.stderr)
        except OSError:  # often the same disk
            super().handleError(record)
        stream, self.stream = self.stream, None  # the next line opens the file again
        if stream is not None:
            with contextlib.suppress(OSError):
                stream.close()


def configure_logging(level: str, file: Path | None = None, reader: Reader | None = None) -> None:
    """Log from `level` on to `file`, or to stderr; again when either changes. Raises SettingsError.

    The file may be moved away (logrotate): the next line starts a new one. `reader`: what who reads the log has to say
    to come to this broker; None: as before.
    """
    handler: logging.Handler
    if file is None:
        handler = Output()
    else:
        try:
            handler = LogFile(file, encoding="utf-8", errors="backslashreplace")
        except OSError as error:
            raise SettingsError("log-file", f"cannot write {file}: {error.strerror}") from None
    root = logging.getLogger()
    if reader is None:
        before = (previous.formatter for previous in root.handlers)
        reader = next((each.reader for each in before if isinstance(each, LineFormatter)), Reader())
    handler.setFormatter(LineFormatter(level == "debug", reader))
    for previous in list(root.handlers):
        root.removeHandler(previous)
        previous.close()
    root.addHandler(handler)
    root.setLevel(level.upper())
    for name in _NOT_OURS:
        logging.getLogger(name).setLevel(logging.INFO if level == "debug" else logging.WARNING)


class RateLimitedLog:
    """For what any peer can cause as often as it likes: one line in `every_s` at most, with a count of those left out.

    `burst`: so many lines may come at once after as many times `every_s` that were quiet. `clock`: seconds, never
    jumps. Each level is counted for itself: a flood of notes hides no warning.
    """

    def __init__(
        self,
        log: logging.Logger,
        burst: int = 1,
        clock: Callable[[], float] = lambda: time.monotonic(),
        every_s: float = 1.0,
    ) -> None:
        self._log = log
        self._burst = burst
        self._every_s = every_s
        self._clock = clock
        self._allowed: dict[int, tuple[float, float]] = {}
        """By level: lines that may be written, one more after each `every_s`, and as of when."""
        self._left_out: dict[int, tuple[int, str]] = {}
        """By level: how many lines, and the newest of them."""

    def warning(self, text: str, *arguments: object) -> None:
        """At level `warning`."""
        self.log(logging.WARNING, text % arguments)

    def log(self, level: int, text: str) -> None:
        """A line, now or as one of those that the next line counts."""
        count, _ = self._left_out.get(level, (0, ""))
        self._left_out[level] = (count + 1, text)
        self.flush()

    def flush(self) -> None:
        """Write what is due; to be called now and then."""
        now_s = self._clock()
        for level, (count, text) in list(self._left_out.items()):
            allowed, as_of_s = self._allowed.get(level, (self._burst, now_s))
            allowed = min(allowed + (now_s - as_of_s) / self._every_s, self._burst)
            if allowed >= 1:
                more = f" (and {count - 1} others since the last line)" if count > 1 else ""
                self._log.log(level, "%s", text + more)
                allowed -= 1
                del self._left_out[level]
            self._allowed[level] = (allowed, now_s)


class NoticeLog:
    """Logs what the container has to say. What a peer can cause is limited, and more so before it is let in."""

    def __init__(self) -> None:
        self.refusals = RateLimitedLog(logging.getLogger("connection"))
        """For what everybody can cause who reaches a port."""
        self._connections = RateLimitedLog(logging.getLogger("connection"), burst=NOTES_AT_ONCE)
        self._elsewhere = RateLimitedLog(logging.getLogger("connection"), every_s=ELSEWHERE_S)
        """For links that are sent to where their set is led, or wait for somebody to lead it: they come again and again
        while nobody does, which is in the cluster's own log."""
        self.bugs_total = 0
        """Of ours, that came up while the bytes of a peer were worked on, and ended a link or a connection."""
        self._seen: dict[str, None] = {}
        self._limited = {"handshake": self.refusals, "connection": self._connections, "elsewhere": self._elsewhere}
        """By what notices say that they come from."""

    def fault(self, error: Exception) -> None:
        """A bug that has ended a link or a connection: with its traceback once, then as a line that is counted."""
        self.bugs_total += 1
        place = "".join(traceback.format_tb(error.__traceback__)[-1:])
        text = f"a bug ended a link or a connection: {type(error).__name__}: {error}"
        if place in self._seen or len(self._seen) >= BUGS_LOGGED:
            self._connections.log(logging.ERROR, text)
        else:
            self._seen[place] = None
            logging.getLogger("connection").error("%s", text, exc_info=error)

    @contextlib.contextmanager
    def bugs_noted(self) -> Iterator[None]:
        """What is done in it may fail by a bug, and whoever does it goes on."""
        try:
            yield
        except Exception as error:  # noqa: BLE001 # whatever it is, it is logged and counted
            self.fault(error)

    def log(self, notices: Iterable[LogNotice]) -> None:
        """Write them, or have them counted by the next line."""
        for level, source, text in notices:
            number = logging.getLevelNamesMapping()[level.upper()]
            limited = self._limited.get(source)
            if limited is not None:
                limited.log(number, text)
            else:
                logging.getLogger(source).log(number, "%s", text)

    def flush(self) -> None:
        """Write what is due; to be called now and then."""
        for limited in self._limited.values():
            limited.flush()
