"""Resource sets beside `default`, replicated between real brokers in one process: roles, failures, what they share."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from cluster_in_process import InProcessCluster, eventually, free_ports
from event_loops import in_event_loop
from hosted_sets import HostedSets, NoRecords
from qpid_ha_broker.events import types as ev
from qpid_ha_broker.ha import effects as fx
from qpid_ha_broker.ha.states import State
from qpid_ha_broker.server.clients.cluster_clients import ClientAccess
from qpid_ha_broker.server.peers import sub_channels
from qpid_ha_broker.server.sets import set_host
from qpid_ha_broker.server.sets.set_host import SetHost
from qpid_ha_broker.server.sets.set_member import SetMember
from qpid_ha_broker.server.stores.fleet import SIDE_BY_SIDE, StoreFleet
from qpid_ha_broker.server.stores.store import Store
from qpid_ha_broker.store.errors import StoreError
from qpid_ha_broker.store.files import LocalDisk
from qpid_ha_broker.store.recovery import Recovered
from qpid_ha_broker.store.status import read_status

BROKERS = ("a", "b", "c")


def story_of_three(
    directory: Path, story: Callable[[HostedSets], Awaitable[None]], **settings: Mapping[str, object]
) -> None:
    """A cluster of three brokers, of which the first leads `default`. `settings`: by broker."""

    @in_event_loop
    async def run() -> None:
        async with InProcessCluster(directory) as cluster:
            cluster.ports = dict(zip(BROKERS, free_ports(len(BROKERS)), strict=True))
            for name in BROKERS:
                await cluster.start(name, **settings.get(name, {}))
            await cluster.form("a")
            await story(HostedSets(cluster))

    run()


def test_each_broker_leads_a_set_and_has_replicas_of_the_others(tmp_path: Path) -> None:
    async def story(sets: HostedSets) -> None:
        for primary in BROKERS:
            await sets.place(f"set-{primary}", primary, *[name for name in BROKERS if name != primary])
        for primary in BROKERS:
            await sets.publish(primary, f"set-{primary}", f"queue-{primary}", "one", "two")
        for primary in BROKERS:
            for name in BROKERS:
                await eventually(partial(sets.is_same, f"set-{primary}", primary, name))
                assert sets.bodies(name, f"set-{primary}", f"queue-{primary}") == ["one", "two"]
                assert sets.hosted(name, f"set-{primary}").read_only == (name != primary)
        assert sets.cluster.member("a").member.status.state is State.PRIMARY
        for primary in BROKERS:
            sets.member(primary, f"set-{primary}").member.check_invariants()

    story_of_three(tmp_path, story)


def test_a_stop_of_the_process_shows_in_all_sets_at_once(tmp_path: Path) -> None:
    async def story(sets: HostedSets) -> None:
        await sets.place("orders", "a", "b", "c")
        of_default, of_orders = sets.cluster.member("a").process, sets.at("a").process
        woke_s = time.monotonic() + 10.0
        of_default.look(woke_s)
        assert of_orders.woke_s == woke_s, "also in one that looks only later"

    story_of_three(tmp_path, story)


def test_after_a_crash_another_replica_takes_over_and_nothing_is_lost(tmp_path: Path) -> None:
    async def story(sets: HostedSets) -> None:
        await sets.place("orders", "b", "a", "c")
        await sets.place("bills", "c", "a", "b")
        await sets.publish("b", "orders", "q", *map(str, range(50)))
        await sets.publish("c", "bills", "q", "bill")
        await sets.crash("b")
        await eventually(lambda: sets.member("c", "orders").member.status.state is State.CONNECTING)
        await sets.promote("c", "orders", failover=True)
        await sets.reach("a", "orders", State.READY)
        assert sets.bodies("c", "orders", "q") == list(map(str, range(50)))
        await sets.publish("c", "orders", "q", "after")
        await eventually(partial(sets.is_same, "orders", "c", "a"))
        assert sets.bodies("a", "orders", "q")[-1] == "after"
        assert sets.records.records["orders"].members == ("a", "c")
        await sets.publish("c", "bills", "q", "another bill")
        assert sets.member("c", "bills").member.status.generation == 1
        assert sets.cluster.member("a").member.status.generation == 1
        await sets.cluster.start("b")
        sets.host_again("orders", "b", "a", "c")
        await sets.reach("b", "orders", State.READY)
        assert sets.bodies("b", "orders", "q") == [*map(str, range(50)), "after"]

    story_of_three(tmp_path, story)


def test_a_primary_hands_over_when_it_is_told_to(tmp_path: Path) -> None:
    async def story(sets: HostedSets) -> None:
        await sets.place("orders", "a", "b", "c")
        await sets.publish("a", "orders", "q", "one")
        await sets.switch_over("a", "orders", "b")
        await sets.reach("b", "orders", State.PRIMARY)
        await sets.reach("a", "orders", State.READY)
        assert sets.hosted("a", "orders").read_only
        await sets.publish("b", "orders", "q", "two")
        await eventually(partial(sets.is_same, "orders", "b", "a"))
        assert sets.bodies("a", "orders", "q") == ["one", "two"]

    story_of_three(tmp_path, story)


def test_what_comes_of_an_order_is_logged_with_the_name_of_the_set(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "cluster")

    async def story(sets: HostedSets) -> None:
        await sets.place("orders", "a", "b")
        await sets.switch_over("a", "orders", "b")
        for line in ("set orders: primary of generation 1", "set orders: b takes over"):
            assert line in caplog.messages

    story_of_three(tmp_path, story)


@pytest.fixture
def losses_are_told_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a broker that is lost no set hears at once, unless it writes to it."""
    monkeypatch.setattr(sub_channels, "AT_ONCE", 0)
    monkeypatch.setattr(sub_channels, "LATE_S", 60.0)


@pytest.mark.usefixtures("losses_are_told_late")
def test_of_sets_that_have_lost_a_backup_the_one_that_is_published_to_drops_it_at_once_and_the_others_in_time(
    tmp_path: Path,
) -> None:
    async def story(sets: HostedSets) -> None:
        for name in ("orders", "bills"):
            await sets.place(name, "a", "b", "c")
            await sets.publish("a", name, "q", "before")
        await sets.at_rest(("orders", "bills"))
        orders, bills = (sets.member("a", name).member.status for name in ("orders", "bills"))
        assert orders.members == bills.members == ("a", "b", "c")
        await sets.crash("c")

        await sets.publish("a", "orders", "q", "after")

        assert sets.member("a", "orders").member.status.members == ("a", "b")
        assert sets.member("a", "bills").member.status.members == ("a", "b", "c")
        sets.at("a").shared.losses.tell_piece()
        await eventually(lambda: sets.member("a", "bills").member.status.members == ("a", "b"))

    story_of_three(tmp_path, story)


@pytest.mark.usefixtures("losses_are_told_late")
def test_a_replica_that_has_not_heard_yet_that_its_primary_is_lost_can_be_promoted(
    tmp_path: Path,
) -> None:
    async def story(sets: HostedSets) -> None:
        await sets.place("orders", "c", "a", "b")
        await sets.publish("c", "orders", "q", "before")
        await sets.at_rest(("orders",))
        await sets.crash("c")
        await eventually(lambda: "orders" in sets.at("b").shared.losses._late)
        assert sets.member("b", "orders").member.status.state is State.READY

        await sets.promote("b", "orders", failover=True)

        await sets.reach("a", "orders", State.READY)
        await sets.publish("b", "orders", "q", "after")
        assert sets.bodies("b", "orders", "q") == ["before", "after"]
        assert sets.member("b", "orders").member.status.members == ("a", "b")
        sets.member("b", "orders").member.check_invariants()

    story_of_three(tmp_path, story)


def test_a_record_is_no_reason_to_tell_clients_who_serves_or_to_arrange_a_replica_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def story(sets: HostedSets) -> None:
        broker, url = sets.cluster.brokers["a"], sets.cluster.url("a")
        assert broker.sets is not None
        cluster = broker.sets
        cluster.service.is_active = False  # nobody else writes to the map
        done: list[str] = []
        update, change_replicas = ClientAccess.update, SetHost.change_replicas

        def note_update(clients: ClientAccess) -> None:
            if clients is broker.membership.clients:
                done.append("clients")
            update(clients)

        def note_change(host: SetHost, name: str, *args: Any, **kwargs: Any) -> None:
            if host is cluster.hosts:
                done.append(name)
            change_replicas(host, name, *args, **kwargs)

        monkeypatch.setattr(ClientAccess, "update", note_update)
        monkeypatch.setattr(SetHost, "change_replicas", note_change)

        async def write(*events: ev.MapEvent) -> list[str]:
            done.clear()
            broker.container.default.resources.replicated.submit(events)
            broker.schedule_turn()
            await eventually(lambda: not cluster._due)
            return sorted(set(done))

        placed = ev.SetPlaced("orders", ("a",), (), "a", 1, 1)
        assert "clients" in await write(
            ev.BrokerRegistered("a", "a", url, "", "", "1"), ev.BrokerChanged("a", True, False, 0), placed
        )
        await sets.loaded("orders", "a")

        assert await write(ev.SetRecorded("orders", "", 0, "", 0, (), False)) == []
        assert await write(placed._replace(min_in_sync=2)) == ["orders"]
        assert await write(ev.BrokerRegistered("a", "a", url, "amqp://elsewhere:5672", "", "1")) == ["clients"]
        told = [server["network-host"] for server in broker.container.greeting.failover_servers]
        assert told == ["elsewhere"]

    story_of_three(tmp_path, story)


def test_members_that_are_awake_together_get_a_tick_in_turn_when_they_are_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(set_host, "TICKED_AT_ONCE", 2)

    async def story(sets: HostedSets) -> None:
        names = [f"s{number}" for number in range(8)]
        for name in names:
            await sets.place(name, "a", "b", "c")
        host, ticked = sets.at("a"), list[str]()

        def note(member: SetMember, now_s: float) -> bool:
            ticked.append(member.name)
            return True

        monkeypatch.setattr(SetMember, "tick", note)
        host._awake = dict.fromkeys([host.members[name] for name in names], 0.0)
        host._ticks = 10  # none of those at rest has its own now
        for _ in range(4):
            host._tick(host._ticked_s)

        assert sorted(ticked) == names

    story_of_three(tmp_path, story)


def test_what_a_replica_refuses_speaks_of_the_controller_and_an_order_that_was_given_twice_is_refused_for_one_reason(
    tmp_path: Path,
) -> None:
    async def story(sets: HostedSets) -> None:
        await sets.place("orders", "c", "a", "b")
        await sets.crash("c")
        await eventually(lambda: sets.member("b", "orders").member.status.state is State.CONNECTING)
        sets.at("b").records = NoRecords()  # nobody leads `default` now
        answers: list[fx.Answered] = []
        for _ in range(2):
            sets.at("b").ask("orders", lambda number: fx.PromoteAsked(number, False, "c failed", True), answers.append)
        await eventually(lambda: len(answers) == 2)
        assert [answer.done for answer in answers] == [False, False]
        assert len({answer.text for answer in answers}) == 1
        assert answers[0].text.startswith("the controller cannot be reached")

    story_of_three(tmp_path, story)


def test_what_fifty_sets_write_in_one_turn_goes_out_together(tmp_path: Path) -> None:
    async def story(sets: HostedSets) -> None:
        names = [f"set{number}" for number in range(50)]
        for name in names:
            await sets.place(name, "a", "b", "c")
        await sets.at_rest(names)
        before = sets.transfers
        await asyncio.gather(*[sets.publish("a", name, "q", "x") for name in names])
        # To each of the two: what declares the queues and publishes; the acknowledgements; that all is committed.
        assert sets.transfers - before < 50

    story_of_three(tmp_path, story)


def test_sets_at_rest_say_nothing_and_stay_together(tmp_path: Path) -> None:
    async def story(sets: HostedSets) -> None:
        names = [f"set{number}" for number in range(10)]
        for name in names:
            await sets.place(name, "a", "b", "c")
        await sets.at_rest(names)
        frames = sets.frames
        await asyncio.sleep(2.5)
        assert sets.frames - frames <= 4 * 3  # both ends of two channels to the controller count a report a second
        for name in names:
            await sets.publish("a", name, "q", "x")
            assert sets.member("a", name).member.status.members == BROKERS

    story_of_three(tmp_path, story)


def test_a_replica_that_is_taken_away_is_not_waited_for_and_comes_back_level(tmp_path: Path) -> None:
    async def story(sets: HostedSets) -> None:
        await sets.place("orders", "a", "b", "c")
        sets.at("c").unhost("orders", "the test takes it away")
        await sets.publish("a", "orders", "q", "one")
        await eventually(lambda: sets.member("a", "orders").member.status.members == ("a", "b"))
        assert "orders" not in sets.cluster.brokers["c"].container.sets
        sets.host_again("orders", "c", "a", "b")
        await sets.reach("c", "orders", State.READY)
        assert sets.bodies("c", "orders", "q") == ["one"]

    story_of_three(tmp_path, story)


def test_a_damaged_bundle_costs_the_connection_and_nothing_else(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def story(sets: HostedSets) -> None:
        await sets.place("orders", "a", "b", "c")
        (connection,) = [each for each in sets.at("b").shared._ours.values() if each.address == sets.cluster.url("a")]
        assert connection.channel is not None
        connection.channel.send(b"no bundle")
        await eventually(lambda: "a damaged bundle came" in caplog.text)
        await eventually(lambda: connection not in sets.at("b").shared._ours.values())
        await sets.reach("b", "orders", State.READY)
        await sets.publish("a", "orders", "q", "one")
        await eventually(lambda: sets.member("a", "orders").member.status.members == BROKERS)
        assert sets.cluster.member("b").member.status.state is State.READY

    story_of_three(tmp_path, story)


def test_a_set_follows_where_its_replicas_are_moved_to(tmp_path: Path) -> None:
    async def story(sets: HostedSets) -> None:
        await sets.place("orders", "a", "b")
        await sets.publish("a", "orders", "q", "one")
        addresses = [sets.cluster.url(name) for name in BROKERS]
        for name in ("a", "b"):
            sets.at(name).change_replicas("orders", addresses, sets.cluster.url(name))
        sets.host_again("orders", "c", "a", "b")
        await sets.reach("c", "orders", State.READY)
        await eventually(lambda: sets.records.records["orders"].members == BROKERS)
        assert sets.bodies("c", "orders", "q") == ["one"]

    story_of_three(tmp_path, story)


def test_what_is_durable_comes_back_after_all_brokers_were_stopped(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "store")
    settings = {name: {"data_dir": str(tmp_path / name)} for name in BROKERS}

    async def story(sets: HostedSets) -> None:
        await sets.place("orders", "a", "b", "c")
        await sets.place("bills", "b", "c", "a")
        await sets.publish("a", "orders", "q", "one", "two", durable=True)
        await sets.publish("b", "bills", "q", "bill", durable=True)
        for name in BROKERS:
            await sets.cluster.stop(name)
        for name in BROKERS:
            await sets.cluster.start(name, **settings[name])
            assert sets.at(name).stored == ["bills", "orders"]
        for set_name in ("orders", "bills"):
            sets.host(set_name, BROKERS)
            await sets.loaded(set_name, *BROKERS)
        await sets.promote("c", "orders", failover=True)
        await sets.promote("b", "bills", failover=True)
        assert sets.bodies("c", "orders", "q") == ["one", "two"]
        assert sets.bodies("b", "bills", "q") == ["bill"]
        assert sum(message.startswith("set orders: recovered ") for message in caplog.messages) == len(BROKERS)
        await sets.publish("c", "orders", "q", "three", durable=True)
        await sets.reach("a", "orders", State.READY)
        assert sets.bodies("a", "orders", "q")[:2] == ["one", "two"]

    story_of_three(tmp_path, story, **settings)


def test_a_replica_that_is_taken_away_before_its_store_could_be_read_is_read_once_if_it_is_wanted_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {name: {"data_dir": str(tmp_path / name)} for name in BROKERS}
    read: list[str] = []

    def reads(store: Store, *args: Any, **options: Any) -> Recovered:
        read.append(store.directory.name)
        return original(store, *args, **options)

    original = Store.recover

    async def story(sets: HostedSets) -> None:
        for set_name in ("orders", "bills"):
            await sets.place(set_name, "a", "b")
        await sets.publish("a", "orders", "q", "one", durable=True)
        monkeypatch.setattr(Store, "recover", reads)
        hosts = sets.at("c")
        assert hosts._fleet is not None
        for _ in range(SIDE_BY_SIDE):
            await hosts._fleet.side_by_side.acquire()
        for set_name in ("orders", "bills"):
            sets.host_again(set_name, "c", "a", "b")
            await asyncio.sleep(0)
            hosts.unhost(set_name, "taken away")
        sets.host_again("orders", "c", "a", "b")
        for _ in range(SIDE_BY_SIDE):
            hosts._fleet.side_by_side.release()
        addresses = [sets.cluster.url(name) for name in BROKERS]
        for name in ("a", "b"):
            sets.at(name).change_replicas("orders", addresses, sets.cluster.url(name))
        await sets.loaded("orders", "c")
        await sets.reach("c", "orders", State.READY)
        assert sets.bodies("c", "orders", "q") == ["one"]
        await eventually(lambda: not hosts._reading)
        assert (read, list(hosts.members)) == (["orders"], ["orders"])

    story_of_three(tmp_path, story, **settings)


def test_the_store_of_a_replica_that_is_taken_away_is_deleted(tmp_path: Path) -> None:
    settings = {name: {"data_dir": str(tmp_path / name)} for name in BROKERS}

    async def story(sets: HostedSets) -> None:
        await sets.place("orders", "a", "b", "c")
        await sets.publish("a", "orders", "q", "one", durable=True)
        sets.at("c").unhost("orders", "the test takes it away")
        await eventually(lambda: not (tmp_path / "c" / "orders").exists())
        sets.host_again("orders", "c", "a", "b")
        await sets.loaded("orders", "c")
        await sets.reach("c", "orders", State.READY)
        assert sets.bodies("c", "orders", "q") == ["one"]

    story_of_three(tmp_path, story, **settings)


def test_the_store_of_an_earlier_set_of_that_name_is_set_aside_once_the_map_is_known(tmp_path: Path) -> None:
    settings = {name: {"data_dir": str(tmp_path / name)} for name in BROKERS}

    async def story(sets: HostedSets) -> None:
        await sets.place("orders", "a", "b")
        await sets.publish("a", "orders", "q", "one", durable=True)
        sets.at("a").unhost("orders", "it was deleted", delete=False)
        sets.at("b").unhost("orders", "it was deleted", delete=False)
        sets.records.records.clear()
        sets.at("b").is_map_current = lambda: False
        for name in ("a", "b"):
            sets.at(name).host("orders", sets.addresses("a", "b"), sets.addresses(name)[0], cluster="c0ffee")
        await sets.loaded("orders", "a")
        assert sets.member("a", "orders").member.status.generation == 0
        assert [path.name[:17] for path in (tmp_path / "a").glob("orders.*")] == ["orders.set-aside-"]
        assert (tmp_path / "b" / "orders" / "STATUS").exists()
        assert "orders" in sets.at("b").loading
        sets.at("b").is_map_current = lambda: True
        await sets.loaded("orders", "b")
        assert not (tmp_path / "b" / "orders").exists() or sets.member("b", "orders").member.status.generation == 0

    story_of_three(tmp_path, story, **settings)


def test_the_store_of_a_replica_that_the_others_refuse_stays(tmp_path: Path) -> None:
    settings = {name: {"data_dir": str(tmp_path / name)} for name in BROKERS}

    async def story(sets: HostedSets) -> None:
        await sets.place("orders", "a", "b")
        await sets.publish("a", "orders", "q", "one", durable=True)
        sets.at("a").unhost("orders", "the test takes it away", delete=False)
        sets.at("b").unhost("orders", "the test takes it away")
        await eventually(lambda: not (tmp_path / "b" / "orders").exists())
        sets.records.records.clear()
        sets.host("orders", ("b", "c"))
        await sets.loaded("orders", "b", "c")
        await sets.promote("b", "orders")
        sets.host_again("orders", "a", "b", "c")
        await eventually(lambda: "another set orders" in sets.at("a").absent.problems.get("orders", ""))
        await eventually(lambda: "orders" not in sets.at("a").members)
        assert (tmp_path / "a" / "orders" / "STATUS").exists()
        assert sets.cluster.member("a").member.status.state is State.PRIMARY

    story_of_three(tmp_path, story, **settings)


def test_nobody_leads_before_its_vote_is_on_disk_and_other_sets_go_on_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {name: {"data_dir": str(tmp_path / name)} for name in BROKERS}
    may_write = threading.Event()
    write_votes = StoreFleet.write_votes

    def write_votes_late(fleet: StoreFleet, stores: Sequence[Store]) -> list[StoreError | None]:
        assert may_write.wait(30)
        return write_votes(fleet, stores)

    monkeypatch.setattr(StoreFleet, "write_votes", write_votes_late)

    def promised() -> int:
        status = read_status(LocalDisk(tmp_path / "b" / "orders"))
        assert status is not None
        return status.promised

    async def story(sets: HostedSets) -> None:
        may_write.set()
        await sets.place("orders", "a", "b", "c")
        await sets.place("bills", "b", "c")
        before = promised()
        may_write.clear()
        await sets.crash("a")
        await eventually(lambda: sets.member("b", "orders").member.status.state is State.CONNECTING)
        promotion = asyncio.create_task(sets.promote("b", "orders", failover=True))
        await sets.publish("b", "bills", "q", "bill", durable=True)
        assert sets.hosted("b", "orders").read_only
        assert promised() == before
        may_write.set()
        await promotion
        assert not sets.hosted("b", "orders").read_only
        assert promised() > before
        assert sets.member("b", "orders").member.status.generation == promised()

    story_of_three(tmp_path, story, **settings)


def test_a_broker_that_is_gone_counts_as_failed_when_its_time_is_over_not_with_the_next_tick(
    tmp_path: Path,
) -> None:
    async def story(sets: HostedSets) -> None:
        brokers = sets.cluster.brokers
        controller, gone = brokers["a"].sets, brokers["b"].sets
        assert controller is not None
        assert gone is not None
        while not (await controller.client.ask("set-create", {"name": "orders"})).done:  # noqa: ASYNC110
            await asyncio.sleep(0.01)  # not all have reported yet
        assert controller.map.brokers["b"].up
        controller._tasks.cancel()
        gone._tasks.cancel()
        await sets.crash("b")
        await eventually(lambda: not controller.map.brokers["b"].up)

    story_of_three(tmp_path, story)
