"""What a resource manager asks for: start, stop, promote, demote. Each is safe to repeat, and says why it failed.

Thin callers give each its face: OCF, the scripts of rgmanager, an operator's hands. An action looks before it acts:
what was asked for may be so already, because an answer got lost or somebody was faster.
"""

from __future__ import annotations

import os
import pwd
import signal
import time
from enum import StrEnum
from pathlib import Path

from qpid_ha_agent.broker_process import (
    CHECK,
    BrokerProcess,
    BrokerProcessError,
    BrokerProcessForbidden,
    run_to_its_end,
)
from qpid_ha_agent.control import ControlClient, ControlFailure, RequestRefused, call_with_cause
from qpid_ha_agent.service import Service
from qpid_ha_agent.sight import Life, Sight, await_answer, look

LOOK_S = 2.0
LOAD_S = 1.0
"""Of a start, for the load of a store: most are loaded by then, and one that cannot be is a failed start. Pacemaker
promotes nobody before a start is over, so a longer load goes on after it."""
LAST_WORDS_BYTES = 4096
LAST_WORD = "qpidd: "
"""So begins the line in which a broker says why it ends."""
KILLED_WITHIN_S = 5.0
CHECK_TIMEOUT_S = 20.0


class Trouble(StrEnum):
    """What kind of failure it is, for those who have a code for each."""

    FAILED = "failed"
    REFUSED = "refused"
    """The broker answered that it will not: another machine may do better."""
    NOT_RUNNING = "not running"
    MACHINE = "machine"
    """Something on this machine has to be put in order first."""
    CONFIGURATION = "configuration"
    """The broker's configuration is wrong, or a file that it names."""
    FORBIDDEN = "forbidden"
    """We may not: it takes root, or the broker's user."""


class ActionFailed(Exception):
    """What was asked for is not so; the text says why, and what to do."""

    def __init__(self, trouble: Trouble, text: str) -> None:
        super().__init__(text)
        self.trouble = trouble


def check(service: Service) -> None:
    """Whether a broker would start with its configuration, as far as the broker can tell without starting.

    Whoever stops one to start it anew asks before. Raises ActionFailed.
    """
    _require_access(service)
    try:
        code, said = run_to_its_end([*service.command, CHECK], service.user, CHECK_TIMEOUT_S)
    except BrokerProcessError as error:
        raise ActionFailed(Trouble.MACHINE, str(error)) from None
    if code:
        last = said.strip().splitlines()[-1:] or [f"qpidd --check ended with exit code {code}"]
        raise ActionFailed(Trouble.CONFIGURATION, last[0].strip().removeprefix("qpidd: "))


def start(service: Service, timeout_s: float) -> Sight:
    """A broker that runs and answers, within `timeout_s`; it may still be loading. Raises ActionFailed."""
    _require_access(service)
    deadline_s = time.monotonic() + timeout_s
    sight = look(service.control_socket, min(LOOK_S, timeout_s))
    if sight.life is Life.ANSWERS:
        return sight
    try:
        process = BrokerProcess.find(service.control_socket)
        said_before = _size(service.log_file)
        if process is None:
            process = _launch(service)
    except BrokerProcessError as error:
        raise ActionFailed(Trouble.MACHINE, str(error)) from None
    sight = await_answer(service.control_socket, process, deadline_s - time.monotonic(), LOAD_S)
    if sight.life is Life.GONE:
        raise ActionFailed(Trouble.MACHINE, f"broker ended: {_last_words(service.log_file, said_before)}")
    if sight.life is Life.SILENT:
        raise ActionFailed(Trouble.FAILED, f"the broker did not answer within {timeout_s:.3g} s: {sight.how}")
    return sight


def stop(service: Service, timeout_s: float, look_s: float = LOOK_S) -> str:
    """No broker any more; how it came to that. It is killed when it does not end in time. Raises ActionFailed."""
    _require_access(service)
    sight = look(service.control_socket, min(look_s, timeout_s / 4))
    try:
        process = BrokerProcess.find(service.control_socket) if sight.life is not Life.GONE else None
        if process is None:
            return "it was not running"
        return _end(process, is_listening=sight.life is Life.ANSWERS, patience_s=timeout_s - KILLED_WITHIN_S)
    except BrokerProcessForbidden as error:
        raise ActionFailed(Trouble.FORBIDDEN, str(error)) from None
    except BrokerProcessError as error:
        raise ActionFailed(Trouble.FAILED, str(error)) from None


def promote(service: Service, cause: str, timeout_s: float, force: bool = False) -> Sight:
    """A primary, within `timeout_s`. Raises ActionFailed with the broker's own sentence."""
    _require_access(service)
    sight = look(service.control_socket, min(LOOK_S, timeout_s))
    if sight.life is Life.GONE:
        raise ActionFailed(Trouble.NOT_RUNNING, f"there is no broker to promote: {sight.how}")
    if sight.life is Life.SILENT:
        raise ActionFailed(Trouble.FAILED, f"the broker cannot be promoted while it is silent: {sight.how}")
    return sight if sight.is_primary else _ask(service, "promote", timeout_s, cause=cause, force=force)


def demote(service: Service, cause: str, timeout_s: float, look_s: float = LOOK_S) -> Sight:
    """A broker that is not primary: it is a backup, or dead. Raises ActionFailed.

    One that is silent for `look_s` is killed: it may be primary, and must not wake up as one beside another.
    """
    _require_access(service)
    sight = look(service.control_socket, min(look_s, timeout_s / 4))
    if sight.life is Life.GONE or (sight.life is Life.ANSWERS and not sight.is_primary):
        return sight
    if sight.life is Life.ANSWERS:
        try:
            return _ask(service, "demote", max(1.0, timeout_s - KILLED_WITHIN_S), cause=cause)
        except ActionFailed as failure:
            if failure.trouble is Trouble.REFUSED:
                raise
    try:
        process = BrokerProcess.find(service.control_socket)
        ended = _end(process, is_listening=False, patience_s=0) if process is not None else "it is gone"
    except BrokerProcessError as error:
        raise ActionFailed(Trouble.FAILED, str(error)) from None
    return Sight(Life.GONE, f"it did not answer a demotion: {ended}")


def _require_access(service: Service) -> None:
    """Who may not ask the broker would take it for one that hangs. Raises ActionFailed."""
    path = service.control_socket
    if path.exists() and not os.access(path, os.R_OK | os.W_OK, effective_ids=True):
        raise ActionFailed(Trouble.FORBIDDEN, f"we may not use {path}: run this as root, or join the socket's group")


def _ask(service: Service, method: str, timeout_s: float, cause: str, **params: object) -> Sight:
    """The broker's status after `method`. Raises ActionFailed."""
    try:
        with ControlClient(service.control_socket, timeout_s) as client:
            status = call_with_cause(client, method, cause, **params)
    except RequestRefused as refusal:
        raise ActionFailed(Trouble.REFUSED, refusal.message) from None
    except ControlFailure as failure:
        raise ActionFailed(Trouble.FAILED, str(failure)) from None
    return Sight(Life.ANSWERS, "the broker answered", status if isinstance(status, dict) else {})


def _launch(service: Service) -> BrokerProcess:
    if not os.access(service.config, os.R_OK):
        raise BrokerProcessError(f"{service.config} cannot be read: put the broker's configuration there")
    _make_directory(service.control_socket.parent, service.user)
    _make_directory(service.log_file.parent, service.user)
    try:
        output = open_log(service.log_file)
    except OSError as error:
        raise BrokerProcessError(f"cannot write {service.log_file}: {error.strerror}") from None
    try:
        return BrokerProcess.start(service.command, service.user, output)
    finally:
        os.close(output)


def open_log(path: Path) -> int:
    """A descriptor that appends. Not through a link: the directory is the broker's user's, and we may be root.

    Raises OSError.
    """
    return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o640)


def _make_directory(path: Path, user: str) -> None:
    """For the broker's user; one that is there already stays as it is."""
    if path.is_dir():
        return
    try:
        path.mkdir(mode=0o755, parents=True)
        if user and os.geteuid() == 0:
            entry = pwd.getpwnam(user)
            os.chown(path, entry.pw_uid, entry.pw_gid)
    except OSError as error:
        raise BrokerProcessError(f"cannot make {path}: {error.strerror}") from None
    except KeyError:
        raise BrokerProcessError(f"there is no user {user} on this machine: make it, or set another one") from None


def _end(process: BrokerProcess, is_listening: bool, patience_s: float) -> str:
    """SIGTERM for those who can hear it, then SIGKILL. Raises BrokerProcessError."""
    try:
        if is_listening and patience_s > 0:
            process.send(signal.SIGTERM)
            if process.wait(patience_s):
                return "it ended when it was told to"
        process.send(signal.SIGKILL)
        if not process.wait(KILLED_WITHIN_S):
            raise BrokerProcessError(f"process {process.pid} does not die: it hangs in the kernel, restart the machine")
        return f"process {process.pid} was killed"
    finally:
        process.close()


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def last_words(log_file: Path) -> str:
    """Why the broker has ended, if it was its own decision; else empty."""
    line = _last_line(log_file, 0)
    return line.removeprefix(LAST_WORD) if line.startswith(LAST_WORD) else ""


def _last_words(path: Path, since: int) -> str:
    """The last line that was written after position `since`, or where to look."""
    return _last_line(path, since).removeprefix(LAST_WORD) or f"it said nothing, look at {path}"


def _last_line(path: Path, since: int) -> str:
    try:
        with path.open("rb") as opened:
            opened.seek(max(since, path.stat().st_size - LAST_WORDS_BYTES))
            lines = opened.read().decode("utf-8", "replace").strip().splitlines()
    except OSError:
        lines = []
    return lines[-1].strip() if lines else ""
