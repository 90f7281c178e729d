"""Another process that waits for a lease of a coordinator, and can be stopped meanwhile.

`python coordinator_process.py URL TIMEOUT_S NAME`: takes the lease, says `held` and renews it; whenever it is lost, it
waits for it anew, and says `held` again.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path
from types import TracebackType

from qpid_ha_broker.coordination.registry import open_coordinator
from qpid_ha_config.coordinator import CoordinatorUrl
from qpid_ha_config.settings import CoordinatorSettings


class CoordinatorProcess:
    """One of them; ended with the `with`."""

    def __init__(self, url: str, name: str, session_timeout_s: float) -> None:
        command = [sys.executable, str(Path(__file__)), url, str(session_timeout_s), name]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    def line(self) -> str:
        """The next one that it says."""
        if self.process.stdout is None:
            raise ValueError("it has no output")
        return self.process.stdout.readline().strip()

    def __enter__(self) -> CoordinatorProcess:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.communicate()


def main(url: str, timeout_s: str, name: str) -> None:
    """For ever, as an agent does it: what was lost is given back by a thread of its own."""
    settings = CoordinatorSettings(url=CoordinatorUrl.parse(url), session_timeout_s=float(timeout_s))
    coordinator = open_coordinator(settings)
    while (lease := coordinator.lease(name)).acquire(threading.Event()):
        print("held", flush=True)
        while lease.is_held():
            lease.renew()
            time.sleep(0.02)
        threading.Thread(target=lease.release, daemon=True).start()


if __name__ == "__main__":
    main(*sys.argv[1:])
