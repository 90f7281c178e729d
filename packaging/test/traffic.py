"""Numbered messages through a cluster until SIGTERM: each has to arrive once, and in order.

usage: traffic.py ADDRESSES QUEUE   (run by the interpreter of the package)
"""

from __future__ import annotations

import signal
import sys
import threading
import time

from proton import Message

from qpid_ha_client import SessionClient
from qpid_ha_client.session_client import BlockingReceiver

PAUSE_S = 0.01
PATIENCE_S = 120.0


def main(addresses: str, queue: str) -> int:
    """Send and receive; 0 if what came is what was sent."""
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda _number, _frame: stop.set())
    came: list[int] = []
    with SessionClient(addresses) as client:
        sender, receiver = client.sender(queue), client.receiver(queue)
        sent = 0
        print("traffic: runs", flush=True)
        while not stop.is_set():
            sender.send_soon(Message(sent, durable=True), PATIENCE_S)
            sent += 1
            while len(came) + 50 < sent:
                take(receiver, came)
            time.sleep(PAUSE_S)
        sender.flush(PATIENCE_S)
        while len(came) < sent:
            take(receiver, came)
        guarantee = client.guarantee.value if client.guarantee is not None else "none"
    is_right = came == list(range(sent))
    print(f"traffic: sent {sent}, all confirmed; received {len(came)}; {guarantee}; ", end="")
    print("each once and in order" if is_right else "NOT WHAT WAS SENT", flush=True)
    return 0 if is_right else 1


def take(receiver: BlockingReceiver, came: list[int]) -> None:
    """The next message."""
    received = receiver.receive(PATIENCE_S)
    came.append(received.body)
    received.accept()


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
