"""Stories about an operator who looks at what is in a queue, and has it moved, at a broker with one set or several."""

from __future__ import annotations

import asyncio
import json
from base64 import b64decode
from collections.abc import Callable
from functools import partial
from typing import Any

import proton
import pytest

from model_support import message
from paged_core import PagedCore
from paired_engines import START_MS, PairedBroker, PairedClient
from paired_links import subscribe
from qpid_ha_broker.amqp.nodes.directory import ServedElsewhere
from qpid_ha_broker.amqp.nodes.queue_messages import BODY_BYTES_MOST, COUNT_MOST, QueueLook, QueueMessages
from qpid_ha_broker.amqp.wire.message_facts import DEPTH_MAX, SECTION_BYTES, SECTIONS_MOST, describe_message
from qpid_ha_broker.events import types as ev
from qpid_ha_broker.model.commands.administration import Administration, Facts
from qpid_ha_broker.model.errors import InvalidArgument, NotFound, OtherSet, QueueFull, Unavailable
from qpid_ha_broker.model.queues.paged import BodyRef
from qpid_ha_broker.model.queues.sequence import load_bodies
from qpid_ha_broker.model.transactions.transaction import Message
from qpid_ha_broker.server.control.administration import control_methods
from qpid_ha_broker.server.control.commit_waiters import CommitWaiters
from qpid_ha_broker.server.control.control import REFUSED, ControlError
from several_sets import BETA, SeveralSets


@pytest.fixture
def broker() -> PairedBroker:
    return PairedBroker()


def messages_of(broker: PairedBroker) -> QueueMessages:
    return QueueMessages(broker.container.management.administration)


def rows_of(look: QueueLook) -> list[Facts]:
    return [look.row(entry, *load_bodies([entry])) for entry in iter(look.next_entry, None)]


def seen(broker: PairedBroker, name: str = "q", **asked: object) -> list[Facts]:
    rows = rows_of(messages_of(broker).peek(name, **asked))
    json.dumps(rows, allow_nan=False)
    return rows


def contents(rows: list[Facts]) -> list[Any]:
    bodies: list[Any] = [row["body"] for row in rows]
    return [body["content"] for body in bodies]


# --- looking


def test_what_is_in_a_queue_is_shown_with_who_has_it(broker: PairedBroker, client: PairedClient) -> None:
    broker.container.now_ms = START_MS + 60_000
    given = proton.Message("x", id="m1", subject="s", durable=True, priority=6, ttl=5, properties={"colour": "red"})
    client.publish("q", given, "y")
    receiver = subscribe(client, "q")
    receiver.flow(1)
    broker.settle_down()
    first, second = seen(broker)
    assert first == {
        "id": first["id"],
        "state": "acquired",
        "acquired_by": "anonymous at 127.0.0.1:1",
        "enqueued_ms": START_MS + 60_000,
        "expires_ms": START_MS + 65_000,
        "due_ms": None,
        "size": len(given.encode()),
        "durable": True,
        "priority": 6,
        "delivery_count": 0,
        "redelivered": False,
        "properties": {"message_id": "m1", "subject": "s"},
        "application_properties": {"colour": "red"},
        "annotations": {},
        "body": {"kind": "value", "sections": 1, "bytes": 6, "encoding": "text", "content": "x", "truncated": False},
    }
    assert (second["state"], second["acquired_by"]) == ("available", None)
    assert broker.queue("q").messages.count == 2
    receiver.close()
    broker.settle_down()
    assert [row["state"] for row in seen(broker)] == ["available", "available"]
    assert [row["redelivered"] for row in seen(broker)] == [True, False]


def test_a_look_goes_on_where_the_last_one_ended(broker: PairedBroker, client: PairedClient) -> None:
    client.publish("q", *"abcde")
    peek = messages_of(broker).peek("q", count=2)
    assert (contents(rows_of(peek)), peek.whole) == (["a", "b"], False)
    peek = messages_of(broker).peek("q", after=str(peek.last), count=10)
    assert (contents(rows_of(peek)), peek.whole) == (["c", "d", "e"], True)


def test_one_message_is_found_by_its_id(broker: PairedBroker, client: PairedClient) -> None:
    client.publish("q", *"abc")
    wanted = seen(broker)[1]["id"]
    assert contents(seen(broker, id=wanted)) == ["b"]
    with pytest.raises(NotFound, match="no message 7777"):
        seen(broker, id=7777)


def test_no_more_bytes_are_shown_than_asked_for(broker: PairedBroker, client: PairedClient) -> None:
    client.publish("q", *(letter * 1000 for letter in "abcd"))
    assert contents(seen(broker, body_bytes=10)) == [letter * 10 for letter in "abcd"]
    assert contents(seen(broker, bytes=25, body_bytes=10)) == [letter * 10 for letter in "abc"]


def test_what_is_not_committed_yet_is_not_shown(broker: PairedBroker, client: PairedClient) -> None:
    client.publish("q", "a")
    broker.container.default.resources.replicated.log.add_witness("store")
    client.publish("q", "b")
    assert contents(seen(broker)) == ["a"]
    with pytest.raises(NotFound):
        seen(broker, id=broker.queue("q").log.last_lsn)


def test_what_changes_during_a_look_does_not_disturb_it(broker: PairedBroker, client: PairedClient) -> None:
    client.publish("q", *"abc")
    peek = messages_of(broker).peek("q")
    first = peek.next_entry()
    assert first is not None
    broker.container.management.administration.purge_queue("q")
    assert (rows_of(peek), peek.whole) == ([], True)


@pytest.mark.parametrize(
    "asked",
    [
        {"count": 0}, {"count": COUNT_MOST + 1}, {"count": "ten"}, {"bytes": True}, {"body_bytes": 1 << 30},
        {"after": -1}, {"after": "x"}, {"after": "9" * 30}, {"id": []}, {"name": None}, {"name": "no\x00name"},
    ],
)  # fmt: skip
def test_senseless_questions_are_refused(broker: PairedBroker, asked: dict[str, object]) -> None:
    with pytest.raises(InvalidArgument):
        messages_of(broker).peek(asked.pop("name", "q"), **asked)


def test_a_question_about_a_queue_that_is_not_there_is_refused(broker: PairedBroker) -> None:
    for ask in (messages_of(broker).peek, messages_of(broker).payload):
        with pytest.raises(NotFound):
            ask("nowhere")


# --- the bytes


def test_all_bytes_of_a_queue_come_in_pieces_of_any_size(broker: PairedBroker, client: PairedClient) -> None:
    given = [proton.Message(letter * length) for letter, length in (("a", 300), ("b", 1), ("c", 700))]
    client.publish("q", *given)
    for size in (64, 100, 301, 10_000):
        found: dict[str, bytes] = {}
        after, offset, whole = "0", 0, False
        while not whole:
            look = messages_of(broker).payload("q", after, offset, size)
            answer: Any = look.answer(rows_of(look))
            for row in answer["messages"]:
                found[row["id"]] = found.get(row["id"], b"") + b64decode(row["payload"])
                after, offset = row["id"], 0
                if len(found[row["id"]]) < row["size"]:
                    after, offset = str(int(row["id"]) - 1), len(found[row["id"]])
            whole = answer["whole"] and not offset
        assert list(found.values()) == [each.encode() for each in given]


# --- messages that are made to be hard to show


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        (proton.Message(b"\xff\x00", inferred=True).encode(), ("data", "base64", "/wA=", False)),
        (proton.Message(b"text\n", inferred=True).encode(), ("data", "text", "text\n", False)),
        (proton.Message("<b>&\x1b[2J").encode(), ("value", "base64", "PGI+JhtbMko=", False)),
        (proton.Message({"k": [1, None]}).encode(), ("value", "json", {"k": [1, None]}, False)),
        (proton.Message([1, 2], inferred=True).encode(), ("sequence", "json", [1, 2], False)),
        (proton.Message("é" * 100).encode(), ("value", "text", "é" * 25, True)),
        (proton.Message(["x" * 100]).encode(), ("value", "amqp", None, True)),
        (b"\x00Su\xa0\x01a" * 2, ("data", "text", "a", True)),
        (proton.Message("").encode(), ("value", "text", "", False)),
    ],
)
def test_a_body_is_shown_as_text_as_json_or_as_base64(payload: bytes, expected: tuple[object, ...]) -> None:
    body: Any = describe_message(payload, 50)["body"]
    shown = (body["kind"], body["encoding"], body["content"] if expected[2] is not None else None, body["truncated"])
    assert shown == expected


def test_what_cannot_be_read_is_said_and_what_comes_before_is_shown() -> None:
    whole = proton.Message("body", subject="s").encode()
    facts = describe_message(whole[:-3], 100)
    assert (facts["properties"], facts["body"]) == ({"subject": "s"}, None)
    assert "unreadable" in facts
    assert describe_message(b"", 100)["body"] is None


def test_a_message_costs_little_whatever_is_in_it() -> None:
    long = describe_message(proton.Message("x", properties={"k": "v" * SECTION_BYTES}).encode(), 100)
    assert long["application_properties"] == {"not_shown_bytes": SECTION_BYTES + 20}
    many: Any = describe_message(b"\x00Su\xa0\x00" * (SECTIONS_MOST + 10), 100)
    assert many["body"]["sections"] == SECTIONS_MOST
    deep: Any = "x"
    for _ in range(2 * DEPTH_MAX):
        deep = [deep]
    body: Any = describe_message(proton.Message(deep).encode(), 1000)["body"]
    assert "..." in json.dumps(body["content"])


# --- several sets


def test_a_broker_says_who_leads_the_set_of_a_queue_that_it_has_no_replica_of() -> None:
    broker = SeveralSets()
    broker.directory.queues["far"] = "green"
    broker.directory.primaries["green"] = BETA
    for ask in (
        lambda: messages_of(broker).peek("far"),
        lambda: messages_of(broker).payload("far"),
        lambda: messages_of(broker).move("far", "plain"),
        lambda: messages_of(broker).move("plain", "far"),
        lambda: messages_of(broker).redirect("far", "amq.fanout"),
    ):
        with pytest.raises(ServedElsewhere, match="primary is beta"):
            ask()


# --- publishing


def test_an_operator_puts_a_message_into_a_queue_as_a_client_would(broker: PairedBroker) -> None:
    broker.container.default.configuration.declare_queue("q", {})
    published = messages_of(broker).publish("q", "hello", "greeting", {"colour": "red", "size": 3})
    plain = messages_of(broker).publish("q", transient=True)
    broker.settle_down()
    assert published.written.is_committed
    assert plain.written.is_committed
    rows = seen(broker)
    assert (contents(rows), [row["durable"] for row in rows]) == (["hello", ""], [True, False])
    row = rows[0]
    assert row["properties"] == {"subject": "greeting"}
    assert row["application_properties"] == {"colour": "red", "size": 3}


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        ({"body": 5}, "body is of type int: give a text"),
        ({"body": "x" * (BODY_BYTES_MOST + 1)}, "give at most 65536, or use qpid-ha send"),
        ({"body": "\ud800"}, "UTF-8"),
        ({"subject": 5}, "give a text"),
        ({"properties": [1]}, "give a map"),
        ({"properties": {"a": [1]}}, "a"),
        ({"transient": "yes"}, "transient"),
        ({"name": "none"}, "none"),
    ],
)
def test_a_message_that_makes_no_sense_is_not_put_anywhere(
    broker: PairedBroker, given: dict[str, object], problem: str
) -> None:
    queue = broker.container.default.configuration.declare_queue("q", {})
    with pytest.raises((InvalidArgument, NotFound), match=problem):
        messages_of(broker).publish(**{"name": "q", **given})
    assert queue.messages.count == 0


def test_a_queue_that_is_full_takes_no_message_of_an_operator_either(broker: PairedBroker) -> None:
    broker.container.default.configuration.declare_queue("q", {"qpid.max_count": 1, "qpid.policy_type": "reject"})
    messages_of(broker).publish("q", "x")
    with pytest.raises(QueueFull):
        messages_of(broker).publish("q", "y")


def test_a_replica_shows_what_it_holds_and_has_nothing_moved() -> None:
    broker = SeveralSets()
    broker.directory.primaries["red"] = BETA
    red = broker.set("red")
    red.resources.publish(red.resources.catalog.queues["red"], Message(proton.Message("x").encode()), START_MS)
    red.read_only, red.resources.replication.read_only = True, "a backup"
    peek = messages_of(broker).peek("red")
    rows = rows_of(peek)
    answer = peek.answer(rows)
    assert (contents(rows), answer["set"], answer["replica"]) == (["x"], "red", True)
    with pytest.raises(ServedElsewhere, match="beta"):
        messages_of(broker).move("red", "red")
    with pytest.raises(ServedElsewhere, match="beta"):
        messages_of(broker).redirect("red", "amq.fanout")


def test_nothing_moves_from_one_set_to_another() -> None:
    broker = SeveralSets()
    with pytest.raises(OtherSet, match="export the queue and import it there"):
        messages_of(broker).move("red", "blue")
    with pytest.raises(NotFound):
        messages_of(broker).move("red", "nowhere")


def fan(broker: SeveralSets, *queues: str) -> None:
    """An exchange that leads to these queues of whichever sets."""
    default = broker.container.default
    for name in ("red", "blue"):
        default.resources.replicated.write(ev.SetPlaced(name, ("alpha",), (), "", 0, 0))
    for name, set_name in broker.directory.queues.items():
        default.resources.replicated.write(ev.QueuePlaced(name, set_name, {}, False))
    default.configuration.declare_exchange("fan", "fanout", {})
    for name in queues:
        default.configuration.bind("fan", name, "", {})
    broker.settle_down()


def count_in(broker: SeveralSets, set_name: str, name: str) -> int:
    return broker.set(set_name).resources.catalog.queues[name].messages.count


def redirected(broker: SeveralSets, name: str) -> Facts:
    pending = messages_of(broker).redirect(name, "fan")
    broker.settle_down()
    done = pending.done()
    assert done is not None
    return done.result


def put(broker: SeveralSets, set_name: str, name: str, *texts: str) -> None:
    resources = broker.set(set_name).resources
    for text in texts:
        resources.publish(resources.catalog.queues[name], Message(proton.Message(text).encode()), START_MS)


def test_an_exchange_redirects_messages_within_a_set_wherever_the_exchange_is() -> None:
    """Exchanges are in `default`: where another broker leads that, the replica here says where they lead."""
    broker = SeveralSets()
    for name in ("red.1", "red.2"):
        broker.declare("red", name)
    fan(broker, "red.1", "red.2")
    put(broker, "red", "red", "x", "y")
    broker.lead_elsewhere("default", None)
    assert redirected(broker, "red") == {
        "name": "red", "exchange": "fan", "moved": 2, "to": {"red.1": 2, "red.2": 2},
        "held": 0, "passed": 0, "unrouted": 0, "full": 0, "no_room": None,
    }  # fmt: skip
    assert [count_in(broker, "red", name) for name in ("red", "red.1", "red.2")] == [0, 2, 2]


@pytest.mark.parametrize(("source", "set_name"), [("red", "red"), ("plain", "default")])
def test_an_exchange_that_leads_to_another_set_redirects_nothing(source: str, set_name: str) -> None:
    broker = SeveralSets()
    fan(broker, "red", "plain")
    put(broker, set_name, source, "x")
    with pytest.raises(OtherSet, match=f"{source} is in the resource set {set_name}.*export the queue"):
        messages_of(broker).redirect(source, "fan")
    assert count_in(broker, set_name, source) == 1


def test_an_exchange_whose_bindings_may_not_all_have_come_redirects_nothing() -> None:
    broker = SeveralSets()
    fan(broker, "red")
    broker.container.default.resources.replicated.is_level = False
    with pytest.raises(Unavailable, match="bindings of exchange fan"):
        messages_of(broker).redirect("red", "fan")


def test_a_queue_that_is_on_its_way_out_is_left_out_and_one_that_is_on_its_way_is_waited_for() -> None:
    broker = SeveralSets()
    broker.declare("red", "red.1")
    broker.directory.queues["red.2"] = "red"
    fan(broker, "red.1", "red.2")
    put(broker, "red", "red", "x")
    with pytest.raises(NotFound, match=r"red\.2 is not there yet"):
        messages_of(broker).redirect("red", "fan")
    broker.container.default.resources.replicated.write(ev.QueuePlaced("red.2", "red", {}, True))
    assert redirected(broker, "red")["to"] == {"red.1": 1}


# --- as the control socket has it


def asked(administration: Administration, turn: Callable[[], None], **params: object) -> Any:
    async def story() -> object:
        waiters = CommitWaiters(lambda: None)
        unused: Any = None
        methods = control_methods("test", administration, unused, waiters.wait_done)
        queues: Any = methods["queues"]
        answer = asyncio.ensure_future(queues(dict(params)))
        while not answer.done():
            turn()
            waiters.turn_ended()
            await asyncio.sleep(0)
        found: object = answer.result()
        return found

    return asyncio.run(story())


def test_over_the_control_socket_a_look_tells_where_to_go_on_and_a_move_how_many(
    broker: PairedBroker, client: PairedClient
) -> None:
    client.publish("q", *map(str, range(120)))
    ask = partial(asked, broker.container.management.administration, broker.turn)
    broker.container.management.administration.create_queue("other")
    answer = ask(action="peek", name="q", count=2)
    assert (answer["name"], answer["set"], answer["replica"], answer["whole"]) == ("q", "default", False, False)
    assert answer["last"] == list(answer["messages"])[-1]["id"]
    assert ask(action="move", name="q", to="other", count=110) == {
        "name": "q", "to": "other", "moved": 110, "held": 0, "passed": 0,
    }  # fmt: skip
    assert ask(action="copy", name="q", to="other", count=3)["copied"] == 3
    assert ask(action="retry", name="q")["passed"] == 10
    assert ask(action="redirect", name="q", exchange="amq.direct", key="none", count=4)["unrouted"] == 10
    with pytest.raises(ControlError, match="exchange is missing"):
        ask(action="redirect", name="q")
    with pytest.raises(ControlError, match="key is of type int"):
        ask(action="redirect", name="q", exchange="amq.direct", key=7)
    with pytest.raises(ControlError, match="no exchange"):
        ask(action="redirect", name="q", exchange="other")
    with pytest.raises(ControlError, match="selector"):
        ask(action="copy", name="q", to="other", selector="a = = b")
    for wrong in ({"to": None}, {"to": "q"}, {"to": "other", "count": 0}, {"to": "other", "count": 1, "id": 1}):
        with pytest.raises(ControlError):
            ask(action="move", name="q", **wrong)
    with pytest.raises(ControlError) as refused:
        ask(action="move", name="q", to="nowhere")
    assert (refused.value.code, refused.value.data) == (REFUSED, {"reason": "not-found"})


def test_what_cannot_be_read_is_not_redirected_unless_a_key_says_where_it_goes(
    broker: PairedBroker, client: PairedClient
) -> None:
    client.publish("q", proton.Message("x", subject="s"))
    broker.container.default.resources.publish(broker.queue("q"), Message(b"\x00\x53\x73\xff"), START_MS)
    administration = broker.container.management.administration
    ask = partial(asked, administration, broker.turn)
    administration.create_queue("other")
    administration.bind("amq.topic", "other", "#")
    answer = ask(action="redirect", name="q", exchange="amq.topic")
    assert (answer["moved"], answer["unrouted"], answer["to"]) == (1, 1, {"other": 1})
    assert ask(action="redirect", name="q", exchange="amq.topic", key="s")["moved"] == 1


def test_what_is_on_disk_alone_is_read_and_stays_there() -> None:
    core = PagedCore()
    queue = core.queue("q")
    core.publish(queue, *(message(text * 100, durable=True) for text in "abc"))
    core.commit()
    core.published_and_paged_out()
    where = [type(entry.body) for entry in queue.messages]
    assert BodyRef in where

    def turn() -> None:
        core.resources.work.run()
        core.commit()

    ask = partial(asked, Administration(core.resources, core.configuration), turn)
    found = [b64decode(row["payload"]) for row in ask(action="payload", name="q")["messages"]]
    assert found == [message(text * 100).payload for text in "abc"]
    assert [type(entry.body) for entry in queue.messages] == where
    core.queue("other")
    assert ask(action="move", name="q", to="other")["moved"] == 3
    core.check()
