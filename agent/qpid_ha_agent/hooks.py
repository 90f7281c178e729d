"""Programs of the operator's that an agent runs when its broker becomes primary, and when it is primary no more."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from typing import Final, NamedTuple

from qpid_ha_config.settings import ActivationSettings

log = logging.getLogger("agent")

LAST_OUTPUT_S: Final = 0.2
"""For what a program has said just before its end; a child of it may keep the pipe open for ever."""
LINE_LENGTH: Final = 500
LINES_MOST: Final = 100
_CHUNK_BYTES: Final = 4096


class HookEvent(StrEnum):
    """What a broker has become."""

    PROMOTED = "promoted"
    DEMOTED = "demoted"


class RoleChange(NamedTuple):
    """`generation`: the one that it leads, or led."""

    role: HookEvent
    generation: int


class RoleHistory:
    """The promise: of each generation that a broker leads, its beginning is told once, and then its end. Pure.

    `announced` is the generation whose beginning was told and whose end was not; 0: none.
    """

    def __init__(self, announced: int = 0) -> None:
        self.announced = announced

    def note(self, is_primary: bool | None, generation: int | None) -> list[RoleChange]:
        """How it is now, None: not known; what has to be told of it."""
        if is_primary is None or (is_primary and generation in (None, 0, self.announced)):
            return []
        changes = [RoleChange(HookEvent.DEMOTED, self.announced)] if self.announced else []
        self.announced = generation or 0 if is_primary else 0
        return [*changes, RoleChange(HookEvent.PROMOTED, self.announced)] if is_primary else changes


class Hooks:
    """The promise: each change is told once, one after the other, and holds nobody up.

    What was told is in the file `memory`, written before: a new agent that takes over a primary tells nothing anew, and
    tells the end of one that died while there was no agent.
    """

    def __init__(self, settings: ActivationSettings, memory: Path, environment: Mapping[str, str]) -> None:
        self._commands = {HookEvent.PROMOTED: settings.on_promoted, HookEvent.DEMOTED: settings.on_demoted}
        self._limit_s = settings.hook_timeout_s
        self._memory = memory
        self._environment = environment
        self._is_wanted = settings.on_promoted is not None or settings.on_demoted is not None
        self._history = RoleHistory(self._remembered() if self._is_wanted else 0)
        self._changes: asyncio.Queue[RoleChange] = asyncio.Queue()

    def note(self, is_primary: bool | None, generation: int | None) -> None:
        """How the broker is now; `is_primary` None: not known."""
        if not self._is_wanted:
            return
        changes = self._history.note(is_primary, generation)
        if changes:
            self._remember(self._history.announced)
        for change in changes:
            self._changes.put_nowait(change)

    async def run_forever(self) -> None:
        """Carry out what was noted."""
        while True:
            change = await self._changes.get()
            try:
                command = self._commands[change.role]
                if command is not None:
                    await self._run(command, change)
            finally:
                self._changes.task_done()

    async def finish(self) -> None:
        """Until all that was noted is done, which each program's limit bounds."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout((self._changes.qsize() + 1) * (self._limit_s + LAST_OUTPUT_S)):
                await self._changes.join()

    async def _run(self, command: tuple[str, ...], change: RoleChange) -> None:
        name = f"ha.on-{change.role}"
        given = {"QPID_HA_EVENT": str(change.role), "QPID_HA_GENERATION": str(change.generation)}
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                env={**os.environ, **self._environment, **given},
                start_new_session=True,
            )
        except OSError as error:
            log.error("%s: cannot start %s: %s", name, command[0], error.strerror or error)
            return
        log.info("%s: %s runs (pid %d)", name, command[0], process.pid)
        output = asyncio.ensure_future(_log_output(name, process.stdout))
        try:
            async with asyncio.timeout(self._limit_s):
                code = await process.wait()
            await asyncio.wait([output], timeout=LAST_OUTPUT_S)
        except TimeoutError:
            log.error("%s: not done after %g s (ha.hook-timeout): it is killed", name, self._limit_s)
        else:
            how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
            log.log(logging.ERROR if code else logging.INFO, "%s: %s %s", name, command[0], how)
        finally:
            output.cancel()
            if process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)  # it leads its group, and was not waited for

    def _remembered(self) -> int:
        try:
            return int(self._memory.read_text(encoding="ascii"))
        except FileNotFoundError:
            return 0
        except (OSError, ValueError) as error:
            log.warning("%s does not say what hooks were told: %s", self._memory, error)
            return 0

    def _remember(self, generation: int) -> None:
        try:
            self._memory.write_text(f"{generation}\n", encoding="ascii")
        except OSError as error:
            log.warning("cannot write %s: a new agent may run a hook again: %s", self._memory, error.strerror)


async def _log_output(name: str, output: asyncio.StreamReader | None) -> None:
    """Each line, as far as it goes; and no more of them than a log can bear."""
    count, rest = 0, b""
    while output is not None and (part := await output.read(_CHUNK_BYTES)):
        *lines, rest = (rest + part).split(b"\n")
        if len(rest) > _CHUNK_BYTES:
            lines, rest = [*lines, rest], b""
        for line in lines:
            count += 1
            _log_line(name, line, count)
    if rest:
        _log_line(name, rest, count + 1)


def _log_line(name: str, line: bytes, count: int) -> None:
    text = line[:LINE_LENGTH].decode("utf-8", "replace").rstrip()
    if count < LINES_MOST:
        log.info("%s: %s", name, "".join(char if char.isprintable() else "?" for char in text))
    elif count == LINES_MOST:
        log.info("%s: it says more than %d lines; the rest is not logged", name, LINES_MOST)
