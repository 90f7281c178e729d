"""A process that is a member of a process group: `python cpg_process.py CLUSTER NAME`.

It reads `send FIRST COUNT BYTES` from its input, and prints a line for each thing that comes.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys

from qpid_ha_broker.server.peers.cpg_order import OrderedView
from qpid_ha_broker.server.peers.cpg_transport import CpgTransport


class Printer:
    """Tells what comes."""

    def delivered(self, sender: str, data: bytes) -> None:
        label = data[:32].split(b" ")[0].decode()
        print(f"batch {sender} {label} {len(data)}", flush=True)

    def view_changed(self, view: OrderedView) -> None:
        print("view " + " ".join(",".join(names) or "-" for names in view), flush=True)


async def run(cluster: str, name: str) -> None:
    transport = CpgTransport(cluster, name, Printer())
    transport.start()
    loop, ended = asyncio.get_running_loop(), asyncio.Event()

    def read() -> None:
        """Whole lines: their writer sends each at once."""
        lines = os.read(sys.stdin.fileno(), 65_536).decode().splitlines()
        if not lines:
            ended.set()
        for line in lines:
            _, first, count, size = line.split()
            for number in range(int(first), int(first) + int(count)):
                transport.multicast(f"{name}-{number} ".encode().ljust(int(size), b"."))

    loop.add_reader(sys.stdin.fileno(), read)
    await ended.wait()
    transport.close()


if __name__ == "__main__":
    logging.basicConfig(stream=sys.stderr, level=logging.INFO)
    asyncio.run(run(sys.argv[1], sys.argv[2]))
