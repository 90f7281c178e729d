"""Stories about messages that an operator has published to an exchange: each is in its queue, or in all others."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from model_support import NOW_MS, Core, bodies, message, wants
from moves import COUNT, SPENT, backups_that_end_behind, moved
from qpid_ha_broker.events.types import Dequeued, DequeueReason, Enqueued, QueuePlaced, SetPlaced, TransactionCommitted
from qpid_ha_broker.model.commands.moving import (
    PORTION_MESSAGES,
    MoveSelection,
    QueueMove,
    Redirection,
    Stay,
    begin_move,
)
from qpid_ha_broker.model.errors import (
    InUse,
    InvalidArgument,
    ModelError,
    NotEnoughReplicas,
    NotFound,
    NotPrimary,
    OtherSet,
    QueueLocked,
)
from qpid_ha_broker.model.exchanges.exchange import Exchange
from qpid_ha_broker.model.exchanges.notices import NOTICE_EXCHANGE, TEMPORARY_SUBSCRIPTION
from qpid_ha_broker.model.queues.queue import Queue
from qpid_ha_broker.model.sets.resources import Resources

COLOURS = ("red", "blue")
ALL = MoveSelection()


def begun(
    core: Core, source: Queue, exchange: Exchange, key: str | None = None, selection: MoveSelection = ALL
) -> QueueMove:
    return begin_move(core.resources, source, Redirection(exchange, core.catalog, key), selection)


def redirected(
    core: Core, source: Queue, exchange: Exchange, key: str | None = None, selection: MoveSelection = ALL
) -> QueueMove:
    """To its end."""
    return moved(core, begun(core, source, exchange, key, selection))


def by_colour(core: Core, kind: str = "direct") -> tuple[Queue, Exchange]:
    """A queue, and an exchange behind which each colour has a queue of its name, and `all` gets every colour."""
    source = core.queue("q")
    exchange = core.exchange("x", kind)
    core.queue("all")
    for colour in COLOURS:
        core.queue(colour)
        for name in (colour, "all"):
            core.configuration.bind("x", name, colour, {"colour": colour} if kind == "headers" else {})
    return source, exchange


def coloured(number: int) -> str:
    return COLOURS[number % 2]


def publish(core: Core, source: Queue, count: int, start: int = 0) -> None:
    numbers = range(start, start + count)
    core.publish(source, *(message(str(number), coloured(number), colour=coloured(number)) for number in numbers))


def held(core: Core | Resources, *names: str) -> list[list[str]]:
    return [bodies(core.catalog.queues[name].messages) for name in names]


def numbers(count: int, colour: str = "") -> list[str]:
    return [str(number) for number in range(count) if colour in ("", coloured(number))]


@pytest.mark.parametrize("kind", ["direct", "topic", "headers"])
def test_each_message_comes_to_the_queues_that_its_own_subject_or_its_properties_lead_to(kind: str) -> None:
    core = Core()
    source, exchange = by_colour(core, kind)
    publish(core, source, COUNT)
    move = redirected(core, source, exchange)
    assert (move.count, move.written, +move.stays) == (COUNT, core.resources.written, {})
    assert move.counts == {"red": COUNT // 2 + 1, "blue": COUNT // 2, "all": COUNT}
    assert held(core, "q", "all", *COLOURS) == [[], numbers(COUNT), numbers(COUNT, "red"), numbers(COUNT, "blue")]


def test_with_a_key_all_go_by_that() -> None:
    core = Core()
    source, exchange = by_colour(core)
    publish(core, source, 4)
    assert redirected(core, source, exchange, "red").counts == {"red": 4, "all": 4}
    publish(core, source, 1)
    assert +redirected(core, source, exchange, "").stays == {Stay.UNROUTED: 1}


def test_a_message_goes_as_it_came_and_the_selectors_of_bindings_count() -> None:
    core = Core()
    source, target, picky = core.queue("q"), core.queue("to"), core.queue("picky")
    exchange = core.exchange("x", "fanout", target)
    core.configuration.bind("x", "picky", "", {"x-filter-jms-selector": "k = 'other'"})
    core.publish(source, message("x", "subject", priority=7, ttl_ms=5000, durable=True, k="v"))
    core.tick(1000)
    redirected(core, source, exchange)
    (entry,) = target.messages
    header = entry.header
    assert (header.durable, header.priority, header.expires_at_ms) == (True, 7, NOW_MS + 5000)
    assert (entry.body, picky.messages.count) == (message("x", "subject", k="v").payload, 0)


def test_wherever_the_log_ends_each_message_is_in_its_queue_or_in_all_others_and_who_leads_then_goes_on() -> None:
    """So it is after a kill of the primary at any moment, on whichever broker leads next: nothing is lost, and nothing
    is there twice, also once that broker has gone on."""
    core = Core()
    source, exchange = by_colour(core)
    publish(core, source, COUNT)
    core.read()
    before = len(core.records)
    begun(core, source, exchange)
    core.resources.work.run()
    core.read()
    seen = set()
    for backup in backups_that_end_behind(core, before):
        left, there, red, blue = held(backup, "q", "all", *COLOURS)
        assert there + left == numbers(COUNT)
        assert (red, blue) == (numbers(len(there), "red"), numbers(len(there), "blue"))
        seen.add(len(there))
        catalog = backup.catalog
        again = begin_move(backup, catalog.queues["q"], Redirection(catalog.exchanges["x"], catalog))
        backup.work.run()
        assert (again.failure, again.count) == (None, len(left))
        assert held(backup, "q", "all", *COLOURS) == [[], numbers(COUNT), numbers(COUNT, "red"), numbers(COUNT, "blue")]
    assert len(seen) > COUNT // PORTION_MESSAGES


def test_a_message_that_no_binding_takes_stays_and_is_counted() -> None:
    core = Core()
    source, exchange = by_colour(core)
    publish(core, source, 2)
    core.publish(source, message("green", "green"), message("no subject"))
    move = redirected(core, source, exchange)
    assert (move.count, +move.stays) == (2, {Stay.UNROUTED: 2})
    assert held(core, "q") == [["green", "no subject"]]
    assert core.resources.unroutable_total == 0


def test_what_nobody_can_route_stays() -> None:
    core = Core()
    source, exchange = by_colour(core, "topic")
    core.configuration.bind("x", "all", ".".join(["#", "a"] * 16), {})
    core.publish(source, message("long", ".".join(["a"] * 20_000)), message("red", "red"))
    move = redirected(core, source, exchange)
    assert (move.count, +move.stays, held(core, "q")) == (1, {Stay.UNROUTED: 1}, [["long"]])


def test_the_alternate_exchange_has_what_no_binding_takes() -> None:
    core = Core()
    source, others = core.queue("q"), core.queue("others")
    core.exchange("rest", "fanout", others)
    exchange = core.exchange("x", "direct", alternate_exchange="rest")
    publish(core, source, 3)
    assert redirected(core, source, exchange).counts == {"others": 3}


def test_a_queue_to_which_its_own_exchange_leads_back_gets_each_message_once() -> None:
    core = Core()
    source, other = core.queue("q"), core.queue("other")
    exchange = core.exchange("x", "fanout", source, other)
    publish(core, source, COUNT)
    move = begun(core, source, exchange)
    core.resources.work.run(SPENT)
    core.publish(source, "later")
    core.resources.work.run()
    core.check()
    assert (move.count, move.failure) == (COUNT, None)
    there, back = held(core, "other", "q")
    assert there == numbers(COUNT)
    assert sorted(back) == sorted([*numbers(COUNT), "later"])


@pytest.mark.parametrize("policy", ["reject", "ring", "self-destruct"])
def test_what_has_no_room_in_one_of_its_queues_stays_whole_and_the_others_go_on(policy: str) -> None:
    core = Core()
    source, _ = by_colour(core)
    core.configuration.update_queue("red", {"qpid.max_count": 3, "qpid.policy_type": policy})
    core.exchange("y", "direct")
    core.configuration.bind("y", "red", "red", {})
    core.configuration.bind("y", "blue", "blue", {})
    publish(core, source, COUNT)
    move = redirected(core, source, core.catalog.exchanges["y"])
    red, blue = numbers(COUNT, "red"), numbers(COUNT, "blue")
    assert held(core, "red", "blue", "q") == [red[:3], blue, red[3:]]
    assert (move.count, +move.stays) == (3 + len(blue), {Stay.FULL: len(red) - 3})
    assert "queue red is" in move.no_room
    assert core.resources.take_overrun() == {}
    assert DequeueReason.DISPLACED not in {event.reason for event in core.read() if isinstance(event, Dequeued)}


def test_no_message_overtakes_one_that_stays_in_a_queue_to_which_both_would_go() -> None:
    core = Core()
    source, exchange = by_colour(core)
    core.configuration.update_queue("red", {"qpid.max_count": 1})
    publish(core, source, 4)
    assert +redirected(core, source, exchange).stays == {Stay.FULL: 2}
    assert held(core, "red", "all", "blue", "q") == [["0"], ["0", "1"], ["1"], ["2", "3"]]
    core.consume(core.catalog.queues["red"])
    assert redirected(core, source, exchange).count == 2
    assert held(core, "all") == [numbers(4)]


def test_what_a_consumer_holds_or_no_selector_wants_stays() -> None:
    core = Core()
    source, exchange = by_colour(core)
    publish(core, source, 6)
    core.take(source, core.consumer(source), 2)
    move = redirected(core, source, exchange, selection=MoveSelection(most=1, selector="colour = 'blue'"))
    assert (move.count, move.held, held(core, "blue")) == (1, 2, [["3"]])
    assert move.passed > 0
    (*_, last) = source.messages
    redirected(core, source, exchange, selection=MoveSelection(message_id=last.id))
    assert held(core, "blue", "red") == [["3", "5"], []]


def test_a_unit_is_bounded_by_what_comes_with_it_where_one_message_comes_to_many_queues() -> None:
    core = Core()
    source = core.queue("q")
    targets = [core.queue(f"to-{number}") for number in range(PORTION_MESSAGES // 2)]
    exchange = core.exchange("x", "fanout", *targets)
    publish(core, source, 7)
    core.take(source, core.consumer(source, accepts=wants("5")))
    core.read()
    move = redirected(core, source, exchange)
    assert (move.count, move.held) == (6, 1)
    written = [record.event for record in core.records]
    assert sum(isinstance(event, TransactionCommitted) for event in written) == 3
    assert sum(isinstance(event, Enqueued) and len(event.queues) > 1 for event in written) == 6
    assert all(bodies(target.messages) == ["0", "1", "2", "3", "4", "6"] for target in targets)


def elsewhere(core: Core) -> str:
    """The name of a queue of another set."""
    core.resources.replicated.write(SetPlaced("red", ("alpha",), (), "", 0, 0))
    core.resources.replicated.write(QueuePlaced("far", "red", {}, False))
    return "far"


def test_an_exchange_that_leads_to_queues_of_another_log_too_is_refused_before_anything_moves() -> None:
    core = Core()
    source, exchange = by_colour(core)
    publish(core, source, 2)
    core.queue("local", replicate="none")
    for name, text in (
        ("local", "only one of them is replicated"),
        (elsewhere(core), "far in red: nothing is committed in two sets"),
    ):
        core.configuration.bind("x", name, "never", {})
        with pytest.raises(OtherSet, match=text):
            begun(core, source, exchange)
        core.configuration.unbind("x", name, "never")
    assert (redirected(core, source, exchange).count, held(core, "q")) == (2, [[]])


def test_it_is_refused_where_it_makes_no_sense() -> None:
    core = Core()
    source, exchange = by_colour(core)
    publish(core, source, 1)
    core.resources.replicated.declare_standard_exchanges()
    with pytest.raises(InvalidArgument, match="the broker alone publishes"):
        begun(core, source, core.catalog.exchanges[NOTICE_EXCHANGE])
    source.locked = "it is a bridge's"
    with pytest.raises(QueueLocked):
        begun(core, source, exchange)
    source.locked = ""
    core.configuration.delete_exchange("x")
    with pytest.raises(NotFound, match="exchange x was deleted"):
        begun(core, source, exchange)
    core.resources.replication.read_only = "another broker is primary"
    with pytest.raises(NotPrimary):
        begun(core, source, exchange)
    assert held(core, "q") == [["0"]]


def test_no_move_and_no_redirect_brings_anything_to_who_listens_to_the_broker_itself() -> None:
    core = Core()
    source, listener = core.queue("q"), core.queue(f"{TEMPORARY_SUBSCRIPTION}1")
    core.resources.replicated.declare_standard_exchanges()
    exchange = core.exchange("x", "fanout", listener)  # as a store of an earlier release may have it
    core.configuration.bind(NOTICE_EXCHANGE, listener.name, "cluster", {})
    publish(core, source, 1)
    with pytest.raises(InUse, match="for notices"):
        begin_move(core.resources, source, listener)
    move = redirected(core, source, exchange)
    assert (type(move.failure), held(core, "q", listener.name)) == (InUse, [["0"], []])


def delete_exchange(core: Core) -> None:
    core.configuration.delete_exchange("x")


def bind_elsewhere(core: Core) -> None:
    core.configuration.bind("x", elsewhere(core), "red", {})


def bind_last_values(core: Core) -> None:
    core.queue("values", last_value_queue_key="k")
    core.configuration.bind("x", "values", "red", {})


def step_down(core: Core) -> None:
    core.resources.replication.read_only = "another broker is primary"


def lose_replicas(core: Core) -> None:
    core.resources.replication.refusal = NotEnoughReplicas("too few")


@pytest.mark.parametrize(
    ("happens", "kind"),
    [
        (delete_exchange, NotFound),
        (bind_elsewhere, OtherSet),
        (bind_last_values, InUse),
        (step_down, NotPrimary),
        (lose_replicas, NotEnoughReplicas),
    ],
)
def test_it_is_given_up_when_it_cannot_go_on_and_says_how_far_it_came(
    happens: Callable[[Core], None], kind: type[ModelError]
) -> None:
    core = Core()
    source, exchange = by_colour(core)
    publish(core, source, COUNT)
    move = begun(core, source, exchange)
    core.resources.work.run(SPENT)
    happens(core)
    core.resources.work.run()
    assert isinstance(move.failure, kind), move.failure
    assert f"{move.count} messages have moved from q through exchange x, and the rest not" in str(move.failure)
    there, left = held(core, "all", "q")
    assert (len(there), there + left) == (move.count, numbers(COUNT))
