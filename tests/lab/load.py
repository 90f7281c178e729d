"""A producer and a consumer on the lab's client, and their account."""

from __future__ import annotations

import itertools
import json
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import qpid_ha_demo
from lab.machines import Lab
from lab.plan import CLIENT, SERVICE_URL

_PROGRAM: Final = Path(__file__).with_name("client_load.py")
_REMOTE: Final = "/var/tmp/client_load.py"
_CLIENTS: Final = Path(qpid_ha_demo.__file__).parent
"""What the program imports, from beside it."""
_PYTHON: Final = "/opt/qpid-ha/bin/python"
_GLANCE_S: Final = 0.05
_QUEUES: Final = itertools.count(1)


class LoadProblem(Exception):
    """The clients ended, or what was waited for did not come."""


@dataclass(frozen=True)
class Gap:
    """A stretch without a confirmation; of this host's `time.monotonic()`."""

    began_s: float
    ended_s: float

    @property
    def seconds(self) -> float:
        """How long."""
        return self.ended_s - self.began_s


@dataclass(frozen=True)
class Account:
    """What became of everything, as `qpid_ha_demo.ledger.LedgerAudit` says it."""

    facts: dict[str, Any]

    def complaints(self) -> list[str]:
        """Broken promises, a sentence each."""
        broken = {
            "lost": "confirmed, and never delivered",
            "duplicates_unmarked": "delivered again without a mark",
            "out_of_order": "delivered out of order",
        }
        return [f"{meaning}: {self.facts[name]}" for name, meaning in broken.items() if self.facts[name]]

    def __str__(self) -> str:
        return ", ".join(f"{name} {fact}" for name, fact in self.facts.items())


class Load:
    """`with Load(lab) as load:` publishes and consumes until `finish`, which gives the account. A queue of its own.

    Clients run on `machine`, and connect to `url` (several: with commas between them). Messages are durable unless
    it is told otherwise.
    """

    def __init__(
        self,
        lab: Lab,
        queue: str = "",
        *,
        url: str = SERVICE_URL,
        machine: str = CLIENT,
        rate: int = 200,
        size: int = 100,
        consume: bool = True,
        durable: bool = True,
    ) -> None:
        self._lab = lab
        self._machine = machine
        self.queue = queue or f"load-{next(_QUEUES)}"
        self._command = [_PYTHON, _REMOTE, url, self.queue, "--rate", str(rate), "--size", str(size)]
        if not consume:
            self._command.append("--no-consumer")
        if not durable:
            self._command.append("--transient")
        self._process: subprocess.Popen[str] | None = None
        self._offset_s = 0.0
        """What the client's clock is ahead of ours; 0 where both share one kernel, to within microseconds."""
        self.account: Account | None = None

    def __enter__(self) -> Self:
        self._lab.push(self._machine, _PROGRAM, _REMOTE)
        self._lab.push(self._machine, _CLIENTS, f"/var/tmp/{_CLIENTS.name}")
        self._process = self._lab.spawn(self._machine, *self._command)
        asked_s = time.monotonic()
        theirs_s = self.ask("report")["now_s"]
        asked_s = time.monotonic()  # the first answer includes the start of the program
        theirs_s = self.ask("report")["now_s"]
        self._offset_s = theirs_s - (asked_s + time.monotonic()) / 2
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            try:
                facts = self.ask("audit")
                error.add_note(f"the clients: {facts['audit']}; brokers told them: {facts['problems']}")
            except LoadProblem as problem:
                error.add_note(f"the clients: {problem}")
        self._end()

    # --- asking

    def ask(self, do: str, **details: Any) -> dict[str, Any]:
        """One question to the client. Raises LoadProblem when it has ended."""
        process = self._process
        if process is None or process.stdin is None or process.stdout is None:
            raise LoadProblem("the clients do not run")
        try:
            process.stdin.write(json.dumps({"do": do, **details}) + "\n")
            process.stdin.flush()
            answer: dict[str, Any] = json.loads(process.stdout.readline())
        except (OSError, ValueError) as problem:
            process.kill()
            said = process.stderr.read() if process.stderr is not None else ""
            raise LoadProblem(f"the clients ended: {said[-2000:]}") from problem
        return answer

    def confirmed(self) -> int:
        """How many messages the cluster has confirmed."""
        return int(self.ask("report")["confirmed"])

    def unanswered(self) -> int:
        """How many messages were sent, and are not confirmed."""
        report = self.ask("report")
        return int(report["sent"]) - int(report["confirmed"])

    def wait_confirmed(self, count: int = 1, timeout_s: float = 90.0) -> float:
        """Until so many more are confirmed; the seconds that took. Raises LoadProblem."""
        wanted = self.confirmed() + count
        return self._wait(lambda: self.confirmed() >= wanted, f"{count} more messages are confirmed", timeout_s)

    def gaps(self, since_s: float, longer_than_s: float = 0.1) -> list[Gap]:
        """Stretches without a confirmation; the last one may be going on still."""
        found = self.ask("gaps", since_s=since_s + self._offset_s, longer_than_s=longer_than_s)["gaps"]
        return [Gap(began_s - self._offset_s, ended_s - self._offset_s) for began_s, ended_s in found]

    def outage(self, since_s: float) -> float:
        """Seconds of the longest stretch without a confirmation since then, 0 if it is not worth mentioning."""
        return max((gap.seconds for gap in self.gaps(since_s)), default=0.0)

    def recovered_after(self, since_s: float, timeout_s: float = 120.0) -> float:
        """Seconds from then to the first confirmation on a connection that was made after it. Raises LoadProblem."""
        found: list[float] = []

        def has_recovered() -> bool:
            recoveries = self.ask("report")["recoveries"]
            found[:] = [
                confirmed_s - self._offset_s - since_s
                for attached_s, confirmed_s in recoveries
                if attached_s - self._offset_s > since_s
            ]
            return bool(found)

        self._wait(has_recovered, "a publisher is served again", timeout_s)
        return found[0]

    # --- steering

    def pause(self) -> None:
        """Publish nothing new."""
        self.ask("pause")

    def resume(self) -> None:
        """Publish again."""
        self.ask("resume")

    def settle(self, timeout_s: float = 90.0) -> int:
        """Publish nothing new, and have all that was sent confirmed; how many that are. Raises LoadProblem."""
        self.pause()
        self._wait(lambda: bool(self.ask("report")["is_settled"]), "all that was sent is confirmed", timeout_s)
        return self.confirmed()

    def finish(self, timeout_s: float = 60.0, given_up: int = 0) -> Account:
        """Publish no more, have all that was sent confirmed and all that was confirmed consumed; the account.

        What has not come then is lost, and the account says so. For the loss of `given_up` messages nobody waits.
        """
        self.ask("consume")
        self.pause()
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            report = self.ask("report")
            if report["is_settled"] and report["missing"] <= given_up:
                break
            time.sleep(_GLANCE_S)
        time.sleep(_GLANCE_S)  # what is on its way may be a duplicate
        self.account = Account(self.ask("audit")["audit"])
        self._end()
        return self.account

    def _wait(self, holds: Callable[[], bool], what: str, timeout_s: float) -> float:
        began_s = time.monotonic()
        while not holds():
            if time.monotonic() - began_s > timeout_s:
                raise LoadProblem(f"not in {timeout_s:g} s: {what}")
            time.sleep(_GLANCE_S)
        return time.monotonic() - began_s

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        try:
            process.communicate(timeout=15)  # closes its input, and it ends
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
