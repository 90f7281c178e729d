"""A backup that was away is sent what it lacks: in steps, in order, and at nobody's cost.

It is in sync once it holds all of that, in its store if it has one, and no earlier.
"""

from __future__ import annotations

import pytest

from model_support import NOW_MS, message
from qpid_ha_broker.ha import effects as fx
from qpid_ha_broker.ha import frames as fr
from qpid_ha_broker.ha.states import State
from small_cluster import Node, SmallCluster, three

STEP = 10
ROUND_S = 0.02
ROUNDS = 500


class Steps:
    """A cluster in slow motion: what `sender` sends in each step to a backup that catches up."""

    def __init__(self, cluster: SmallCluster, sender: Node, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cluster = cluster
        self.sent: list[list[int]] = []
        """How many events each batch of a step had."""
        carry_out = cluster.carry_out

        def watch(node: Node, effect: fx.Effect) -> None:
            if node is sender and isinstance(effect, fx.Send) and isinstance(effect.frame, fr.Batch):
                self.sent[-1].append(effect.frame.last_lsn - effect.frame.first_lsn + 1)
            carry_out(node, effect)

        monkeypatch.setattr(cluster, "carry_out", watch)

    def round(self) -> None:
        """A moment goes by; everybody handles what has come, and has a turn."""
        self.cluster.now_s += ROUND_S
        for node in self.cluster.nodes.values():
            node.feed(fx.Ticked())
            while node.inbox and node.running:
                self.sent.append([])
                node.handle(node.inbox.popleft())
        for node in self.cluster.nodes.values():
            if node.running:
                self.sent.append([])
                node.turn()

    def until(self, node: Node, state: State) -> None:
        """Rounds until `node` is in that state."""
        for _ in range(ROUNDS):
            if node.is_in(state):
                return
            self.round()
        raise AssertionError(f"{node.name} is {node.state}: {node.notices[-3:]}")


def away(messages: int, **settings: float) -> SmallCluster:
    """Three brokers, of which `c` is off while the primary `a` takes so many messages, each in a turn of its own."""
    cluster = three(chunk_messages=STEP, **settings)
    cluster["a"].declare("q")
    cluster.settle()
    cluster.kill("c")
    cluster.settle()
    publish(cluster, 0, messages)
    return cluster


def publish(cluster: SmallCluster, first: int, count: int) -> None:
    for number in range(first, first + count):
        cluster["a"].publish("q", str(number))
        cluster["a"].turn()
        cluster["b"].step()


def numbers(count: int) -> list[str]:
    return [str(number) for number in range(count)]


def test_no_step_sends_more_than_a_chunk_however_much_a_backup_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = away(100)
    c, steps = cluster.start("c"), Steps(cluster, cluster["a"], monkeypatch)
    steps.until(c, State.READY)
    assert max(sum(sizes) for sizes in steps.sent) <= STEP
    assert sum(sum(sizes) for sizes in steps.sent) >= 100
    assert c.bodies("q") == numbers(100)


def test_what_is_published_while_a_backup_is_sent_what_it_lacks_comes_after_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster, count = away(100), 100
    c, steps = cluster.start("c"), Steps(cluster, cluster["a"], monkeypatch)
    while not c.is_in(State.READY):
        assert count < 500, c.notices
        cluster["a"].publish("q", *numbers(count + 5)[count:])
        count += 5
        steps.round()
    cluster.settle()
    assert c.bodies("q") == numbers(count)
    assert not [text for text in c.notices if "does not fit" in text]


def catching_up(cluster: SmallCluster, monkeypatch: pytest.MonkeyPatch) -> tuple[Node, Steps]:
    """`c` is back, is in the middle of it, and its channel has no room just now."""
    c, steps = cluster.start("c"), Steps(cluster, cluster["a"], monkeypatch)
    steps.until(c, State.CATCHUP)
    cluster["a"].feed(fx.LinkWritable(cluster.link("a", "c"), False))
    for _ in range(10):
        steps.round()
    assert any("events that it lacks" in text for text in cluster["a"].notices)
    assert 0 < len(c.bodies("q")) < 90
    return c, steps


def test_nothing_is_sent_to_a_backup_whose_channel_has_no_room_until_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = away(100)
    c, _ = catching_up(cluster, monkeypatch)
    held = len(c.bodies("q"))
    cluster.wait(1)
    assert len(c.bodies("q")) == held
    cluster["a"].feed(fx.LinkWritable(cluster.link("a", "c"), True))
    cluster.settle()
    assert c.is_in(State.READY)
    assert c.bodies("q") == numbers(100)


def test_a_backup_that_reads_more_slowly_than_the_stream_goes_on_compares_instead(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = away(100, tail_bytes=8_000)
    c, _ = catching_up(cluster, monkeypatch)
    publish(cluster, 100, 300)
    cluster["a"].feed(fx.LinkWritable(cluster.link("a", "c"), True))
    cluster.settle()
    assert any("it has to compare" in text for text in cluster["a"].notices)
    assert c.is_in(State.READY)
    assert c.bodies("q") == numbers(400)


def test_who_has_to_wait_for_a_whole_chunk_has_nothing_to_do_until_then(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where clients are busy the primary had turn after turn meanwhile, in which nothing was sent."""
    cluster = away(1000)
    c, steps = cluster.start("c"), Steps(cluster, cluster["a"], monkeypatch)
    steps.until(c, State.CATCHUP)
    primary = cluster["a"].member.primary
    assert primary is not None
    pace, seen = primary._feed._pace, list[bool]()
    pace._busy_until_s = pace._at_s + 1.0
    for saved in (STEP - 1.0, float(STEP)):
        pace._saved = saved
        seen.append(primary.has_work)
    assert seen == [False, True]


@pytest.fixture
def on_a_part(monkeypatch: pytest.MonkeyPatch) -> SmallCluster:
    """`c` lost its memory, and was sent a part of the log from its beginning when all others died."""
    cluster = three(chunk_messages=STEP)
    a = cluster["a"]
    a.resources.publish(a.declare("q"), message("numbered")._replace(producer=b"p", sequence=1), NOW_MS)
    cluster.settle()
    publish(cluster, 0, 100)
    cluster.kill("c")
    cluster.settle()
    c, steps = cluster.start("c"), Steps(cluster, a, monkeypatch)
    steps.until(c, State.CATCHUP)
    while len(c.bodies("q")) < 20:
        steps.round()
    assert "c" in c.member.status.members
    cluster.kill("a")
    cluster.kill("b")
    steps.until(c, State.CONNECTING)
    return cluster


def test_the_beginning_of_a_log_is_no_reason_to_lead_whomever_it_names(on_a_part: SmallCluster) -> None:
    """It names the one whose memory was lost with the process before."""
    refused = on_a_part.promote("c")
    assert not refused.done
    assert refused.text == "this broker is still catching up and lacks messages: promote one that is ready"


def test_but_an_operator_may_go_on_with_that_part_and_others_follow_it(on_a_part: SmallCluster) -> None:
    assert on_a_part.promote("c", force=True).done
    b, c = on_a_part.start("b"), on_a_part["c"]
    on_a_part.settle()
    assert b.is_in(State.READY)
    assert b.bodies("q") == c.bodies("q")
    assert b.resources.replicated.state.producers.items() == c.resources.replicated.state.producers.items() != []


def test_a_backup_that_does_not_read_what_it_is_sent_is_given_up_after_the_backup_timeout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster, store = without_base(monkeypatch, backup_timeout_s=2.0)
    cluster["a"].feed(fx.LinkWritable(cluster.link("a", "c"), False))
    cluster.wait(1.8)
    assert cluster.link("a", "c"), "it was given up too early"
    cluster.wait(0.5)
    assert any("c is disconnected: it has not answered, or not read" in text for text in cluster["a"].notices)
    cluster.wait(6.0)
    assert cluster.link("a", "c"), "it came back"
    assert in_sync(cluster) == ["a", "b"], "and its store still has no base for what it holds"
    store.finish()
    assert in_sync(cluster) == ["a", "b", "c"]


class SlowStore:
    """Every store answers at once, but `of` has no base before the test says so."""

    def __init__(self, cluster: SmallCluster, of: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.cluster = cluster
        self.dumps: list[int] = []
        self._of = of
        carry_out = cluster.carry_out

        def watch(node: Node, effect: fx.Effect) -> None:
            if isinstance(effect, fx.Persist):
                node.feed(fx.Persisted(effect.number))
            elif isinstance(effect, fx.WriteCheckpoint):
                self._dump(node, effect.number)
            carry_out(node, effect)

        monkeypatch.setattr(cluster, "carry_out", watch)

    def _dump(self, node: Node, number: int) -> None:
        if node.name == self._of:
            self.dumps.append(number)
        else:
            node.feed(fx.CheckpointPersisted(number))

    def finish(self) -> None:
        """The base is on disk."""
        self.cluster[self._of].feed(fx.CheckpointPersisted(self.dumps[-1]))
        self.cluster.settle()


def without_base(monkeypatch: pytest.MonkeyPatch, **settings: float) -> tuple[SmallCluster, SlowStore]:
    """`c` has caught up with `a` and `b` by comparison, and its store does not have that yet."""
    cluster = SmallCluster("a", "b", "c", has_store=True, tail_bytes=1, **settings)
    store = SlowStore(cluster, "c", monkeypatch)
    cluster.run()
    assert cluster.promote("a").done
    cluster.kill("c")
    cluster["a"].declare("q")
    publish(cluster, 0, 5)
    cluster.start("c")
    cluster.settle()
    assert len(store.dumps) == 1
    return cluster, store


def in_sync(cluster: SmallCluster) -> list[str]:
    return list(cluster["a"].resources.replicated.state.in_sync.members)


def test_a_backup_is_in_sync_once_its_store_has_what_it_was_sent_and_no_earlier(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster, store = without_base(monkeypatch)
    cluster.settle()  # it has said that it lives, more than once
    assert in_sync(cluster) == ["a", "b"]
    store.finish()
    assert in_sync(cluster) == ["a", "b", "c"]
    assert cluster["c"].is_in(State.READY)


def test_a_backup_that_needs_long_for_its_store_is_waited_for_while_it_says_that_it_lives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster, store = without_base(monkeypatch, backup_timeout_s=2.0)
    for number in range(5, 50):
        lsn = cluster["a"].publish("q", str(number))
        cluster.wait(0.2)
        assert cluster["a"].confirmed >= lsn, "somebody waits for it"
    store.finish()
    assert len(store.dumps) == 1, "it had to begin again"
    assert in_sync(cluster) == ["a", "b", "c"]
    assert cluster["c"].bodies("q") == numbers(50)


def test_a_backup_acknowledges_nothing_of_the_stream_while_it_is_sent_what_it_lacks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An acknowledgement on its way must not meet the primary's last chunk, and count for that too."""
    cluster, acknowledged = away(100, tail_bytes=1, chunks_ahead=1), []
    carry_out = cluster.carry_out

    def watch(node: Node, effect: fx.Effect) -> None:
        if node.is_in(State.CATCHUP) and isinstance(effect, fx.Send) and isinstance(effect.frame, fr.Ack):
            acknowledged.append(effect.frame[1:])
        carry_out(node, effect)

    monkeypatch.setattr(cluster, "carry_out", watch)
    c, steps, count = cluster.start("c"), Steps(cluster, cluster["a"], monkeypatch), 100
    while not c.is_in(State.READY):
        assert count < 500, c.notices
        cluster["a"].publish("q", str(count))
        count += 1
        steps.round()
    level = cluster["a"].resources.replicated.log.last_lsn - 10
    assert {lsn for lsn, _ in acknowledged if lsn < level} == {0}
    assert {chunks for lsn, chunks in acknowledged if lsn == 0} >= set(range(1, 10))
    cluster.settle()
    assert c.bodies("q") == numbers(count)


def test_the_lag_of_a_replica_is_how_long_ago_it_heard_its_primary_whatever_time_its_clock_began_with() -> None:
    cluster = three()  # its time begins with that of a machine that runs for 1000 s
    cluster.settle()
    cluster.wait(1)
    b = cluster["b"].member
    heard_s = b.replica_lag_s(cluster.now_s)
    assert heard_s is not None
    assert heard_s < 2.0
    assert b.replica_lag_s(cluster.now_s + 3.0) == pytest.approx(heard_s + 3.0)
