"""The books of the demo as a file, for who wants to do the account anew: `qpid-ha-pipeline audit` reads it.

One JSON object on a line for each thing that a client did or saw; docs/pipeline.md has the fields.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from qpid_ha_demo.ledger import Ledger


def write_history(ledger: Ledger, queue: str, path: Path) -> None:
    """Write down what both clients wrote down."""
    with path.open("w", encoding="utf-8") as file:
        for line in _lines(ledger, queue):
            file.write(json.dumps(line) + "\n")


def _lines(ledger: Ledger, queue: str) -> Iterator[dict[str, object]]:
    def line(
        op: str, number: int, client: str, at_s: float | None = None, marked: bool | None = None
    ) -> dict[str, object]:
        return {
            "op": op, "id": str(number), "client": client, "queue": queue,
            "number": number if client == "publisher" else None,
            "at_ms": None if at_s is None else round(at_s * 1e6) / 1e3, "marked": marked,
        }  # fmt: skip

    for number in range(ledger.sent):
        yield line("sent", number, "publisher")
    for number in sorted(ledger.refused):
        yield line("rejected", number, "publisher")
    for number, at_s in ledger.confirmed_at_s.items():
        yield line("accepted", number, "publisher", at_s)
    for arrival in ledger.arrivals:
        if arrival.sent_again:
            yield line("sent", arrival.number, "publisher")
        yield line("received", arrival.number, "consumer", arrival.at_s, arrival.marked)
