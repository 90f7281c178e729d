"""Stories about a backup whose disk fails: it ends, or goes on in memory, as its settings and its queues say."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from model_support import Core
from qpid_ha_broker.events import types as ev
from qpid_ha_broker.events.codec import encode
from qpid_ha_broker.ha import effects as fx
from qpid_ha_broker.model.logs.log import LogBatch
from qpid_ha_broker.model.queues.queue_arguments import StoreErrorPolicy as Policy
from qpid_ha_broker.server.stores.member_store import MemberStore
from qpid_ha_broker.store.errors import StoreError

FAILED = "the store in /data cannot be written"


class SlowCheckpoints:
    """None is ever written."""

    def write(self, done: Callable[[], None]) -> None:
        """`done` is not called."""


class Slow:
    """A store that answers when it is told to, or never."""

    def __init__(self) -> None:
        self.checkpoints = SlowCheckpoints()

    def persist(self, batch: LogBatch, committed_lsn: int, number: int) -> bool:
        return False


class Backup:
    """What the core asks for, and what it is told."""

    def __init__(self) -> None:
        self.core = Core()
        self.told: list[fx.Input] = []
        self.slow = Slow()
        store: Any = self.slow
        self.store = MemberStore(store, self.core.catalog, self.told.append)

    def keep(self, number: int, event: ev.Event) -> None:
        self.store.persist(fx.Persist(number, number, number, 0, 0, encode(number, event)))

    def message(self, queue: str, durable: bool = True) -> ev.Enqueued:
        return ev.Enqueued((self.core.catalog.queues[queue].id,), b"x", durable, 4, 0, "")


@pytest.fixture
def backup() -> Backup:
    """With a queue for each policy."""
    made = Backup()
    made.core.queue("strict", store_error="abort")
    made.core.queue("easy", store_error="continue")
    made.core.queue("plain")
    return made


def test_what_waited_for_the_disk_counts_as_it_is_once_the_backup_goes_on_without(backup: Backup) -> None:
    backup.keep(1, backup.message("plain"))
    backup.keep(2, backup.message("easy"))
    backup.store.go_on_without(FAILED, Policy.CONTINUE)
    assert backup.told == [fx.StoreFailed(), fx.Persisted(1), fx.Persisted(2)]
    backup.keep(3, ev.QueueDeclared("new", {}))
    assert backup.told[-1] == fx.Persisted(3)


@pytest.mark.parametrize("queue", ["strict", "plain"])
def test_a_queue_that_minds_ends_the_broker_and_is_named(backup: Backup, queue: str) -> None:
    backup.keep(1, backup.message("easy"))
    backup.keep(2, backup.message(queue))
    with pytest.raises(StoreError, match=f"it concerns queue {queue}"):
        backup.store.go_on_without(FAILED, Policy.ABORT)
    assert backup.told == []


def test_a_strict_queue_ends_it_later_too_whatever_the_broker_may_do(backup: Backup) -> None:
    backup.store.go_on_without(FAILED, Policy.CONTINUE)
    backup.keep(1, backup.message("strict", durable=False))
    assert backup.told == [fx.StoreFailed(), fx.Persisted(1)]
    with pytest.raises(StoreError, match="it concerns queue strict"):
        backup.keep(2, backup.message("strict"))
    assert backup.told == [fx.StoreFailed(), fx.Persisted(1)]


def test_easy_queues_let_a_strict_broker_go_on_as_long_as_nothing_else_comes(backup: Backup) -> None:
    backup.keep(1, backup.message("easy"))
    backup.store.go_on_without(FAILED, Policy.ABORT)
    assert backup.told == [fx.StoreFailed(), fx.Persisted(1)]
    with pytest.raises(StoreError):
        backup.keep(2, ev.InSyncChanged(5, ("a", "b")))


def test_a_strict_broker_whose_disk_fails_while_nothing_waits_ends(backup: Backup) -> None:
    with pytest.raises(StoreError):
        backup.store.go_on_without(FAILED, Policy.ABORT)


def test_a_base_is_not_waited_for_that_no_disk_will_hold(backup: Backup) -> None:
    backup.store.write_checkpoint(fx.WriteCheckpoint(7))
    backup.store.go_on_without(FAILED, Policy.CONTINUE)
    backup.store.write_checkpoint(fx.WriteCheckpoint(9))
    assert backup.told == [fx.StoreFailed(), fx.CheckpointPersisted(7), fx.CheckpointPersisted(9)]
