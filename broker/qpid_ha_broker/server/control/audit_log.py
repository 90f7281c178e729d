"""The audit log: a file to which one line of JSON is added for each administrative act. `audit.file` turns it on."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import stat
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from qpid_ha_broker.access.audit import AuditedAct, AuditResult, Caller
from qpid_ha_broker.server.control.audited_requests import audited_request
from qpid_ha_config.errors import SettingsError

log = logging.getLogger("audit")

KEY: Final = "audit.file"
_FLAGS: Final = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_MODE: Final = 0o600


class AuditLog:
    """The promise: each act has a line, or is counted as lost, which the log, `query` and the next line say.

    An act is carried out also where its line cannot be written: a full disk must keep nobody from the command that
    helps.
    A line goes to the system in one write, and is not synced: it is there when the process dies, perhaps not when the
    machine does. The file may be moved away: the next line begins a new one.
    """

    def __init__(self, path: Path | None, broker: str, wall_s: Callable[[], float] = time.time) -> None:
        """None: nothing is recorded. Raises SettingsError when the file cannot be written."""
        self.path = path
        self.lost = 0
        """Lines that could not be written, since the start."""
        self._broker = broker
        self._wall_s = wall_s
        self._descriptor = -1
        self._missing = 0
        """Lines that are missing before the next one."""
        self._is_torn = False
        """The file does not end with a whole line."""
        if path is not None:
            try:
                self._open(path)
            except OSError as error:
                raise SettingsError(KEY, f"cannot write {path}: {error.strerror or error}") from None

    def _open(self, path: Path) -> None:
        """Raises OSError."""
        descriptor = os.open(path, _FLAGS, _MODE)
        try:
            status = os.fstat(descriptor)
            if not stat.S_ISREG(status.st_mode):
                raise OSError(0, "it is no file")
            if status.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
                raise OSError(0, f"others may change it: chmod go-w {path}")
            self._is_torn = status.st_size > 0 and os.pread(descriptor, 1, status.st_size - 1) != b"\n"
        except BaseException:
            os.close(descriptor)
            raise
        self.close()
        self._descriptor = descriptor

    def close(self) -> None:
        """Until the next line."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def reopen(self) -> None:
        """The file was perhaps moved away."""
        self.close()
        if self.path is not None:
            try:
                self._open(self.path)
            except OSError as error:
                log.error("%s: cannot write %s: %s", KEY, self.path, error.strerror or error)

    def record(self, act: AuditedAct) -> None:
        """Add its line."""
        if self.path is None:
            return
        if self._missing:
            facts: dict[str, object] = {"act": "audit-lines-lost", "params": {"count": self._missing}}
            if not self._write(self.path, self._line({**facts, "result": AuditResult.FAILED.value})):
                self._lose()
                return
            self._missing = 0
            log.warning("%s: lines are written again", KEY)
        if not self._write(self.path, self._line(_facts(act))):
            self._lose()

    def request(
        self, caller: Caller, method: str, params: Mapping[str, object], result: AuditResult, reason: str
    ) -> None:
        """Add the line of a request of JSON-RPC, if it is one that changes something."""
        audited = None if self.path is None else audited_request(method, params)
        if audited is not None:
            self.record(AuditedAct(caller, *audited, result, reason))

    def _lose(self) -> None:
        self.lost += 1
        self._missing += 1

    def _line(self, facts: dict[str, object]) -> bytes:
        now_s = self._wall_s()
        moment = f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(now_s))}.{int(now_s * 1000) % 1000:03d}Z"
        return json.dumps({"time": moment, "broker": self._broker, **facts}, ensure_ascii=True).encode("ascii") + b"\n"

    def _write(self, path: Path, line: bytes) -> bool:
        """Whether all of it could be written."""
        try:
            if self._descriptor < 0 or not _is_there(path, self._descriptor):
                self._open(path)
            data = b"\n" + line if self._is_torn else line
            written = os.write(self._descriptor, data)
            self._is_torn = written < len(data)
            if self._is_torn:
                raise OSError(0, "the disk is full")
        except OSError as error:
            if not self._missing:
                text = "%s: cannot write %s: %s; acts go on, and are missing there"
                log.error(text, KEY, path, error.strerror or error)
            return False
        return True

    def facts(self) -> dict[str, object]:
        """What `query` tells."""
        return {"audit": "off"} if self.path is None else {"audit": str(self.path), "audit_lost": self.lost}


def _is_there(path: Path, descriptor: int) -> bool:
    """Whether the path is that of the open file, still."""
    with contextlib.suppress(OSError):
        return os.path.samestat(path.lstat(), os.fstat(descriptor))
    return False


def _facts(act: AuditedAct) -> dict[str, object]:
    facts: dict[str, object] = {
        **act.caller.facts(),
        "act": act.act,
        "params": dict(act.params),
        "result": act.result.value,
    }
    return {**facts, "reason": act.reason} if act.reason else facts
