"""The program `qpidd`: it imports the broker, and hands over to its command line.

Importing makes a hundred thousand objects and no garbage, and each round of the collector on the way looks through all
of them. What was imported stays until the process ends: it is kept from later rounds, and from the last one.
"""

from __future__ import annotations

import contextlib
import gc
from pathlib import Path


def main() -> None:
    """The console script. The collector works again when the broker's own code begins."""
    name_process()
    gc.disable()
    try:
        from qpid_ha_broker.server.command_line import main as command_line

        gc.freeze()
    finally:
        gc.enable()
    command_line()


def name_process() -> None:
    """`pgrep -x qpidd`, `ps -C qpidd` and `top` find it by that name, however it was started: else it is a `python`.

    Linux, proc(5): /proc/PID/comm, the name of a thread; those that it makes later have it, too.
    """
    with contextlib.suppress(OSError):  # no /proc here
        Path("/proc/self/comm").write_text("qpidd", encoding="ascii")


if __name__ == "__main__":
    main()
