"""Stories about what a broker believes to have on disk, as late receipts come in and after a part was taken back."""

from __future__ import annotations

from dataclasses import replace

import pytest

from model_support import TextReader
from qpid_ha_broker.ha import effects as fx
from qpid_ha_broker.ha.keeping import EVERYTHING, Keeping
from qpid_ha_broker.ha.settings import MemberSettings
from qpid_ha_broker.ha.surroundings import Surroundings
from qpid_ha_broker.model.resource_set import ResourceSet

SETTINGS = MemberSettings("a", "a-1", ("a:5672", "b:5672"), has_store=True)


class Archive:
    """A keeping, and the requests that it has made."""

    def __init__(self, settings: MemberSettings = SETTINGS, kept_lsn: int = 10) -> None:
        self.around = Surroundings(settings, ResourceSet("default", TextReader()), lambda: 0.5)
        self.keeping = Keeping(self.around, kept_lsn)

    def keep(self, first_lsn: int, last_lsn: int) -> int:
        self.keeping.keep(first_lsn, last_lsn, 0, 0, b"records")
        request = self.around.effects[-1]
        assert isinstance(request, fx.Keep)
        return request.number

    def begin_base(self, lsn: int) -> int:
        self.keeping.begin_base(lsn)
        request = self.around.effects[-1]
        assert isinstance(request, fx.BeginBase)
        return request.number

    @property
    def kept_lsn(self) -> int:
        return self.keeping.kept_lsn


def test_what_was_handed_over_is_not_safe_before_its_receipt() -> None:
    archive = Archive()
    first, second = archive.keep(11, 12), archive.keep(13, 15)
    assert archive.kept_lsn == 10
    archive.keeping.kept(first)
    assert archive.kept_lsn == 12
    archive.keeping.kept(second)
    assert archive.kept_lsn == 15


def test_a_receipt_covers_all_that_came_before() -> None:
    archive = Archive()
    archive.keep(11, 12)
    archive.keeping.kept(archive.keep(13, 15))
    assert archive.kept_lsn == 15


@pytest.mark.parametrize("receipts_first", [True, False])
def test_what_was_taken_back_is_not_vouched_for_by_a_late_receipt(receipts_first: bool) -> None:
    """LSNs 13 to 15 are written twice: once by a primary that nobody follows any more."""
    archive = Archive()
    old = archive.keep(11, 12), archive.keep(13, 15)
    if receipts_first:
        archive.keeping.kept(old[1])
    archive.keeping.take_back(12)
    new = archive.keep(13, 15)
    archive.keeping.kept(old[1])
    assert archive.kept_lsn == 12
    archive.keeping.kept(new)
    assert archive.kept_lsn == 15


def test_nothing_is_safe_while_the_state_follows_from_no_log() -> None:
    archive = Archive()
    late = archive.keep(11, 12)
    base = archive.begin_base(100)
    stream = archive.keep(101, 110)
    for number in (late, stream):
        archive.keeping.kept(number)
    assert archive.kept_lsn == 0
    archive.keeping.dump_base()
    archive.keeping.base_kept(base)
    assert archive.kept_lsn == 110


def test_an_older_base_than_the_one_that_is_missing_counts_for_nothing() -> None:
    archive = Archive()
    old = archive.begin_base(100)
    new = archive.begin_base(200)
    archive.keeping.base_kept(old)
    assert archive.kept_lsn == 0
    archive.keeping.base_kept(new)
    assert archive.kept_lsn == 200


def test_without_a_store_nothing_is_asked_for_and_memory_counts() -> None:
    archive = Archive(replace(SETTINGS, has_store=False))
    archive.keeping.keep(11, 12, 0, 0, b"records")
    archive.keeping.take_back(11)
    archive.keeping.begin_base(100)
    archive.keeping.dump_base()
    assert archive.around.effects == []
    assert archive.kept_lsn == EVERYTHING
