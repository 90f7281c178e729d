"""Whose a store is: of the cluster that its first event belongs to, and not of one before that came to nothing."""

from __future__ import annotations

import asyncio
from pathlib import Path

from model_support import TextReader
from qpid_ha_broker.events import types as ev
from qpid_ha_broker.events.codec import encode
from qpid_ha_broker.model.logs.log import DEFAULT_SET, LogBatch
from qpid_ha_broker.model.sets.resources import Resources
from qpid_ha_broker.server.stores.store import Store
from qpid_ha_broker.store.files import LocalDisk
from qpid_ha_broker.store.survey import survey
from qpid_ha_config.settings import StoreSettings


class Listener:
    """Nobody waits."""

    def persisted(self, local_lsn: int, number: int) -> None:
        """On disk."""

    def store_writable(self, problem: str) -> None:
        raise AssertionError(problem)

    def store_failed(self, text: str) -> None:
        raise AssertionError(text)


async def life(directory: Path, cluster: str, *events: ev.Event) -> None:
    """A process of a broker that belongs to `cluster`, which writes these; it does not end in order."""
    store, resources = Store(directory, DEFAULT_SET, StoreSettings(), "alpha"), Resources(TextReader())
    found = store.recover(resources.sets, apply_all=False)
    store.start(Listener())
    store.describe(cluster=cluster)
    for lsn, event in enumerate(events, start=found.last_lsn + 1):
        store.persist(LogBatch(lsn, lsn, encode(lsn, event)), lsn - 1, lsn)
        store.writer.run(store.files.journal.roll)
    assert await store.close("")


def test_a_broker_whose_own_cluster_came_to_nothing_may_join_another_one(tmp_path: Path) -> None:
    asyncio.run(life(tmp_path, "one"))
    began = ev.GenerationStarted(1, "beta", "two", 0, False, "the first start")
    asyncio.run(life(tmp_path, "two", began, ev.InSyncChanged(1, ("alpha", "beta"))))
    asyncio.run(life(tmp_path, "two"))

    found = survey(LocalDisk(tmp_path / "default"))
    clusters = [segment.header.cluster for segment in found.segments]
    assert set(clusters) == {"", "two"}
    assert clusters[-1] == "two"
