"""What is done with the stores of many sets at once is done with each, and one that fails does not keep the others."""

from __future__ import annotations

import asyncio
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from event_loops import in_event_loop
from model_support import TextReader
from qpid_ha_broker.model.sets.resources import Resources
from qpid_ha_broker.server.stores.fleet import StoreFleet, VoteWriter
from qpid_ha_broker.server.stores.store import STATUS_TICKS, Store
from qpid_ha_broker.server.stores.writer import FOLDED_AT_ONCE, FOLDED_BYTES_MIN, FoldingShare
from qpid_ha_broker.store.errors import StoreError
from qpid_ha_broker.store.files import LocalDisk
from qpid_ha_broker.store.recovery import Recovered
from qpid_ha_broker.store.status import Status, read_status
from qpid_ha_config.settings import StoreSettings
from store_owner import Deaf

NAMES = ["default", "orders", "shard-1", "shard-2"]


def load(fleet: StoreFleet, names: list[str]) -> tuple[list[Store], list[Recovered | StoreError]]:
    stores = [fleet.store(name) for name in names]

    def one(store: Store) -> Recovered:
        return store.recover(Resources(TextReader()).sets, apply_all=True)

    return stores, fleet.load([lambda store=store: one(store) for store in stores])  # type: ignore[misc]


def loaded(fleet: StoreFleet, names: list[str]) -> list[Store]:
    stores, results = load(fleet, names)
    assert [result for result in results if isinstance(result, StoreError)] == []
    return stores


@pytest.fixture
def fleet(tmp_path: Path) -> StoreFleet:
    return StoreFleet(tmp_path, StoreSettings(), "node1")


def status_of(store: Path) -> Status:
    """As it is on disk."""
    found = read_status(LocalDisk(store))
    assert found is not None
    return found


def test_stores_lie_side_by_side_and_are_found_again(tmp_path: Path, fleet: StoreFleet) -> None:
    assert fleet.names() == []
    loaded(fleet, list(reversed(NAMES)))
    (tmp_path / "discarded").mkdir()
    (tmp_path / "default.set-aside-20260131T120000Z").mkdir()
    (tmp_path / "LOCK").touch()
    (tmp_path / "notes").touch()
    (tmp_path / "empty").mkdir()
    shutil.copytree(tmp_path / "orders", tmp_path / "orders-before")

    assert fleet.names() == NAMES
    for name in NAMES:
        status = status_of(tmp_path / name)
        assert (status.set, status.broker) == (name, "node1")


def test_a_store_that_cannot_be_loaded_does_not_keep_the_others(tmp_path: Path, fleet: StoreFleet) -> None:
    loaded(fleet, NAMES)
    (tmp_path / "orders" / "STATUS").write_bytes(b"{}")

    _, results = load(StoreFleet(tmp_path, StoreSettings(), "node1"), NAMES)

    assert [isinstance(result, StoreError) for result in results] == [False, True, False, False]
    assert "orders" in str(results[1])


def test_votes_of_many_sets_are_on_disk_when_it_returns(tmp_path: Path, fleet: StoreFleet) -> None:
    stores = loaded(fleet, NAMES)
    assert all(store.note_vote(7, "node2", (5,)) for store in stores)
    assert fleet.write_votes(stores) == [None] * len(NAMES)
    for name in NAMES:
        status = status_of(tmp_path / name)
        assert (status.promised, status.promised_to, status.claims) == (7, "node2", (5,))


def test_a_vote_that_cannot_be_kept_is_told_and_the_others_are_kept(tmp_path: Path, fleet: StoreFleet) -> None:
    stores = loaded(fleet, NAMES)
    (tmp_path / "orders" / "STATUS.tmp").mkdir()
    for store in stores:
        store.note_vote(7, "node2", ())
    errors = fleet.write_votes(stores)
    assert [error is not None for error in errors] == [name == "orders" for name in NAMES]
    assert "orders" in str(errors[1])
    status = status_of(tmp_path / "shard-2")
    assert status.promised == 7


@in_event_loop
async def test_votes_that_come_together_are_written_together_and_each_is_told_of_once_it_is_on_disk(
    tmp_path: Path, fleet: StoreFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores = loaded(fleet, NAMES)
    groups: list[int] = []
    write = fleet.write_votes

    def write_votes(group: list[Store]) -> list[StoreError | None]:
        groups.append(len(group))
        return write(group)

    monkeypatch.setattr(fleet, "write_votes", write_votes)
    votes = VoteWriter(fleet)
    told: asyncio.Queue[int] = asyncio.Queue()

    def on_disk(name: str, error: StoreError | None) -> None:
        assert error is None
        status = status_of(tmp_path / name)
        told.put_nowait(status.promised)

    for generation in (7, 8):
        for store, name in zip(stores, NAMES, strict=True):
            assert store.note_vote(generation, "node2", ())
            votes.write(store, partial(on_disk, name))
        async with asyncio.timeout(10):
            assert [await told.get() for _ in NAMES] == [generation] * len(NAMES)
    assert told.empty()
    assert groups == [len(NAMES)] * 2


def test_a_deleted_store_is_gone_and_what_a_crash_left_of_one_goes_at_the_next_start(
    tmp_path: Path, fleet: StoreFleet
) -> None:
    loaded(fleet, NAMES)
    fleet.delete("orders")
    fleet.delete("orders")
    (tmp_path / "shard-1").rename(tmp_path / "shard-1.DELETED")
    assert fleet.names() == ["default", "shard-2"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["default", "shard-2"]


@in_event_loop
async def test_a_store_in_which_nothing_changes_gives_its_writer_nothing_to_do(
    fleet: StoreFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qpid_ha_broker.server.stores.folding.LOOK_S", 0.0)
    (store,) = loaded(fleet, ["orders"])
    store.start(Deaf())
    store.tick()
    looked = asyncio.Event()
    store.writer.run(lambda: None, looked.set)
    await looked.wait()
    store.tick()
    given = store.writer.given
    for _ in range(5):
        store.tick()
    assert store.writer.given == given

    store.describe(role="primary")
    for _ in range(STATUS_TICKS):
        store.tick()
    assert store.writer.given == given + 2
    await store.close("")


@in_event_loop
async def test_what_only_tells_of_a_broker_is_written_later_and_once_and_who_it_belongs_to_at_once(
    tmp_path: Path,
    fleet: StoreFleet,
) -> None:
    async def on_disk(store: Store) -> Status:
        written = asyncio.Event()
        store.writer.run(lambda: None, written.set)
        await written.wait()
        return status_of(tmp_path / "orders")

    (store,) = loaded(fleet, ["orders"])
    store.start(Deaf())
    store.describe(cluster="one", role="connecting")
    before = await on_disk(store)
    assert (before.cluster, before.role) == ("one", "connecting")

    store.describe(role="primary")
    store.tick()
    store.describe(role="primary", epoch=2, members=("node1",))
    store.tick()
    assert await on_disk(store) == before
    store.tick()
    after = await on_disk(store)
    assert (after.role, after.epoch, after.revision) == ("primary", 2, before.revision + 1)

    store.describe(role="ready")
    await store.close("")
    closed = status_of(tmp_path / "orders")
    assert closed.role == "ready", "what still waits is written at the end"


@in_event_loop
async def test_a_store_with_something_to_fold_is_looked_at_in_each_tick(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("qpid_ha_broker.server.stores.folding.LOOK_S", 0.0)
    folded: list[int] = []

    async def fold(_self: Any, upto: int) -> None:
        folded.append(upto)

    monkeypatch.setattr("qpid_ha_broker.server.stores.folding.Folding._fold", fold)
    fleet = StoreFleet(tmp_path, StoreSettings(consolidate_bytes=1), "node1")
    (store,) = loaded(fleet, ["orders"])
    store.start(Deaf())
    rolled = asyncio.Event()
    store.writer.run(store.files.journal.roll, rolled.set)
    await rolled.wait()
    store.tick()
    looked = asyncio.Event()
    store.writer.run(lambda: None, looked.set)
    await looked.wait()
    store.tick()
    await asyncio.sleep(0)
    assert folded == [2]
    await store.close("")


def test_few_journals_are_folded_at_a_time_and_all_of_them_share_the_room() -> None:
    share = FoldingShare()
    configured = 256 * 1024 * 1024
    limits = []
    for share.sets in (1, 2, 4, 1000):
        limits.append(share.limit_bytes(configured))
    assert limits == [configured, configured // 2, FOLDED_BYTES_MIN, FOLDED_BYTES_MIN]
    assert share.limit_bytes(1000) == 1000
    share.running = FOLDED_AT_ONCE - 1
    assert share.has_room
    share.running += 1
    assert not share.has_room


def test_a_store_that_is_not_wanted_after_all_lets_go_of_its_files(fleet: StoreFleet) -> None:
    before = descriptors()
    (store,) = loaded(fleet, ["orders"])
    store.abandon()
    fleet.delete("orders")
    assert not [name for name in descriptors() - before if "journal/" in name and name.endswith((".log", "(deleted)"))]
    assert fleet.names() == []


def descriptors() -> set[str]:
    """The files that this process has open."""
    return {str(path.readlink()) for path in Path("/proc/self/fd").iterdir() if path.is_symlink()}
