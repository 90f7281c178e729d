"""The record survives and is never torn; one at most holds the lock, and a waiting one has it when the holder dies."""

from __future__ import annotations

import json
import os
import queue
import threading
from pathlib import Path

import pytest

from qpid_ha_broker.coordination import file as shared
from qpid_ha_broker.coordination.choice import make_coordinator
from qpid_ha_broker.coordination.coordinator import CoordinatorError
from qpid_ha_broker.coordination.file import FileCoordinator, Lock, holder_of
from qpid_ha_broker.coordination.none import NoCoordinator
from qpid_ha_broker.ha.effects import ClusterRecord
from qpid_ha_config.coordinator import CoordinatorUrl

EMPTY = ClusterRecord()
FIRST = ClusterRecord("c1", 1, "a", 1, ("a", "b"))
SECOND = ClusterRecord("c1", 2, "b", 2, ("b",))


# --- the record


def test_a_new_directory_holds_an_empty_record(tmp_path: Path) -> None:
    assert FileCoordinator(tmp_path).read() == EMPTY


def test_what_was_set_is_read_by_others(tmp_path: Path) -> None:
    assert FileCoordinator(tmp_path).compare_and_set(EMPTY, FIRST) == (True, FIRST)
    assert FileCoordinator(tmp_path).read() == FIRST


def test_a_writer_who_knows_less_is_told_what_is_there(tmp_path: Path) -> None:
    coordinator = FileCoordinator(tmp_path)
    coordinator.compare_and_set(EMPTY, FIRST)

    assert coordinator.compare_and_set(EMPTY, SECOND) == (False, FIRST)
    assert coordinator.read() == FIRST


def test_of_many_writers_at_once_each_step_is_made_by_one(tmp_path: Path) -> None:
    wins: list[int] = []

    def climb() -> None:
        coordinator = FileCoordinator(tmp_path)
        for _ in range(20):
            found = coordinator.read()
            done, _there = coordinator.compare_and_set(found, found._replace(generation=found.generation + 1))
            if done:
                wins.append(found.generation)

    threads = [threading.Thread(target=climb) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert sorted(wins) == list(range(len(wins)))
    assert FileCoordinator(tmp_path).read().generation == len(wins)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"[]",
        b"\xff",
        b'{"format": 2}',
        json.dumps({"format": 1, **FIRST._asdict(), "generation": "1"}).encode(),
        json.dumps({"format": 1, **FIRST._asdict(), "epoch": -1}).encode(),
        json.dumps({"format": 1, **FIRST._asdict(), "members": "ab"}).encode(),
        json.dumps({"format": 1, **FIRST._asdict(), "primary": None}).encode(),
    ],
)
def test_a_damaged_record_is_named_with_what_to_do_and_never_replaced(tmp_path: Path, content: bytes) -> None:
    coordinator = FileCoordinator(tmp_path)
    coordinator.path.write_bytes(content)

    with pytest.raises(CoordinatorError) as caught:
        coordinator.compare_and_set(EMPTY, FIRST)

    assert str(coordinator.path) in str(caught.value)
    assert "move the file away" in str(caught.value)
    assert coordinator.path.read_bytes() == content


def test_a_writer_that_died_on_the_way_leaves_the_old_record(tmp_path: Path) -> None:
    coordinator = FileCoordinator(tmp_path)
    coordinator.compare_and_set(EMPTY, FIRST)
    (tmp_path / "record.tmp").write_bytes(b'{"format": 1, "clu')

    assert coordinator.read() == FIRST
    assert coordinator.compare_and_set(FIRST, SECOND) == (True, SECOND)


def test_a_directory_that_is_not_mounted_is_not_made(tmp_path: Path) -> None:
    coordinator = FileCoordinator(tmp_path / "missing")

    for attempt in (coordinator.read, lambda: coordinator.compare_and_set(EMPTY, FIRST)):
        with pytest.raises(CoordinatorError, match=r"missing.*mount"):
            attempt()
    assert not (tmp_path / "missing").exists()


def test_a_writer_that_is_stuck_with_the_lock_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stuck = Lock(tmp_path, shared.RECORD_LOCK_FILE)
    assert stuck.try_lock()
    monkeypatch.setattr(shared, "RECORD_LOCK_TIMEOUT_S", 0.01)

    with pytest.raises(CoordinatorError, match=rf"record\.lock.*pid {os.getpid()}"):
        FileCoordinator(tmp_path).compare_and_set(EMPTY, FIRST)
    assert FileCoordinator(tmp_path).read() == EMPTY


def test_a_watcher_hears_of_a_new_record(tmp_path: Path) -> None:
    heard: queue.Queue[ClusterRecord] = queue.Queue()
    stop = FileCoordinator(tmp_path).watch(heard.put)

    FileCoordinator(tmp_path).compare_and_set(EMPTY, FIRST)

    assert heard.get(timeout=10) == FIRST
    stop()


# --- the lock


def test_one_at_most_holds_the_lock(tmp_path: Path) -> None:
    ours, theirs = Lock(tmp_path, holder="a"), Lock(tmp_path, holder="b")

    assert ours.try_lock()
    assert ours.try_lock()
    assert not theirs.try_lock()
    assert holder_of(ours.path).startswith(f"a (pid {os.getpid()}, since 2")
    ours.release()
    assert theirs.try_lock()
    assert not ours.is_held()
    assert theirs.is_held()


@pytest.mark.parametrize("replaced", [False, True])
def test_who_takes_the_file_away_takes_the_lock_away(tmp_path: Path, replaced: bool) -> None:
    lock = Lock(tmp_path)
    assert lock.try_lock()

    lock.path.unlink()
    if replaced:
        lock.path.touch()

    assert not lock.is_held()
    assert Lock(tmp_path).try_lock()


# --- none, and the setting


def test_without_a_coordinator_nothing_is_remembered() -> None:
    coordinator = NoCoordinator()

    assert coordinator.compare_and_set(FIRST, SECOND) == (True, SECOND)
    assert coordinator.read() == EMPTY


def test_the_setting_names_the_coordinator(tmp_path: Path) -> None:
    assert isinstance(make_coordinator(CoordinatorUrl.parse("none")), NoCoordinator)
    for text in (f"file:{tmp_path}", f"file://{tmp_path}"):
        coordinator = make_coordinator(CoordinatorUrl.parse(text))
        assert isinstance(coordinator, FileCoordinator)
        assert coordinator.directory == tmp_path
