"""What is said to be on a disk was handed to it in order: what a file holds, then its name, then the directory."""

from __future__ import annotations

import os
from pathlib import Path
from random import Random
from typing import Any

import pytest

from qpid_ha_broker.coordination.file import FileCoordinator
from qpid_ha_broker.ha.cluster_record import ClusterRecord
from qpid_ha_broker.server.runtime.broker_identity import UUID_FILE, broker_uuid
from qpid_ha_broker.store.files import LocalDisk


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """What the system was asked for, in order, and of which file or directory: its name."""
    made: list[tuple[str, str]] = []

    def watch(function: str, names_a_path: bool) -> None:
        original = getattr(os, function)

        def called(target: Any, *others: Any) -> None:
            path = os.fspath(others[0]) if names_a_path else Path(f"/proc/self/fd/{target}").readlink()
            made.append((function, Path(path).name))
            original(target, *others)

        monkeypatch.setattr(os, function, called)

    for function, names_a_path in {"fdatasync": False, "fsync": False, "rename": True, "replace": True}.items():
        watch(function, names_a_path)
    return made


def test_a_file_of_a_store_is_synced(tmp_path: Path, calls: list[tuple[str, str]]) -> None:
    file = LocalDisk(tmp_path).create("1.log")
    file.write(0, b"a block")
    del calls[:]

    file.sync()

    assert calls == [("fdatasync", "1.log")]


@pytest.mark.parametrize("kept", [None, (), ("journal",)], ids=["all kept open", "none", "this one"])
def test_a_directory_of_a_store_is_synced_each_time(
    tmp_path: Path, calls: list[tuple[str, str]], kept: tuple[str, ...] | None
) -> None:
    disk = LocalDisk(tmp_path, kept)
    disk.make_directory("journal")

    disk.sync_directory("journal")
    disk.sync_directory("journal")

    assert calls == 2 * [("fsync", "journal")]


def test_a_file_of_a_store_that_replaces_another_one_is_whole_before_it_has_its_name(
    tmp_path: Path, calls: list[tuple[str, str]]
) -> None:
    disk = LocalDisk(tmp_path)
    disk.make_directory("status")

    disk.replace("status/STATUS", Random(1).randbytes(100))

    (content, temporary), *rest = calls
    assert (content, temporary != "STATUS") == ("fdatasync", True)
    assert rest == [("replace", "STATUS"), ("fsync", "status")]


def test_a_record_and_a_note_in_a_directory_are_whole_before_anybody_hears_of_them(
    tmp_path: Path, calls: list[tuple[str, str]]
) -> None:
    (shared := tmp_path / "coordinator").mkdir()
    coordinator = FileCoordinator(shared)

    assert coordinator.compare_and_set(ClusterRecord(), ClusterRecord("cluster", 1, "a", 1, ("a",)))[0]
    record = calls.copy()
    assert coordinator.replace_note("map", "", "text")

    for content, name, directory in (record, calls[len(record) :]):
        assert (content[0], name[0], directory) == ("fsync", "replace", ("fsync", "coordinator"))
        assert content[1] != name[1]


def test_who_a_broker_is_stays_so_when_the_power_goes(tmp_path: Path, calls: list[tuple[str, str]]) -> None:
    (data_dir := tmp_path / "data").mkdir()

    made = broker_uuid(data_dir)

    (content, temporary), *rest = calls
    assert (content, temporary != UUID_FILE) == ("fdatasync", True)
    assert rest == [("replace", UUID_FILE), ("fsync", "data")]
    assert broker_uuid(data_dir) == made
