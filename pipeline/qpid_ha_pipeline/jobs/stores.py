"""Which store each resource set may begin with again: the verdict of `qpid-ha store best`, over as many stores as there
are.

One task reads one store, because its events have to be seen in order. What comes back to the driver is a page of facts
for each; the verdict is the same pure function that the admin tool and the brokers use.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark.sql import SparkSession

from qpid_ha_broker.model.logs.log import DEFAULT_SET
from qpid_ha_broker.store.best import Verdict
from qpid_ha_broker.store.best_sets import Nothing, best_of_sets
from qpid_ha_broker.store.facts import StoreFacts
from qpid_ha_broker.store.inspection import examine
from qpid_ha_pipeline.executors import on_an_executor, on_executors
from qpid_ha_pipeline.journal.stores import Directory, default_first, find, set_of


def facts(spark: SparkSession, paths: Sequence[str], sets: Sequence[str] = ()) -> dict[str, list[StoreFacts]]:
    """What there is to know of each store, by resource set, `default` first; `sets`: only of these.

    Raises PipelineError for a path that names none.
    """
    directories = on_an_executor(spark, lambda: find(tuple(paths), tuple(sets)))
    stores: dict[str, list[StoreFacts]] = {}
    for name, document in on_executors(spark, _examined, directories):
        stores.setdefault(name, []).append(StoreFacts.from_json(document))
    return {name: stores[name] for name in sorted(stores, key=default_first)}


def verdicts(spark: SparkSession, paths: Sequence[str], sets: Sequence[str] = ()) -> dict[str, Verdict | Nothing]:
    """The best store of each resource set, with reasons and the next command; `default` first.

    Beside what the stores of `default` tell of the others, if they are among `sets`.
    """
    stores = [store for group in facts(spark, paths, sets).values() for store in group]
    return {name: set_verdict.verdict for name, set_verdict in best_of_sets(stores, has_all=False).items()}


def _examined(directory: Directory) -> tuple[str, dict[str, Any]]:
    """The set, and its facts, by the name that an operator gives the store: of `default` that of the data directory."""
    name = set_of(directory)
    where = directory.parent if name == DEFAULT_SET else directory.path
    return name, examine(directory.disk, where).to_json()
