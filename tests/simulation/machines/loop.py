"""asyncio's loop, as one simulated process has it: callbacks run on the virtual clock, in that process or not at all.

So drivers that are bound to asyncio run in a simulation as they are. It has what they need: callbacks, timers, futures,
tasks, connections in memory, and calls that block, which are made on the virtual clock as well, some time later.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from contextvars import Context
from functools import partial
from typing import Any, Protocol

from simulation.machines.streams import StreamEnd
from simulation.virtual_time import Clock, Schedule


class LoopProcess(Protocol):
    """A process that may be stopped for a while, or dead."""

    def post(self, command: Callable[[], None]) -> None:
        """Have it done when the process gets to it; never, when it is dead by then."""

    def connect(self, host: str, opened: Callable[[StreamEnd | None, str], None]) -> None:
        """Open a stream to the broker of that name; None: why it could not be."""


class ProcessLoop(asyncio.AbstractEventLoop):
    """The loop of one process. An exception in a callback or a task is a bug: `run` raises it."""

    def __init__(
        self,
        schedule: Schedule,
        process: LoopProcess,
        clock: Clock,
        call_s: Callable[[], float],
        round_s: Callable[[], float],
    ) -> None:
        """`clock`: of the process. `call_s`: how long the next call takes that blocks. `round_s`: how long it takes
        until the loop comes to what is to be done soon; what is read meanwhile comes before it."""
        self._schedule = schedule
        self._process = process
        self._clock = clock
        self._call_s = call_s
        self._round_s = round_s
        self._soon_s = 0.0
        """When the loop comes to what was to be done soon last."""
        self._tasks: dict[asyncio.Task[Any], None] = {}
        """Those that have not ended."""
        self._at_signal: dict[int, Callable[[], object]] = {}
        self._readers: dict[int, Callable[[], object]] = {}
        """By descriptor."""
        self.failure: BaseException | None = None
        """The first exception that nobody has caught."""

    def run(self, work: Callable[[], None]) -> None:
        """Do `work` as the running loop. Raises what went wrong in it."""
        before = asyncio._get_running_loop()
        if before is not self:
            asyncio._set_running_loop(self)
        try:
            work()
        finally:
            if before is not self:
                asyncio._set_running_loop(before)
        if self.failure is not None:
            raise self.failure

    # --- callbacks

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._soon_s = max(self._soon_s, self._schedule.now_s + self._round_s())
        self._schedule.at(self._soon_s, lambda: self._process.post(lambda: self._run(handle)))
        return handle

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.TimerHandle:
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        delay_s = self._clock.real_delay_s(when - self.time())
        self._schedule.at(self._schedule.now_s + delay_s, lambda: self._process.post(lambda: self._run(handle)))
        return handle

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    def run_in_executor(  # type: ignore[override]
        self, executor: object, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        outcome = self.create_future()

        def call() -> None:
            try:
                result = func(*args)
            except Exception as error:  # noqa: BLE001 - whoever waits for it hears of it
                if not outcome.done():
                    outcome.set_exception(error)
            else:
                if not outcome.done():
                    outcome.set_result(result)

        self._schedule.after(self._call_s(), lambda: self._process.post(call))
        return outcome

    def _run(self, handle: asyncio.Handle) -> None:
        if not handle.cancelled():
            handle._run()

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """It is skipped when its time comes."""

    def time(self) -> float:
        return self._clock.monotonic_s()

    # --- signals, and files that can be read

    def add_signal_handler(  # type: ignore[override]
        self, sig: int, callback: Callable[..., object], *args: Any
    ) -> None:
        self._at_signal[sig] = partial(callback, *args)

    def signal(self, sig: int) -> None:
        """The process gets it."""
        self._at_signal[sig]()

    def add_reader(  # type: ignore[override]
        self, fd: Any, callback: Callable[..., object], *args: Any
    ) -> None:
        self._readers[fd] = partial(callback, *args)

    def remove_reader(self, fd: Any) -> bool:
        return self._readers.pop(fd, None) is not None

    def is_readable(self, fd: int) -> None:
        """From now on."""
        reader = self._readers.get(fd)
        if reader is not None:
            reader()

    # --- futures and tasks

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(self, coro: Coroutine[Any, Any, Any], **options: Any) -> asyncio.Task[Any]:  # type: ignore[override]
        task = asyncio.Task(coro, loop=self)
        self._tasks[task] = None
        task.add_done_callback(self._look_at_end)
        return task

    def _look_at_end(self, task: asyncio.Task[Any]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and task.exception() is not None and self.failure is None:
            self.failure = task.exception()

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        if self.failure is None:
            self.failure = context.get("exception") or RuntimeError(str(context.get("message")))

    def let_go(self) -> None:
        """The run is over: have what still waits in this process end, wherever it is."""
        with suppress(Exception):
            self.run(self._close_tasks)

    def _close_tasks(self) -> None:
        for task in list(self._tasks):
            setattr(task, "_log_destroy_pending", False)  # noqa: B010 - it is asyncio's own
            with suppress(BaseException):
                task.get_coro().close()

    def get_debug(self) -> bool:
        return False

    # --- connections

    async def create_connection(  # type: ignore[override]
        self, protocol_factory: Callable[[], asyncio.Protocol], host: str, port: int, **options: Any
    ) -> tuple[asyncio.Transport, asyncio.Protocol]:
        waiter = self.create_future()

        def opened(end: StreamEnd | None, reason: str) -> None:
            if waiter.done():
                if end is not None:
                    end.abort()
            elif end is None:
                waiter.set_exception(ConnectionRefusedError(111, reason))
            else:
                waiter.set_result(end)

        self._process.connect(host, opened)
        end: StreamEnd = await waiter
        protocol = protocol_factory()
        end.have_read_by(protocol)
        return end, protocol
