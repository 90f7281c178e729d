"""Whom a backup dials once its primary is lost: the member of one of hundreds of sets does not ask everybody."""

from __future__ import annotations

from dataclasses import replace

import pytest

from model_support import NOW_MS, TextReader
from qpid_ha_broker.events.types import GenerationStarted, InSyncChanged
from qpid_ha_broker.ha import effects as fx
from qpid_ha_broker.ha import frames as fr
from qpid_ha_broker.ha.member import Member
from qpid_ha_broker.ha.replica import Restored
from qpid_ha_broker.ha.settings import MemberSettings
from qpid_ha_broker.ha.states import State
from qpid_ha_broker.model.sets.resources import Resources

AMONG_HUNDREDS = MemberSettings(
    "a", "a-2", ("a:5672", "b:5672", "c:5672"), "a:5672", reconnect_s=0.5, looks_everywhere=False, has_store=True
)


class Backup:
    """Of `c`, which it has followed until a moment ago."""

    def __init__(self, settings: MemberSettings) -> None:
        resources = Resources(TextReader())
        resources.replicated.write(GenerationStarted(1, "c", "uuid", 0, False, "first start"))
        resources.replicated.write(InSyncChanged(1, ("a", "b", "c")))
        resources.replicated.log.reset(2)
        restored = Restored(fr.StoreOrigin.DIRTY)
        self.member = Member(settings, resources.replicated, lambda: 0.5, lambda: NOW_MS, restored)
        self.dialled: list[str] = []
        self.now_s = 10.0
        self._link = 0
        self._handle(fx.Started())
        while self.dialled[-1] != "c:5672":
            self.fail()
            self.pass_s(1.0)
        self._handle(fx.LinkOpened(self._link))
        history = (fr.GenerationEntry(1, "c", 1),)
        welcome = fr.Welcome("c", "uuid", 1, history, 2, fr.Resync.TAIL, "", 10.0)
        self._handle(fx.FrameReceived(self._link, welcome))
        assert self.member.status.state is State.CATCHUP
        self.dialled.clear()
        self.fail()

    def _handle(self, happened: fx.Input) -> None:
        for effect in self.member.handle(happened, self.now_s):
            if isinstance(effect, fx.Connect):
                self.dialled.append(effect.address)
                self._link = effect.link

    def fail(self) -> None:
        """The channel that was dialled last comes to its end."""
        self._handle(fx.LinkLost(self._link, "connection refused"))

    def open(self) -> None:
        """The channel that was dialled last is there."""
        self._handle(fx.LinkOpened(self._link))

    def refuse(self) -> None:
        """Who is there does not lead."""
        self.open()
        self._handle(fx.FrameReceived(self._link, fr.Refused(fr.RefusalCode.NOT_PRIMARY, "this broker is ready", "")))

    def pass_s(self, seconds: float) -> None:
        """Time goes by, in ticks."""
        for _ in range(round(seconds / 0.1)):
            self.now_s += 0.1
            self._handle(fx.Ticked())

    def hear(self, primary: str) -> None:
        """That one announces itself."""
        text = f"{primary}:5672"
        question = fr.Question(1, fr.Topic.ANNOUNCE, primary, f"{primary}-1", "uuid", 2, 4, text)
        self._handle(fx.FrameReceived(77, question))


def test_the_lost_primary_is_dialled_at_once_as_it_may_live_and_nobody_else_before_a_pause() -> None:
    backup = Backup(AMONG_HUNDREDS)
    assert backup.dialled == ["c:5672"]
    backup.fail()
    backup.pass_s(0.3)
    assert backup.dialled == ["c:5672"]

    backup.pass_s(0.4)
    assert backup.dialled == ["c:5672", "b:5672"]
    backup.fail()
    assert backup.dialled == ["c:5672", "b:5672", "c:5672"], "everybody is tried until somebody welcomes it"


def test_whoever_announces_that_it_leads_is_dialled_without_a_pause() -> None:
    backup = Backup(AMONG_HUNDREDS)
    backup.fail()
    backup.hear("b")
    assert backup.dialled == ["c:5672", "b:5672"]


def test_who_was_refused_by_a_broker_that_leads_by_now_dials_it_again_without_a_pause() -> None:
    backup = Backup(AMONG_HUNDREDS)
    backup.fail()
    backup.pass_s(0.7)
    backup.open()
    backup.hear("b")
    assert backup.dialled == ["c:5672", "b:5672"]
    backup.refuse()
    assert backup.dialled == ["c:5672", "b:5672", "b:5672"]
    backup.refuse()
    assert backup.dialled == ["c:5672", "b:5672", "b:5672"], "once for each announcement"


@pytest.mark.parametrize("addresses", [("a:5672", "b:5672"), ("a:5672", "b:5672", "d:5672")])
def test_a_primary_whose_replica_was_taken_away_is_not_dialled_again(addresses: tuple[str, ...]) -> None:
    backup = Backup(AMONG_HUNDREDS)
    backup.fail()
    backup.member.settings = replace(AMONG_HUNDREDS, addresses=addresses)
    backup.pass_s(2.0)
    assert "c:5672" not in backup.dialled[1:]


def test_the_one_member_of_a_broker_tries_everybody_at_once() -> None:
    backup = Backup(replace(AMONG_HUNDREDS, looks_everywhere=True))
    backup.fail()
    assert set(backup.dialled) == {"b:5672", "c:5672"}
