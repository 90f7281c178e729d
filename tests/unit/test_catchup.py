"""How a backup that cannot follow the stream becomes level, whatever it held and whatever goes on meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model_support import NOW_MS, Core, bodies, body, message, picture, replicated_picture, transaction_of
from qpid_ha_broker.events import types as ev
from qpid_ha_broker.events.codec import Record, encode
from qpid_ha_broker.events.types import Scalar
from qpid_ha_broker.ha.browser import Browsers, objects_frame
from qpid_ha_broker.ha.catchup import CatchUp, CatchUpError
from qpid_ha_broker.ha.effects import Discarded
from qpid_ha_broker.ha.frames import CaughtUp, Chunk
from qpid_ha_broker.model.errors import ModelError
from qpid_ha_broker.model.log import LOCAL_BASE
from qpid_ha_broker.model.queue import Queue
from qpid_ha_broker.model.queue_arguments import Replicate
from qpid_ha_broker.model.state import ReplayError

GENERATION = 7


class Pair:
    """A primary, and a backup that was level with it up to `common_lsn`; then each went its own way."""

    def __init__(self) -> None:
        self.primary, self.backup = Core(), Core()
        self.common_lsn = 0
        self.discarded: list[Discarded] = []
        self.chunks = 0

    def part(self) -> None:
        """Bring the backup level by the stream; from then on each is alone."""
        for record in self.written():
            self.backup.resources.follow(record)
        self.common_lsn = self.primary.log.last_lsn

    def written(self) -> list[Record]:
        """What the primary wrote since the last call."""
        seen = len(self.primary.records)
        self.primary.read()
        return self.primary.records[seen:]

    # --- the catch-up, step by step

    def meet(self, max_messages: int = 2, window: int = 3) -> None:
        """Up to the primary's objects."""
        self.catch_up = CatchUp(self.backup.resources, self.common_lsn)
        self.discarded += self.catch_up.discard_after_common()
        held: dict[int, tuple[tuple[int, int], ...]] = {}
        for frame in self.catch_up.holdings():
            held[frame.queue] = held.get(frame.queue, ()) + frame.ranges
        self.written()
        lsn = self.primary.log.last_lsn
        self.discarded += self.catch_up.objects(objects_frame(self.primary.state, GENERATION, lsn))
        self.browsers = Browsers(
            self.primary.state, GENERATION, lsn, held, max_messages=max_messages, max_bytes=1 << 20, window=window
        )  # fmt: skip
        self.chunks = 0
        self.catch_up.check_invariants()

    def stream(self) -> None:
        """Let the backup have what the primary wrote."""
        for record in self.written():
            self.catch_up.follow(record)
        self.catch_up.check_invariants()

    def next(self) -> Chunk | CaughtUp:
        """What the primary sends next, after all that it wrote."""
        self.stream()
        frame = self.browsers.next()
        assert frame is not None
        return frame

    def take(self, frame: Chunk | CaughtUp) -> bool:
        """The backup gets it; True at the end."""
        if isinstance(frame, CaughtUp):
            self.catch_up.finish()
        else:
            self.catch_up.chunk(frame)
            self.chunks += 1
            assert self.browsers.acknowledged(self.chunks) == ""
        self.catch_up.check_invariants()
        return isinstance(frame, CaughtUp)

    def step(self) -> bool:
        return self.take(self.next())

    def finish(self) -> None:
        while not self.step():
            pass
        self.check_equal()

    def check_equal(self) -> None:
        assert replicated_picture(self.backup.state) == replicated_picture(self.primary.state)
        assert self.backup.log.last_lsn == self.primary.log.last_lsn

    def follow_on(self) -> None:
        """Afterwards the backup follows as any other."""
        for record in self.written():
            self.backup.resources.follow(record)
        self.check_equal()


def pair_with(count: int = 0, **arguments: Scalar) -> tuple[Pair, Queue]:
    """A queue `a` with so many messages, of which both know."""
    pair = Pair()
    queue = pair.primary.queue("a", **arguments)
    pair.primary.publish(queue, *[f"m{number}" for number in range(count)])
    pair.part()
    return pair, queue


def accept(core: Core, name: str, *places: int) -> None:
    queue = core.state.queues[name]
    entries = sorted(queue.entries(), key=lambda entry: entry.id)
    core.resources.accept(queue, [entries[place] for place in places])


def held_by(core: Core, name: str = "a") -> list[str]:
    return bodies(core.state.queues[name].entries())


# --- stories


def test_an_empty_backup_gets_all() -> None:
    pair = Pair()
    pair.primary.publish(pair.primary.queue("a"), "1", "2", "3", "4", "5")
    pair.primary.publish(pair.primary.queue("b", priorities=3), message("x", priority=1), message("y", priority=9))
    pair.primary.exchange("x", "direct", pair.primary.state.queues["a"])
    pair.meet()
    pair.finish()


def test_the_newest_come_first() -> None:
    pair, queue = pair_with()
    pair.primary.publish(queue, "1", "2", "3", "4", "5")
    pair.meet()
    pair.step()
    assert held_by(pair.backup) == ["4", "5"]
    pair.step()
    assert held_by(pair.backup) == ["2", "3", "4", "5"]
    pair.finish()


def test_what_the_primary_never_had_is_given_out_to_be_kept_elsewhere() -> None:
    pair, _ = pair_with(2)
    pair.backup.publish(pair.backup.state.queues["a"], "lost 1", "lost 2")
    pair.backup.publish(pair.backup.queue("mine"), "lost 3")
    pair.backup.exchange("mine too")
    pair.meet()
    assert [(each.queue, [body(payload) for payload in each.payloads]) for each in pair.discarded] == [
        ("a", ["lost 1", "lost 2"]),
        ("mine", ["lost 3"]),
    ]
    assert all(message_id > pair.common_lsn for each in pair.discarded for message_id in each.ids)
    pair.finish()


def test_what_both_hold_is_not_sent_again() -> None:
    pair, queue = pair_with(6)
    pair.primary.publish(queue, "new")
    accept(pair.primary, "a", 0, 3)
    accept(pair.backup, "a", 1)  # the old primary's consumer had it; nobody was told
    pair.meet(max_messages=100)
    frame = pair.next()
    assert isinstance(frame, Chunk)
    assert frame.data.count(b";;") == 2
    assert len(frame.dropped) == 2
    pair.take(frame)
    pair.finish()


def test_a_message_consumed_before_it_was_replicated_is_not_sent() -> None:
    pair, queue = pair_with()
    pair.primary.publish(queue, "1", "2", "3", "4")
    pair.meet()
    pair.step()
    accept(pair.primary, "a", 0, 1)
    frame = pair.next()
    assert isinstance(frame, CaughtUp) or not frame.data
    if not pair.take(frame):
        pair.finish()
    assert held_by(pair.backup) == ["3", "4"]


def test_a_chunk_that_was_overtaken_by_a_consumer_brings_nothing_back() -> None:
    pair, queue = pair_with()
    pair.primary.publish(queue, "1", "2", "3")
    pair.meet(max_messages=10)
    overtaken = pair.next()
    accept(pair.primary, "a", 1)
    pair.stream()
    pair.take(overtaken)
    assert held_by(pair.backup) == ["1", "3"]
    pair.finish()


def test_a_held_message_that_was_consumed_meanwhile_does_not_come_back_from_the_stash() -> None:
    pair, _ = pair_with(3)
    pair.meet(max_messages=10)
    overtaken = pair.next()
    accept(pair.primary, "a", 1)
    pair.stream()
    pair.take(overtaken)
    assert held_by(pair.backup) == ["m0", "m2"]
    pair.finish()


def test_an_object_deleted_and_created_again_under_its_name_is_the_new_one() -> None:
    pair, _ = pair_with(3)
    pair.primary.exchange("x", "direct", pair.primary.state.queues["a"])
    pair.part()
    core = pair.primary
    core.configuration.delete_queue("a")
    core.configuration.delete_exchange("x")
    core.publish(core.queue("a", max_count=10), "new")
    core.exchange("x", "topic", core.state.queues["a"])
    pair.meet()
    pair.finish()
    assert held_by(pair.backup) == ["new"]
    assert pair.backup.state.exchanges["x"].kind == "topic"


def test_an_object_deleted_and_created_again_during_the_catch_up_is_the_new_one() -> None:
    pair, queue = pair_with(3)
    pair.primary.publish(queue, "4", "5", "6")
    pair.meet()
    pair.step()
    late = pair.next()
    pair.primary.configuration.delete_queue("a")
    pair.primary.publish(pair.primary.queue("a"), "new")
    pair.stream()
    pair.take(late)  # of the queue that is no more
    pair.finish()
    assert held_by(pair.backup) == ["new"]


def test_objects_are_made_equal_in_every_way() -> None:
    pair, _ = pair_with(1)
    configuration = pair.primary.configuration
    pair.primary.exchange("x", "headers")
    pair.part()
    pair.backup.queue("only there")
    configuration.update_queue("a", {"qpid.max_count": 5})
    configuration.bind("x", "a", "2", {"k": "1"})
    configuration.bind("x", "a", "1", {"k": "2"})
    pair.backup.configuration.bind("x", "a", "1", {"k": "9"})
    pair.backup.configuration.bind("x", "a", "3", {"k": "9"})
    pair.primary.resources.write(ev.InSyncChanged(4, ("n1", "n2")))
    pair.primary.resources.write(ev.QueueUsed(pair.primary.state.queues["a"].id, "container"))
    pair.primary.queue("newest")  # its id is the LSN of the frame
    pair.meet()
    pair.finish()
    assert pair.backup.state.queues["a"].owner == "container"


def test_failed_deliveries_count_once_wherever_they_happened() -> None:
    pair, queue = pair_with(4)
    pair.primary.publish(queue, "new")

    def fail(core: Core, *places: int) -> None:
        there = core.state.queues["a"]
        entries = list(there.entries())
        core.resources.release(there, [entries[place] for place in places], failed=True)

    fail(pair.backup, 0, 1)  # nobody else knows of these
    fail(pair.primary, 1, 4)
    pair.meet()
    fail(pair.primary, 0, 3, 4)
    pair.step()
    fail(pair.primary, 0, 3, 4)
    pair.finish()
    counts = [entry.delivery_count for entry in pair.backup.state.queues["a"].entries()]
    assert counts == [2, 1, 0, 2, 3]


def test_a_failed_delivery_of_which_only_the_backup_knows_does_not_count() -> None:
    pair, _ = pair_with(1)
    there = pair.backup.state.queues["a"]
    pair.backup.resources.release(there, list(there.entries()), failed=True)
    pair.meet()
    pair.finish()


def test_a_message_in_several_queues_is_kept_in_memory_once() -> None:
    pair = Pair()
    core = pair.primary
    fanout = core.exchange("x", "fanout", core.queue("a"), core.queue("b"))
    core.publish(fanout, "held")
    pair.part()
    core.publish(fanout, "new")
    accept(pair.backup, "b", 0)
    pair.meet()
    pair.finish()
    a, b = pair.backup.state.queues["a"].entries(), pair.backup.state.queues["b"].entries()
    assert all(one.event is other.event for one, other in zip(a, b, strict=True))


def test_a_transaction_counts_as_a_whole_during_the_catch_up() -> None:
    pair, queue = pair_with(3)
    b = pair.primary.queue("b")
    pair.meet(max_messages=1)
    pair.step()
    pair.stream()
    transaction = transaction_of((queue, "new a"), (b, "new b"))
    for entry in list(queue.entries())[::2]:
        transaction.accept(queue, entry, None)
    pair.primary.resources.commit(transaction, NOW_MS)
    *parts, closing = pair.written()
    for part in parts:
        pair.catch_up.follow(part)
    assert "new a" not in held_by(pair.backup)
    assert held_by(pair.backup, "b") == []
    pair.catch_up.follow(closing)
    assert held_by(pair.backup, "b") == ["new b"]
    pair.finish()


def test_half_a_transaction_is_forgotten_when_the_primary_is_lost() -> None:
    pair, queue = pair_with(3)
    pair.meet()
    transaction = transaction_of((queue, "new"))
    transaction.accept(queue, next(iter(queue.entries())), None)
    pair.primary.resources.commit(transaction, NOW_MS)
    for part in pair.written()[:-1]:
        pair.catch_up.follow(part)
    pair.catch_up.abandon()
    assert held_by(pair.backup) == ["m0", "m1", "m2"]


def test_a_catch_up_that_came_to_nothing_is_not_for_nothing() -> None:
    pair, queue = pair_with(4)
    pair.primary.publish(queue, "5", "6", "7", "8")
    pair.meet()
    pair.step()
    accept(pair.primary, "a", 1)
    pair.stream()
    pair.catch_up.abandon()
    assert held_by(pair.backup) == ["m0", "m2", "m3", "7", "8"]
    pair.catch_up.check_invariants()
    pair.common_lsn = pair.backup.log.last_lsn
    pair.meet(max_messages=100)
    frame = pair.next()
    assert isinstance(frame, Chunk)
    assert frame.data.count(b";;") == 2  # the fifth and the sixth
    pair.take(frame)
    pair.finish()


def write_locally(core: Core, event: ev.Event) -> int:
    """What a broker keeps for itself."""
    lsn = core.resources.local_log.append(event)
    core.state.apply(lsn, event)
    return lsn


def local_message(core: Core, queue_id: int, text: str) -> None:
    write_locally(core, ev.Enqueued((queue_id,), message(text).payload, False, 4, 0, ""))


def test_what_is_only_this_brokers_stays() -> None:
    pair, _ = pair_with(1)
    fanout = pair.primary.exchange("x", "fanout")
    pair.part()
    for core, text in ((pair.primary, "primary's"), (pair.backup, "backup's")):
        local = write_locally(core, ev.QueueDeclared("local", {}))
        write_locally(core, ev.Bound(fanout.id, local, text, {}))
        local_message(core, local, text)
    pair.primary.configuration.bind("x", "a", "", {})
    pair.primary.configuration.bind("x", "a", "primary's", {"qpid.replicate": "none"})
    pair.backup.configuration.bind("x", "a", "backup's", {"qpid.replicate": "none"})
    pair.meet()
    while not pair.step():
        pass
    assert held_by(pair.backup, "local") == ["backup's"]
    assert held_by(pair.backup) == held_by(pair.primary)
    assert [binding.key for binding in pair.backup.state.exchanges["x"].bindings()] == ["backup's", "backup's", ""]


def test_messages_of_a_queue_of_which_only_the_configuration_is_replicated_stay_where_they_are() -> None:
    pair, queue = pair_with()
    pair.primary.resources.write(ev.ReplicationChanged(queue.id, False))
    pair.part()
    local_message(pair.primary, queue.id, "primary's")
    local_message(pair.backup, queue.id, "backup's")
    pair.meet()
    assert isinstance(pair.next(), CaughtUp)
    assert held_by(pair.backup) == ["backup's"]
    assert not pair.discarded


@pytest.mark.parametrize("messages", [True, False])
def test_another_level_of_replication_before_the_catch_up_is_taken_over(messages: bool) -> None:
    pair, queue = pair_with(2)
    pair.primary.resources.write(ev.ReplicationChanged(queue.id, not messages))
    pair.part()
    pair.primary.resources.write(ev.ReplicationChanged(queue.id, messages))
    if messages:
        pair.primary.publish(queue, "new")
    pair.meet()
    pair.finish()


def test_another_level_of_replication_during_the_catch_up_is_taken_over() -> None:
    pair, queue = pair_with(6)
    pair.primary.publish(queue, "7", "8")
    pair.meet()
    pair.step()
    late = pair.next()
    pair.primary.resources.write(ev.ReplicationChanged(queue.id, False))
    pair.stream()
    pair.take(late)
    assert held_by(pair.backup) == []
    pair.finish()


def test_a_local_queue_makes_way_for_a_replicated_one_and_its_messages_are_given_out() -> None:
    pair = Pair()
    local_message(pair.backup, write_locally(pair.backup, ev.QueueDeclared("a", {})), "mine")
    pair.primary.publish(pair.primary.queue("a"), "everybody's")
    pair.meet()
    assert [(each.queue, len(each.payloads)) for each in pair.discarded] == [("a", 1)]
    pair.finish()
    assert held_by(pair.backup) == ["everybody's"]


def test_ten_thousand_gaps_are_told_in_several_frames() -> None:
    pair, queue = pair_with(70_000)
    pair.backup.resources.accept(pair.backup.state.queues["a"], list(pair.backup.state.queues["a"].entries())[::2])
    frames = list(CatchUp(pair.backup.resources, pair.common_lsn).holdings())
    assert {frame.queue for frame in frames} == {queue.id}
    assert len(frames) > 1
    assert sum(len(frame.ranges) for frame in frames) == 35_000


# --- what cannot be


def caught_in_the_middle() -> tuple[Pair, Chunk]:
    """A pair, and the second of three chunks."""
    pair, queue = pair_with(2)
    pair.primary.publish(queue, "3", "4", "5", "6")
    pair.meet()
    pair.step()
    frame = pair.next()
    assert isinstance(frame, Chunk)
    return pair, frame


Spoil = Callable[[Chunk], Chunk]
spoilt: dict[str, Spoil] = {
    "unknown queue": lambda chunk: chunk._replace(queue=99),
    "gap": lambda chunk: chunk._replace(high=chunk.high - 1),
    "overlap": lambda chunk: chunk._replace(high=chunk.high + 2),
    "upside down": lambda chunk: chunk._replace(low=chunk.high + 2),
    "above": lambda chunk: chunk._replace(data=encode(chunk.high + 1, an_enqueued(chunk.queue))),
    "below": lambda chunk: chunk._replace(data=encode(chunk.low - 1, an_enqueued(chunk.queue))),
    "twice": lambda chunk: chunk._replace(data=encode(chunk.high, an_enqueued(chunk.queue)) * 2),
    "another queue's": lambda chunk: chunk._replace(data=encode(chunk.high, an_enqueued(chunk.queue + 1))),
    "a part": lambda chunk: chunk._replace(data=encode(chunk.high, an_enqueued(chunk.queue), part=True)),
    "no message": lambda chunk: chunk._replace(data=encode(chunk.high, ev.QueueDeleted(chunk.queue))),
    "damaged": lambda chunk: chunk._replace(data=chunk.data[:-1] + b"\xff"),
    "cut short": lambda chunk: chunk._replace(data=chunk.data[:-1]),
    "held and sent": lambda chunk: chunk._replace(low=0, data=encode(3, an_enqueued(chunk.queue))),
}


def an_enqueued(queue: int) -> ev.Enqueued:
    return ev.Enqueued((queue,), b";;false", False, 4, 0, "")


@pytest.mark.parametrize("how", spoilt)
def test_a_chunk_that_cannot_be_is_refused_and_the_right_one_still_fits(how: str) -> None:
    pair, right = caught_in_the_middle()
    before = picture(pair.backup.state)
    with pytest.raises(CatchUpError):
        pair.catch_up.chunk(spoilt[how](right))
    assert picture(pair.backup.state) == before
    pair.catch_up.check_invariants()
    pair.take(right)
    pair.finish()


def test_an_end_before_the_end_is_refused() -> None:
    pair, _ = caught_in_the_middle()
    with pytest.raises(CatchUpError, match="before 1 queues were level: a"):
        pair.catch_up.finish()
    with pytest.raises(CatchUpError, match="before it sent its objects"):
        CatchUp(Core().resources, 0).finish()


def test_a_chunk_after_the_last_is_refused() -> None:
    pair, queue = pair_with(1)
    pair.meet()
    pair.step()
    with pytest.raises(CatchUpError, match="its browser has ended"):
        pair.catch_up.chunk(Chunk(GENERATION, queue.id, 0, 0, True, (), (), b""))


def test_objects_that_cannot_be_are_refused_and_nothing_changes() -> None:
    pair, queue = pair_with(2)
    frame = objects_frame(pair.primary.state, GENERATION, pair.common_lsn)
    declared = ev.QueueDeclared("b", {})
    wrong = {
        "damaged": frame._replace(data=frame.data[:-1]),
        "from the future": frame._replace(data=encode(1000, declared)),
        "the same id twice": frame._replace(data=frame.data * 2),
        "the same name twice": frame._replace(data=encode(1, declared) + encode(2, declared)),
        "local": frame._replace(lsn=1 << 63, data=encode(LOCAL_BASE, declared)),
        "a message": frame._replace(data=encode(1, an_enqueued(queue.id))),
        "unknown arguments": frame._replace(data=encode(1, ev.QueueDeclared("b", {"qpid.max_count": "many"}))),
        "unknown kind": frame._replace(data=encode(1, ev.ExchangeDeclared("x", "circular", {}))),
        "a binding from nowhere": frame._replace(data=encode(1, ev.Bound(77, queue.id, "", {}))),
        "a local binding": frame._replace(
            data=frame.data
            + encode(3, ev.ExchangeDeclared("x", "fanout", {}))
            + encode(3, ev.Bound(3, queue.id, "", {"qpid.replicate": "none"}))
        ),
        "used and not there": frame._replace(used=((99, ""),)),
        "unreplicated and not there": frame._replace(unreplicated=(99,)),
    }
    before = picture(pair.backup.state)
    catch_up = CatchUp(pair.backup.resources, pair.common_lsn)
    for what, each in wrong.items():
        with pytest.raises(CatchUpError, match="objects"):
            catch_up.objects(each)
        assert picture(pair.backup.state) == before, what
    catch_up.objects(frame)
    with pytest.raises(CatchUpError, match="twice"):
        catch_up.objects(frame)


def test_a_stream_that_takes_what_a_chunk_should_have_brought_does_not_fit() -> None:
    pair, queue = pair_with()
    pair.primary.publish(queue, "1", "2")
    pair.meet()
    pair.step()
    pair.written()
    with pytest.raises(ReplayError):
        pair.catch_up.follow(Record(99, ev.Dequeued(queue.id, (50,), ev.DequeueReason.CONSUMED), False))


# --- whatever happens

kinds: list[dict[str, Scalar]] = [
    {},
    {"qpid.priorities": 3},
    {"qpid.last_value_queue_key": "k"},
    {"qpid.max_count": 3, "qpid.policy_type": "ring"},
    {"qpid.last_value_queue_key": "k", "qpid.max_count": 2, "qpid.policy_type": "ring"},
    {"qpid.delivery_limit": 2},
    {"qpid.replicate": "messages", "qpid.alternate_exchange": "x"},
]
names = st.sampled_from("abc")
operations = st.one_of(
    st.tuples(st.sampled_from(["publish", "publish", "publish", "route"]), names, st.integers(1, 9)),
    st.tuples(st.sampled_from(["consume", "consume", "fail", "hold"]), names, st.integers(1, 255)),
    st.tuples(st.sampled_from(["declare", "delete", "purge", "update", "bind", "unbind"]), names, st.integers(0, 6)),
    st.tuples(st.sampled_from(["exchange", "drop exchange", "transaction", "level"]), names, st.integers(1, 255)),
)
histories = st.lists(operations, max_size=12)


def perform(core: Core, what: str, name: str, number: int) -> None:
    """Do it, if it can be done."""
    configuration, resources, state = core.configuration, core.resources, core.state
    with suppress(ModelError):
        if what == "declare":
            configuration.declare_queue(name, kinds[number])
        elif what == "exchange":
            configuration.declare_exchange("x", ["fanout", "topic"][number % 2], {})
        elif what == "level":
            configuration.set_replication([(name, list(Replicate)[number % 3])], Replicate.MESSAGES)
        elif what == "drop exchange":
            configuration.delete_exchange("x")
        elif what == "route":
            core.publish(configuration.exchange("x"), message(f"r{number}", "red", k=str(number % 3)))
        elif what == "transaction":
            take = [(state.queues[name], entry) for entry in picked(state.queues.get(name), number)]
            transaction = transaction_of(*[(queue, "t") for queue in state.queues.values()])
            for queue, entry in take:
                transaction.accept(queue, entry, None)
            try:
                resources.commit(transaction, NOW_MS)
            except ModelError:
                for queue, entry in take:
                    resources.release(queue, [entry], failed=False)
        else:
            perform_on_queue(core, configuration.queue(name), what, number)


def perform_on_queue(core: Core, queue: Queue, what: str, number: int) -> None:
    configuration, resources = core.configuration, core.resources
    if what == "publish":
        texts = [f"{number}.{each}" for each in range(number % 4 + 1)]
        core.publish(queue, *[message(text, "red", priority=number, k=str(number % 3)) for text in texts])
    elif what == "consume":
        resources.accept(queue, picked(queue, number))
    elif what == "hold":
        for entry in picked(queue, number):
            queue.hold(entry, core.consumer(queue))
    elif what == "fail":
        resources.release(queue, picked(queue, number), failed=True)
    elif what == "delete":
        configuration.delete_queue(queue.name)
    elif what == "purge":
        resources.purge(queue)
    elif what == "update":
        configuration.update_queue(queue.name, {"qpid.max_count": number + 1})
    elif what == "bind":
        configuration.bind("x", queue.name, "red" if number % 2 else "#", {"number": number})
    elif what == "unbind":
        configuration.unbind("x", queue.name, "red" if number % 2 else "#")


def picked(queue: Queue | None, bits: int) -> list:  # type: ignore[type-arg]
    """Some of the messages."""
    entries = sorted(queue.entries(), key=lambda entry: entry.id) if queue is not None else []
    return [entry for place, entry in enumerate(entries) if bits >> place % 8 & 1]


@settings(max_examples=150, deadline=None)
@given(
    histories,
    histories,
    histories,
    st.lists(st.tuples(histories, st.booleans()), max_size=6),
    histories,
    st.integers(1, 4),
)
def test_whatever_happened_before_and_happens_meanwhile_the_backup_equals_the_primary(
    together: list[tuple[str, str, int]],
    primary_alone: list[tuple[str, str, int]],
    backup_alone: list[tuple[str, str, int]],
    meanwhile: list[tuple[list[tuple[str, str, int]], bool]],
    afterwards: list[tuple[str, str, int]],
    max_messages: int,
) -> None:
    pair = Pair()
    for name in "ab":
        pair.primary.queue(name)
    for operation in together:
        perform(pair.primary, *operation)
    pair.part()
    for operation in primary_alone:
        perform(pair.primary, *operation)
    for operation in backup_alone:
        perform(pair.backup, *operation)
    pair.meet(max_messages)
    for during, is_overtaken in meanwhile:
        if is_overtaken:
            # The chunk's counts of failed deliveries are those of the place where it was made.
            frame = pair.next()
            for operation in during:
                if operation[0] != "fail":
                    perform(pair.primary, *operation)
            pair.stream()
        else:
            for operation in during:
                perform(pair.primary, *operation)
            frame = pair.next()
        if pair.take(frame):
            break
    if not pair.browsers.done:
        pair.finish()
    pair.follow_on()
    for operation in afterwards:
        perform(pair.primary, *operation)
    pair.follow_on()
