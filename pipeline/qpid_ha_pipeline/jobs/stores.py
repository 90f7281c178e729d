"""Which store a cluster may begin with again: the verdict of `qpid-ha store best`, over as many stores as there are.

One task reads one store, because its events have to be seen in order. What comes back to the driver is a page of facts
for each; the verdict is the same pure function that the admin tool and the brokers use.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark.sql import SparkSession

from qpid_ha_broker.store.best import Verdict, best
from qpid_ha_broker.store.facts import StoreFacts
from qpid_ha_broker.store.inspection import examine
from qpid_ha_pipeline.executors import on_an_executor, on_executors
from qpid_ha_pipeline.journal.stores import Directory, find
from qpid_ha_pipeline.options import JournalOptions


def facts(spark: SparkSession, paths: Sequence[str], resource_set: str = JournalOptions.set) -> list[StoreFacts]:
    """What there is to know of each store. Raises PipelineError for a path that names none."""
    directories = on_an_executor(spark, lambda: find(tuple(paths), resource_set))
    return [StoreFacts.from_json(document) for document in on_executors(spark, _examined, directories)]


def verdict(spark: SparkSession, paths: Sequence[str], resource_set: str = JournalOptions.set) -> Verdict:
    """The best of them, with reasons and the next command."""
    return best(facts(spark, paths, resource_set))


def _examined(directory: Directory) -> dict[str, Any]:
    return examine(directory.disk, directory.parent).to_json()  # named by the data directory, as an operator would
