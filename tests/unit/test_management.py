"""Stories about `$management`: requests as a client's library writes them, replies as it reads them."""

from __future__ import annotations

import struct
import uuid
from typing import Any

import proton
import pytest
from hypothesis import given
from hypothesis import strategies as st

from access_support import LOCAL, open_to_all
from qpid_ha_broker.amqp.nodes.management import MAX_WEIGHT, NODE_TYPE, Management, Reply
from qpid_ha_broker.events.codec import decode
from qpid_ha_broker.model.commands.administration import Administration
from qpid_ha_broker.model.commands.configuration import Configuration
from qpid_ha_broker.model.message_reader import NoReader
from qpid_ha_broker.model.sets.level_change import MOVED_MOST
from qpid_ha_broker.model.sets.resources import Resources
from qpid_ha_broker.model.transactions.transaction import Message

QUEUE, EXCHANGE, BINDING = "org.qpid_ha.queue", "org.qpid_ha.exchange", "org.qpid_ha.binding"
TO_TAKEN = {"queue": "taken"}


class PlainReader(NoReader):
    """Payloads here have no sections."""


class Answer:
    """A reply as a client sees it."""

    def __init__(self, reply: Reply) -> None:
        message: Any = proton.Message()
        message.decode(reply.payload)
        self.written = reply.written
        self.reply_to = reply.reply_to
        self.address = message.address
        found = message.correlation_id
        self.correlation_id = bytes(found) if isinstance(found, memoryview) else found
        self.properties: dict[str, Any] = message.properties
        self.status = self.properties["statusCode"]
        self.text: str = self.properties["statusDescription"]
        self.body: Any = message.body


class Node:
    """`$management` of a resource set."""

    def __init__(self) -> None:
        self.resources = Resources(PlainReader())
        self.configuration = Configuration(self.resources)
        self.resources.replicated.declare_standard_exchanges()
        self.management = Management(Administration(self.resources, self.configuration), "node1", open_to_all())

    def send(self, message: Any) -> Answer:
        reply = self.management.handle(bytes(message.encode()), LOCAL)
        assert isinstance(reply, Reply)
        return Answer(reply)

    def ask(self, operation: str, body: object = None, **properties: object) -> Answer:
        message: Any = proton.Message(reply_to="replies", id="request-1")
        message.body = body
        message.properties = {"operation": operation, **properties}
        return self.send(message)

    def create(self, name: str, **arguments: object) -> Answer:
        body = {"arguments": {f"qpid.{key}": value for key, value in arguments.items()}}
        return self.ask("CREATE", body, type=QUEUE, name=name)

    def publish(self, queue: str) -> None:
        self.resources.publish(self.configuration.queue(queue), Message(b"news"), now_ms=0)


@pytest.fixture
def node() -> Node:
    return Node()


def test_a_queue_lives_from_create_to_delete(node: Node) -> None:
    created = node.ask("CREATE", {"arguments": {"qpid.max_count": proton.uint(5)}}, type=QUEUE, name="orders")
    assert (created.status, type(created.status)) == (201, proton.int32)
    assert created.body == {
        "name": "orders",
        "identity": "orders",
        "type": QUEUE,
        "set": "default",
        "messages": 0,
        "bytes": 0,
        "acquired": 0,
        "consumers": 0,
        "enqueued": 0,
        "dequeued": 0,
        "scheduled": 0,
        "next_due_ms": None,
        "id": 6,
        "newest_message": 0,
        "log_position": 6,
        "arguments": {"qpid.max_count": 5},
    }
    assert node.configuration.queue("orders").arguments.max_count == 5
    assert node.ask("READ", type="queue", name="orders").body == created.body
    assert node.ask("READ", type=QUEUE, identity="orders").body == created.body
    updated = node.ask("UPDATE", {"arguments": {"qpid.max_count": None}}, type=QUEUE, name="orders")
    assert (updated.status, updated.body["arguments"]) == (200, {})
    node.publish("orders")
    assert node.ask("DELETE", type=QUEUE, name="orders", if_empty=True).status == 412
    purged = node.ask("PURGE", type=QUEUE, name="orders")
    assert (purged.status, purged.body) == (200, {"purged": 1})
    deleted = node.ask("DELETE", type=QUEUE, name="orders", if_empty=True)
    assert (deleted.status, deleted.body) == (204, {})
    assert node.ask("READ", type=QUEUE, name="orders").status == 404


def test_a_browser_measures_what_lies_behind_a_position_and_accepts_what_it_has_dealt_with(node: Node) -> None:
    node.create("orders")
    for _ in range(3):
        node.publish("orders")
    facts = node.ask("READ", type=QUEUE, name="orders").body
    ids = [entry.id for entry in node.resources.catalog.queues["orders"].messages]
    size = facts["bytes"] // 3

    def measure(**limits: int) -> Any:
        return node.ask("MEASURE", type=QUEUE, name="orders", **{"after": 0, **limits}).body

    assert measure() == {"messages": 3, "bytes": 3 * size, "last": ids[2], "whole": True}
    assert measure(after=ids[0], messages=1) == {"messages": 1, "bytes": size, "last": ids[1], "whole": False}
    assert measure(bytes=2 * size) == {"messages": 2, "bytes": 2 * size, "last": ids[1], "whole": False}
    assert measure(bytes=0) == {"messages": 1, "bytes": size, "last": ids[0], "whole": False}
    assert measure(after=ids[2]) == {"messages": 0, "bytes": 0, "last": ids[2], "whole": True}
    assert node.ask("MEASURE", type=QUEUE, name="orders").status == 400

    other = node.ask("ACCEPT", type=QUEUE, name="orders", id=facts["id"] + 1, up_to=ids[1])
    assert (other.status, node.resources.catalog.queues["orders"].messages.count) == (404, 3)
    accepted = node.ask("ACCEPT", type=QUEUE, name="orders", id=facts["id"], up_to=ids[1])
    assert (accepted.status, accepted.body) == (200, {"accepted": 2})
    assert node.ask("ACCEPT", type=QUEUE, name="orders", id=facts["id"]).status == 400
    assert [entry.id for entry in node.resources.catalog.queues["orders"].messages] == [ids[2]]


def declared_and_published(node: Node) -> tuple[int, int]:
    """LSNs: the queue `orders` was declared at 1000 ms, and a message published to it at 2000 ms."""
    node.create("orders")
    log = node.resources.replicated.log
    log.note_time(1_000)
    declared = log.last_lsn
    node.publish("orders")
    log.note_time(2_000)
    return declared, log.last_lsn


def test_a_time_leads_to_the_place_in_a_queue_behind_what_came_before_it(node: Node) -> None:
    declared, last = declared_and_published(node)

    def locate(timestamp: int) -> Any:
        return node.ask("LOCATE", type=QUEUE, name="orders", timestamp=timestamp).body

    assert [locate(each)["position"] for each in (1_000, 1_001, 2_000, 2_001)] == [0, declared, declared, last]
    assert locate(0)["id"] == node.ask("READ", type=QUEUE, name="orders").body["id"]
    assert node.ask("LOCATE", type=QUEUE, name="orders").status == 400


def test_messages_of_a_queue_have_times(node: Node) -> None:
    declared, last = declared_and_published(node)

    def times(after: int, up_to: int) -> Any:
        found = node.ask("TIMES", type=QUEUE, name="orders", after=after, up_to=up_to).body
        return found["positions"], found["times"]

    assert times(declared, last) == ([last], [2_000])
    assert times(0, last + 100) == ([declared, last], [1_000, 2_000])
    assert times(0, declared) == ([declared], [1_000])
    assert times(last, last + 1) == ([], [])
    assert node.ask("TIMES", type=QUEUE, name="orders", after=0).status == 400


def test_what_is_not_committed_is_not_measured(node: Node) -> None:
    node.create("orders")
    node.resources.replicated.log.add_witness("backup")
    node.publish("orders")
    assert node.ask("MEASURE", type=QUEUE, name="orders", after=0).body["messages"] == 0


def test_the_replication_of_a_long_queue_is_not_for_clients_to_change(node: Node) -> None:
    node.create("long")
    for _ in range(MOVED_MOST):
        node.publish("long")
    change = {"arguments": {"qpid.replicate": "none"}}
    assert node.ask("UPDATE", change, type=QUEUE, name="long").status == 200
    node.publish("long")
    refused = node.ask("UPDATE", {"arguments": {"qpid.replicate": None}}, type=QUEUE, name="long")
    assert (refused.status, "drain it" in refused.text) == (412, True)


def test_arguments_come_back_as_they_were_given(node: Node) -> None:
    given = {"least": -(2**63), "most": proton.ulong(2**64 - 1), "half": 0.5, "flag": True, "text": "ä", "none": None}
    created = node.ask("CREATE", {"arguments": given}, type=QUEUE, name="orders")
    assert created.body["arguments"] == given
    assert type(node.configuration.queue("orders").arguments.given["most"]) is int


def test_an_exchange_and_its_bindings(node: Node) -> None:
    node.create("orders/eu")
    created = node.ask("CREATE", {"name": "post", "kind": "topic"}, type=EXCHANGE)
    assert (created.status, created.body["kind"], created.body["bindings"]) == (201, "topic", 0)
    bound = node.ask("CREATE", {"exchange": "post", "queue": "orders/eu", "key": "100%.#"}, type=BINDING)
    assert (bound.status, bound.body["name"]) == (201, "post/orders%2Feu/100%25.#")
    assert bound.body["key"] == "100%.#"
    assert node.ask("READ", type=EXCHANGE, name="post").body["bindings"] == 1
    assert node.ask("READ", type=BINDING, name=bound.body["name"]).body == bound.body
    assert node.ask("READ", type=BINDING, name="post/orders%2Feu/other").status == 404
    assert node.ask("DELETE", type=EXCHANGE, name="post", if_unused=True).status == 412
    assert node.ask("DELETE", type=BINDING, name=bound.body["name"]).status == 204
    assert node.ask("DELETE", type=EXCHANGE, name="post", if_unused=True).status == 204


@pytest.mark.parametrize("identity", ["text", uuid.UUID(int=7), proton.ulong(2**64 - 1), b"\x00bytes"])
def test_a_reply_finds_its_request(node: Node, identity: Any) -> None:
    message: Any = proton.Message(reply_to="replies", id=identity)
    by_id = node.send(message)
    assert (by_id.reply_to, by_id.address) == ("replies", "replies")
    message.correlation_id = "mine"
    correlated = node.send(message)
    assert correlated.correlation_id == "mine"
    assert by_id.correlation_id == identity


def test_a_query_gives_the_columns_and_rows_that_it_asks_for(node: Node) -> None:
    node.create("a", max_count=3)
    node.create("b")
    answer = node.ask("QUERY", {"attributeNames": ["messages", "name"]}, entityType=QUEUE)
    assert answer.body == {"attributeNames": ["messages", "name"], "results": [[0, "a"], [0, "b"]]}
    assert [answer.properties[key] for key in ("count", "offset", "total")] == [2, 0, 2]
    make_array: Any = proton.Array
    symbols = make_array(proton.UNDESCRIBED, proton.Data.SYMBOL, proton.symbol("name"))
    assert node.ask("QUERY", {"attributeNames": symbols}, entityType="queue").body["results"] == [["a"], ["b"]]
    assert node.ask("QUERY", {"attributeNames": []}, entityType=QUEUE).body["attributeNames"][0] == "name"


def test_a_query_of_everything_leaves_empty_what_an_object_does_not_have(node: Node) -> None:
    node.create("a")
    node.ask("CREATE", {"exchange": "amq.topic", "queue": "a", "key": "k"}, type=BINDING)
    answer = node.ask("QUERY", {"attributeNames": ["type", "name", "kind"]}, name="self", type=NODE_TYPE)
    assert answer.body["results"] == [
        [NODE_TYPE, "self", None],
        [QUEUE, "a", None],
        [EXCHANGE, "amq.direct", "direct"],
        [EXCHANGE, "amq.topic", "topic"],
        [EXCHANGE, "amq.fanout", "fanout"],
        [EXCHANGE, "amq.match", "headers"],
        [EXCHANGE, "amq.qpid", "direct"],
        [BINDING, "amq.topic/a/k", None],
    ]


def test_a_query_goes_through_pages(node: Node) -> None:
    for name in "abcde":
        node.create(name)
    names = {"attributeNames": ["name"]}
    assert node.ask("QUERY", names, entityType=QUEUE, offset=1, count=2).body["results"] == [["b"], ["c"]]
    assert node.ask("QUERY", names, entityType=QUEUE, offset=4, count=2).body["results"] == [["e"]]
    assert node.ask("QUERY", names, entityType=QUEUE, offset=9).body["results"] == []
    assert node.ask("QUERY", names, entityType=QUEUE, count=0).body["results"] == []
    assert node.ask("QUERY", names, entityType=QUEUE, offset=-1).status == 400
    assert node.ask("QUERY", names, entityType=QUEUE, count="2").status == 400


def test_a_query_that_would_fill_more_than_one_message_can_be_continued(node: Node) -> None:
    for number in range(MAX_WEIGHT // 10):
        node.configuration.declare_queue(f"q{number}", {"note": "x" * 40})
    seen = 0
    while True:
        answer = node.ask("QUERY", entityType=QUEUE, offset=seen)
        assert answer.status == 200
        assert answer.properties["count"] == len(answer.body["results"]) > 0
        seen += len(answer.body["results"])
        if seen == answer.properties["total"]:
            break
    assert seen == MAX_WEIGHT // 10


def test_long_texts_count_for_a_page_too(node: Node) -> None:
    for number in range(200):
        node.configuration.declare_queue(f"q{number}", {"note": "x" * 60_000})
    reply = node.management.handle(
        bytes(proton.Message(properties={"operation": "QUERY"}, reply_to="r").encode()), LOCAL
    )
    assert isinstance(reply, Reply)
    assert len(reply.payload) < 4_000_000
    assert 0 < Answer(reply).properties["count"] < 200


def test_the_node_tells_what_it_manages(node: Node) -> None:
    assert node.ask("GET-TYPES").body == {NODE_TYPE: [], QUEUE: [], EXCHANGE: [], BINDING: []}
    assert node.ask("GET-TYPES", entityType="queue").body == {QUEUE: []}
    assert node.ask("GET-ATTRIBUTES", entityType=BINDING).body == {
        BINDING: ["name", "identity", "type", "exchange", "queue", "key", "arguments"]
    }
    operations = node.ask("GET-OPERATIONS").body
    assert sorted(operations[QUEUE]) == [
        "ACCEPT",
        "CREATE",
        "DELETE",
        "LOCATE",
        "MEASURE",
        "PURGE",
        "READ",
        "TIMES",
        "UPDATE",
    ]
    assert operations[QUEUE]["DELETE"] == ["if_empty", "if_unused"]
    assert operations[NODE_TYPE]["QUERY"] == ["entityType", "offset", "count"]
    assert node.ask("GET-MGMT-NODES").body == []
    assert node.ask("READ", type=NODE_TYPE, name="self").body["broker"] == "node1"


def test_what_the_node_tells_is_what_reading_gives(node: Node) -> None:
    node.create("a")
    node.ask("CREATE", {"exchange": "amq.topic", "queue": "a", "key": "k"}, type=BINDING)
    for entity_type, name in ((QUEUE, "a"), (EXCHANGE, "amq.topic"), (BINDING, "amq.topic/a/k"), (NODE_TYPE, "self")):
        told = node.ask("GET-ATTRIBUTES", entityType=entity_type).body[entity_type]
        assert sorted(node.ask("READ", type=entity_type, name=name).body) == sorted(told)


@pytest.mark.parametrize(
    ("status", "hint", "operation", "body", "properties"),
    [
        (501, "PURGE", "EXPLODE", None, {"type": QUEUE, "name": "a"}),
        (501, "READ", "UPDATE", {}, {"type": EXCHANGE, "name": "amq.topic"}),
        (501, "QUERY", "DELETE", None, {"type": NODE_TYPE, "name": "self"}),
        (400, QUEUE, "READ", None, {"name": "a"}),
        (400, QUEUE, "READ", None, {"name": "a", "type": "org.qpid_ha.queues"}),
        (400, QUEUE, "QUERY", None, {"entityType": 7}),
        (400, "identity", "READ", None, {"type": QUEUE}),
        (400, "identity", "READ", None, {"type": QUEUE, "name": 7}),
        (400, "differ", "READ", None, {"type": QUEUE, "name": "a", "identity": "b"}),
        (400, "arguments", "CREATE", {"qpid.max_count": 5}, {"type": QUEUE, "name": "a"}),
        (400, "map", "CREATE", [1], {"type": QUEUE, "name": "a"}),
        (400, "name", "CREATE", {}, {"type": QUEUE}),
        (400, "differs", "CREATE", {"name": "b"}, {"type": QUEUE, "name": "a"}),
        (400, "arguments", "CREATE", {"arguments": {"x": b"binary"}}, {"type": QUEUE, "name": "a"}),
        (400, "arguments", "CREATE", {"arguments": {"x": proton.decimal32(1)}}, {"type": QUEUE, "name": "a"}),
        (400, "qpid.max_count", "CREATE", {"arguments": {"qpid.max_cuont": 5}}, {"type": QUEUE, "name": "a"}),
        (400, "kind", "CREATE", {}, {"type": EXCHANGE, "name": "post"}),
        (400, "topic", "CREATE", {"kind": "topical"}, {"type": EXCHANGE, "name": "post"}),
        (400, "exchange/queue/key", "READ", None, {"type": BINDING, "name": "post"}),
        (
            400,
            "amq.topic/taken/",
            "CREATE",
            {"exchange": "amq.topic", "queue": "taken"},
            {"type": BINDING, "name": "b"},
        ),
        (404, "post", "CREATE", {**TO_TAKEN, "exchange": "post"}, {"type": BINDING}),
        (404, "news", "DELETE", None, {"type": QUEUE, "name": "news"}),
        (409, "taken", "CREATE", {"arguments": {"qpid.max_count": 5}}, {"type": QUEUE, "name": "taken"}),
        (409, "taken", "CREATE", {"kind": "topic"}, {"type": EXCHANGE, "name": "taken"}),
        (412, "standard", "DELETE", None, {"type": EXCHANGE, "name": "amq.topic"}),
        (400, "true or false", "DELETE", None, {"type": QUEUE, "name": "taken", "if_empty": "yes"}),
        (400, "messages", "QUERY", {"attributeNames": ["mesages"]}, {"entityType": QUEUE}),
        (400, "attributeNames", "QUERY", {"attributeNames": "name"}, {}),
        (400, "attributeNames", "QUERY", {"attributeNames": ["name"] * 101}, {}),
        (400, "attributeNames", "QUERY", "name", {}),
    ],
)
def test_a_refusal_has_a_status_and_says_what_to_do(
    node: Node, status: int, hint: str, operation: str, body: object, properties: dict[str, object]
) -> None:
    node.create("taken")
    before = node.resources.replicated.log.last_lsn
    answer = node.ask(operation, body, **properties)
    assert answer.status == status
    assert hint in answer.text
    assert node.resources.replicated.log.last_lsn == before


def test_a_request_without_an_operation_is_answered(node: Node) -> None:
    answer = node.send(proton.Message(reply_to="replies"))
    assert (answer.status, "operation" in answer.text) == (400, True)


def test_a_request_to_which_nobody_wants_a_reply_is_carried_out(node: Node) -> None:
    message: Any = proton.Message(properties={"operation": "CREATE", "type": QUEUE, "name": "orders"})
    assert node.send(message).reply_to is None
    assert "orders" in node.resources.catalog.queues


def test_a_description_stays_short_whatever_it_quotes(node: Node) -> None:
    node.configuration.declare_queue("orders", {"note": "x" * 60_000})
    assert len(node.create("orders").text) <= 1000
    assert len(node.ask("x" * 100_000).text) <= 1000


# --- bytes that are no request

PROPERTIES = b"\x00SpE\x00Ss\xc0\x0b\x06@@@@\xa1\x01r\xa1\x01c"
"""A header, and properties with reply-to `r` and correlation-id `c`."""


def nested(depth: int) -> bytes:
    body = b"\x45"
    for _ in range(depth):
        body = b"\xd0" + struct.pack(">II", len(body) + 4, 1) + body
    return body


@pytest.mark.parametrize(
    "rest",
    [
        b"\x00Sw" + nested(20),
        b"\x00Sw" + nested(3000),
        b"\x00Sw\xa1\x02\xff\xff",
        b"\x00St\xa1\x02\xff\xff",
        b"\x00St\xa1\x02hi",
        b"\x00Sw\xc1\x03\x02\x45\x45",
        b"\x00Sw\x00S\x01\x45",
    ],
    ids=["nested", "nested deep", "not UTF-8", "bad properties", "no map", "list as key", "described"],
)
def test_what_cannot_be_read_is_answered_as_long_as_it_says_to_whom(node: Node, rest: bytes) -> None:
    reply = node.management.handle(PROPERTIES + rest, LOCAL)
    assert isinstance(reply, Reply)
    answer = Answer(reply)
    assert (answer.status, answer.reply_to, answer.correlation_id) == (400, "r", "c")
    assert "operation" not in answer.text


def test_an_array_that_claims_four_thousand_million_elements_costs_little(node: Node) -> None:
    reply = node.management.handle(PROPERTIES + b"\x00Sw\xf0" + struct.pack(">II", 5, 2**32 - 1) + b"\x45", LOCAL)
    assert isinstance(reply, Reply)
    assert Answer(reply).status == 400


def test_a_reply_to_that_is_no_text_gets_none(node: Node) -> None:
    assert node.management.handle(b"\x00Ss\xc0\x08\x05@@@@\xa1\x01\xff", LOCAL) is None


@given(st.binary() | st.binary().map(lambda data: PROPERTIES + b"\x00Sw" + data))
def test_any_bytes_get_a_reply_or_none(data: bytes) -> None:
    reply = Node().management.handle(data, LOCAL)
    assert reply is None or Answer(reply.ready() or pytest.fail("not done")).status >= 200


scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.integers(0, 2**64 - 1).map(proton.ulong)
    | st.floats()
    | st.text(max_size=10)
    | st.text("abc", max_size=5).map(proton.symbol)
    | st.binary(max_size=5)
    | st.uuids()
    | st.integers(0, 2**31).map(proton.timestamp)
    | st.sampled_from(["a", "amq.topic", "amq.topic/a/k", QUEUE, "topic", proton.char("x")])
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(["arguments", "qpid.max_count"]) | st.text(max_size=3), inner, max_size=3)
        | inner.map(lambda value: proton.Described(proton.symbol("d"), value))
    ),
    max_leaves=6,
)
operations = st.sampled_from(
    ["CREATE", "READ", "UPDATE", "DELETE", "PURGE", "ACCEPT", "MEASURE", "LOCATE", "TIMES", "QUERY"]
)
types = st.sampled_from([QUEUE, EXCHANGE, BINDING, NODE_TYPE])
attributes = st.sampled_from(["name", "arguments", "kind", "exchange", "queue", "key", "attributeNames"])
requests = st.tuples(
    st.fixed_dictionaries(
        {"operation": operations | scalars, "type": types | scalars, "name": st.sampled_from(["a", "b"]) | scalars},
        optional=dict.fromkeys(
            ("identity", "entityType", "offset", "count", "if_empty", "after", "id", "up_to", "timestamp"), scalars
        ),
    ),
    st.dictionaries(attributes, values) | values,
)


@given(st.lists(requests, min_size=1, max_size=4))
def test_any_request_gets_a_reply_and_what_it_did_can_be_written(asked: list[tuple[dict[str, object], object]]) -> None:
    node = Node()
    node.resources.replicated.log.add_witness("backup")
    for properties, body in asked:
        message: Any = proton.Message(reply_to="replies", id="1")
        message.properties, message.body = properties, body
        answer = node.send(message)
        assert (answer.reply_to, answer.correlation_id) == ("replies", "1")
        assert answer.status in (200, 201, 204, 400, 404, 409, 412, 501)
    batch = node.resources.replicated.log.take_batch()
    if batch is not None:
        decoded = decode(batch.data)
        assert decoded.problem is None
        assert len(decoded.records) == batch.last_lsn - batch.first_lsn + 1
