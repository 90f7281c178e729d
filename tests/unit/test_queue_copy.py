"""A copy of one queue outside of its cluster: what it holds, what ends it, and that nobody waits for it."""

from __future__ import annotations

from collections import deque
from random import Random

import pytest

from model_support import NOW_MS, TextReader, message
from qpid_ha_broker.events.codec import encode
from qpid_ha_broker.events.types import Enqueued
from qpid_ha_broker.ha import effects as fx
from qpid_ha_broker.ha import frames as fr
from qpid_ha_broker.ha.link_ends import LinkEnd
from qpid_ha_broker.ha.queue_copy import CopyError, CopyState, QueueCopy
from qpid_ha_broker.ha.states import State
from qpid_ha_broker.model.commands.configuration import Configuration
from qpid_ha_broker.model.commands.deletion import MOVED_LENGTH
from qpid_ha_broker.model.errors import QueueLocked
from qpid_ha_broker.model.queues.dispatcher import Consumer
from qpid_ha_broker.model.queues.queue import Queue
from qpid_ha_broker.model.sets.resources import Resources
from small_cluster import Node, SmallCluster, three

FAR = 900_000
"""The numbers of channels from outside begin here."""


class Outside:
    """A broker that is in no cluster, with a copy of queue `q`, and its channel to one broker of the cluster."""

    def __init__(self, cluster: SmallCluster) -> None:
        self.cluster = cluster
        self.resources = Resources(TextReader())
        self.configuration = Configuration(self.resources)
        self.copy = QueueCopy(self.resources, self.configuration.declare_queue, "far", "q", "amqp://far:5672")
        self.received: list[fr.Frame] = []
        self.node: Node | None = None
        self._link = FAR
        self._inbox: deque[fr.Frame] = deque()
        carry_out = cluster.carry_out

        def hooked(node: Node, effect: fx.Effect) -> None:
            mine = isinstance(effect, fx.Send | fx.Close) and effect.link == self._link
            if not mine:
                carry_out(node, effect)
            elif self.node is None:
                pass  # what was on its way when the channel was lost comes nowhere
            elif isinstance(effect, fx.Send):
                self._inbox.append(effect.frame)
            else:
                self.node = None

        cluster.carry_out = hooked  # type: ignore[method-assign]

    def dial(self, name: str) -> None:
        """A new channel to `name`."""
        self.greet(name)
        self.run()

    def greet(self, name: str) -> None:
        """The first word is on its way."""
        self.hang_up()
        self._link += 1
        self.node = self.cluster[name]
        self.node.feed(fx.FrameReceived(self._link, self.copy.follow()))

    def hang_up(self) -> None:
        """The channel is lost."""
        if self.node is not None:
            self.node.feed(fx.LinkLost(self._link, "gone"))
        self.node = None
        self._inbox.clear()
        self.copy.lost()

    def run(self) -> None:
        """Until nothing is on its way."""
        for _ in range(1000):
            self.cluster.run()
            if not self._inbox and not self.copy.has_work:
                return
            self.read()
        raise AssertionError("the copy does not come to rest")

    def read(self) -> None:
        """What has come, and a small step."""
        while self._inbox:
            frame = self._inbox.popleft()
            self.received.append(frame)
            for answer in self.copy.received(frame, NOW_MS):
                if self.node is not None:
                    self.node.feed(fx.FrameReceived(self._link, answer))
        self.copy.step(3)

    def settle(self) -> None:
        """Let heartbeats come, too."""
        self.cluster.settle()
        self.run()

    def browse(self, now_ms: int) -> None:
        """A client looks at all that is there at that time."""
        browser = Consumer(browsing=True)
        self.resources.subscribe(self.queue, browser, browser)
        browser.credit = browser.window_bytes = 100_000
        self.resources.catalog.wake(self.queue)
        self.resources.hand_out(now_ms, 1000)
        self.resources.unsubscribe(self.queue, browser, now_ms)
        self.resources.timers.tick(now_ms)

    @property
    def queue(self) -> Queue:
        return self.resources.catalog.queues["q"]

    @property
    def bodies(self) -> list[str]:
        found = self.resources.catalog.queues.get("q")
        entries = [] if found is None else list(found.messages)
        return [entry.resident_body().decode().split(";", 2)[2] for entry in entries]

    def check(self) -> None:
        """It holds what the primary of the cluster holds, and its books balance."""
        (primary,) = [node for node in self.cluster.nodes.values() if node.running and node.is_in(State.PRIMARY)]
        assert self.bodies == primary.bodies("q")
        self.queue.messages.check_invariants()


def copied(*bodies: str, **settings: float) -> tuple[SmallCluster, Outside]:
    """Three brokers with `bodies` in queue `q` of the primary `a`, and a copy that follows."""
    cluster = three(**settings)
    cluster["a"].declare("q", max_count=1000)
    cluster["a"].publish("q", *bodies)
    cluster.settle()
    outside = Outside(cluster)
    outside.dial("a")
    return cluster, outside


def test_a_copy_is_made_with_the_queues_arguments_and_all_its_messages_in_order() -> None:
    bodies = [str(number) for number in range(20)]
    _, outside = copied(*bodies, chunk_messages=3)
    assert outside.copy.state is CopyState.FOLLOWING
    assert outside.bodies == bodies
    assert dict(outside.queue.arguments.given) == {"qpid.max_count": 1000}
    outside.check()


def test_the_copy_follows_publishers_consumers_and_a_purge() -> None:
    cluster, outside = copied("1", "2", "3")
    a = cluster["a"]
    a.publish("q", "4", "5")
    a.consume("q", 2)
    outside.settle()
    assert outside.bodies == ["3", "4", "5"]
    assert outside.copy.lag == 0
    a.resources.purges.begin(a.resources.catalog.queues["q"])
    a.publish("q", "6")
    outside.settle()
    assert outside.bodies == ["6"]
    outside.check()


def test_what_happens_while_chunks_are_on_their_way_counts() -> None:
    cluster = three(chunk_messages=2)
    a = cluster["a"]
    a.declare("q")
    a.publish("q", *map(str, range(12)))
    cluster.settle()
    outside = Outside(cluster)
    outside.greet("a")
    changes = 0
    while outside.copy.state is not CopyState.FOLLOWING:
        a.consume("q", 1)
        a.publish("q", f"new {changes}")
        changes += 1
        for _ in range(2):
            for node in cluster.nodes.values():
                node.step()
        outside.read()
    outside.settle()
    outside.check()
    kinds = [type(frame) for frame in outside.received]
    assert fr.Batch in kinds[kinds.index(fr.Chunk) : kinds.index(fr.CaughtUp)]


def test_the_copy_never_holds_what_the_in_sync_set_has_not_committed() -> None:
    cluster, outside = copied("1")
    cluster.cut("a", "b", "c")
    a = cluster["a"]
    a.publish("q", "2")
    a.consume("q", 1)
    outside.run()
    assert a.bodies("q") == ["2"]
    assert outside.bodies == ["1"]


def test_nobody_waits_for_a_copy() -> None:
    cluster, outside = copied("1")
    a = cluster["a"]
    lsn = a.publish("q", "2")
    cluster.settle()  # nothing that was sent to the copy is read
    assert a.confirmed >= lsn
    assert a.member.status.members == ("a", "b", "c")
    assert [row["name"] for row in a.member.backups()] == ["b", "c"]
    outside.run()
    outside.check()


def test_a_backup_sends_the_copy_away_and_the_new_primary_sends_only_the_difference() -> None:
    cluster, outside = copied(*map(str, range(10)))
    outside.settle()
    outside.hang_up()
    cluster.kill("a")
    cluster.wait(6)
    assert cluster.promote("b").done
    b = cluster["b"]
    b.publish("q", "new")
    b.consume("q", 1)
    cluster.settle()
    with pytest.raises(CopyError, match="not primary"):
        outside.dial("c")
    outside.received.clear()
    outside.dial("b")
    outside.settle()
    outside.check()
    chunks = [frame for frame in outside.received if isinstance(frame, fr.Chunk)]
    assert sum(len(chunk.dropped) for chunk in chunks) == 1
    assert sum(chunk.data.count(b"new") for chunk in chunks) == 1
    assert len(b"".join(chunk.data for chunk in chunks)) < 200


def test_the_copy_gives_up_what_a_forced_promotion_has_lost() -> None:
    """The new primary's messages have the numbers of the lost ones."""
    lost, kept = [f"lost {number}" for number in range(9)], [f"kept {number}" for number in range(5)]
    cluster, outside = copied("1")
    cluster.cut("c", "a", "b")
    cluster.wait(15)
    cluster["a"].publish("q", *lost)
    outside.settle()
    assert outside.bodies == ["1", *lost]
    outside.hang_up()
    cluster.kill("a")
    cluster.kill("b")
    assert cluster.promote("c", force=True).done
    cluster["c"].publish("q", *kept)
    cluster.settle()
    outside.dial("c")
    outside.settle()
    assert outside.bodies == ["1", *kept]


def test_clients_may_browse_a_copy_but_neither_fill_nor_empty_it_until_it_is_stopped() -> None:
    _, outside = copied("1")
    resources, queue = outside.resources, outside.queue
    resources.subscribe(queue, Consumer(browsing=True), "me")
    with pytest.raises(QueueLocked, match="qpid-ha replicate --stop q"):
        resources.publish(queue, message("2"), NOW_MS)
    with pytest.raises(QueueLocked):
        resources.subscribe(queue, Consumer(), "me")
    with pytest.raises(QueueLocked):
        resources.purges.begin(queue)
    outside.copy.end("stopped")
    resources.publish(queue, message("2"), NOW_MS)
    resources.subscribe(queue, Consumer(), "me")
    assert outside.bodies == ["1", "2"]


def test_a_copy_that_is_deleted_here_takes_nothing_more_and_stays_closed_until_it_is_gone() -> None:
    cluster = three()
    a = cluster["a"]
    a.configuration.declare_exchange("dlx", "fanout", {})
    a.declare("q", alternate_exchange="dlx")
    a.publish("q", *map(str, range(2 * MOVED_LENGTH)))
    cluster.settle()
    outside = Outside(cluster)
    outside.configuration.declare_exchange("dlx", "fanout", {})
    outside.dial("a")
    queue = outside.queue
    assert queue.messages.count == 2 * MOVED_LENGTH
    outside.configuration.delete_queue("q")
    a.publish("q", "late")
    outside.settle()
    assert "deleted here" in outside.copy.ended
    assert (queue.deleted, queue.messages.count) == (False, 2 * MOVED_LENGTH)
    with pytest.raises(QueueLocked, match="is being deleted"):
        outside.resources.publish(queue, message("mine"), NOW_MS)
    outside.resources.work.run()
    assert queue.deleted


@pytest.mark.parametrize("is_browsed", [False, True])
def test_a_message_expires_in_the_copy_when_the_cluster_says_so_or_once_it_is_a_normal_queue(is_browsed: bool) -> None:
    cluster, outside = copied()
    queue = cluster["a"].resources.catalog.queues["q"]
    for ttl_ms in (5000, 7000):
        expiring = message(f"{ttl_ms}")._replace(expires_at_ms=NOW_MS + ttl_ms)
        cluster["a"].resources.publish(queue, expiring, NOW_MS)
    outside.settle()
    if is_browsed:
        outside.browse(NOW_MS + 6000)
    outside.resources.timers.tick(NOW_MS + 6000)
    assert outside.bodies == ["5000", "7000"]
    cluster["a"].resources.timers.tick(NOW_MS + 6000)
    outside.settle()
    assert outside.bodies == ["7000"]
    outside.copy.end("stopped")
    outside.resources.timers.tick(NOW_MS + 8000)
    assert outside.bodies == []


def test_the_deletion_of_the_queue_ends_the_copy_which_stays_as_a_normal_queue() -> None:
    cluster, outside = copied("1")
    cluster["a"].configuration.delete_queue("q")
    outside.settle()
    assert outside.copy.state is CopyState.ENDED
    assert "no queue q" in outside.copy.ended
    assert outside.bodies == ["1"]
    assert outside.queue.strategy is None


def test_a_queue_that_was_deleted_and_made_again_is_another_one() -> None:
    cluster, outside = copied("1")
    outside.hang_up()
    cluster["a"].configuration.delete_queue("q")
    cluster["a"].declare("q", max_count=1000)
    cluster.settle()
    outside.dial("a")
    assert "another one" in outside.copy.ended
    assert outside.bodies == ["1"]


def test_a_queue_that_is_not_there_or_not_replicated_cannot_be_copied() -> None:
    cluster = three()
    outside = Outside(cluster)
    outside.dial("a")
    assert "no queue q" in outside.copy.ended
    cluster["a"].declare("q", replicate="configuration")
    outside = Outside(cluster)
    outside.dial("a")
    assert "not replicated" in outside.copy.ended
    assert "q" not in outside.resources.catalog.queues


def test_a_queue_with_messages_is_not_taken_for_a_copy() -> None:
    cluster = three()
    cluster["a"].declare("q")
    outside = Outside(cluster)
    queue = outside.configuration.declare_queue("q", {})
    outside.resources.publish(queue, message("mine"), NOW_MS)
    outside.dial("a")
    assert "purge or delete it first" in outside.copy.ended
    assert outside.bodies == ["mine"]
    assert queue.strategy is None


def test_a_broker_that_may_not_write_any_more_ends_its_copies() -> None:
    cluster, outside = copied("1")
    outside.resources.replication.read_only = "a backup"
    cluster["a"].publish("q", "2")
    outside.settle()
    assert "may not write" in outside.copy.ended
    assert outside.bodies == ["1"]


def test_a_copy_does_not_become_one_of_another_cluster() -> None:
    _, outside = copied("1")
    outside.hang_up()
    stranger = fr.Followed("x", "another", 9, (fr.GenerationEntry(9, "x", 1),), 0, outside.queue.id, {}, 1.0)
    with pytest.raises(CopyError, match="belongs to the cluster"):
        outside.copy.received(stranger, NOW_MS)
    assert outside.bodies == ["1"]
    assert not outside.copy.ended


def test_a_primary_does_not_serve_a_copy_of_another_cluster() -> None:
    cluster = three()
    cluster["a"].declare("q")
    outside = Outside(cluster)
    greeting = outside.copy.follow()._replace(cluster="another", history=(fr.GenerationEntry(1, "x", 1),), last_lsn=5)
    outside.node = cluster["a"]
    outside.node.feed(fx.FrameReceived(FAR, greeting))
    with pytest.raises(CopyError, match="is of the cluster another"):
        outside.run()


def test_frames_out_of_place_are_refused_and_the_copy_can_go_on_with_another_channel() -> None:
    cluster, outside = copied("1", "2")
    generation = cluster["a"].member.status.generation
    for frame in (
        fr.Chunk(generation, 1, 0, 9, True, (), (), b""),
        fr.CaughtUp(generation, 1),
        fr.Batch(generation, 1, 1, 1, b"noise"),
        fr.Heartbeat(generation + 1, 1, 1),
        fr.HoldingsDone(),
    ):
        with pytest.raises(CopyError):
            outside.copy.received(frame, NOW_MS)
        assert outside.bodies == ["1", "2"]
    old = encode(1, Enqueued((1,), b"old", False, 4, 0, ""))
    outside.copy.received(fr.Batch(generation, 1, 1, 1, old), NOW_MS)
    with pytest.raises(CopyError, match="fetched again"):
        outside.copy.step()
    outside.dial("a")
    outside.settle()
    outside.check()
    assert outside.bodies == ["1", "2"]


@pytest.mark.parametrize("seed", range(12))
def test_whatever_happens_the_copy_is_equal_in_the_end(seed: int) -> None:
    random = Random(seed)
    cluster = three(chunk_messages=3)
    cluster["a"].declare("q")
    cluster.settle()
    outside, primary = Outside(cluster), "a"
    outside.dial(primary)
    for step in range(60):
        node, queue = cluster[primary], cluster[primary].resources.catalog.queues["q"]
        choices = ("publish", "publish", "expiring", "consume", "purge", "read", "hang up", "dial", "switch", "wait")
        match random.choice((*choices, "browse", "run")):
            case "publish":
                node.publish("q", *[f"{step} {number}" for number in range(random.randrange(8))])
            case "expiring":
                node.resources.publish(queue, message(f"{step}")._replace(expires_at_ms=NOW_MS + 1), NOW_MS)
            case "run":
                outside.run()
            case "browse" if outside.copy.queue is not None:
                before = outside.bodies
                outside.browse(NOW_MS + 1000)
                assert outside.bodies == before
            case "consume":
                node.consume("q", random.randrange(1, 6))
            case "purge" if random.random() < 0.3:
                node.resources.purges.begin(queue)
            case "read":
                for each in cluster.nodes.values():
                    each.step()
                outside.read()
            case "hang up":
                outside.hang_up()
            case "dial":
                outside.greet(primary)
            case "switch" if random.random() < 0.5:
                outside.hang_up()
                cluster.settle()
                assert cluster.switch_over(primary).done
                (primary,) = [name for name, each in cluster.nodes.items() if each.is_in(State.PRIMARY)]
            case "wait":
                cluster.wait(0.3)
    cluster.settle()
    outside.dial(primary)
    outside.settle()
    assert (outside.copy.state, outside.copy.lag) == (CopyState.FOLLOWING, 0)
    outside.check()


# --- how long messages live


DAY_MS = 86_400_000


def test_a_copied_message_has_as_long_to_live_here_whatever_the_clocks_of_both_clusters_say() -> None:
    cluster = three()
    a = cluster["a"]
    a.declare("q")
    a.resources.catalog.clock.go_on(NOW_MS + DAY_MS, NOW_MS)
    queue = a.resources.catalog.queues["q"]
    for ttl_ms in (5000, 0):
        expires_at_ms = NOW_MS + DAY_MS + ttl_ms if ttl_ms else 0
        a.resources.publish(queue, message("m")._replace(expires_at_ms=expires_at_ms), NOW_MS + DAY_MS)
    cluster.settle()
    outside = Outside(cluster)
    outside.resources.catalog.clock.go_on(NOW_MS - DAY_MS, NOW_MS)
    outside.dial("a")
    later = message("m")._replace(expires_at_ms=NOW_MS + DAY_MS + 7000)
    a.resources.publish(queue, later, NOW_MS + DAY_MS)
    outside.settle()

    lives_ms = [entry.header.expires_at_ms for entry in outside.queue.messages]
    assert lives_ms == [NOW_MS - DAY_MS + 5000, 0, NOW_MS - DAY_MS + 7000]


def test_a_primary_that_cannot_read_the_first_word_is_greeted_as_one_of_an_older_release_is() -> None:
    copy = Outside(three()).copy
    greetings = []
    for _ in range(3):
        greetings.append(copy.follow().reads_clock)
        copy.lost(end=LinkEnd.UNREADABLE)
    assert greetings == [True, False, True]
    copy.follow()
    with pytest.raises(CopyError):
        copy.received(fr.Refused(fr.RefusalCode.NOT_PRIMARY, "it does not lead", ""), NOW_MS)
    copy.lost()
    assert copy.follow().reads_clock, "the next one may be newer"


def test_and_no_other_one_is() -> None:
    copy = Outside(three()).copy
    copy.follow("old:5672")
    copy.lost("old:5672", LinkEnd.UNREADABLE)
    assert copy.follow("new:5672").reads_clock
    copy.lost("new:5672")
    assert copy.follow("new:5672").reads_clock, "that the channel was lost says nothing of the release"
