"""What is wrong, for the web page: the findings of `qpid-ha diagnose`, by what this broker knows and others tell it.

It asks as an operator would, through the control methods. What takes long, the figures of all brokers, the queues and
the machine, is looked at seldom; who is what, who follows and what is led, each time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Generator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from qpid_ha_broker.diagnosis.answers import BrokerAnswers, facts_of
from qpid_ha_broker.diagnosis.checks import diagnose
from qpid_ha_broker.diagnosis.facts import CoordinatorState, DiagnosisFacts, LocalProcess, MachineState, QueueState
from qpid_ha_broker.diagnosis.machine_looks import CERTIFICATES, look_at_certificates, with_disk
from qpid_ha_broker.ha.states import State
from qpid_ha_broker.server.control.control import METHOD_NOT_FOUND, ControlError
from qpid_ha_broker.server.http.figure_looks import PROCESS_LIMIT_S
from qpid_ha_broker.server.http.own_methods import ask_own
from qpid_ha_broker.server.http.refusals import RETRY, HttpRefusal
from qpid_ha_broker.server.runtime.daemon_threads import DAEMON_THREADS
from qpid_ha_broker.server.runtime.slices import in_slices
from qpid_ha_config.settings import BrokerSettings

if TYPE_CHECKING:
    from qpid_ha_broker.server.broker import Broker

FRESH_S: Final = 1.0
"""So old a diagnosis may be that another one who asks gets, unless this broker's part in the cluster is another one."""
SELDOM_S: Final = 10.0
"""Between two looks at what takes long."""
GROWTH_S: Final = 60.0
"""A queue grows by what came since the look before; if that was longer ago, nobody knows."""
_OF_LEADER: Final = ("backups", "history", "brokers", "sets")
_ON_MACHINES: Final = {
    "what": "agents, Pacemaker, systemd, the coordinator's record, and the configuration, disk and certificates of the"
    " other machines",
    "why": "qpid-ha diagnose, on a machine of the cluster, looks at these",
}


class SeldomLooks(NamedTuple):
    """What is kept for SELDOM_S. `queues`: those that are led here, with how much each has grown."""

    at_s: float
    part: object
    """Of this broker in the cluster, then."""
    query: BrokerAnswers
    queues: tuple[QueueState, ...]
    machine: MachineState
    not_looked_at: Mapping[str, str]


class Diagnoses:
    """The promise: however many look, there is one diagnosis at a time, and no message waits for it longer than
    SLICE_S."""

    def __init__(self, broker: Broker, clock: Callable[[], float] = time.monotonic) -> None:
        self._broker = broker
        self._clock = clock
        self._task: asyncio.Task[dict[str, object]] | None = None
        self._last: dict[str, object] = {}
        self._last_s = 0.0
        self._last_part: object = None
        self._seldom: SeldomLooks | None = None
        self._machine_look: asyncio.Future[tuple[MachineState, Mapping[str, str]]] | None = None

    async def answer(self, given: Mapping[str, str]) -> Mapping[str, object]:
        """To a request with these parameters; see `findings`. Raises HttpRefusal."""
        if given:
            raise HttpRefusal(400, "/findings takes no parameters")
        return await self.findings()

    async def findings(self) -> dict[str, object]:
        """`findings` as `qpid-ha diagnose --format json` has them, the most urgent first; `looked_at`: how many of
        what; `not_looked_at`, with why; `at_ms`, since the Unix epoch. Raises HttpRefusal."""
        if not self._broker.is_loaded:
            raise HttpRefusal(503, "the broker loads its store yet: try again", RETRY)
        if self._task is None:
            if self._last and self._clock() - self._last_s < FRESH_S and self._last_part == self._part():
                return self._last
            self._last_part = self._part()
            self._task = asyncio.get_running_loop().create_task(self._diagnose())
            self._task.add_done_callback(self._done)
        return await asyncio.shield(self._task)

    def stop(self) -> None:
        """Look no more."""
        if self._task is not None:
            self._task.cancel()

    def _done(self, task: asyncio.Task[dict[str, object]]) -> None:
        self._task = None
        if not task.cancelled() and task.exception() is None:
            self._last, self._last_s = task.result(), self._clock()

    async def _diagnose(self) -> dict[str, object]:
        name, now_s = self._broker.current().name, time.time()
        own = BrokerAnswers(name)
        await self._ask(own, "status", "status")
        is_standalone = (own.status or {}).get("state") == State.STANDALONE
        if not is_standalone:
            await self._ask(own, "status-all", "status", all=True)
        seldom = self._seldom
        if seldom is None or self._clock() - seldom.at_s >= SELDOM_S or seldom.part != self._part():
            seldom = self._seldom = await self._look_seldom(seldom, is_standalone)
        own.answers |= seldom.query.answers
        answers = [own, *_others(own)]
        leading = _leading(answers)
        if leading is not None and not is_standalone:
            for method in _OF_LEADER if (own.status or {}).get("sets") else _OF_LEADER[:-1]:
                await self._ask(leading, method, method)
        not_looked_at = {
            f"{subject} of {reply.where}": why for reply in answers for subject, why in reply.refused.items()
        }
        not_looked_at |= seldom.not_looked_at
        facts = facts_of(
            answers, now_s, machine=seldom.machine, coordinator=CoordinatorState(str(self._coordinator_url()))
        )
        facts = replace(facts, queues=seldom.queues)
        return {
            "broker": name,
            "at_ms": round(now_s * 1000),
            "findings": [finding.as_document() for finding in diagnose(facts)],
            "looked_at": _looked_at(facts),
            "not_looked_at": [*({"what": subject, "why": why} for subject, why in not_looked_at.items()), _ON_MACHINES],
        }

    def _part(self) -> object:
        """What this broker is to the others: with another one, what was found counts no more."""
        status = self._broker.membership.member.status
        return status.state, status.generation, status.members, status.primary

    def _coordinator_url(self) -> object:
        return self._broker.current().coordinator.url

    # --- asking

    async def _ask(self, answers: BrokerAnswers, name: str, method: str, **params: object) -> None:
        """Put what this broker's method says into `answers`; one that it has not in no cluster says nothing."""
        try:
            answers.answers[name] = await ask_own(self._broker, method, **params)
        except ControlError as error:
            if error.code != METHOD_NOT_FOUND:
                answers.refused[name] = error.message

    async def _look_seldom(self, before: SeldomLooks | None, is_standalone: bool) -> SeldomLooks:
        at_s, part, query = self._clock(), self._part(), BrokerAnswers("")
        await self._ask(query, "query", "query")
        await self._ask(query, "get", "get")
        if not is_standalone:
            await self._ask(query, "query-all", "query", all=True)
        counts = {}
        if before is not None and at_s - before.at_s <= GROWTH_S:
            counts = {queue.name: queue.messages for queue in before.queues}
        queues = await in_slices(_led_queues(self._broker, counts))
        machine, not_looked_at = await self._look_at_machine()
        return SeldomLooks(at_s, part, query, queues, machine, not_looked_at)

    async def _look_at_machine(self) -> tuple[MachineState, Mapping[str, str]]:
        settings = self._broker.current()
        state = MachineState(settings.name, is_elsewhere=True, process=LocalProcess.ANSWERS)
        if self._machine_look is None:
            loop = asyncio.get_running_loop()
            self._machine_look = loop.run_in_executor(DAEMON_THREADS, look_at_machine, settings, state)
        done, _ = await asyncio.wait({self._machine_look}, timeout=PROCESS_LIMIT_S)
        if not done:
            return state, {f"the disk and the certificates of {settings.name}": "the disk does not answer"}
        look, self._machine_look = self._machine_look.result(), None
        return look


def look_at_machine(settings: BrokerSettings, state: MachineState) -> tuple[MachineState, Mapping[str, str]]:
    """What the disk and the certificates of a broker with these settings are, and what could not be looked at. Asks a
    disk that may hang: not on the loop."""
    problems: dict[str, str] = {}
    if settings.has_store and settings.data_dir is not None:
        try:
            state = with_disk(state, settings.data_dir)
        except OSError as error:
            problems[str(settings.data_dir)] = error.strerror or str(error)
    paths = {key: Path(str(path)) for key in CERTIFICATES if (path := settings.get(key)) is not None}
    look = look_at_certificates(paths)
    return replace(state, certificates=look.ends), {**problems, **look.problems}


def _led_queues(broker: Broker, before: Mapping[str, int]) -> Generator[None, None, tuple[QueueState, ...]]:
    """Of the sets that are led here: elsewhere nobody knows who consumes. `before`: how many messages each had."""
    states = []
    for hosted in [hosted for hosted in broker.container.sets.values() if not hosted.read_only]:
        for queue in list(hosted.resources.catalog.queues.values()):
            count = queue.messages.count
            row: dict[str, Any] = {
                "name": queue.name, "messages": count, "bytes": queue.messages.size,
                "consumers": len(queue.dispatcher.consumers), "arguments": queue.arguments.given,
            }  # fmt: skip
            states.append(QueueState.from_row(row)._replace(grown=count - before.get(queue.name, count)))
            yield
    return tuple(states)


def _others(own: BrokerAnswers) -> list[BrokerAnswers]:
    """What the others said to this broker, each as if it had been asked itself."""
    figures = {row.get("name"): row for row in own.rows("query-all")}
    others = []
    for row in own.rows("status-all"):
        if row.get("name") == (own.status or {}).get("name") or row.get("state") not in list(State):
            continue
        query = figures.get(row["name"], {})
        others.append(
            BrokerAnswers(str(row.get("address") or ""), answers={"status": {**query, **row}, "query": query})
        )
    return others


def _leading(answers: list[BrokerAnswers]) -> BrokerAnswers | None:
    leading = [reply for reply in answers if (reply.status or {}).get("state") == State.PRIMARY]
    return max(leading, key=lambda reply: int((reply.status or {}).get("generation") or 0), default=None)


def _looked_at(facts: DiagnosisFacts) -> dict[str, int]:
    """How many of what: of those that there are."""
    counts = {
        "brokers": len(facts.brokers) + len(facts.silent),
        "backups": len(facts.backups),
        "resource sets": len(facts.sets),
        "queues": len(facts.queues),
        "disks": int(facts.machine.total_bytes > 0),
        "certificates": len(facts.machine.certificates),
    }
    return {name: count for name, count in counts.items() if count}
