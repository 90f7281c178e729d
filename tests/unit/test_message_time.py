"""A message lives as long as it was given to live, by the time that passes, whatever clocks say: in a whole cluster."""

from __future__ import annotations

import pytest

from model_support import NOW_MS, message
from qpid_ha_broker.events.types import Enqueued, GenerationStarted, InSyncChanged, QueueDeclared
from qpid_ha_broker.ha import effects as fx
from qpid_ha_broker.ha.backup_link import ReadingsDue
from qpid_ha_broker.ha.frames import WITH_CLOCK, Hello, StoreOrigin, Topic
from qpid_ha_broker.ha.link_ends import end_of
from qpid_ha_broker.ha.replica import Restored
from qpid_ha_broker.ha.settings import MemberSettings
from qpid_ha_broker.ha.states import State
from small_cluster import Node, SmallCluster

DAY_MS = 86_400_000
HOUR_MS = 3_600_000
MINUTE_MS = 60_000


class ClockedNode(Node):
    """A broker whose machine's clock somebody sets. `ahead_ms`: of the true time, when its process began, and now."""

    ahead_ms = 0
    began_ahead_ms = 0

    def wall_ms(self) -> int:
        return NOW_MS + int((self.cluster.now_s - 1000) * 1000) + self.ahead_ms

    def steady_ms(self) -> int:
        return NOW_MS + int((self.cluster.now_s - 1000) * 1000) + self.began_ahead_ms

    @property
    def now_ms(self) -> int:
        return self.resources.catalog.clock.now_ms(self.steady_ms())

    def send(self, queue: str, body: str, ttl_ms: int) -> None:
        """With so long to live."""
        now_ms = self.now_ms
        whole = message(body, durable=True)._replace(expires_at_ms=now_ms + ttl_ms)
        self.resources.publish(self.resources.catalog.queues[queue], whole, now_ms)

    def expire(self) -> None:
        """What a driver does several times a second."""
        self.resources.timers.tick(self.now_ms)


class ClockedCluster(SmallCluster):
    """Three brokers whose clocks differ. `ahead_ms`: by name."""

    def __init__(self, **ahead_ms: int) -> None:
        self._ahead_ms = ahead_ms
        super().__init__("a", "b", "c")
        self.run()
        assert self.promote("a").done
        self.settle()
        self["a"].declare("q")
        self.settle()

    def make_node(self, name: str, settings: MemberSettings) -> ClockedNode:
        node = ClockedNode(self, name, settings)
        node.ahead_ms = node.began_ahead_ms = self._ahead_ms.get(name, 0)
        return node

    def __getitem__(self, name: str) -> ClockedNode:
        node = super().__getitem__(name)
        assert isinstance(node, ClockedNode)
        return node

    def expire(self) -> None:
        """Wherever somebody leads."""
        for node in self.nodes.values():
            if node.running and node.is_in(State.PRIMARY) and isinstance(node, ClockedNode):
                node.expire()


def test_nothing_expires_early_by_a_switchover_to_a_broker_whose_clock_is_a_day_ahead_nor_by_one_back() -> None:
    cluster = ClockedCluster(b=DAY_MS, c=-DAY_MS)
    for number in range(50):
        cluster["a"].send("q", f"m{number}", HOUR_MS)
    cluster.settle()
    for before, after in ("ab", "bc", "cb", "ba"):
        assert cluster.switch_over(before, after).done
        cluster.settle()
        cluster.expire()
        assert len(cluster[after].bodies("q")) == 50, after


def test_what_has_a_minute_expires_after_a_minute_however_often_another_broker_leads() -> None:
    cluster = ClockedCluster(b=DAY_MS, c=-DAY_MS)
    cluster["a"].send("q", "a minute", MINUTE_MS)
    cluster["a"].send("q", "two minutes", 2 * MINUTE_MS)
    cluster.settle()
    began_s, leads = cluster.now_s, "a"
    for successor in "bcab":
        cluster.wait(8)
        assert cluster.switch_over(leads, successor).done
        leads = successor
        cluster.settle()
        cluster.expire()
        assert cluster[leads].bodies("q") == ["a minute", "two minutes"]
    cluster.wait(MINUTE_MS / 1000 - (cluster.now_s - began_s) + 1)
    cluster.expire()
    assert cluster[leads].bodies("q") == ["two minutes"]


def test_a_backup_that_leads_after_a_crash_goes_on_from_what_the_primary_told() -> None:
    cluster = ClockedCluster(a=DAY_MS, b=-DAY_MS)
    cluster["a"].send("q", "an hour", HOUR_MS)
    cluster.settle()
    told_ms = cluster["a"].now_ms
    cluster.kill("a")
    assert cluster.promote("b").done
    assert told_ms <= cluster["b"].now_ms < told_ms + 10_000
    cluster.expire()
    assert cluster["b"].bodies("q") == ["an hour"]


def test_a_primary_whose_time_of_day_is_set_counts_on() -> None:
    cluster = ClockedCluster()
    before_ms = cluster["a"].now_ms
    cluster["a"].ahead_ms = DAY_MS
    assert cluster["a"].now_ms == before_ms


def test_who_is_promoted_reserves_what_belongs_to_others_by_the_clock_that_it_goes_on_with() -> None:
    cluster = ClockedCluster(b=DAY_MS)
    queue = cluster["a"].declare("mine", auto_delete=True)
    queue.used = True
    cluster.settle()
    assert cluster.switch_over("a", "b").done
    reserved = cluster["b"].resources.catalog.queues["mine"].reserved_until_ms
    assert 0 < reserved - cluster["b"].now_ms <= 10_000


def test_a_reading_is_due_at_once_and_then_ever_more_rarely() -> None:
    readings = ReadingsDue(is_wanted=True)
    due_s = [second for second in range(2000) if readings.take(float(second))]
    assert due_s == [0, 1, 3, 7, 15, 31, 63, 127, 255, 511, 811, 1111, 1411, 1711]
    assert not ReadingsDue(is_wanted=False).take(1e9)


@pytest.mark.parametrize("knows_clocks", [False, True])
def test_a_primary_that_cannot_read_the_first_word_is_greeted_as_one_of_an_older_release(
    knows_clocks: bool,
) -> None:
    cluster = ClockedCluster(b=DAY_MS)
    greetings: list[tuple[bool, bool]] = []
    carry_out = cluster.carry_out

    def end_it(node: Node, effect: fx.Effect) -> None:
        if isinstance(effect, fx.Send) and isinstance(effect.frame, Hello) and node is cluster["b"]:
            greetings.append((effect.frame.reads_clock, effect.frame.reads_marks))
            if effect.frame.reads_marks or (effect.frame.reads_clock and not knows_clocks):
                said = "HELLO: reads_marks: not a field of it"
                cluster.break_link((node.name, effect.link), said)
                node.feed(fx.LinkLost(effect.link, said, end_of(said)))
                return
        carry_out(node, effect)

    cluster.carry_out = end_it  # type: ignore[method-assign]
    cluster.disconnect("a", "b")
    cluster.settle()
    assert cluster["b"].is_in(State.READY)
    expected = [(True, True), (True, False)] if knows_clocks else [(True, True), (True, False), (False, False)]
    assert list(dict.fromkeys(greetings)) == expected, "what came last is left out first"
    assert greetings[-1] == expected[-1]


# --- all brokers are started anew


class Restarted(ClockedCluster):
    """Each has its log and what its store says of the time, which is `ahead_ms`, and none has led since."""

    def __init__(self, **ahead_ms: int) -> None:
        self._restored = True
        self._ahead_ms = ahead_ms
        SmallCluster.__init__(self, "a", "b", "c", has_store=True)
        self.run()

    def make_node(self, name: str, settings: MemberSettings) -> ClockedNode:
        node = RestoredNode(self, name, settings)
        node.began_ahead_ms = self._ahead_ms.get(name, 0)
        return node


class RestoredNode(ClockedNode):
    def open_store(self, settings: MemberSettings) -> Restored:
        default = self.resources.replicated
        default.write(GenerationStarted(1, "a", "cluster", NOW_MS, False, "first start"))
        default.write(InSyncChanged(1, ("a", "b", "c")))
        default.write(QueueDeclared("q", {}))
        expires_at_ms = NOW_MS + HOUR_MS
        default.write(Enqueued((3,), message("an hour").payload, True, 4, expires_at_ms, ""))
        default.log.reset(4)
        return Restored(StoreOrigin.CLEAN)


def test_after_a_restart_of_all_nothing_expires_by_one_clock_that_was_set_meanwhile() -> None:
    for name in "ab":
        cluster = Restarted(a=DAY_MS)
        assert cluster.promote(name).done, cluster[name].notices
        cluster.settle()
        cluster.expire()
        assert cluster[name].bodies("q") == ["an hour"]
        assert [text for text in cluster[name].notices if "clock is" in text] == (
            []
            if name == "b"
            else [
                "this broker's clock is 86400.0 s ahead of those of the others: messages expire by theirs; was it set"
                " while the broker was down?"
            ]
        )


@pytest.mark.parametrize(
    ("cluster", "before", "expected"),
    [
        pytest.param(Restarted, "", {WITH_CLOCK}, id="who knows its store alone asks for it"),
        pytest.param(ClockedCluster, "a", {""}, id="who was told by a primary does not"),
    ],
)
def test_an_older_release_is_asked_for_no_clock_without_need(
    cluster: type[ClockedCluster], before: str, expected: set[str]
) -> None:
    started, asked = cluster(), []
    ask = started.ask

    def note(node: Node, effect: fx.Ask) -> None:
        if effect.question.topic is Topic.STATUS:
            asked.append(effect.question.request)
        ask(node, effect)

    started.ask = note  # type: ignore[method-assign, assignment]
    answer = started.switch_over(before, "b") if before else started.promote("b")
    assert answer.done
    assert set(asked) == expected
