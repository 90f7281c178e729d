"""A coordinator's slow calls, beside the loop: each in a thread of its own, with an end to the waiting."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

from qpid_ha_broker.coordination.coordinator import Coordinator, CoordinatorError
from qpid_ha_broker.coordination.identity import identity_of
from qpid_ha_broker.ha.cluster_record import ClusterRecord
from qpid_ha_broker.ha.effects import CoordinatorSeen, Input
from qpid_ha_broker.model.errors import fresh
from qpid_ha_broker.server.runtime.background_tasks import BackgroundTasks
from qpid_ha_broker.server.runtime.daemon_threads import DAEMON_THREADS

log = logging.getLogger("coordinator")

LIMIT_S = 5.0
HANGING_AT_MOST = 4
"""Calls that a file server does not let go of: a primary asks again and again, and no more threads than that wait."""

LOOK_S = 10.0
"""Between two looks at which coordinator it is: it changes when its data are lost, or were put back from a copy."""
LOOK_AGAIN_S = 1.0
"""After one that failed."""

Result = TypeVar("Result")


class RecordAnswer(NamedTuple):
    """What came of a request about a set's record. `record`: what is recorded now; None: not known, and why."""

    written: bool
    record: ClusterRecord | None
    problem: str = ""


Answered = Callable[[RecordAnswer], None]


class RecordRequests:
    """The promise: each request is answered once within `LIMIT_S`, whatever the coordinator does.

    It is the `set_member.RecordService` of `default`; `feed` hears which coordinator it is. The threads are daemons: a
    file server that hangs must not keep the process from ending.
    """

    def __init__(self, coordinator: Coordinator, feed: Callable[[Input], None]) -> None:
        self._coordinator = coordinator
        self._feed = feed
        self._tasks = BackgroundTasks()
        self._calls: list[asyncio.Future[Any]] = []
        """That have not returned yet, whether anybody waits for them or not."""
        self._looked = asyncio.Event()
        """It was read once which coordinator it is, or tried."""
        self._identity = self._place = ""
        self._problem = ""
        """That was logged last; empty once the coordinator has answered."""

    def start(self, place: str) -> None:
        """Look which coordinator it is, now and then; `CoordinatorSeen` follows. `place`: its URL."""
        self._place = place
        self._tasks.start(self._look_forever())

    async def looked(self) -> None:
        """Returns once that was read, or could not be. Who leads before that could not hear of another coordinator."""
        await self._looked.wait()

    def read_record(self, set_name: str, answer: Answered) -> None:
        """What is recorded, of the one set that a coordinator knows."""
        self._tasks.start(self._read(answer))

    async def read_within(self, limit_s: float) -> ClusterRecord | None:
        """What is recorded, for whoever looks; None: there is no coordinator, or it gave no answer in that time."""
        if not self._place:
            return None
        answered: asyncio.Future[RecordAnswer] = asyncio.get_running_loop().create_future()

        def answer(read: RecordAnswer) -> None:
            if not answered.done():
                answered.set_result(read)

        self._tasks.start(self._read(answer))
        try:
            async with asyncio.timeout(limit_s):
                return (await answered).record
        except TimeoutError:
            return None

    def write_record(self, set_name: str, expected: ClusterRecord, wanted: ClusterRecord, answer: Answered) -> None:
        """Replace `expected` by `wanted`, if that is what is recorded."""
        self._tasks.start(self._write(expected, wanted, answer))

    def stop(self) -> None:
        """Wait for nothing any more."""
        self._tasks.cancel()

    async def _look_forever(self) -> None:
        while True:
            try:
                await self._look()
                wait_s = LOOK_S
            except (CoordinatorError, TimeoutError) as error:
                self._note(error)
                wait_s = LOOK_AGAIN_S
            self._looked.set()  # within `LIMIT_S`, whatever the coordinator does
            await asyncio.sleep(wait_s)

    async def _look(self) -> None:
        """Raises CoordinatorError, TimeoutError."""
        identity = await self._in_thread(lambda: identity_of(self._coordinator))
        if identity != self._identity:
            log.info("the coordinator is %s at %s", identity, self._place)
            self._identity = identity
            self._feed(CoordinatorSeen(identity, self._place))

    async def _read(self, answer: Answered) -> None:
        try:
            record = await self._in_thread(self._coordinator.read)
            if self._place and record == ClusterRecord():  # is it still the one that it was? A mount may be gone
                await self._look()
        except (CoordinatorError, TimeoutError) as error:
            answer(RecordAnswer(False, None, self._note(error)))
        else:
            self._problem = ""
            answer(RecordAnswer(False, record))

    async def _write(self, expected: ClusterRecord, wanted: ClusterRecord, answer: Answered) -> None:
        try:
            written, record = await self._in_thread(lambda: self._coordinator.compare_and_set(expected, wanted))
        except (CoordinatorError, TimeoutError) as error:
            answer(RecordAnswer(False, None, self._note(error)))
        else:
            self._problem = ""
            answer(RecordAnswer(written, record))

    def _note(self, error: Exception) -> str:
        is_late = isinstance(error, TimeoutError)
        problem = f"the coordinator gave no answer within {LIMIT_S:g} s" if is_late else str(error)
        if problem != self._problem:  # a primary looks at the record all the time
            self._problem = problem
            log.warning("%s", problem)
        return problem

    async def _in_thread(self, call: Callable[[], Result]) -> Result:
        self._calls = [earlier for earlier in self._calls if not earlier.done()]
        if len(self._calls) >= HANGING_AT_MOST:
            await asyncio.sleep(LIMIT_S)  # one more would hang, too
            raise TimeoutError

        def call_coordinator() -> Result:
            try:
                return call()
            except (CoordinatorError, OSError) as error:  # raised again where it is waited for
                raise fresh(error) from None

        answer = asyncio.get_running_loop().run_in_executor(DAEMON_THREADS, call_coordinator)
        self._calls.append(answer)
        async with asyncio.timeout(LIMIT_S):
            return await asyncio.shield(answer)
