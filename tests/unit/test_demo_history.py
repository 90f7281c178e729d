"""The books of the demo, as `qpid-ha-pipeline audit` reads them."""

from __future__ import annotations

import json
from pathlib import Path

from qpid_ha_demo.history import write_history
from qpid_ha_demo.ledger import Arrival, Ledger


def test_everything_that_was_written_down_is_in_the_history(tmp_path: Path) -> None:
    ledger = Ledger(sent=3)
    ledger.confirm(0, 1.0)
    ledger.refused.add(1)
    ledger.arrive(Arrival(0, 2.0, marked=False, sent_again=False))
    ledger.arrive(Arrival(0, 2.5, marked=True, sent_again=True))
    write_history(ledger, "orders", tmp_path / "history.json")
    lines = [json.loads(line) for line in (tmp_path / "history.json").read_text(encoding="utf-8").splitlines()]
    assert [(line["op"], line["id"], line["at_ms"], line["marked"]) for line in lines] == [
        ("sent", "0", None, None),
        ("sent", "1", None, None),
        ("sent", "2", None, None),
        ("rejected", "1", None, None),
        ("accepted", "0", 1000.0, None),
        ("received", "0", 2000.0, False),
        ("sent", "0", None, None),
        ("received", "0", 2500.0, True),
    ]
    assert {line["client"] for line in lines if line["op"] == "received"} == {"consumer"}
    assert [line["number"] for line in lines[:3]] == [0, 1, 2]


def test_what_came_out_of_order_is_explained() -> None:
    ledger = Ledger(sent=10)
    ledger.confirm(4, 1.0)
    ledger.arrive(Arrival(9, 1.5, marked=False, sent_again=False))
    ledger.arrive(Arrival(4, 2.0, marked=True, sent_again=False))
    ledger.arrive(Arrival(5, 2.0, marked=False, sent_again=False))
    assert ledger.audit().out_of_order == (4, 5)
    assert ledger.explain(4) == "4 behind 9, 1.000 s after its confirmation, marked"
    assert ledger.explain(5) == "5 behind 9, never confirmed, without a mark"
