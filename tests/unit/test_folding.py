"""When old files of the journal are folded: what was seen of them may be void by the time when that is decided."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from qpid_ha_broker.server.stores.folding import LOOK_S, Folding
from qpid_ha_broker.server.stores.writer import FoldingShare
from qpid_ha_broker.store.journal import ClosedSegment

OLD = ClosedSegment(3, 1000, 705)


class _Writer:
    """Has jobs done when it is told to."""

    def __init__(self) -> None:
        self.given = 0
        self._jobs: list[tuple[Callable[[], object], Callable[[], None]]] = []

    def run(self, action: Callable[[], object], done: Callable[[], None] = lambda: None, *, is_short: bool) -> None:
        self.given += 1
        self._jobs.append((action, done))

    def work(self) -> None:
        jobs, self._jobs = self._jobs, []
        for action, done in jobs:
            action()
            done()


class _Journal:
    def __init__(self) -> None:
        self.closed = [OLD]

    def closed_segments(self) -> list[ClosedSegment]:
        return self.closed


class _Run:
    def run(self) -> str:
        return "not here"

    def stop(self) -> None:
        """It has ended."""


class _Scene:
    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 0.0
        monkeypatch.setattr("time.monotonic", lambda: self.now_s)
        self.writer, self.journal, self.begun = _Writer(), _Journal(), list[int]()
        place = cast(Any, (Path("store"), None))
        self.folding = Folding(cast(Any, self.writer), cast(Any, self.journal), place, self._begin, FoldingShare())
        self.folding.limit_bytes = 500

    def _begin(self, _: Path, upto: int) -> _Run:
        self.begun.append(upto)
        return _Run()

    def tick(self, committed_lsn: int) -> None:
        self.now_s += LOOK_S
        self.folding.tick(committed_lsn)


def test_what_will_not_change_any_more_is_folded(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> list[int]:
        scene = _Scene(monkeypatch)
        scene.tick(704)
        scene.writer.work()
        assert scene.begun == []
        scene.tick(705)
        scene.writer.work()
        await scene.folding.stop()
        return scene.begun

    assert asyncio.run(story()) == [4]


def test_what_was_taken_back_since_it_was_seen_is_not_folded_when_its_lsns_are_committed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def story() -> list[int]:
        scene = _Scene(monkeypatch)
        scene.tick(631)
        scene.writer.work()
        scene.journal.closed = []  # a TAKEN_BACK was written: the segment goes only with the one that has it
        scene.tick(1003)
        scene.writer.work()
        await scene.folding.stop()
        return scene.begun

    assert asyncio.run(story()) == []


def test_nothing_is_begun_once_it_has_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> list[int]:
        scene = _Scene(monkeypatch)
        scene.tick(705)
        await scene.folding.stop()
        scene.writer.work()
        return scene.begun

    assert asyncio.run(story()) == []
