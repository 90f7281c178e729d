"""Whatever happened before a catch-up and happens during it: the backup equals its primary."""

from __future__ import annotations

from contextlib import suppress
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from catchup_support import Pair
from map_events import map_event
from model_support import NOW_MS, Core, message, transaction_of
from qpid_ha_broker.events.types import Scalar
from qpid_ha_broker.model.errors import ModelError
from qpid_ha_broker.model.queues.queue import Queue
from qpid_ha_broker.model.queues.queue_arguments import Replicate
from qpid_ha_broker.model.queues.sequence import Entry, SessionOwner
from session_support import FIRST, session_event

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
    st.tuples(st.sampled_from(["consume", "consume", "fail", "annotate", "hold"]), names, st.integers(1, 255)),
    st.tuples(st.sampled_from(["hold for a session", "release"]), names, st.integers(1, 255)),
    st.tuples(st.sampled_from(["declare", "delete", "purge", "update", "bind", "unbind"]), names, st.integers(0, 6)),
    st.tuples(
        st.sampled_from(["exchange", "drop exchange", "transaction", "level", "map", "session"]),
        names,
        st.integers(1, 255),
    ),
)
histories = st.lists(operations, max_size=12)


def perform(core: Core, what: str, name: str, number: int) -> None:
    """Do it, if it can be done."""
    configuration, resources, there = core.configuration, core.resources, core.catalog
    with suppress(ModelError):
        if what == "declare":
            configuration.declare_queue(name, kinds[number])
        elif what == "exchange":
            configuration.declare_exchange("x", ["fanout", "topic"][number % 2], {})
        elif what == "level":
            configuration.set_replication([(name, list(Replicate)[number % 3])], Replicate.MESSAGES)
        elif what == "map":
            event = map_event(Random(number), there.map, {*there.queues, *there.exchanges})
            resources.replicated.write(event)
        elif what == "session":
            resources.replicated.write(session_event(Random(number), core.state.sessions))
        elif what == "drop exchange":
            configuration.delete_exchange("x")
        elif what == "route":
            core.publish(configuration.exchange("x"), message(f"r{number}", "red", k=str(number % 3)))
        elif what == "transaction":
            take = [(there.queues[name], entry) for entry in picked(there.queues.get(name), number)]
            transaction = transaction_of(*[(queue, "t") for queue in there.queues.values()])
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
        key, delay_ms = str(number % 3), number // 4 * 1000
        core.publish(queue, *[message(text, "red", priority=number, delay_ms=delay_ms, k=key) for text in texts])
    elif what == "consume":
        resources.accept(queue, picked(queue, number))
    elif what == "hold":
        for entry in picked(queue, number):
            queue.messages.hold(entry, core.consumer(queue))
    elif what == "hold for a session":
        free = [entry for entry in picked(queue, number) if entry.holder is None]
        if free:
            owner = SessionOwner(1, FIRST, f"link {number % 2}")
            resources.sets.holding(queue).hold(queue, free, owner)
    elif what == "release":
        resources.release(queue, [entry for entry in picked(queue, number) if entry.id in queue.held], failed=False)
    elif what == "fail":
        resources.release(queue, picked(queue, number), failed=True)
    elif what == "annotate":
        resources.release(queue, picked(queue, number), failed=False, annotations=f"said={number}".encode())
    elif what == "delete":
        configuration.delete_queue(queue.name)
    elif what == "purge":
        resources.purges.begin(queue)
    elif what == "update":
        configuration.update_queue(queue.name, {"qpid.max_count": number + 1})
    elif what == "bind":
        configuration.bind("x", queue.name, "red" if number % 2 else "#", {"number": number})
    elif what == "unbind":
        configuration.unbind("x", queue.name, "red" if number % 2 else "#")


def picked(queue: Queue | None, bits: int) -> list[Entry]:
    """Some of the messages."""
    entries = sorted(queue.messages, key=lambda entry: entry.id) if queue is not None else []
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
            # The chunk's counts of failed deliveries, and what was said, are those of the place where it was made.
            frame = pair.next()
            for operation in during:
                if operation[0] not in ("fail", "annotate"):
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
