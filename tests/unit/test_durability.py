"""Stories about what a broker believes to have on disk, as late receipts come in and after a part was taken back."""

from __future__ import annotations

from dataclasses import replace

import pytest

from model_support import NOW_MS, TextReader
from qpid_ha_broker.ha import effects as fx
from qpid_ha_broker.ha.context import MemberContext
from qpid_ha_broker.ha.durability import EVERYTHING, DurableProgress
from qpid_ha_broker.ha.settings import MemberSettings
from qpid_ha_broker.model.sets.resources import Resources

SETTINGS = MemberSettings("a", "a-1", ("a:5672", "b:5672"), has_store=True)


class Archive:
    """A store's progress, and the requests that it has made."""

    def __init__(self, settings: MemberSettings = SETTINGS, durable_lsn: int = 10) -> None:
        self.ctx = MemberContext(settings, Resources(TextReader()).replicated, lambda: 0.5, lambda: NOW_MS)
        self.progress = DurableProgress(self.ctx, durable_lsn)

    def persist(self, first_lsn: int, last_lsn: int) -> int:
        self.progress.persist(first_lsn, last_lsn, 0, 0, b"records")
        request = self.ctx.effects[-1]
        assert isinstance(request, fx.Persist)
        return request.number

    def begin_checkpoint(self, lsn: int) -> int:
        self.progress.begin_checkpoint(lsn)
        request = self.ctx.effects[-1]
        assert isinstance(request, fx.BeginCheckpoint)
        return request.number

    @property
    def durable_lsn(self) -> int:
        return self.progress.durable_lsn


def test_what_was_handed_over_is_not_safe_before_its_receipt() -> None:
    archive = Archive()
    first, second = archive.persist(11, 12), archive.persist(13, 15)
    assert archive.durable_lsn == 10
    archive.progress.persisted(first)
    assert archive.durable_lsn == 12
    archive.progress.persisted(second)
    assert archive.durable_lsn == 15


def test_a_receipt_covers_all_that_came_before() -> None:
    archive = Archive()
    archive.persist(11, 12)
    archive.progress.persisted(archive.persist(13, 15))
    assert archive.durable_lsn == 15


@pytest.mark.parametrize("receipts_first", [True, False])
def test_what_was_taken_back_is_not_vouched_for_by_a_late_receipt(receipts_first: bool) -> None:
    """LSNs 13 to 15 are written twice: once by a primary that nobody follows any more."""
    archive = Archive()
    old = archive.persist(11, 12), archive.persist(13, 15)
    if receipts_first:
        archive.progress.persisted(old[1])
    archive.progress.truncate(12)
    new = archive.persist(13, 15)
    archive.progress.persisted(old[1])
    assert archive.durable_lsn == 12
    archive.progress.persisted(new)
    assert archive.durable_lsn == 15


def test_nothing_is_safe_while_the_state_follows_from_no_log() -> None:
    archive = Archive()
    late = archive.persist(11, 12)
    base = archive.begin_checkpoint(100)
    stream = archive.persist(101, 110)
    for number in (late, stream):
        archive.progress.persisted(number)
    assert archive.durable_lsn == 0
    archive.progress.write_checkpoint()
    archive.progress.checkpoint_persisted(base)
    assert archive.durable_lsn == 110


def test_an_older_base_than_the_one_that_is_missing_counts_for_nothing() -> None:
    archive = Archive()
    old = archive.begin_checkpoint(100)
    new = archive.begin_checkpoint(200)
    archive.progress.checkpoint_persisted(old)
    assert archive.durable_lsn == 0
    archive.progress.checkpoint_persisted(new)
    assert archive.durable_lsn == 200


def test_without_a_store_nothing_is_asked_for_and_memory_counts() -> None:
    archive = Archive(replace(SETTINGS, has_store=False))
    archive.progress.persist(11, 12, 0, 0, b"records")
    archive.progress.truncate(11)
    archive.progress.begin_checkpoint(100)
    archive.progress.write_checkpoint()
    assert archive.ctx.effects == []
    assert archive.durable_lsn == EVERYTHING
