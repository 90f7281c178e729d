"""What a shared directory does beyond what every coordinator promises: that, the conformance suite shows of it too."""

from __future__ import annotations

import configparser
import json
import os
from pathlib import Path

import pytest

from qpid_ha_broker.coordination import file as shared
from qpid_ha_broker.coordination import registry
from qpid_ha_broker.coordination.coordinator import CoordinatorError
from qpid_ha_broker.coordination.file import FileCoordinator, Lock
from qpid_ha_broker.coordination.none import NoCoordinator
from qpid_ha_broker.coordination.registry import BUILT_IN, Implementation, open_coordinator, open_place
from qpid_ha_broker.ha.cluster_record import ClusterRecord
from qpid_ha_config.coordinator import ENTRY_POINT_GROUP, CoordinatorUrl
from qpid_ha_config.errors import SettingsError
from qpid_ha_config.settings import CoordinatorSettings

EMPTY = ClusterRecord()
FIRST = ClusterRecord("c1", 1, "a", 1, ("a", "b"))
SECOND = ClusterRecord("c1", 2, "b", 2, ("b",))


# --- the record


def test_a_record_of_a_release_that_did_not_tell_may_be_a_claim(tmp_path: Path) -> None:
    """It is judged by the logs alone, as that release did: a record that was one stops nobody after an upgrade."""
    without = {name: value for name, value in FIRST._asdict().items() if name != "claimed"}
    coordinator = FileCoordinator(tmp_path)
    coordinator.path.write_text(json.dumps({"format": 1, **without}))

    assert coordinator.read() == FIRST._replace(claimed=True)
    assert coordinator.compare_and_set(coordinator.read(), SECOND) == (True, SECOND)
    empty = ClusterRecord()._asdict()
    del empty["claimed"]
    coordinator.path.write_text(json.dumps({"format": 1, **empty}))
    assert coordinator.read() == EMPTY


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
        json.dumps({"format": 1, **FIRST._asdict(), "claimed": 1}).encode(),
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


# --- the lock


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
    assert isinstance(open_coordinator(CoordinatorSettings(CoordinatorUrl.parse("none"))), NoCoordinator)
    for text in (f"file:{tmp_path}", f"file://{tmp_path}"):
        coordinator = open_place(CoordinatorSettings(CoordinatorUrl.parse(text)))
        assert isinstance(coordinator, FileCoordinator)
        assert coordinator.directory == tmp_path


def test_the_built_in_coordinators_are_the_entry_points_of_this_distribution() -> None:
    """Others find them there, under the same schemes."""
    config = configparser.ConfigParser()
    config.read(Path(__file__).resolve().parents[2] / "setup.cfg", encoding="utf-8")
    lines = config["options.entry_points"][ENTRY_POINT_GROUP].split("\n")
    declared = dict(line.split(" = ") for line in lines if line)
    assert declared == {scheme: built_in.place for scheme, built_in in BUILT_IN.items()}


@pytest.mark.parametrize("scheme", ["none", "file", "pacemaker"])
def test_each_built_in_coordinator_opens_without_a_library_of_its_own(scheme: str, tmp_path: Path) -> None:
    url = CoordinatorUrl.parse({"file": f"file:{tmp_path}"}.get(scheme, scheme))
    open_coordinator(CoordinatorSettings(url)).close()


def test_a_missing_library_is_named_with_the_extra_that_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    place = Implementation("no_such_library.inner:open_it", "zookeeper")
    monkeypatch.setattr(registry, "BUILT_IN", {"zookeeper": place})
    url = CoordinatorUrl.parse("zookeeper://a/c")
    with pytest.raises(SettingsError, match=r"no_such_library.*pip install 'qpid-ha\[zookeeper\]'"):
        open_coordinator(CoordinatorSettings(url))


@pytest.mark.parametrize(
    ("text", "canonical"),
    [
        ("zookeeper://a,b:2182/orders", "zookeeper://a:2181,b:2182/orders"),
        ("etcd://[::1],10.0.0.1:1/orders/eu", "etcd://[::1]:2379,10.0.0.1:1/orders/eu"),
        ("pacemaker", "pacemaker:qpid-ha"),
        (" None ", "none"),
    ],
)
def test_a_url_is_shown_in_one_spelling_that_is_understood(text: str, canonical: str) -> None:
    url = CoordinatorUrl.parse(text)
    assert str(url) == canonical
    assert CoordinatorUrl.parse(canonical) == url


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("zookeeper:a/orders", "each cluster needs a namespace"),
        ("zookeeper://a,b", "each cluster needs a namespace"),
        ("zookeeper://a,b/", "no namespace"),
        ("zookeeper://a,b/../x", "no namespace"),
        ("zookeeper://a,,b/orders", "no HOST"),
        ("zookeeper://a:b/orders", "no HOST"),
        ("zookeeper://a:70000/orders", "no port"),
        ("zookeeper://a,a:2181/orders", "twice"),
        ("etcd://me:secret@a/orders", "ha.coordinator-username"),
        ("consul://a/orders", "no coordinator for consul.*etcd, file, none, pacemaker, zookeeper"),
    ],
)
def test_a_url_that_cannot_be_meant_is_refused_with_the_reason(text: str, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        CoordinatorUrl.parse(text)
