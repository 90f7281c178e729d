"""Stores of resource sets beside `default`: what is wrong with one of them is the matter of that set alone."""

from __future__ import annotations

import asyncio
import shutil
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cluster_in_process import InProcessCluster, eventually, free_ports
from event_loops import in_event_loop
from hosted_sets import HostedSets
from qpid_ha_agent.control import RequestRefused
from qpid_ha_broker.amqp.wire.peer_frames import Channel
from qpid_ha_broker.cluster_map import ClusterMap
from qpid_ha_broker.ha.frame_codec import decode, encode
from qpid_ha_broker.ha.frames import Batch, Heartbeat
from qpid_ha_broker.ha.states import State
from qpid_ha_broker.store.files import LocalDisk
from qpid_ha_broker.store.status import STATUS_FILE, read_status

BROKERS = ("a", "b", "c", "d")
MEMORY_BYTES = 8_000_000
NOTHING_LEFT = "in sync were c; c holds nothing of it any more: put its data directory back"


class ManagedSets(HostedSets):
    """The same with a controller that does it: `a`, which leads `default`."""

    async def create(self, set_name: str, *replicas: str) -> None:
        """A set that the first of them leads, in sync everywhere, with a queue of its name."""
        given = {"action": "create", "name": set_name, "replicas": list(replicas), "preferred": replicas[0]}
        refusal = "not yet"
        while refusal:  # until the controller has heard of everybody
            try:
                await self.cluster.ask("a", "sets", **given)
                refusal = ""
            except RequestRefused as refused:
                refusal = refused.message
                assert "does not report" in refusal
        await self.whole(set_name, *replicas)
        await self.cluster.ask("a", "queues", action="create", name=set_name, arguments={"qpid.resource-set": set_name})
        for name in replicas:
            await eventually(lambda name=name: set_name in self.hosted(name, set_name).resources.catalog.queues)  # type: ignore[misc]

    async def row(self, set_name: str) -> dict[str, Any]:
        """What `qpid-ha set show` tells."""
        found: dict[str, Any] = await self.cluster.ask("a", "sets", action="show", name=set_name)
        return found

    async def whole(self, set_name: str, *brokers: str) -> dict[str, Any]:
        """Wait until these are in sync, and nobody else is wanted."""
        row = await self.row(set_name)
        while not (row["primary"] and sorted(row["in_sync"]) == sorted(row["replicas"]) == sorted(brokers)):
            row = await self.row(set_name)
        return row

    async def confirmed(self, broker: str, set_name: str, *texts: str) -> None:
        """Publish durable messages there, and wait until they are confirmed."""
        await self.publish(broker, set_name, set_name, *texts, durable=True)


def fill(path: Path) -> None:
    """With a file of all that there is."""
    with path.open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))


def remount(path: Path, option: str) -> None:
    """`ro` or `rw`."""
    subprocess.run(["mount", "-o", f"remount,{option}", str(path)], check=True)


def story_of_four(
    directory: Path,
    story: Callable[[ManagedSets], Awaitable[None]],
    **settings: object,
) -> None:
    """A cluster of four brokers with stores; `a` leads `default`, and is the controller."""

    @in_event_loop
    async def run() -> None:
        async with InProcessCluster(
            directory, store__segment_size="256KiB", link_heartbeat_interval="900ms", **settings
        ) as cluster:
            cluster.ports = dict(zip(BROKERS, free_ports(len(BROKERS)), strict=True))
            for name in BROKERS:
                await start(cluster, directory, name)
            await cluster.form("a")
            sets = ManagedSets.__new__(ManagedSets)
            sets.cluster = cluster
            await story(sets)

    run()


async def start(cluster: InProcessCluster, directory: Path, name: str, **settings: object) -> None:
    await cluster.start(name, data_dir=str(directory / name), **settings)


@contextmanager
def disk_of_its_own(path: Path, size: str) -> Iterator[None]:
    """A file system for one directory."""
    path.mkdir(mode=0o700, parents=True)
    command = ["mount", "-t", "tmpfs", "-o", f"size={size},mode=0700", "none", str(path)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("a file system of its own needs the right to mount one")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(path)], check=False)


def test_a_set_whose_store_is_lost_under_its_primary_is_led_by_another_broker_and_made_up_for(tmp_path: Path) -> None:
    async def story(sets: ManagedSets) -> None:
        await sets.create("orders", "b", "a", "c")
        await sets.create("bills", "b", "a", "c")
        await sets.confirmed("b", "orders", "one")
        shutil.rmtree(tmp_path / "b" / "orders")
        there = sets.hosted("b", "orders")
        there.configuration.declare_queue("something to write", {})
        there.touch()
        sets.cluster.brokers["b"].schedule_turn()

        row = await sets.whole("orders", "a", "c", "d")

        assert row["primary"] in ("a", "c")
        assert sets.bodies(row["primary"], "orders", "orders") == ["one"]
        await sets.confirmed(row["primary"], "orders", "two")
        await sets.confirmed("b", "bills", "bill")
        assert (await sets.row("bills"))["primary"] == "b"
        assert not sets.cluster.brokers["b"].failure

        # A store that cannot be opened at the next start: b takes over from c as it did from nobody.
        await sets.cluster.stop("c")
        (tmp_path / "c" / "orders" / "STATUS").write_bytes(b"{}")
        await start(sets.cluster, tmp_path, "c")
        row = await sets.whole("orders", "a", "b", "d")
        assert sets.bodies("b", "orders", "orders") == ["one", "two"]
        await sets.whole("bills", "a", "b", "c")

    story_of_four(tmp_path, story)


def flip_byte(store: Path) -> None:
    journal = next(store.glob("journal/*.log"))
    content = bytearray(journal.read_bytes())
    content[content.index(b"one")] ^= 1
    journal.write_bytes(content)


def test_a_damaged_store_of_a_set_costs_that_replica_alone_and_is_set_aside_when_it_is_wanted_anew(
    tmp_path: Path,
) -> None:
    async def story(sets: ManagedSets) -> None:
        await sets.create("orders", "b", "a", "c")
        await sets.create("bills", "c", "a", "b")
        await sets.confirmed("b", "orders", "one", "two")
        await sets.confirmed("c", "bills", "bill")
        await sets.cluster.stop("c")
        flip_byte(tmp_path / "c" / "orders")
        await start(sets.cluster, tmp_path, "c")

        # It is made up for elsewhere, and everything else goes on.
        await sets.whole("orders", "a", "b", "d")
        await sets.whole("bills", "a", "b", "c")
        await sets.confirmed("b", "orders", "three")
        problem = sets.at("c").absent.problems.get("orders", "")
        assert "orders" not in sets.at("c").members
        assert not problem or "cannot be loaded: journal/" in problem
        assert (tmp_path / "c" / "orders").is_dir(), "nobody has said that it may go out of the way"

        # An operator wants it there anew.
        await sets.cluster.ask("a", "sets", action="add-replica", name="orders", broker="c")
        row = await sets.whole("orders", "a", "b", "c", "d")
        assert row["problem"] == ""
        assert sets.bodies("c", "orders", "orders") == ["one", "two", "three"]
        (aside,) = (tmp_path / "c").glob("orders.set-aside-*")
        assert (aside / "STATUS").exists()

    story_of_four(tmp_path, story)


def test_a_set_whose_directory_is_removed_is_filled_again_or_led_by_nobody_where_it_was_the_only_copy(
    tmp_path: Path,
) -> None:
    async def lost(sets: ManagedSets) -> None:
        while (await sets.row("alone"))["problem"] != NOTHING_LEFT:
            pass

    async def story(sets: ManagedSets) -> None:
        await sets.create("orders", "b", "a", "c")
        await sets.cluster.ask("a", "replicas", action="policies", policies=[["alone", 1], ["*", 3]])
        await sets.create("alone", "c")
        await sets.confirmed("b", "orders", "one")
        await sets.confirmed("c", "alone", "only here")
        await sets.cluster.stop("c")
        for name in ("orders", "alone"):
            (tmp_path / "c" / name).rename(tmp_path / name)
        await start(sets.cluster, tmp_path, "c")
        await sets.whole("orders", "a", "b", "c")
        assert sets.bodies("c", "orders", "orders") == ["one"]
        await lost(sets)

        await sets.cluster.stop("c")
        shutil.rmtree(tmp_path / "c" / "alone")
        (tmp_path / "alone").rename(tmp_path / "c" / "alone")
        await start(sets.cluster, tmp_path, "c")
        await sets.whole("alone", "c")
        assert sets.bodies("c", "alone", "alone") == ["only here"]

        # It never comes back: an operator says so, and the set serves again, with its queue and without messages.
        await sets.cluster.stop("c")
        shutil.rmtree(tmp_path / "c" / "alone")
        await start(sets.cluster, tmp_path, "c")
        await lost(sets)
        with pytest.raises(RequestRefused, match=r"this broker holds no data.*`qpid-ha set promote alone c --force`"):
            await sets.cluster.ask("a", "sets", action="promote", name="alone", broker="c")
        await sets.cluster.ask("a", "sets", action="promote", name="alone", broker="c", force=True)
        await sets.whole("alone", "c")
        await eventually(lambda: "alone" in sets.hosted("c", "alone").resources.catalog.queues)
        assert sets.bodies("c", "alone", "alone") == []

    story_of_four(tmp_path, story)


def test_a_cluster_that_is_shut_down_leaves_whole_stores_of_all_sets_and_refuse_lets_no_others_in(
    tmp_path: Path,
) -> None:
    async def story(sets: ManagedSets) -> None:
        await sets.create("orders", "b", "a", "c")
        await sets.create("bills", "c", "d", "b")
        for name, primary in (("orders", "b"), ("bills", "c")):
            await sets.confirmed(primary, name, "one", "two")

        # They share one memory by what they have: at b one gets twelve times as much as the other.
        for number in range(24):  # in pieces: what is in the file that is written now stays in memory
            for size, name, primary in ((5, "orders", "b"), (2 if number % 5 == 0 else 0, "bills", "c")):
                await sets.confirmed(primary, name, *["x" * 100_000] * size)
        catalogs = {name: sets.hosted("b", name).resources.catalog for name in ("orders", "bills")}
        total = sets.cluster.brokers["b"].container
        await eventually(lambda: total.memory_bytes <= MEMORY_BYTES)
        part = catalogs["bills"].memory_bytes / total.memory_bytes
        assert 1 / 40 < part < 1 / 4, (catalogs["bills"].memory_bytes, total.memory_bytes)

        states = [sets.cluster.member(name).member.status.state for name in BROKERS]
        assert states.count(State.OBSERVER) == 1
        told = await sets.cluster.ask("a", "shutdown", cluster=True)

        assert "hold the same" in told["text"]
        for name in BROKERS:
            await sets.cluster.brokers[name].ended.wait()
            await sets.cluster.stop(name)
        marks = {
            name: {mark(tmp_path / each / name) for each in "abcd" if (tmp_path / each / name).is_dir()}
            for name in ("default", "orders", "bills")
        }
        assert all(len(each) == 1 and "" not in each for each in marks.values()), marks

        forget_mark(tmp_path / "c" / "orders")
        for name in BROKERS:
            await start(sets.cluster, tmp_path, name, ha__dirty_store="refuse")
        await sets.cluster.ask("a", "promote")
        await sets.whole("bills", "b", "c", "d")
        row = await sets.whole("orders", "a", "b", "d")
        for name, broker, count in (("orders", row["primary"], 122), ("bills", "d", 12)):
            assert sets.hosted(broker, name).resources.catalog.queues[name].messages.count == count
        assert (tmp_path / "c" / "orders" / "STATUS").exists()

    story_of_four(tmp_path, story, store__memory="8MB")


def test_the_store_of_a_deleted_set_goes_also_where_the_log_has_a_deleted_queue_yet_and_stays_where_a_map_is_lost(
    tmp_path: Path,
) -> None:
    async def story(sets: ManagedSets) -> None:
        await sets.create("orders", "b", "a", "c")
        await sets.create("bills", "b", "a", "c")
        await sets.confirmed("b", "orders", "one")
        let_hear_no_commits(sets, "c", "orders")

        await sets.cluster.ask("a", "queues", action="delete", name="orders")
        while (await sets.row("orders"))["queues"]:
            pass
        assert "orders" in sets.hosted("c", "orders").resources.catalog.queues
        await sets.cluster.ask("a", "sets", action="delete", name="orders")

        await eventually(lambda: not any((tmp_path / name / "orders").exists() for name in "abc"))

        there = sets.cluster.brokers["c"].sets
        assert there is not None
        there.map.replace(ClusterMap())
        await eventually(lambda: "bills" not in sets.at("c").members)
        await eventually(lambda: not sets.at("c")._ending)
        assert (tmp_path / "c" / "bills" / "STATUS").exists()

    story_of_four(tmp_path, story)


def let_hear_no_commits(sets: ManagedSets, broker: str, set_name: str) -> None:
    """That replica gets what is written from now on, and not that it is committed."""
    links = sets.member(broker, set_name).links
    listen = links.received

    def received(channel: Channel, data: bytes) -> None:
        frame = decode(data)
        if isinstance(frame, Batch):
            listen(channel, encode(frame._replace(committed_lsn=0)))
        elif not isinstance(frame, Heartbeat):
            listen(channel, data)

    links.received = received  # type: ignore[method-assign]


def mark(store: Path) -> str:
    """The shutdown under which it is whole."""
    status = read_status(LocalDisk(store))
    assert status is not None
    return status.clean


def forget_mark(store: Path) -> None:
    """As if its broker had crashed."""
    status = read_status(LocalDisk(store))
    assert status is not None
    LocalDisk(store).replace(STATUS_FILE, replace(status, clean="", revision=status.revision + 1).encode())


def test_a_full_disk_and_one_that_cannot_be_written_concern_the_set_that_lies_on_it(tmp_path: Path) -> None:
    place = tmp_path / "b" / "orders"

    async def story(sets: ManagedSets) -> None:
        await sets.create("orders", "b", "a", "c")
        await sets.create("bills", "b", "a", "c")
        ballast = place / "ballast"
        await sets.confirmed("b", "orders", "there is a queue")
        fill(ballast)
        waiting = asyncio.create_task(sets.confirmed("b", "orders", *["x" * 10_000] * 100))
        while "No space left" not in (await sets.row("orders"))["problem"]:
            assert not waiting.done()
        await sets.confirmed("b", "bills", "one", "two")
        assert not waiting.done()
        # The others have room, so after a while one of them leads the set; what waited was on its way to them already.
        while (await sets.row("orders"))["primary"] in ("", "b"):
            assert not waiting.done()
        assert (await sets.row("bills"))["primary"] == "b", "which lies elsewhere"
        waiting.cancel()
        ballast.unlink()
        await sets.whole("orders", "a", "b", "c")

        await sets.cluster.stop("b")
        remount(place, "ro")
        await start(sets.cluster, tmp_path, "b")
        await sets.whole("orders", "a", "c", "d")
        await sets.whole("bills", "a", "b", "c")
        await eventually(lambda: not sets.at("b").absent.problems)

        # Who has repaired it says so by giving the broker its replica again.
        remount(place, "rw")
        await sets.cluster.ask("a", "sets", action="add-replica", name="orders", broker="b")
        await sets.whole("orders", "a", "b", "c", "d")
        assert sets.bodies("b", "orders", "orders") == ["there is a queue", *["x" * 10_000] * 100]

    with disk_of_its_own(place, "4m"):
        story_of_four(tmp_path, story)
