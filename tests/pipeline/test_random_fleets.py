"""Random lives of clusters, and what an audit says of them compared with what is true.

Journals are folded, forked, replicated, torn and moved. `pytest tests/pipeline/test_random_fleets.py --clusters 200`
looks at 200 clusters instead of 15.
"""

from __future__ import annotations

import json
from collections import Counter

import pytest
from pyspark.sql import DataFrame, SparkSession

from qpid_ha_broker.events import types as ev
from qpid_ha_pipeline.jobs.audit import audit
from random_history import RandomHistory, lived

FEW = 15


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> list[RandomHistory]:
    """Clusters that are read together."""
    directory = tmp_path_factory.mktemp("fleet")
    seeds = range(1000, 1000 + (pytestconfig.getoption("--clusters") or FEW))
    histories = [lived(directory / str(seed), seed) for seed in seeds]
    for history in histories:
        history.tear_ends()
        if history.seed % 3 == 0:
            history.move()
    return histories


def table(spark: SparkSession, fleet: list[RandomHistory], **options: str) -> DataFrame:
    paths = json.dumps([path for history in fleet for path in history.paths])
    return spark.read.format("qpid-journal").options(paths=paths, severalClusters="true", **options).load()


def test_an_audit_finds_what_was_lost_and_what_waits(spark: SparkSession, fleet: list[RandomHistory]) -> None:
    rows, expected = list[tuple[object, ...]](), Counter[str]()
    for history in fleet:
        waiting = {name for messages in history.state.messages.values() for name in messages.values()}
        in_log = {history.ids[event.payload] for _, event, _ in history.log if isinstance(event, ev.Enqueued)}
        for number, fate in enumerate(history.fates.values()):
            client = history.cluster
            rows.append(("sent", fate.id, client, "orders", number, number, None))
            if fate.is_confirmed:
                rows.append(("accepted", fate.id, client, "orders", number, number, None))
                expected["confirmed"] += 1
                is_received = fate.is_consumed and fate.id not in waiting
                if is_received:
                    rows.append(("received", fate.id, "consumer", "orders", None, number, False))
                expected["delivered"] += is_received
                expected["waiting"] += not is_received and fate.id in waiting
                expected["lost"] += not is_received and fate.id not in waiting
                expected["lost, and not in the log"] += not is_received and fate.id not in in_log
    schema = "op STRING, id STRING, client STRING, queue STRING, number LONG, at_ms LONG, marked BOOLEAN"
    found = audit(spark.createDataFrame(rows, schema), table(spark, fleet), table(spark, fleet, replicas="discarded"))
    assert {name: getattr(found, name) for name in ("confirmed", "delivered", "waiting", "lost")} == {
        name: expected[name] for name in ("confirmed", "delivered", "waiting", "lost")
    }
    assert expected["lost"] > found.discarded > 0
    lost = {row.id for row in found.evidence.where("verdict like '%lost%'").collect()}
    assert len(lost) == found.lost
