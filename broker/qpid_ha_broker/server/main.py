"""The program `qpidd`: it imports the broker, and hands over to its command line.

Importing makes a hundred thousand objects and no garbage, and each round of the collector on the way looks through all
of them. What was imported stays until the process ends: it is kept from later rounds, and from the last one.
"""

from __future__ import annotations

import gc


def main() -> None:
    """The console script. The collector works again when the broker's own code begins."""
    gc.disable()
    try:
        from qpid_ha_broker.server.command_line import main as command_line

        gc.freeze()
    finally:
        gc.enable()
    command_line()


if __name__ == "__main__":
    main()
