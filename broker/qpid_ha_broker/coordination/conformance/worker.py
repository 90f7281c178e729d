"""Another process with a coordinator of its own, which does what it is told line by line; this end of it, and its own.

A worker that holds a lease renews it from a thread, as an agent does. So one that is stopped (SIGSTOP) renews nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from qpid_ha_broker.coordination.coordinator import Coordinator, CoordinatorError, Lease
from qpid_ha_broker.coordination.record import decode_record, encode_record
from qpid_ha_broker.coordination.registry import open_coordinator
from qpid_ha_broker.ha.cluster_record import ClusterRecord
from qpid_ha_config.configuration import WrittenSettings

ANSWER_S: Final = 30.0
RENEWAL_S: Final = 0.25
HOLD_S: Final = 0.003
CONTEST_ATTEMPTS: Final = 4
"""For each time that it is held."""
"""Long enough for another one to come in between, where it may."""
Interval = tuple[float, float]
"""On the monotonic clock, which all processes of a machine share."""


class WorkerFailed(Exception):
    """The worker did not answer, or with an error that no coordinator should raise; the text says which."""


class Worker:
    """The process, from outside."""

    def __init__(self, flags: Mapping[str, str]) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "qpid_ha_broker.coordination.conformance.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            encoding="utf-8",
        )
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._listen, name="worker", daemon=True).start()
        self._send(json.dumps(dict(flags)))

    def __enter__(self) -> Worker:
        return self

    def __exit__(self, *_exception: object) -> None:
        self.signal(signal.SIGKILL)
        self._process.communicate()

    def signal(self, number: signal.Signals) -> None:
        """Send it to the process."""
        self._process.send_signal(number)

    def kill(self) -> None:
        """And see it dead."""
        self.signal(signal.SIGKILL)
        self._process.wait()

    def ask(self, command: str, *arguments: object) -> None:
        """Without waiting for the answer."""
        self._send(json.dumps([command, *arguments]))

    def answer(self) -> Any:
        """To the oldest question that has none. Raises CoordinatorError if its coordinator did, and WorkerFailed."""
        try:
            line = self._lines.get(timeout=ANSWER_S)
        except queue.Empty:
            raise WorkerFailed(f"another process had no answer within {ANSWER_S:g} s") from None
        if not line:
            raise WorkerFailed("another process has ended; its last words are on stderr")
        answer = json.loads(line)
        if "error" in answer:
            raise CoordinatorError(answer["error"])
        return answer["result"]

    def tell(self, command: str, *arguments: object) -> Any:
        """Ask, and wait."""
        self.ask(command, *arguments)
        return self.answer()

    def read(self) -> ClusterRecord:
        """Raises CoordinatorError."""
        return from_text(self.tell("read"))

    def _send(self, line: str) -> None:
        if self._process.stdin is None:
            raise WorkerFailed("another process has no input")
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()

    def _listen(self) -> None:
        if self._process.stdout is not None:
            for line in self._process.stdout:
                self._lines.put(line)
        self._lines.put("")


class LeaseKeeper:
    """Renews a lease as long as it is asked to, as its holder's process must."""

    def __init__(self, lease: Lease) -> None:
        self.lease = lease
        self._ended = threading.Event()
        threading.Thread(target=self._renew, name="renewal", daemon=True).start()

    def end(self) -> None:
        """Renew it no more."""
        self._ended.set()

    def _renew(self) -> None:
        while not self._ended.wait(RENEWAL_S):
            with contextlib.suppress(CoordinatorError):  # that it is lost, `is_held` says
                self.lease.renew()


def as_text(record: ClusterRecord) -> str:
    """For a worker."""
    return encode_record(record).decode()


def from_text(text: str) -> ClusterRecord:
    """What a worker answered."""
    return decode_record(text.encode())


def contest(lease: Lease, rounds: int) -> list[Interval]:
    """Acquire it until we held it as often; when it was ours. A busy machine may let a lease run out meanwhile."""
    held: list[Interval] = []
    for _ in range(CONTEST_ATTEMPTS * rounds):
        if len(held) == rounds:
            break
        if lease.acquire(threading.Event()) and lease.is_held():
            begin_s = time.monotonic()
            time.sleep(HOLD_S)
            end_s = time.monotonic()
            if lease.is_held():
                held.append((begin_s, end_s))
        lease.release()
    return held


def climb(coordinator: Coordinator, name: str, steps: int) -> list[int]:
    """Count the record's epoch up as often; the epochs that were confirmed as ours."""
    made = []
    for _ in range(steps):
        record = coordinator.read()
        wanted = record._replace(primary=name, epoch=record.epoch + 1)
        done, there = coordinator.compare_and_set(record, wanted)
        if done:
            made.append(there.epoch)
    return made


class _Servant:
    """The process, from inside: a method for each command."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator
        self._keepers: dict[str, LeaseKeeper] = {}

    def ready(self) -> int:
        """The process."""
        return os.getpid()

    def read(self) -> str:
        return as_text(self._coordinator.read())

    def compare_and_set(self, expected: str, wanted: str) -> list[object]:
        done, there = self._coordinator.compare_and_set(from_text(expected), from_text(wanted))
        return [done, as_text(there)]

    def climb(self, name: str, steps: int) -> list[int]:
        return climb(self._coordinator, name, steps)

    def read_note(self, name: str) -> str:
        return self._coordinator.read_note(name)

    def replace_note(self, name: str, expected: str, wanted: str) -> bool:
        return self._coordinator.replace_note(name, expected, wanted)

    def try_lock(self, holder: str, name: str) -> bool:
        lease = self._coordinator.lease(holder, name)
        is_ours = lease.try_lock()
        if is_ours:
            self._keepers[name] = LeaseKeeper(lease)
        return is_ours

    def is_held(self, name: str) -> bool:
        return self._keepers[name].lease.is_held()

    def release(self, name: str) -> None:
        keeper = self._keepers.pop(name)
        keeper.end()
        keeper.lease.release()

    def contest(self, holder: str, name: str, rounds: int) -> list[Interval]:
        return contest(self._coordinator.lease(holder, name), rounds)


def main() -> None:
    """Until the input ends."""
    flags = json.loads(sys.stdin.readline())
    servant = _Servant(open_coordinator(WrittenSettings.of_flags(flags).coordinator_settings()))
    for line in sys.stdin:
        command, *arguments = json.loads(line)
        method: Callable[..., object] = getattr(servant, command)
        answer: dict[str, object]
        try:
            answer = {"result": method(*arguments)}
        except CoordinatorError as error:
            answer = {"error": str(error)}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
