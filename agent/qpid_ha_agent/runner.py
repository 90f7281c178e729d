"""The loop of `qpid-ha-agent run`: look, decide, act, say so.

All judgement is in `decision.py`. Here is what it needs: the broker's process, its answers and its silence, the lock,
the record, and the clock. Nothing here waits for anything but the next reason to look again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import signal
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from qpid_ha_agent.agent_machine import THIS_MACHINE, AgentMachine
from qpid_ha_agent.amqp_port import is_awake
from qpid_ha_agent.broker_process import BrokerProcess, BrokerProcessError
from qpid_ha_agent.broker_view import BrokerView
from qpid_ha_agent.control import ControlFailure, RequestRefused
from qpid_ha_agent.coordinator_talk import CoordinatorTalk
from qpid_ha_agent.decision import (
    Action,
    Decision,
    Disowned,
    Known,
    Limits,
    LockView,
    OperatorOrders,
    Unwritable,
    decide,
)
from qpid_ha_agent.failback import Failback
from qpid_ha_agent.hooks import Hooks
from qpid_ha_agent.lock import PrimaryLock
from qpid_ha_agent.planned_restart import SETTLED, PlannedRestart, why_not_startable
from qpid_ha_agent.sight import STARTED_S
from qpid_ha_agent.tenure import Refusals, Tenure
from qpid_ha_agent.vip_keeper import VirtualIpKeeper
from qpid_ha_broker.coordination.coordinator import CoordinatorError
from qpid_ha_broker.coordination.pause import Pause
from qpid_ha_broker.coordination.registry import open_coordinator
from qpid_ha_broker.ha.states import State
from qpid_ha_config.settings import ActivationSettings, CoordinatorSettings

log = logging.getLogger("agent")

STEPS_AT_ONCE = 4
"""An action whose effect takes a while (a signal) must not be repeated without end."""
LOOK_S = 0.1
"""How late the passing of a limit may be noticed; everything else wakes the loop."""
OVERSLEPT_S = 0.5
OUTDATED_S = 2.0
"""After a longer sleep the coordinator is asked before anything is done that a pause forbids. On a machine that has too
much to do, shorter ones are common, and must not keep a broker from being promoted."""
REQUEST_TIMEOUT_S = 15.0
RETRY_S = 0.5
KNOCK_S = 0.3
"""For an answer at a port of a broker whose control socket cannot be used; less than it may be silent for."""
PAUSE_S = (0.2, 1.0)
READ_WITHIN_S = 0.5
HAND_OVER_PAUSE_S = 5.0
"""After a hand-over that came to nothing."""
CAUSE_LENGTH = 200
QUIET_S = 30.0
"""So long, the same line is not said again."""


@dataclass(frozen=True)
class RunSettings:
    """What an agent has to know of its broker. `command` starts it."""

    name: str
    command: tuple[str, ...]
    control_socket: Path
    coordinator: CoordinatorSettings
    activation: ActivationSettings = field(default_factory=ActivationSettings)
    listening: tuple[str, ...] = ()
    """Where it serves clients, as amqp[s]://HOST:PORT."""
    hook_environment: Mapping[str, str] = field(default_factory=dict)
    poll_interval_s: float = 0.5
    limits: Limits = field(default_factory=Limits)
    machine: AgentMachine = THIS_MACHINE
    """On which both run."""


class Runner:
    """The promise: the lock is let go before a dead broker is started again."""

    def __init__(self, settings: RunSettings, draw: Callable[[float, float], float] = random.uniform) -> None:
        self._settings = settings
        self._draw = draw
        self._process: BrokerProcess | None = None
        self._tenure = Tenure()
        coordinator, activation = open_coordinator(settings.coordinator), settings.activation
        self._lock = PrimaryLock(
            lambda: coordinator.lease(settings.name), self._lock_changed, settings.machine.start_thread
        )
        self._failback = Failback(settings.name, activation)
        self._coordination = CoordinatorTalk(
            coordinator,
            str(settings.coordinator.url),
            self._lock,
            settings.poll_interval_s,
            settings.name,
            activation.priority,
            self._failback.is_wanted,
            self._heard,
            settings.machine.start_thread,
        )
        self._hooks = Hooks(activation, settings.control_socket.with_suffix(".hooks"), settings.hook_environment)
        self._virtual_ip = VirtualIpKeeper(activation.virtual_ip, self._leads)
        self._restart = PlannedRestart(settings.name, coordinator, partial(why_not_startable, settings.command))
        self._paused = ""
        """By whom, and until when; empty: not."""
        self._deaths = 0
        self._died_at_s = 0.0
        self._refusal: str | None = None
        self._refusals = Refusals()
        self._pauses = 1.0
        self._pause_until_s = 0.0
        self._hand_over_again_at_s = 0.0
        """After one that came to nothing."""
        self._is_asked = False
        self._stopping = False
        self._hand_over_tried = False
        self._stop_asked_at_s: float | None = None
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._said: dict[str, float] = {}
        self._bug: BaseException | None = None

    @property
    def begins_anew(self) -> bool:
        """After `run` has ended: whether an operator wants this agent to start again, with its broker."""
        return self._restart.cause != ""

    # --- the loop

    async def run(self) -> None:
        """Until the agent was told to stop, and its broker has ended. Raises BrokerProcessError, CoordinatorError."""
        self._loop = asyncio.get_running_loop()
        self._wake = asyncio.Event()
        self._stepped_at_s = time.monotonic()
        limits, interval_s = self._settings.limits, self._settings.poll_interval_s
        self._talk = self._settings.machine.make_talk(
            self._settings.control_socket,
            interval_s,
            limits.fence_after_s,
            self._is_hurried,
            self._state_changed,
            lambda: is_awake(self._settings.listening, KNOCK_S),
        )
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self._stop, number)
        for work in (
            self._talk.poll_forever(),
            self._talk.listen_forever(),
            self._coordination.talk_forever(),
            self._compare_forever(),
            self._hooks.run_forever(),
        ):
            self._spawn(work)
        self._adopt()
        try:
            while not self._step(time.monotonic()):
                self._follow_role()
                await self._sleep()
                if self._bug is not None:  # blind, it would do harm; the broker lives on for the next agent
                    raise self._bug
            self._follow_role()
            await self._hooks.finish()
        finally:
            self._lock.release()
            await asyncio.to_thread(self._virtual_ip.close)
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            self._coordination.coordinator.close()

    def _step(self, now_s: float) -> bool:
        """Decide and act until there is nothing more to do now; True at the end of all."""
        self._forgive_sleep(now_s)
        for _ in range(STEPS_AT_ONCE):
            decision = decide(self._known(now_s), self._settings.limits)
            if decision.action is Action.EXIT:
                self._say(decision)
                return True
            if decision.action is Action.WAIT:
                return False
            self._say(decision)
            self._act(decision)
        return False

    async def _sleep(self) -> None:
        """Until something happens or a limit may have passed."""
        self._wake.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LOOK_S):
                await self._wake.wait()

    def _forgive_sleep(self, now_s: float) -> None:
        """Who overslept has no right to call others silent, and does not know what was said meanwhile."""
        slept_s, self._stepped_at_s = now_s - self._stepped_at_s, now_s
        if slept_s > OVERSLEPT_S:
            log.warning("this agent was held up for %.1f s", slept_s)
            self._talk.view.forgive(now_s)
            self._tenure.forgive(now_s)
        if slept_s > OUTDATED_S:
            self._coordination.forgive()

    @property
    def _is_primary(self) -> bool:
        return self._process is not None and self._talk.view.state is State.PRIMARY

    def _known(self, now_s: float) -> Known:
        lock, view, tenure = self._lock.view, self._talk.view, self._tenure
        limits, coordination = self._settings.limits, self._coordination
        is_primary, record = self._is_primary, coordination.record
        may_hand_over = now_s >= self._hand_over_again_at_s
        self._note_pause(coordination.pause(now_s))
        is_disowned = is_primary and view.is_disowned(self._settings.name, record)
        if tenure.note(lock, is_primary, is_disowned, now_s):
            log.info("we have the lock")
            self._refusal, coordination.is_shut_out = None, False
            self._talk.poll_soon()
        if self._process is not None:
            view.note_work(self._process.worked_s())
        if self._deaths and view.state is not None and now_s - self._died_at_s > 3 * limits.last_restart_s:
            self._deaths = 0
        return Known(
            alive=self._process is not None,
            deaths=self._deaths,
            dead_for_s=now_s - self._died_at_s,
            ordered=OperatorOrders(view.is_shut_down, self._restart.cause),
            state=view.state,
            has_data=view.has_data,
            adopted=self._process is not None and self._process.is_adopted,
            unwritable=Unwritable(view.unwritable_s(now_s), view.store_problem, view.is_alone),
            silent_s=view.silent_s(now_s),
            is_working=view.is_working(now_s),
            lock=lock,
            held_for_s=tenure.held_for_s(now_s),
            demoted_for_s=tenure.demoted_for_s(now_s),
            lease_silent_s=coordination.lease_watch.silent_s,
            disowned=Disowned(tenure.disowned_s(now_s), record.primary if record is not None else ""),
            recordless_s=coordination.lost_s(now_s),
            is_informed=coordination.is_fresh,
            paused=self._paused,
            failback_to=self._failback.target(now_s) if may_hand_over else "",
            is_asked=self._is_asked,
            refusal=self._refusal,
            pause_s=max(0.0, self._pause_until_s - now_s, view.pause_s(now_s), tenure.gives_way_s(view.state, now_s)),
            stopping=self._stopping,
            hand_over_tried=self._hand_over_tried if self._stopping else not may_hand_over,
            stop_asked_s=None if self._stop_asked_at_s is None else now_s - self._stop_asked_at_s,
        )

    def _note_pause(self, pause: Pause | None) -> None:
        text = "" if pause is None else pause.text
        if text != self._paused:
            log.info("%s", text or "the pause is over")
            self._paused = text

    def _say(self, decision: Decision) -> None:
        """One line with the reason; what is tried again and again is said now and then."""
        line, now_s = f"{decision.action}: {decision.why}", time.monotonic()
        self._said = {text: at_s for text, at_s in self._said.items() if now_s - at_s < QUIET_S}
        if line not in self._said:
            self._said[line] = now_s
            log.info("%s", line)

    # --- acting

    def _act(self, decision: Decision) -> None:
        actions: dict[Action, Callable[[], None]] = {
            Action.START_BROKER: self._start_broker,
            Action.STOP_BROKER: self._stop_broker,
            Action.KILL_BROKER: self._kill_broker,
            Action.TRY_LOCK: self._try_lock,
            Action.ACQUIRE_LOCK: self._lock.wait_for,
            Action.RELEASE_LOCK: self._release_lock,
            Action.PROMOTE: self._promote,
            Action.DEMOTE: lambda: self._ask("demote", State.CONNECTING, cause=self._cause(decision)),
            Action.HAND_OVER: lambda: self._hand_over(decision),
            Action.FAIL_BACK: self._fail_back,
            Action.MAKE_WAY: lambda: self._make_way(decision),
            Action.STOP_AGENT: self._stop_for_restart,
        }
        actions[decision.action]()

    def _adopt(self) -> bool:
        process = self._settings.machine.find_broker(self._settings.control_socket, STARTED_S)
        if process is None:
            return False
        log.info("a broker runs already (pid %d): taking care of it", process.pid)
        self._watch(process)
        return True

    def _start_broker(self) -> None:
        try:
            if not self._adopt():
                self._watch(self._settings.machine.start_broker(self._settings.command))
        except BrokerProcessError as error:
            if not self._deaths:
                raise
            log.error("%s", error)
            self._deaths += 1
            self._died_at_s = time.monotonic()

    def _watch(self, process: BrokerProcess) -> None:
        self._process = process
        self._talk.begin(BrokerView(time.monotonic()))
        self._loop.add_reader(process.pidfd, self._died, process)

    def _died(self, process: BrokerProcess) -> None:
        self._loop.remove_reader(process.pidfd)
        self._process, self._talk.is_there, self._died_at_s = None, False, time.monotonic()
        self._deaths += 1
        log.log(logging.INFO if self._stopping else logging.ERROR, "the broker (pid %d) is dead", process.pid)
        self._step(self._died_at_s)  # others wait for the lock: before anything else
        log.info("the broker (pid %d) %s", process.pid, process.end_text())
        process.close()
        self._wake.set()

    def _stop_broker(self) -> None:
        self._stop_asked_at_s = time.monotonic()
        self._signal(signal.SIGTERM)

    def _kill_broker(self) -> None:
        self._signal(signal.SIGKILL)
        self._talk.view.forgive(time.monotonic())  # its death comes as an event; meanwhile, once is enough
        if self._stop_asked_at_s is not None:
            self._stop_asked_at_s = time.monotonic()

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send(number)

    def _try_lock(self) -> None:
        self._is_asked = True
        self._spawn(self._take_lock())

    async def _take_lock(self) -> None:
        """Not on the loop: a coordinator that hangs would keep it from its broker for two seconds."""
        try:
            taken = await asyncio.to_thread(self._lock.try_now)
        except CoordinatorError as error:
            self._complain(error)
            taken = False
        self._is_asked = False
        self._coordination.is_shut_out = not taken
        if not taken:
            self._pause()
        self._wake.set()

    def _release_lock(self) -> None:
        if self._lock.view is LockView.HELD and self._talk.view.state is State.READY:
            self._tenure.give_way(time.monotonic())
        elif self._lock.view is LockView.HELD:
            self._pause()
        self._lock.release()

    def _pause(self) -> None:
        self._pause_until_s = time.monotonic() + self._draw(*PAUSE_S) * self._pauses

    def _lock_changed(self) -> None:
        """Called by the thread that waits for the lock."""
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._lock_came)

    def _lock_came(self) -> None:
        problem = self._lock.take_problem()
        if problem is not None:
            self._complain(problem)
            self._pause()
        self._step(time.monotonic())

    def _complain(self, error: CoordinatorError) -> None:
        self._say(Decision(Action.WAIT, str(error)))

    def _stop(self, number: signal.Signals) -> None:
        log.info("%s: stopping", signal.Signals(number).name)
        self._restart.forget()
        self._stopping = True
        self._wake.set()

    # --- a restart that an operator wants

    def _stop_for_restart(self) -> None:
        self._stopping = True

    async def _answer_restart(self, note: str) -> None:
        await self._talk.look()
        try:
            line = await asyncio.to_thread(self._restart.answer, note, self._why_no_restart)
        except CoordinatorError as error:
            self._complain(error)
        else:
            if line:
                log.info("%s", line)
            self._coordination.look_soon()
        self._wake.set()

    def _why_no_restart(self) -> str:
        """Empty: there is no reason. Called from a thread, too: it looks, and changes nothing."""
        state = self._talk.view.state
        if self._paused or self._stopping:
            return self._paused or "this agent stops"
        return "" if state in SETTLED else f"its broker is {state or 'not there'}"

    # --- what goes with being primary

    def _follow_role(self) -> None:
        """After a step: what others wait for comes first."""
        view = self._talk.view
        is_known = self._process is None or view.state is not None
        self._hooks.note(self._is_primary if is_known else None, view.generation)
        if is_known:
            self._virtual_ip.want(self._is_primary)

    def _leads(self) -> bool | None:
        """Whether the record names our broker; None: it was not read, or not lately."""
        record = self._coordination.record
        if record is None or self._coordination.lost_s(time.monotonic()) > 0:
            return None
        return record.primary == self._settings.name

    # --- asking the broker

    def _promote(self) -> None:
        has_lock = self._lock.view is LockView.HELD
        why = "got the lock" if has_lock else "saw no primary, and whoever had the lock was silent"
        # Only a failover: what this agent knows may be older than a switchover that has just ended.
        self._ask("promote", State.PRIMARY, cause=f"{self._own_name} {why}", failover=True)

    @property
    def _own_name(self) -> str:
        return f"the agent of {self._settings.name}"

    def _cause(self, decision: Decision) -> str:
        """For the broker's log and its history, which take a sentence."""
        return f"{self._own_name}: {decision.why}"[:CAUSE_LENGTH]

    def _hand_over(self, decision: Decision) -> None:
        self._hand_over_tried = self._stopping
        # Who reads the record does so in milliseconds; later, we may read it ourselves, and nobody wants this any more.
        limit = {} if self._stopping or self._restart.cause else {"within_s": READ_WITHIN_S}
        self._ask("switchover", State.CONNECTING, cause=self._cause(decision), **limit)

    def _fail_back(self) -> None:
        to = self._failback.target(time.monotonic())
        cause = f"{self._own_name}: {to} is preferred, with ha.priority {self._failback.priority_of(to)}"
        self._ask("switchover", State.CONNECTING, cause=cause, to=to)

    def _make_way(self, decision: Decision) -> None:
        """Clients are sent away before the next primary is recorded: so first whether anything can be, as not in a
        directory on the disk that is full."""
        self._is_asked = True
        self._spawn(self._make_way_if_recorded(self._cause(decision)))

    async def _make_way_if_recorded(self, cause: str) -> None:
        coordinator, record = self._coordination.coordinator, self._coordination.record
        try:
            if record is not None:
                await asyncio.to_thread(coordinator.compare_and_set, record, record)
        except CoordinatorError as error:
            self._complain(error)
            self._hand_over_again_at_s = time.monotonic() + HAND_OVER_PAUSE_S
            self._is_asked = False
            self._wake.set()
        else:
            await self._request("switchover", State.CONNECTING, {"cause": cause})

    def _ask(self, method: str, outcome: State, **params: object) -> None:
        self._is_asked = True
        self._spawn(self._request(method, outcome, params))

    async def _request(self, method: str, outcome: State, params: dict[str, object]) -> None:
        view, began_s = self._talk.view, time.monotonic()
        try:
            await self._talk.request(method, REQUEST_TIMEOUT_S, **params)
        except ControlFailure as failure:
            reason = failure.message if isinstance(failure, RequestRefused) else str(failure)
            self._say(Decision(Action.WAIT, f"{method} failed: {reason}"))
            if method == "promote":
                self._pauses = self._refusals.pauses(reason)
            if method == "promote" and self._lock.view is LockView.HELD:
                self._refusal = reason
            elif method == "promote":
                self._pause()
            elif not self._stopping:
                if to := params.get("to"):
                    self._failback.refused(str(to))
                if method == "switchover" and self._restart.cause:
                    self._restart.give_up(f"its broker is primary, and the hand-over came to nothing: {reason}")
                    self._coordination.look_soon()
                if method == "switchover":
                    self._hand_over_again_at_s = time.monotonic() + HAND_OVER_PAUSE_S
                await asyncio.sleep(RETRY_S)
        else:
            log.info("%s took %.0f ms: the broker is %s", method, (time.monotonic() - began_s) * 1000, outcome)
            view.assume(outcome, time.monotonic())
        self._is_asked = False
        self._talk.poll_soon()
        self._wake.set()

    async def _compare_forever(self) -> None:
        """Whether a backup would be the better primary; nobody is asked where nobody wants to know."""
        while self._failback.is_wanted:
            ready = await self._talk.ready_backups() if self._is_primary else frozenset()
            self._failback.note_backups(ready, time.monotonic())
            await asyncio.sleep(self._settings.poll_interval_s)

    def _is_hurried(self) -> bool:
        """While it starts, and between having the lock and being primary."""
        return self._talk.view.state is None or self._tenure.is_undecided

    def _state_changed(self) -> None:
        view = self._talk.view
        self._refusals.forget()
        self._pauses = 1.0
        if view.state is State.READY:  # what was tried in vain as another one is no reason to wait
            self._pause_until_s = 0.0
        log.info("the broker is %s%s", view.state, f", its primary is {view.primary}" if view.primary else "")
        self._coordination.look_soon()
        self._wake.set()

    # --- what the coordinator told

    def _heard(self, error: CoordinatorError | None) -> None:
        if error is not None:
            self._complain(error)
        elif self._coordination.record is not None:
            record, priorities = self._coordination.record, self._coordination.priorities
            self._failback.note_primary(record.primary, priorities, time.monotonic())
        note = self._coordination.restart
        if error is None and self._restart.begin_answer(note, self._talk.view.state, datetime.now(UTC)):
            self._spawn(self._answer_restart(note))
        if self._lock.view is LockView.LOST:
            self._complain(CoordinatorError(f"the lock is lost: {self._settings.coordinator.url} took it from us"))
        self._wake.set()

    def _spawn(self, work: Coroutine[object, object, None]) -> None:
        task = self._loop.create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.pop(task, None)
        if not task.cancelled() and task.exception() is not None:
            self._bug = task.exception()
            self._wake.set()
