"""`qpid-ha-agent run` beside a simulated broker: `runner.Runner` as it ships, on a virtual loop.

What is replaced has to do with the machine alone (`agent_machine`): the broker's process is one of the simulation, what
is asked of it goes straight to the control socket's methods, and threads are calls that take some time.
"""

from __future__ import annotations

import asyncio
import json
import signal
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from qpid_ha_agent.agent_machine import AgentMachine
from qpid_ha_agent.broker_process import BrokerProcess
from qpid_ha_agent.broker_talk import BrokerTalk
from qpid_ha_agent.control import TimedOut, Unreachable, refusal_of
from qpid_ha_agent.decision import LockView
from qpid_ha_agent.runner import Runner, RunSettings
from qpid_ha_config.settings import ActivationSettings
from simulation.machines.process import MachineProcess

if TYPE_CHECKING:
    from simulation.machines.node import BrokerNode

ASKED_S: Final = 0.0001, 0.003
"""How long a request takes on its way to the broker on the same machine, and its answer back."""
BEGINS_S: Final = 0.02, 0.3
"""How long a program takes to begin."""
FIRST_FD: Final = 1000
STOP_LOOK_S: Final = 0.1


class SimulatedAgent:
    """The agent of a machine. It comes and goes, as its broker does."""

    def __init__(self, node: BrokerNode, activation: ActivationSettings) -> None:
        self.node = node
        self._activation = activation
        self.name = f"agent {node.index}"
        self.number = 0
        self.is_paused = False
        self.process: MachineProcess | None = None
        """None: it does not run."""
        self.runner: Runner | None = None
        self.is_stopping = False
        """Somebody has told it to end."""
        self._ended: list[MachineProcess] = []

    @property
    def is_well(self) -> bool:
        """It runs, and is not stopped."""
        return self.process is not None and not self.is_paused

    @property
    def claims_lock(self) -> bool:
        """It takes the lock for its own."""
        return self.process is not None and self.runner is not None and self.runner._lock.view is LockView.HELD

    def failback_delay_s(self, name: str) -> float:
        """How long a broker has to be ready that it is to hand over to."""
        return 0.0 if self.runner is None else self.runner._failback.delay_s(name)

    def start(self) -> None:
        """A new process; whoever watches it on its machine does so, too."""
        if self.process is not None:
            return
        self.number += 1
        self.is_paused = self.is_stopping = False
        self.process = process = MachineProcess(self.node, self.name, self.number, lambda: self.is_paused)
        process.run(self._begin)

    def _begin(self) -> None:
        process = self.process
        assert process is not None
        settings = self.node.settings
        run_settings = RunSettings(
            settings.name,
            ("qpidd",),
            settings.control_socket,
            settings.coordinator,
            self._activation,
            machine=AgentHere(self.node, process),
        )
        self.runner = Runner(run_settings, process.draw.uniform)
        process.loop.create_task(self._run(self.runner, process))

    async def _run(self, runner: Runner, process: MachineProcess) -> None:
        await runner.run()
        self.node.note_line("ITS AGENT ENDS")
        self.node.site.schedule.after(0.0, partial(self._end, process))

    def _end(self, process: MachineProcess) -> None:
        if self.process is process:
            self.kill()

    def kill(self) -> None:
        """It is dead, with what it has locked."""
        if self.process is not None:
            self.process.is_dead = True
            self._ended.append(self.process)
            self.node.site.leases.died(self.process)
            self.process = None
            self.is_paused = False

    def terminate(self) -> None:
        """Whoever administers the machine has it stopped, and its broker with it."""
        if self.process is not None:
            self.is_stopping = True
            self.process.post(partial(self.process.loop.signal, signal.SIGTERM))

    def begin_again(self) -> None:
        """As soon as it has ended."""
        if self.process is None:
            self.start()
        elif self.is_stopping:
            self.node.site.schedule.after(STOP_LOOK_S, self.begin_again)

    def pause(self) -> None:
        self.is_paused = True

    def resume(self) -> None:
        self.is_paused = False
        if self.process is not None:
            self.process.go_on()

    def broker_died(self, number: int) -> None:
        """Of its machine, the process of that number."""
        if self.process is not None:
            self.process.post(partial(self.process.loop.is_readable, FIRST_FD + number))

    def let_go(self) -> None:
        """The run is over."""
        for process in [*self._ended, *([] if self.process is None else [self.process])]:
            process.let_go()


class AgentHere(AgentMachine):
    """See there."""

    def __init__(self, node: BrokerNode, process: MachineProcess) -> None:
        self._node = node
        self._process = process
        self._has_had_broker = False
        self.make_talk = partial(TalkHere, self)  # type: ignore[assignment]

    def find_broker(self, control_socket: Path, older_than_s: float) -> BrokerProcess | None:
        self._has_had_broker |= self._node.has_process
        return ProcessHere(self._node, is_child=False) if self._node.has_process else None

    def start_broker(self, command: Sequence[str]) -> BrokerProcess:
        if self._has_had_broker:
            self._node.site.watcher.agent_starts_again(self._node)
        self._has_had_broker = True
        self._node.start_after(self._process.draw.uniform(*BEGINS_S))
        return ProcessHere(self._node, is_child=True)

    def start_thread(self, work: Callable[[], object], name: str) -> None:
        process, site = self._process, self._node.site
        if name == "lock":
            site.leases.wait(process, lambda: self._have_waited(work))
        else:
            site.schedule.after(process.call_s(), lambda: process.post(partial(_call, work)))

    def _have_waited(self, work: Callable[[], object]) -> None:
        """The thread goes on, and has the lock; if nobody wants it any more, it gives it back."""
        leases = self._node.site.leases
        if not leases.is_turn_of(self._process):  # it was stopped, and the lock taken away meanwhile
            leases.wait(self._process, lambda: self._have_waited(work))
            return
        work()
        leases.pass_on(self._process)

    # --- asking the broker

    async def ask(self, method: str, timeout_s: float, params: dict[str, object]) -> object:
        """See `BrokerTalk.request`."""
        loop, process = asyncio.get_running_loop(), self._process
        outcome: asyncio.Future[bytes | None] = loop.create_future()

        def answered(line: bytes | None) -> None:
            if not outcome.done():
                outcome.set_result(line)

        def comes_back(line: bytes | None) -> None:
            schedule.after(draw.uniform(*ASKED_S), lambda: process.post(lambda: answered(line)))

        draw, schedule = process.draw, self._node.site.schedule
        request = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        line = json.dumps(request).encode() + b"\n"
        self._node.site.watcher.agent_asks(self._node, method)
        schedule.after(draw.uniform(*ASKED_S), partial(self._node.control, line, comes_back))
        try:
            async with asyncio.timeout(timeout_s):
                reply = await outcome
        except TimeoutError:
            raise TimedOut(f"no answer within {timeout_s:g} s") from None
        if reply is None:
            raise Unreachable("nobody listens at the control socket, or whoever did is dead")
        document: dict[str, Any] = json.loads(reply)
        if "result" not in document:
            raise refusal_of(document["error"])
        return document["result"]

    async def listen(self, heard: Callable[[object], None]) -> None:
        """The broker's events, until it dies."""
        loop, process = asyncio.get_running_loop(), self._process
        over: asyncio.Future[None] = loop.create_future()

        def end() -> None:
            if not over.done():
                over.set_result(None)

        def later(command: Callable[[], None]) -> None:
            self._node.site.schedule.after(process.draw.uniform(*ASKED_S), lambda: process.post(command))

        close = self._node.subscribe(lambda note: later(partial(heard, note)), lambda: later(end))
        try:
            await over
        finally:
            close()


def _call(work: Callable[[], object]) -> None:
    work()


class TalkHere(BrokerTalk):
    """What is asked goes to the broker of the simulation."""

    def __init__(self, here: AgentHere, *settings: Any) -> None:
        super().__init__(*settings)
        self._here = here

    async def request(self, method: str, timeout_s: float, **params: object) -> object:
        return await self._here.ask(method, timeout_s, params)

    async def _listen(self) -> None:
        def heard(note: object) -> None:
            self.view.hear({"params": note})
            self.poll_soon()

        await self._here.listen(heard)


class ProcessHere(BrokerProcess):
    """The broker's process as its agent has it."""

    def __init__(self, node: BrokerNode, *, is_child: bool) -> None:
        self._node = node
        self._number = node.process
        self._is_child = is_child
        self.pid = self.pidfd = FIRST_FD + self._number

    @property
    def is_adopted(self) -> bool:
        return not self._is_child

    def worked_s(self) -> float:
        """It does nothing while it is stopped, and else whatever it has to."""
        return 0.0 if self._node.is_paused else self._node.site.schedule.now_s

    def send(self, number: signal.Signals) -> None:
        node, process = self._node, self._number
        node.site.schedule.after(0.0, lambda: node.signalled(process, number))

    def end_text(self) -> str:
        return "ended"

    def close(self) -> None:
        """There is nothing to close."""
