"""Another process that uses a coordinator: it can be killed and stopped, and it races with others for real.

`python coordinator_process.py URL TIMEOUT_S hold NAME`: takes the lease, says `held`, renews it, and answers each line
on its standard input with `True` or `False`: whether it still has it.
`python coordinator_process.py URL TIMEOUT_S keep NAME`: the same, but whenever it is lost, it waits for it anew, and
says `held` again.
`python coordinator_process.py URL TIMEOUT_S count TIMES`: once it hears a line, raises the record's epoch so often, and
says how often it had to try again.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path
from types import TracebackType

from qpid_ha_broker.coordination.coordinator import Coordinator, CoordinatorError
from qpid_ha_broker.coordination.registry import open_coordinator
from qpid_ha_config.coordinator import CoordinatorUrl
from qpid_ha_config.settings import CoordinatorSettings

RENEWAL_S = 0.5


class CoordinatorProcess:
    """One of them; ended with the `with`."""

    def __init__(self, url: str, *task: str, session_timeout_s: float = 4.0) -> None:
        command = [sys.executable, str(Path(__file__)), url, str(session_timeout_s), *task]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def line(self) -> str:
        """The next one that it says."""
        if self.process.stdout is None:
            raise ValueError("it has no output")
        return self.process.stdout.readline().strip()

    def ask(self) -> None:
        """Give it a line."""
        if self.process.stdin is None:
            raise ValueError("it has no input")
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def says_held(self) -> bool:
        """Whether it believes to have the lease."""
        self.ask()
        return self.line() == "True"

    def __enter__(self) -> CoordinatorProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.communicate()


def hold(coordinator: Coordinator, name: str) -> None:
    """Until there is no more input."""
    lease = coordinator.lease(name)
    if not lease.acquire(threading.Event()):
        raise CoordinatorError("a wait that nobody ended has ended")
    print("held", flush=True)

    def renew() -> None:
        while not threading.Event().wait(RENEWAL_S):
            try:
                lease.renew()
            except CoordinatorError as error:
                print(error, file=sys.stderr, flush=True)

    threading.Thread(target=renew, daemon=True).start()
    for _ in sys.stdin:
        print(lease.is_held(), flush=True)


def keep(coordinator: Coordinator, name: str) -> None:
    """For ever, as an agent does it: what was lost is given back by a thread of its own."""
    while (lease := coordinator.lease(name)).acquire(threading.Event()):
        print("held", flush=True)
        while lease.is_held():
            lease.renew()
            time.sleep(0.02)
        threading.Thread(target=lease.release, daemon=True).start()


def count(coordinator: Coordinator, times: int) -> None:
    """Each of them is in the record in the end."""
    lost = 0
    print("ready", flush=True)
    sys.stdin.readline()
    for _ in range(times):
        found = coordinator.read()
        while True:
            written, found = coordinator.compare_and_set(found, found._replace(epoch=found.epoch + 1))
            if written:
                break
            lost += 1
    print(lost, flush=True)


def main(url: str, timeout_s: str, task: str, argument: str) -> None:
    settings = CoordinatorSettings(url=CoordinatorUrl.parse(url), session_timeout_s=float(timeout_s))
    coordinator = open_coordinator(settings)
    if task == "hold":
        hold(coordinator, argument)
    elif task == "keep":
        keep(coordinator, argument)
    else:
        count(coordinator, int(argument))


if __name__ == "__main__":
    main(*sys.argv[1:])
