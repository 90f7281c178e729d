"""Asking one broker for all that a diagnosis wants of it, and many at once, within a limit of time.

Whoever hangs costs nobody else an answer: each is asked on a thread of its own, and what has been answered when the
time is over counts.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Mapping
from typing import Final, Protocol

from qpid_ha_agent.broker_address import AddressError
from qpid_ha_agent.control import Client, ControlFailure, Forbidden, NotAllowed, RequestRefused, TimedOut
from qpid_ha_broker.diagnosis.answers import BrokerAnswers
from qpid_ha_broker.ha.states import State
from qpid_ha_config.errors import ConfigError

GROWTH_S: Final = 1.0
"""Between two looks at the queues."""
_CONDITION: Final = re.compile(r"Condition\('[^']*', '([^']*)'\)")
OF_CLUSTER: Final = ("backups", "history", "brokers", "sets")
"""Asked of the primary, with the queues; the last only if there are sets beside `default`."""


class ClosableClient(Client, Protocol):
    """Whoever asks a broker, and lets go of its connection."""

    def close(self) -> None:
        """Drop the connection."""


def ask_broker(make_client: Callable[[], ClosableClient], answers: BrokerAnswers) -> None:
    """Ask a broker for everything, one thing after the other; `answers` takes what it says."""
    try:
        client = make_client()
    except (ControlFailure, AddressError, ConfigError) as error:
        _note_silence(answers, error)
        return
    try:
        _ask(client, answers, "status", "status")
        status = answers.status
        if status is None:
            return
        _ask_query(client, answers)
        _ask(client, answers, "get", "get")
        if status["state"] == State.LOADING:
            return
        if status["state"] == State.STANDALONE:
            _ask_queues(client, answers)
            return
        _ask(client, answers, "status-all", "status", all=True)
        if status["state"] == State.PRIMARY:
            for method in OF_CLUSTER if status.get("sets") else OF_CLUSTER[:-1]:
                _ask(client, answers, method, method)
            _ask_queues(client, answers)
    except ControlFailure as error:
        _note_silence(answers, error)
    finally:
        client.close()


def ask_for_all_figures(make_client: Callable[[], ClosableClient], answers: BrokerAnswers) -> None:
    """`query` of every broker, from one that answers: for those that cannot be asked from here."""
    client = make_client()
    try:
        _ask(client, answers, "query-all", "query", all=True)
    finally:
        client.close()


def _note_silence(answers: BrokerAnswers, error: Exception) -> None:
    """Proton wraps what the system says twice."""
    text = str(error)
    said = _CONDITION.search(text)
    answers.silence = text if said is None else f"{text.partition(': Connection ')[0]}: {said[1]}"
    answers.is_silent = not isinstance(error, Forbidden | NotAllowed | AddressError | ConfigError)
    answers.timed_out = isinstance(error, TimedOut)


def _ask(client: ClosableClient, answers: BrokerAnswers, name: str, method: str, **params: object) -> None:
    """A broker that does not even tell its status does not let us in. Raises ControlFailure."""
    try:
        answers.answers[name] = client.call(method, **params)
    except RequestRefused as refusal:
        if name == "status":
            raise NotAllowed(refusal.message) from None
        answers.refused[name] = refusal.message


def _ask_query(client: ClosableClient, answers: BrokerAnswers) -> None:
    """Raises ControlFailure."""
    before_s = time.time()
    _ask(client, answers, "query", "query")
    after_s = time.time()
    at_ms = answers.mapping("query").get("time_ms")
    if isinstance(at_ms, int):
        ahead_s = at_ms / 1000 - (before_s + after_s) / 2
        doubt_s = (after_s - before_s) / 2
        answers.clock_ahead_s = max(abs(ahead_s) - doubt_s, 0.0) * (1 if ahead_s > 0 else -1)


def _ask_queues(client: ClosableClient, answers: BrokerAnswers) -> None:
    """Twice where there may be one that grows and is not read. Raises ControlFailure."""
    _ask(client, answers, "queues", "queues", action="list")
    if any(row.get("messages") and not row.get("consumers") for row in answers.rows("queues")):
        time.sleep(GROWTH_S)
        _ask(client, answers, "queues-again", "queues", action="list")


def in_parallel(calls: Mapping[str, Callable[[], None]], until_s: float) -> list[str]:
    """Call all at once, until that time of the monotonic clock; the names of those that had not ended by then.

    What they have in hand then goes on without anybody, and ends with the process.
    """
    threads = {name: threading.Thread(target=call, name=f"asks {name}", daemon=True) for name, call in calls.items()}
    for thread in threads.values():
        thread.start()
    for thread in threads.values():
        thread.join(max(0.0, until_s - time.monotonic()))
    return [name for name, thread in threads.items() if thread.is_alive()]
