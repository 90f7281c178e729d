"""docs/examples/journal.ipynb: every cell runs, in order and in one namespace, and what it printed is not in git.

A kernel of its own would start a second Java; what runs here is the same code in the session that the tests have.
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from doc_blocks import DOCS
from written_journal import WrittenJournal, amqp

NOTEBOOKS = sorted((DOCS / "examples").glob("*.ipynb"))


def cells_of(notebook: Path) -> list[dict[str, Any]]:
    """Those with code."""
    document = json.loads(notebook.read_text(encoding="utf-8"))
    assert (document["nbformat"], document["nbformat_minor"]) == (4, 5)
    ids = [cell["id"] for cell in document["cells"]]
    assert len(ids) == len(set(ids))
    return [cell for cell in document["cells"] if cell["cell_type"] == "code"]


def run(notebook: Path) -> dict[str, Any]:
    """The namespace in the end. Raises what a cell raises, with the cell's id as its file."""
    namespace: dict[str, Any] = {"__name__": "__main__"}
    for cell in cells_of(notebook):
        exec(compile("".join(cell["source"]), f"{notebook.name}:{cell['id']}", "exec"), namespace)
    return namespace


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda notebook: notebook.stem)
def test_outputs_are_stripped(notebook: Path) -> None:
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in cells_of(notebook))


def test_every_cell_of_the_journal_runs(
    spark: SparkSession,
    journal: WrittenJournal,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    journal.start(1)
    orders = journal.declare("orders")
    bolt: Any = {"id": 17, "item": "bolt"}
    held = journal.enqueue(orders, amqp("first", subject="greeting"), amqp(bolt), amqp("third"))
    journal.now_ms += 90_000
    journal.dequeue(orders, held[:2])
    journal.write_status()
    monkeypatch.setenv("QPID_HA_DATA_DIR", str(journal.data_dir))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    namespace = run(DOCS / "examples" / "journal.ipynb")
    assert [(row.queue, row.messages) for row in namespace["left"].collect()] == [("orders", 1)]
    rates = [(row.messages_in, row.messages_out) for row in namespace["throughput"].collect()]
    assert rates == [(3, 0), (0, 2)]
    assert [list(row.p50_p99) for row in namespace["latency"].collect()] == [[90.0, 90.0]]
    assert {row.body_json for row in namespace["bodies"].collect()} >= {'{"id":17,"item":"bolt"}'}
    assert "<svg" in namespace["page"].read_text(encoding="utf-8")
    assert "orders" in capsys.readouterr().out


def test_a_cell_that_fails_is_named(tmp_path: Path) -> None:
    cell = {"cell_type": "code", "id": "broken", "outputs": [], "execution_count": None, "source": ["1 / 0"]}
    notebook = tmp_path / "some.ipynb"
    notebook.write_text(json.dumps({"nbformat": 4, "nbformat_minor": 5, "cells": [cell]}))
    with pytest.raises(ZeroDivisionError) as caught:
        run(notebook)
    assert str(caught.traceback[-1].path).endswith("some.ipynb:broken")
