"""Talking with one broker from an event loop: its status again and again, its events, and what is asked of it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from qpid_ha_agent.broker_view import BrokerView
from qpid_ha_agent.control import (
    INVALID_PARAMS,
    ControlClient,
    ControlFailure,
    RequestRefused,
    TimedOut,
    call_with_cause,
)
from qpid_ha_broker.ha.states import State

log = logging.getLogger("agent")

HURRIED_POLL_S = 0.02
"""When each moment counts; an answer costs the broker a fraction of a millisecond."""
NEXT_LISTEN_S = 0.05
WITHOUT_EVENTS_S = 30.0


@dataclass
class BrokerTalk:
    """Keeps `view` up to date; calls `changed` when the broker's state is another one."""

    control_socket: Path
    poll_interval_s: float
    answer_timeout_s: float
    is_hurried: Callable[[], bool]
    changed: Callable[[], None]
    is_awake: Callable[[], bool] = lambda: False
    """Asked when the control socket cannot be used: whether the broker answers its clients. Takes a moment."""
    view: BrokerView = field(default_factory=BrokerView)
    is_there: bool = False
    """There is a process to talk with."""
    _problem: str = ""
    """Why a broker that is awake did not say how it is when it was asked last."""
    _knows_agents: bool = True
    """The broker has not refused to be told who asks: one that an older agent has started does."""
    _poll_now: asyncio.Event = field(default_factory=asyncio.Event)

    def begin(self, view: BrokerView) -> None:
        """There is a new process."""
        self.view, self.is_there, self._knows_agents = view, True, True
        self.poll_soon()

    def poll_soon(self) -> None:
        """Something has happened: do not wait for the next turn."""
        self._poll_now.set()

    async def look(self) -> None:
        """Ask now: what was seen at the last turn may be over."""
        if self.is_there:
            await self._poll(self.view)

    async def request(self, method: str, timeout_s: float, **params: object) -> object:
        """The broker's answer; a `cause` among the params says who wants that. Raises ControlFailure."""
        return await asyncio.to_thread(self._call, method, timeout_s, params)

    async def ready_backups(self) -> frozenset[str]:
        """Of a primary: whoever could take over at once and lose nothing. None when it does not say."""
        try:
            rows = await self.request("backups", self.answer_timeout_s)
        except ControlFailure:
            return frozenset()
        backups = rows if isinstance(rows, list) else []
        ready = [row for row in backups if isinstance(row, dict) and row.get("in_sync") is True]
        return frozenset(str(row.get("name")) for row in ready if row.get("state") == State.READY)

    def _call(self, method: str, timeout_s: float, params: dict[str, object]) -> object:
        with ControlClient(self.control_socket, timeout_s) as client:
            match params:
                case {"cause": str(cause), **others}:
                    return call_with_cause(client, method, cause, **others)
            return client.call(method, **params)

    async def poll_forever(self) -> None:
        """Ask for the status."""
        while True:
            if self.is_there:
                await self._poll(self.view)
            self._poll_now.clear()
            interval_s = HURRIED_POLL_S if self.is_hurried() else self.poll_interval_s
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(interval_s):
                    await self._poll_now.wait()

    async def _poll(self, view: BrokerView) -> None:
        asked_at_s = asyncio.get_running_loop().time()
        view.ask(asked_at_s)
        before = view.state
        try:
            view.answer(await self._ask_status(), asked_at_s)
        except ControlFailure as failure:
            if await self._is_awake_after(failure):
                view.answer_otherwise()
                self._note_problem(str(failure))
        else:
            self._problem = ""
        if view is self.view and view.state is not before:
            self.changed()

    async def _ask_status(self) -> object:
        """As the agent: the broker tells others when that asked last. Raises ControlFailure."""
        try:
            who_asks = {"agent": True} if self._knows_agents else {}
            return await self.request("status", self.answer_timeout_s, **who_asks)
        except RequestRefused as refusal:
            if refusal.code != INVALID_PARAMS or not self._knows_agents:
                raise
            self._knows_agents = False
            return await self.request("status", self.answer_timeout_s)

    async def _is_awake_after(self, failure: ControlFailure) -> bool:
        """Whether the broker runs well but for its control socket, whose file may be gone, closed to us, or in use by
        too many. One that has taken the connection and gives no answer may hang."""
        if isinstance(failure, RequestRefused):
            return True
        return not isinstance(failure, TimedOut) and await asyncio.to_thread(self.is_awake)

    def _note_problem(self, problem: str) -> None:
        if problem != self._problem:
            self._problem = problem
            log.warning("the broker runs, and cannot be asked how it is: %s", problem)

    async def listen_forever(self) -> None:
        """The broker's own word that something has changed comes sooner than the next poll."""
        while True:
            if self.is_there and self.view.state not in (None, State.LOADING):
                with contextlib.suppress(OSError, ValueError):
                    await self._listen()
            await asyncio.sleep(NEXT_LISTEN_S)

    async def _listen(self) -> None:
        reader, writer = await asyncio.open_unix_connection(self.control_socket)
        try:
            writer.write(json.dumps({"jsonrpc": "2.0", "id": 1, "method": "events", "params": {}}).encode() + b"\n")
            answer = json.loads(await reader.readline())
            if "result" not in answer:  # this broker does not offer it
                await asyncio.sleep(WITHOUT_EVENTS_S)
                return
            while line := await reader.readline():
                self.view.hear(json.loads(line))
                self.poll_soon()
        finally:
            writer.close()
