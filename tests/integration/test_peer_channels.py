"""Channels between real brokers in one process: kept for the next question, replaced when dead, cut when not read."""

from __future__ import annotations

import asyncio
import logging
from pathlib import Path

import pytest

from cluster_in_process import InProcessCluster, eventually
from event_loops import in_event_loop
from qpid_ha_broker.ha import effects as fx
from qpid_ha_broker.ha.frames import Answer, Batch, Topic
from qpid_ha_broker.ha.link_ends import LinkEnd
from qpid_ha_broker.ha.states import State
from qpid_ha_broker.model.transactions.transaction import Message
from qpid_ha_broker.server.broker import Broker
from qpid_ha_broker.server.peers import peer_links
from qpid_ha_broker.server.peers.peer_channels import OutgoingChannel
from qpid_ha_broker.server.peers.peer_links import link_end
from qpid_ha_broker.server.sets.set_member import SetMember
from qpid_ha_broker.server.stores.member_store import BEHIND_BYTES

COUNT = 1_000
LIMIT_S = 2.0
"""For an answer: who does answer has to do so in this time, on a busy machine as well."""


async def ask(cluster: InProcessCluster, asker: str, *others: str, limit_s: float = LIMIT_S) -> list[str]:
    """The states that the others answer with, or nothing."""
    membership = cluster.member(asker)
    urls = [cluster.url(other) for other in others]
    found = await membership.questions.ask(membership.questions.question(Topic.STATUS), urls, limit_s)
    return [answer.state if isinstance(answer, Answer) else "" for answer in found.values()]


@in_event_loop
async def test_a_channel_serves_the_next_question_too(tmp_path: Path) -> None:
    async with InProcessCluster(tmp_path, "a", "b") as cluster:
        await ask(cluster, "a", "b")
        lines = cluster.member("a").questions._lines
        kept = lines[cluster.url("b")].channel
        for _ in range(5):
            assert await ask(cluster, "a", "b") != [""]
            assert lines[cluster.url("b")].channel is kept


@in_event_loop
async def test_a_broker_that_was_restarted_answers_the_very_next_question(tmp_path: Path) -> None:
    async with InProcessCluster(tmp_path, "a", "b") as cluster:
        await ask(cluster, "a", "b")
        for protocol in list(cluster.brokers["b"]._protocols.values()):
            protocol.abort()
        await cluster.stop("b")
        assert await ask(cluster, "a", "b") == [""]
        await cluster.start("b")
        assert await ask(cluster, "a", "b") == ["connecting"]


@in_event_loop
async def test_a_kept_channel_that_is_silent_is_replaced_within_the_question(tmp_path: Path) -> None:
    async with InProcessCluster(tmp_path, "a", "b") as cluster:
        await ask(cluster, "a", "b")
        line = cluster.member("a").questions._lines[cluster.url("b")]
        assert isinstance(line.channel, OutgoingChannel)
        line.channel._is_reading = True  # nothing that is sent on it goes out any more
        assert await ask(cluster, "a", "b") == ["connecting"]
        assert cluster.member("a").questions._lines[cluster.url("b")] is not line


@in_event_loop
async def test_who_does_not_answer_costs_the_limit_and_no_more(tmp_path: Path) -> None:
    async def mute(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    async with InProcessCluster(tmp_path, "a", "b") as cluster:
        await cluster.stop("b")
        server = await asyncio.start_server(mute, "127.0.0.1", cluster.ports["b"])
        began_s = asyncio.get_running_loop().time()
        assert await ask(cluster, "a", "b", "a") == ["", "connecting"]
        assert LIMIT_S - 0.1 < asyncio.get_running_loop().time() - began_s < LIMIT_S + 10
        server.close()


@in_event_loop
async def test_a_broker_finds_out_which_address_is_its_own(tmp_path: Path) -> None:
    async with InProcessCluster(tmp_path, "a", "b") as cluster:
        await cluster.stop("a")
        brokers = f"amqp://localhost:{cluster.ports['a']},127.0.0.1:{cluster.ports['b']}"
        await cluster.start("a", ha__brokers_url=brokers)
        own = f"amqp://localhost:{cluster.ports['a']}"
        await eventually(lambda: cluster.member("a").member.settings.own_address == own)


class Recorder:
    """A channel to nowhere."""

    peer = "nowhere"
    is_open = True
    unsent_bytes = 0

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.closed_with = ""

    def send(self, data: bytes) -> None:
        self.sent.append(data)

    def close(self, reason: str) -> None:
        self.closed_with = reason


class Script:
    """Stands for the core where a story needs an effect that the real one gives only under load."""

    def __init__(self, driver: SetMember) -> None:
        self.real = driver.member
        self.heard: list[fx.Input] = []
        self.effects: dict[type, list[fx.Effect]] = {}
        driver.member = self  # type: ignore[assignment]

    def __getattr__(self, name: str) -> object:
        return getattr(self.real, name)

    def handle(self, happened: fx.Input, now_s: float) -> list[fx.Effect]:
        self.heard.append(happened)
        return self.effects.pop(type(happened), [])


def incoming(driver: SetMember) -> tuple[Recorder, int]:
    channel = Recorder()
    driver.links.opened(channel)
    number = driver.links._numbers[channel]
    driver.links._links[number].is_known = True
    return channel, number


@in_event_loop
async def test_a_batch_for_two_backups_is_encoded_once(tmp_path: Path) -> None:
    async with InProcessCluster(tmp_path, "a", "b") as cluster:
        driver = cluster.member("a").default
        script = Script(driver)
        (one, first), (two, second) = incoming(driver), incoming(driver)
        batch = Batch(1, 1, 1, 0, b"records")
        script.effects[fx.TurnEnded] = [fx.Send(first, batch), fx.Send(second, batch)]
        driver.feed(fx.TurnEnded(None))
        assert one.sent[0] is two.sent[0]
        driver.member = script.real


def test_a_peer_that_does_not_read_is_told_of_and_then_given_up(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    @in_event_loop
    async def story() -> None:
        async with InProcessCluster(tmp_path, "a", "b") as cluster:
            driver = cluster.member("a").default
            script = Script(driver)
            channel, number = incoming(driver)
            for unsent, told_so in (
                (peer_links.FULL_BYTES + 1, fx.LinkWritable(number, False)),
                (peer_links.ROOMY_BYTES - 1, fx.LinkWritable(number, True)),
                (peer_links.CUT_BYTES + 1, fx.LinkLost(number, f"{peer_links.CUT_BYTES + 1} bytes wait for it")),
            ):
                channel.unsent_bytes = unsent
                driver.links.watch()
                assert script.heard[-1] == told_so
                channel.unsent_bytes = min(unsent, peer_links.CUT_BYTES)
                driver.links.watch()
                assert script.heard.count(told_so) == 1
            assert channel.closed_with
            driver.member = script.real

    with caplog.at_level(logging.WARNING):
        story()
    assert "nowhere is given up" in caplog.text


@in_event_loop
async def test_what_happens_while_effects_are_carried_out_is_fed_after_them(tmp_path: Path) -> None:
    async with InProcessCluster(tmp_path, "a", "b") as cluster:
        driver = cluster.member("a").default
        script = Script(driver)
        channel, number = incoming(driver)
        depth: list[int] = []

        def send(data: bytes) -> None:
            depth.append(len(script.heard))
            driver.links.closed(channel, "gone")
            depth.append(len(script.heard))

        channel.send = send  # type: ignore[method-assign]
        script.effects[fx.Ticked] = [
            fx.Send(number, Batch(1, 1, 1, 0, b"")),
            fx.Send(number, Batch(1, 2, 2, 0, b"")),
        ]
        driver.feed(fx.Ticked())
        assert depth == [1, 1]
        assert script.heard == [fx.Ticked(), fx.LinkLost(number, "gone")]
        driver.member = script.real


@in_event_loop
async def test_a_bug_in_the_core_ends_the_broker_before_it_says_anything_wrong(tmp_path: Path) -> None:
    async with InProcessCluster(tmp_path, "a", "b") as cluster:
        driver = cluster.member("a").default
        script = Script(driver)
        script.effects[fx.Ticked] = [object()]  # type: ignore[list-item]
        driver.feed(fx.Ticked())
        assert cluster.brokers["a"].ended.is_set()
        assert "KeyError" in cluster.brokers["a"].failure
        driver.member = script.real


@in_event_loop
async def test_a_core_that_has_failed_is_fed_nothing_more_and_its_channels_end_with_the_word_of_one_that_stops(
    tmp_path: Path,
) -> None:
    """Whatever state it is in now, it would go on to acknowledge, or to confirm; and it cannot say goodbye itself."""
    async with InProcessCluster(tmp_path, "a", "b") as cluster:
        await cluster.form("a")
        driver = cluster.member("b").default
        script = Script(driver)
        channel, _ = incoming(driver)
        script.effects[fx.Ticked] = [object()]  # type: ignore[list-item]
        driver.feed(fx.Ticked())
        script.heard.clear()
        driver.feed(fx.Ticked())
        await cluster.stop("b")
        assert script.heard == []
        assert link_end(channel.closed_with) is LinkEnd.STOPPING


@in_event_loop
async def test_damage_on_a_channel_reaches_the_core_as_damage(tmp_path: Path) -> None:
    async with InProcessCluster(tmp_path, "a", "b") as cluster:
        await cluster.form("a")
        driver = cluster.member("a").default
        (link,) = [link for link in driver.links._links.values() if link.number in _backup_links(driver)]
        link.channel.send(b"\x20 this is no batch")
        cluster.brokers["a"].schedule_turn()
        await cluster.see("b", lambda: cluster.member("b").member.status.state is not State.READY)
        await cluster.reach("b", State.READY)  # it has connected anew


def _backup_links(driver: SetMember) -> set[int]:
    primary = driver.member.primary
    return set() if primary is None else set(primary.links)


class FarBehind:
    """A backup's store seems not to get on with it, until `is_over`."""

    def __init__(self, backup: Broker) -> None:
        assert backup.broker_store is not None
        self._writer = backup.broker_store.store.writer
        self._writer._written_bytes -= BEHIND_BYTES

    def is_over(self) -> None:
        self._writer._written_bytes += BEHIND_BYTES


@in_event_loop
async def test_a_backup_whose_store_is_far_behind_reads_no_more_and_comes_back_once_it_is_not(tmp_path: Path) -> None:
    """It would hold all that comes in memory, for as long as its disk is full or slow."""
    async with InProcessCluster(tmp_path, "a", "b") as cluster:
        await cluster.stop("b")
        await cluster.start("b", data_dir=str(tmp_path / "b"))
        await cluster.form("a")
        container, backup = cluster.brokers["a"].container, cluster.brokers["b"].container.default.resources.catalog
        queue = container.default.configuration.declare_queue("q", {})
        await eventually(lambda: "q" in backup.queues)
        behind = FarBehind(cluster.brokers["b"])
        for number in range(COUNT):
            container.default.resources.publish(queue, Message(b"%d" % number + bytes(10_000), True), 0)
            cluster.brokers["a"].schedule_turn()
            await asyncio.sleep(0)
        await eventually(lambda: cluster.member("a").member.status.members == ("a",))
        assert backup.queues["q"].messages.count < COUNT
        behind.is_over()
        await cluster.reach("b", State.READY)
        assert backup.queues["q"].messages.count == COUNT


@in_event_loop
async def test_who_hands_over_and_stops_at_once_is_missed_by_nobody(tmp_path: Path) -> None:
    """Its successor hears of the stop on a channel; without one it would wait for a broker in sync that is slow."""
    async with InProcessCluster(tmp_path, "a", "b", "c", ha__backup_timeout="60s") as cluster:
        await cluster.form("a")
        membership = cluster.member("a")
        events = membership.events.subscribe()
        membership.default.feed(fx.SwitchoverAsked(1, "b"))
        await eventually(lambda: membership.member.role.awaits_successor)
        await cluster.stop("a")

        states = [event["after"] async for event in events if event["event"] == "state"]
        assert states[0] == "connecting"
        assert {"catchup", "ready"} & set(states)
        await eventually(lambda: cluster.member("b").member.status.members == ("b", "c"))
