"""How a broker is: first its own word, and when it is silent, the process table's."""

from __future__ import annotations

import time
from collections.abc import Mapping
from enum import StrEnum
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from qpid_ha_agent.broker_process import BrokerProcess, age_s, find_pid
from qpid_ha_agent.control import ControlClient, ControlFailure, Forbidden, RequestRefused, TimedOut, Unreachable
from qpid_ha_broker.ha.states import State
from qpid_ha_config.scalars import format_progress

RETRY_S = 0.02
SOCKET_BACK_S = 0.75
"""A broker looks four times a second whether the file of its socket is there."""
STARTED_S = 10.0
"""A process that is younger may not listen yet."""
ASK_AGAIN_S = 0.2
"""Between two questions that go to all brokers."""


class Life(StrEnum):
    """What can be told of a broker from the outside."""

    ANSWERS = "answers"
    SILENT = "silent"
    """There is a process, and it does not answer: stopped, hanging, about to listen, or somebody else's."""
    GONE = "gone"


class Sight(NamedTuple):
    """One look. `status` is what the broker answered; `how` says what was asked, for people."""

    life: Life
    how: str
    status: Mapping[str, object] = MappingProxyType({})

    @property
    def state(self) -> State | None:
        """The broker's own word."""
        state = self.status.get("state")
        return State(state) if isinstance(state, str) and state in list(State) else None

    @property
    def is_primary(self) -> bool:
        """By its own word; of a silent one, nobody knows."""
        return self.state is State.PRIMARY

    @property
    def is_loading(self) -> bool:
        """The broker answers, and has not loaded its store yet."""
        return self.state is State.LOADING

    @property
    def progress(self) -> str:
        """Of one that is loading, such as `40% of 900 MB`."""
        return format_progress(self.number("loaded_bytes"), self.number("store_bytes"))

    def text(self, name: str) -> str:
        """The status as text; empty when it was not told."""
        text = self.status.get(name)
        return text if isinstance(text, str) else ""

    def number(self, name: str) -> int:
        """The status as a number; 0 when it was not told."""
        number = self.status.get(name)
        return number if isinstance(number, int) else 0

    def names(self, name: str) -> tuple[str, ...]:
        """The status as a list of names."""
        names = self.status.get(name)
        return tuple(name for name in names if isinstance(name, str)) if isinstance(names, list) else ()


def look(control_socket: Path, timeout_s: float) -> Sight:
    """One look, which takes `timeout_s` at most, and a moment for the process table.

    A broker whose socket's file was removed makes it again within `SOCKET_BACK_S`, if it is well.
    """
    deadline_s = time.monotonic() + min(SOCKET_BACK_S, timeout_s)
    while True:
        try:
            with ControlClient(control_socket, timeout_s) as client:
                status = client.call("status")
            break
        except (TimedOut, Forbidden, RequestRefused) as problem:
            return Sight(Life.SILENT, str(problem))
        except Unreachable as problem:
            pid = find_pid(control_socket)
            if not pid:
                return Sight(Life.GONE, f"{problem}; nor is there a process of it")
            if time.monotonic() + RETRY_S > deadline_s or age_s(pid) < STARTED_S:
                return Sight(Life.SILENT, f"{problem}; its process {pid} is there")
        time.sleep(RETRY_S)
    if not isinstance(status, dict) or "state" not in status:
        return Sight(Life.SILENT, f"what listens at {control_socket} is no broker of a cluster")
    return Sight(Life.ANSWERS, "the broker answered", status)


def look_at_all(client: ControlClient) -> list[Mapping[str, object]]:
    """A row for each broker of the cluster; one that gives no answer has no name. Raises ControlFailure."""
    rows = client.call("status", all=True)
    return [row for row in rows if isinstance(row, dict)] if isinstance(rows, list) else []


def who_answers(client: ControlClient) -> frozenset[str]:
    """The brokers of the cluster that the one at `client` can ask now; none when nobody can tell."""
    try:
        rows = look_at_all(client)
    except ControlFailure:
        return frozenset()
    return frozenset(str(row["name"]) for row in rows if row.get("name"))


def await_company(control_socket: Path, count: int, limit_s: float) -> frozenset[str]:
    """Who answers, as soon as `count` brokers do, or after `limit_s`."""
    deadline_s = time.monotonic() + limit_s
    with ControlClient(control_socket, limit_s) as client:
        while True:
            answering = who_answers(client)
            if len(answering) >= count or time.monotonic() + ASK_AGAIN_S > deadline_s:
                return answering
            time.sleep(ASK_AGAIN_S)


def await_answer(control_socket: Path, process: BrokerProcess, timeout_s: float, load_s: float = 0.0) -> Sight:
    """The first answer, or the last silence; GONE as soon as the process is dead.

    After the first answer it has `load_s` to load its store: the last answer is one of LOADING if that takes longer.
    """
    deadline_s = time.monotonic() + timeout_s
    loading: Sight | None = None
    while True:
        remaining_s = deadline_s - time.monotonic()
        sight = look(control_socket, max(RETRY_S, min(remaining_s, 1.0)))
        if sight.life is Life.ANSWERS and not sight.is_loading:
            return sight
        if sight.is_loading:
            if loading is None:
                deadline_s = min(deadline_s, time.monotonic() + load_s)
            loading = sight
        if not process.is_alive():
            return Sight(Life.GONE, "its process ended")
        if remaining_s <= 0:
            return loading or Sight(Life.SILENT, sight.how)
        time.sleep(RETRY_S)
