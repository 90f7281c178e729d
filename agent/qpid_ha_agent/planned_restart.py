"""A restart of one broker and its agent, as an operator asks for it: the coordinator's note `restart`, and its answer.

The request names one broker, and goes the way that a pause goes, so whoever may write the coordinator may ask. There is
one note: a restart that is under way stands in the way of the next one, whoever asks for it.

| stage     | who writes it                | it means                                                                  |
| --------- | ---------------------------- | ------------------------------------------------------------------------- |
| `asked`   | `qpid-ha restart`, `upgrade` | the agent of `node` shall restart; void after `until`                     |
| `taken`   | the agent of `node`          | it hands over, stops its broker, and begins anew with what is on disk     |
| `refused` | the agent of `node`          | nothing was done, or the hand-over came to nothing; `text` says why       |
| `back`    | the next agent of `node`     | its broker serves again, or follows; `text` is the agent's version        |

Every step replaces the note that it answers, or does nothing: of two who write at once, one does.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Final, NamedTuple

from qpid_ha_agent.broker_process import CHECK, BrokerProcessError, run_to_its_end
from qpid_ha_broker import __version__
from qpid_ha_broker.coordination.coordinator import Coordinator
from qpid_ha_broker.ha.states import State

RESTART_NOTE: Final = "restart"
VERSION: Final = "--version"
CHECK_TIMEOUT_S: Final = 20.0
LONGEST_TEXT: Final = 500
TAKES_MOST: Final = timedelta(minutes=10)
"""A stop in order, and the load of a store."""
SETTLED: Final = (State.PRIMARY, State.READY, State.OBSERVER)
"""A broker in another state is on its way to one of these, or cannot get there."""


class Stage(StrEnum):
    """How far it has come."""

    ASKED = "asked"
    TAKEN = "taken"
    REFUSED = "refused"
    BACK = "back"


class RestartRequest(NamedTuple):
    """One note. `identity`: no other request has it."""

    identity: str
    node: str
    by: str
    until: datetime
    """By the clock of the agent's machine; in its first stage only."""
    version: str = ""
    """That has to be installed there; empty: whatever is."""
    stage: Stage = Stage.ASKED
    text: str = ""

    def is_under_way(self, now: datetime) -> bool:
        """Whether its broker may go away for it at any moment, or is away."""
        if self.stage is Stage.TAKEN:  # an agent that never comes back must not keep others from theirs for good
            return now < self.until + TAKES_MOST
        return self.stage is Stage.ASKED and now < self.until

    @property
    def cause(self) -> str:
        """For the logs, and as the reason of a hand-over."""
        return f"{'an upgrade' if self.version else 'a restart'} by {self.by}"


def encode_request(request: RestartRequest) -> str:
    """The note."""
    facts = request._replace(text=request.text[:LONGEST_TEXT])._asdict()
    return json.dumps({**facts, "until": request.until.isoformat()})


def decode_request(note: str) -> RestartRequest | None:
    """The request in a note; None: there is none that we understand, and nobody acts on what he does not understand."""
    try:
        fields = json.loads(note)
        texts = {name: fields[name] for name in ("identity", "node", "by", "version", "text")}
        until = datetime.fromisoformat(fields["until"])
        if not all(isinstance(text, str) for text in texts.values()) or until.tzinfo is None:
            return None
        return RestartRequest(until=until, stage=Stage(fields["stage"]), **texts)
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


@dataclass
class PlannedRestart:
    """The promises: an agent restarts at most once for a request, not after its time, and not before it has found that
    what is on disk would start.

    `cause`: the restart that is under way; empty: none is.
    """

    name: str
    coordinator: Coordinator
    why_not_startable: Callable[[str], str]
    """As the function below, for this broker; takes the version."""
    cause: str = ""
    _note: str = ""
    """As we wrote it last, or tried to."""
    _reason: str = ""
    """Why a restart that we had taken comes to nothing."""
    _is_answering: bool = False

    def begin_answer(self, note: str, state: State | None, now: datetime) -> bool:
        """Whether `answer` has something to do; then nobody else begins before it has ended. Quick."""
        request = decode_request(note)
        if request is None or request.node != self.name or self.cause or self._is_answering:
            return False
        is_due = request.stage is Stage.ASKED and now < request.until
        is_back = request.stage is Stage.TAKEN and state in SETTLED
        self._is_answering = is_due or is_back
        return self._is_answering

    def answer(self, note: str, hindrance: Callable[[], str]) -> str:
        """Take the request, or refuse it because of `hindrance` or of what is installed here; or say that we are back
        after it. A line for the log; empty: somebody else was faster. Blocks. Raises CoordinatorError."""
        try:
            request = decode_request(note)
            if request is None:
                return ""
            if request.stage is Stage.TAKEN and note == self._note:
                reason = self._reason or "the coordinator did not say whether it was taken: ask again"
                return f"{request.cause}: {reason}" if self._replace(note, request, Stage.REFUSED, reason) else ""
            if request.stage is Stage.TAKEN:  # by the agent that was here before
                return (
                    "" if not self._replace(note, request, Stage.BACK, __version__) else f"back after {request.cause}"
                )
            why_not = hindrance() or self.why_not_startable(request.version) or hindrance()  # which may have come since
            if not why_not and datetime.now(UTC) >= request.until:
                why_not = "it took too long to find out whether the broker would start again"
            if not self._replace(note, request, Stage.REFUSED if why_not else Stage.TAKEN, why_not):
                return ""
            if why_not:
                return f"{request.cause} is refused: {why_not}"
            self.cause, self._reason = request.cause, ""
            return f"{request.cause}: this agent and its broker begin anew"
        finally:
            self._is_answering = False

    def give_up(self, reason: str) -> None:
        """The restart comes to nothing, and the broker goes on; the next answer says so."""
        self.cause, self._reason = "", reason

    def forget(self) -> None:
        """This agent is stopped for good: whoever wants that has the last word."""
        self.cause = ""

    def _replace(self, note: str, request: RestartRequest, stage: Stage, text: str) -> bool:
        """Whether that is the note now. An error leaves it open: so it is ours from the attempt on."""
        self._note = encode_request(request._replace(stage=stage, text=text))
        return self.coordinator.replace_note(RESTART_NOTE, note, self._note)


def why_not_startable(command: Sequence[str], version: str) -> str:
    """Why the program that is on disk is not to be started by `command`, or is not `version`; empty: it may be, and
    whatever version is there if `version` is empty. Blocks."""
    program = command[: command.index("--config")]
    try:
        if version:
            _, said = run_to_its_end([*program, VERSION], "", CHECK_TIMEOUT_S)
            if said.split()[-1:] != [version]:
                there = said.strip().rpartition(" ")[2][:80] or "nothing"
                return f"{there} is installed there, and not {version}: install it first"
        code, said = run_to_its_end([*command, CHECK], "", CHECK_TIMEOUT_S)
    except BrokerProcessError as error:
        return str(error)
    if code:
        last = said.strip().splitlines()[-1:] or [f"qpidd {CHECK} ended with exit code {code}"]
        return f"its broker would not start again: {last[0].strip().removeprefix('qpidd: ')}"
    return ""
