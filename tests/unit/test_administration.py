"""Stories about administering a broker: what is refused, what is told, and when it may be told."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from event_loops import in_event_loop
from qpid_ha_broker.events.codec import decode
from qpid_ha_broker.model.commands.administration import Administration, Done, Outcome, Result
from qpid_ha_broker.model.commands.configuration import Configuration
from qpid_ha_broker.model.errors import AlreadyExists, InUse, InvalidArgument, ModelError, NotFound
from qpid_ha_broker.model.logs.log import CommitToken
from qpid_ha_broker.model.message_reader import NoReader
from qpid_ha_broker.model.queues.dispatcher import Consumer
from qpid_ha_broker.model.sets.resources import Resources
from qpid_ha_broker.model.transactions.transaction import Message
from qpid_ha_broker.server.control.administration import control_methods
from qpid_ha_broker.server.control.control import INVALID_PARAMS, REFUSED, ControlError, encode_answer
from qpid_ha_broker.server.control.setting_layers import SettingLayers
from qpid_ha_broker.server.runtime import slices
from qpid_ha_config.settings import BrokerSettings


class PlainReader(NoReader):
    """Payloads here have no sections: the payload is the subject."""

    def routing_key(self, payload: bytes) -> str:
        return payload.decode()

    def properties(self, payload: bytes) -> Mapping[str, object]:
        return {}


class Holder:
    """The settings that are in force."""

    def __init__(self) -> None:
        self.layers = SettingLayers(BrokerSettings(name="node1", control_socket=Path("/run/node1.sock")))

    def current(self) -> BrokerSettings:
        return self.layers.current

    def replace(self, settings: BrokerSettings) -> list[str]:
        self.layers.change(settings)
        return []


class Desk:
    """A resource set with everything that administers it."""

    def __init__(self) -> None:
        self.resources = Resources(PlainReader())
        self.configuration = Configuration(self.resources)
        self.resources.replicated.declare_standard_exchanges()
        self.administration = Administration(self.resources, self.configuration)
        self.settings = Holder()
        self.waited_for: list[CommitToken] = []
        self.methods = control_methods("node1", self.administration, self.settings, self.wait_done)

    async def wait_done(self, outcome: Outcome[Result]) -> Result:
        self.resources.work.run()
        done = outcome.done()
        assert done is not None
        self.waited_for.append(done.written)
        return done.result

    def publish(self, queue: str, payload: bytes = b"news") -> None:
        self.resources.publish(self.configuration.queue(queue), Message(payload), now_ms=0)

    def ask(self, method: str, /, **params: object) -> object:
        """One call, as the control socket makes it; the answer as JSON carries it."""

        async def answered() -> object:
            answer = self.methods[method](dict(params))
            line = await encode_answer(1, await answer if asyncio.iscoroutine(answer) else answer)
            return json.loads(line)["result"]

        return asyncio.run(answered())

    def refusal(self, method: str, /, **params: object) -> ControlError:
        with pytest.raises(ControlError) as caught:
            self.ask(method, **params)
        return caught.value


STANDARD = ("direct", "topic", "fanout", "match", "qpid")


@pytest.fixture
def desk() -> Desk:
    return Desk()


# --- answers that are long


@pytest.mark.parametrize(
    ("answer", "plain"),
    [
        (iter(()), []),
        (iter([1, "a", None]), [1, "a", None]),
        ({"a": 1, "b": iter([{"c": iter([2])}, {}])}, {"a": 1, "b": [{"c": [2]}, {}]}),
        (map(str, range(3)), ["0", "1", "2"]),
        ({"a": [1]}, {"a": [1]}),
    ],
)
def test_an_iterator_in_an_answer_is_a_list(answer: object, plain: object) -> None:
    assert (
        asyncio.run(encode_answer(7, answer))
        == json.dumps({"jsonrpc": "2.0", "id": 7, "result": plain}).encode() + b"\n"
    )


def test_others_have_their_turns_while_a_long_answer_is_put_together_and_what_has_gone_by_then_is_left_out(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slices, "SLICE_S", 0.0)
    for number in range(5):
        desk.administration.create_queue(f"q{number}")
        desk.administration.bind("amq.topic", f"q{number}", "k")

    async def told() -> tuple[object, object]:
        answers = desk.administration.queues(), desk.administration.exchange("amq.topic")
        encoding = [asyncio.create_task(encode_answer(1, answer)) for answer in answers]
        for _ in range(4):
            await asyncio.sleep(0)
        assert not any(task.done() for task in encoding)
        desk.administration.delete_queue("q4")
        desk.administration.create_queue("late")
        queues, exchange = [json.loads(line)["result"] for line in await asyncio.gather(*encoding)]
        return [queue["name"] for queue in queues], [binding["queue"] for binding in exchange["bindings"]]

    expected = [f"q{number}" for number in range(4)]
    assert asyncio.run(told()) == (expected, expected)


# --- the model's side


def test_a_queue_is_described_with_what_it_holds_and_who_uses_it(desk: Desk) -> None:
    desk.administration.create_queue("orders", {"qpid.max_count": 10, "colour": "red"})
    for _ in range(3):
        desk.publish("orders", b"12345")
    queue = desk.configuration.queue("orders")
    consumer = Consumer()
    desk.resources.subscribe(queue, consumer, owner=None)
    consumer.credit, consumer.window_bytes = 2, 1000
    desk.resources.catalog.wake(queue)
    (handout,) = desk.resources.hand_out(now_ms=0, limit=10)
    desk.resources.accept(queue, handout.entries[:1])
    assert desk.administration.queue("orders") == {
        "name": "orders",
        "messages": 2,
        "bytes": 10,
        "acquired": 1,
        "scheduled": 0,
        "next_due_ms": None,
        "consumers": 1,
        "enqueued": 3,
        "dequeued": 1,
        "id": 6,
        "newest_message": 9,
        "set": "default",
        "log_position": 10,
        "arguments": {"qpid.max_count": 10, "colour": "red"},
    }
    assert list(desk.administration.queues()) == [desk.administration.queue("orders")]


def test_an_exchange_is_described_with_its_bindings(desk: Desk) -> None:
    desk.administration.create_queue("orders")
    desk.administration.create_exchange("post", "headers", {"qpid.replicate": "none"})
    desk.administration.bind("post", "orders", "k", {"x-match": "any", "colour": None})
    assert desk.ask("exchanges", action="read", name="post") == {
        "name": "post",
        "kind": "headers",
        "arguments": {"qpid.replicate": "none"},
        "bindings": [{"queue": "orders", "key": "k", "arguments": {"x-match": "any", "colour": None}}],
    }
    bound = {"exchange": "post", "queue": "orders", "key": "k", "arguments": {"x-match": "any", "colour": None}}
    assert list(desk.administration.bindings()) == [bound]
    assert desk.administration.binding("post", "orders", "k") == bound
    assert desk.administration.binding("post", "orders", "other") is None
    desk.administration.unbind("post", "orders", "k")
    assert list(desk.administration.bindings()) == []


def test_an_update_changes_what_it_names_and_takes_away_what_it_empties(desk: Desk) -> None:
    desk.administration.create_queue("orders", {"qpid.max_count": 10, "colour": "red"})
    done = desk.administration.update_queue("orders", {"qpid.max_count": 20, "colour": None})
    assert done.result["arguments"] == {"qpid.max_count": 20}
    with pytest.raises(InvalidArgument, match="missing"):
        desk.administration.update_queue("orders")


def test_purging_says_how_many_went(desk: Desk) -> None:
    desk.administration.create_queue("orders")
    desk.publish("orders")
    desk.publish("orders")
    assert [desk.administration.purge_queue("orders").done() for _ in range(2)] == [
        Done(2, desk.resources.replicated.log.written),
        Done(0, desk.resources.replicated.log.written),
    ]


def test_a_command_names_the_lsn_that_makes_it_safe_even_when_it_found_all_done(desk: Desk) -> None:
    log = desk.resources.replicated.log
    log.add_witness("backup")
    first = desk.administration.create_queue("orders").done()
    assert first is not None
    assert first.written == log.written
    assert not first.written.is_committed
    again = desk.administration.create_queue("orders").done()
    assert again == first
    log.acknowledge("backup", first.written.lsn)
    assert first.written.is_committed


@pytest.mark.parametrize("name", [None, 7, True, ["orders"], "", "a\nb", "\ud800", "x" * 1025, "é" * 513])
def test_what_is_no_name_is_refused_everywhere(desk: Desk, name: object) -> None:
    administration = desk.administration
    commands: list[Callable[[object], object]] = [
        administration.queue,
        administration.create_queue,
        administration.delete_queue,
        administration.purge_queue,
        lambda name: administration.update_queue(name, {}),
        administration.exchange,
        lambda name: administration.create_exchange(name, "topic"),
        lambda kind: administration.create_exchange("post", kind),
        administration.delete_exchange,
        lambda name: administration.bind(name, "orders"),
        lambda name: administration.bind("amq.topic", name),
        lambda name: administration.unbind("amq.topic", name),
    ]
    for command in commands:
        with pytest.raises(InvalidArgument) as caught:
            command(name)
        assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        "qpid.max_count=3",
        {"a": [1]},
        {"a": {"b": 1}},
        {"a": b"bytes"},
        {1: 2},
        {"a": float("nan")},
        {"a": 1 << 64},
        {"a": "\ud800"},
        {"\ud800": 1},
        {"a": "x" * 65_536},
    ],
    ids=lambda arguments: repr(arguments)[:20],
)
def test_arguments_that_the_log_could_not_hold_never_reach_it(desk: Desk, arguments: object) -> None:
    desk.administration.create_queue("orders")
    before = desk.resources.replicated.log.last_lsn
    commands: list[Callable[[], object]] = [
        lambda: desk.administration.create_queue("news", arguments),
        lambda: desk.administration.update_queue("orders", arguments),
        lambda: desk.administration.create_exchange("post", "topic", arguments),
        lambda: desk.administration.bind("amq.topic", "orders", "", arguments),
    ]
    for command in commands:
        with pytest.raises(InvalidArgument, match="arguments"):
            command()
    assert desk.resources.replicated.log.last_lsn == before


def test_updates_cannot_add_up_to_more_than_the_log_holds(desk: Desk) -> None:
    desk.administration.create_queue("orders", {"a": "x" * 40_000})
    with pytest.raises(InvalidArgument, match="65535"):
        desk.administration.update_queue("orders", {"b": "x" * 40_000})


def test_refusals_are_those_of_the_model(desk: Desk) -> None:
    administration = desk.administration
    administration.create_queue("orders", {"qpid.max_count": 3})
    desk.publish("orders")
    with pytest.raises(AlreadyExists):
        administration.create_queue("orders", {"qpid.max_count": 4})
    with pytest.raises(InUse):
        administration.delete_queue("orders", if_empty=True)
    with pytest.raises(NotFound):
        administration.delete_queue("news")
    with pytest.raises(InUse):
        administration.delete_exchange("amq.topic")
    with pytest.raises(InvalidArgument, match="true or false"):
        administration.delete_queue("orders", if_empty="yes")
    with pytest.raises(InvalidArgument, match="1024"):
        administration.bind("amq.topic", "orders", "." * 1025)


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary() | st.sampled_from(["a", "topic"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3) | st.integers(), inner, max_size=3),
    max_leaves=5,
)
names = st.sampled_from(["a", "b", "amq.topic"]) | st.text(max_size=5) | anything
arguments = st.none() | st.dictionaries(st.text(max_size=3), anything, max_size=3) | anything
commands = st.one_of(
    st.tuples(st.just("create_queue"), names, arguments),
    st.tuples(st.just("update_queue"), names, arguments),
    st.tuples(st.just("delete_queue"), names, anything, st.booleans()),
    st.tuples(st.just("create_exchange"), names, st.sampled_from(["topic", "headers"]) | anything, arguments),
    st.tuples(st.just("bind"), names, names, st.text() | anything, arguments),
    st.tuples(st.just("unbind"), names, names, st.text() | anything),
)


@given(st.lists(commands, max_size=5))
def test_whatever_is_accepted_can_be_written_and_read_back(asked: list[tuple[str, object]]) -> None:
    desk = Desk()
    desk.resources.replicated.log.add_witness("backup")
    desk.administration.create_queue("a")
    for name, *values in asked:
        with suppress(ModelError):
            getattr(desk.administration, str(name))(*values)
    batch = desk.resources.replicated.log.take_batch()
    if batch is not None:
        decoded = decode(batch.data)
        assert decoded.problem is None
        assert len(decoded.records) == batch.last_lsn - batch.first_lsn + 1


# --- the control socket's methods


def test_a_broker_says_who_it_is(desk: Desk) -> None:
    assert desk.ask("ping") == {"pong": True, "name": "node1"}


def test_settings_are_read_and_changed_by_key(desk: Desk) -> None:
    assert desk.ask("get", key="max-connections") == {"max-connections": 5000}
    change = {"key": "max-connections", "old": 5000, "new": 7}
    assert desk.ask("set", key="max-connections", value="7") == change
    assert desk.settings.current().max_connections == 7
    everything = desk.ask("get")
    assert isinstance(everything, dict)
    assert everything["max-connections"] == 7


def test_a_setting_that_cannot_be_is_refused_and_nothing_changes(desk: Desk) -> None:
    before = desk.settings.current()
    for params in ({"key": "max-conections", "value": 7}, {"key": "max-connections", "value": []}, {"key": "name"}):
        assert desk.refusal("set", **params).code == INVALID_PARAMS
    assert desk.refusal("set", key="name", value="x").data == {"key": "name"}
    assert "did you mean spread?" in desk.refusal("set", key="ha.placement", value="spred").message
    assert "max-connections" in desk.refusal("get", key="max-conections").message
    assert desk.refusal("get", key=7).code == INVALID_PARAMS
    assert desk.settings.current() is before


def test_a_queue_lives_from_create_to_delete(desk: Desk) -> None:
    created = desk.ask("queues", action="create", name="orders", arguments={"qpid.max_count": 3})
    assert isinstance(created, dict)
    assert created.pop("created") is True
    again = desk.ask("queues", action="create", name="orders", arguments={"qpid.max_count": 3})
    assert again == {**created, "created": False}
    assert desk.ask("queues", action="list") == desk.ask("queues") == [created]
    desk.ask("queues", action="update", name="orders", arguments={"qpid.max_count": 4})
    read = desk.ask("queues", action="read", name="orders")
    assert isinstance(read, dict)
    assert read["arguments"] == {"qpid.max_count": 4}
    desk.publish("orders")
    in_use = desk.refusal("queues", action="delete", name="orders", if_empty=True)
    assert (in_use.code, in_use.data) == (REFUSED, {"reason": "in-use"})
    assert desk.ask("queues", action="purge", name="orders") == {"name": "orders", "purged": 1}
    assert desk.ask("queues", action="delete", name="orders", if_empty=True) == {"name": "orders"}
    assert desk.refusal("queues", action="read", name="orders").data == {"reason": "not-found"}


def test_an_exchange_lives_from_create_to_delete(desk: Desk) -> None:
    desk.ask("queues", action="create", name="orders")
    desk.ask("exchanges", action="create", name="post", kind="topic")
    desk.ask("exchanges", action="bind", name="post", queue="orders", key="a.#")
    read = desk.ask("exchanges", action="read", name="post")
    assert isinstance(read, dict)
    assert read["bindings"] == [{"queue": "orders", "key": "a.#", "arguments": {}}]
    desk.ask("exchanges", action="unbind", name="post", queue="orders", key="a.#")
    assert desk.ask("exchanges", action="delete", name="post") == {"name": "post"}
    listed = desk.ask("exchanges", action="list")
    assert isinstance(listed, list)
    assert [exchange["name"] for exchange in listed] == [f"amq.{name}" for name in STANDARD]


@in_event_loop
async def test_a_change_is_answered_only_when_it_is_committed(desk: Desk) -> None:
    """The answer is held back until whoever waits for the witnesses says so."""
    committed = asyncio.Event()

    async def wait(outcome: Outcome[Result]) -> Result:
        done = outcome.done()
        assert done is not None
        assert done.written == desk.resources.replicated.log.written
        await committed.wait()
        return done.result

    methods = control_methods("node1", desk.administration, desk.settings, wait)
    answer = methods["queues"]({"action": "create", "name": "orders"})
    assert asyncio.iscoroutine(answer)
    asking = asyncio.create_task(answer)
    await asyncio.sleep(0)
    assert "orders" in desk.resources.catalog.queues
    assert not asking.done()
    committed.set()
    assert (await asking)["name"] == "orders"


@in_event_loop
async def test_a_command_that_is_given_up_while_it_is_waited_for_is_refused_with_the_reason(desk: Desk) -> None:
    desk.administration.create_queue("orders")

    async def wait(outcome: Outcome[Result]) -> Result:
        raise NotFound("queue orders was deleted meanwhile")

    methods = control_methods("node1", desk.administration, desk.settings, wait)
    answer = methods["queues"]({"action": "purge", "name": "orders"})
    assert asyncio.iscoroutine(answer)
    with pytest.raises(ControlError, match="deleted meanwhile") as refused:
        await answer
    assert refused.value.data == {"reason": "not-found"}


def test_reading_waits_for_nothing(desk: Desk) -> None:
    desk.ask("queues", action="create", name="orders")
    assert desk.waited_for == [desk.resources.replicated.log.written]
    desk.ask("queues", action="list")
    desk.ask("queues", action="read", name="orders")
    assert len(desk.waited_for) == 1


def test_a_typing_error_in_a_request_does_not_pass_for_a_default(desk: Desk) -> None:
    assert "if_empty" in desk.refusal("queues", action="delete", name="orders", if_emtpy=True).message
    assert "create" in desk.refusal("queues", action="craete").message
    assert desk.refusal("queues", action=["list"]).code == INVALID_PARAMS
    assert desk.refusal("ping", x=1).code == INVALID_PARAMS
    for params in ({"action": "read"}, {"action": "create"}, {"action": "update", "name": "orders"}):
        assert desk.refusal("queues", **params).code in (INVALID_PARAMS, REFUSED)
    for params in ({"action": "create", "name": "post"}, {"action": "bind", "name": "amq.topic"}):
        assert desk.refusal("exchanges", **params).code == INVALID_PARAMS


@given(
    st.sampled_from(["ping", "get", "set", "queues", "exchanges"]),
    st.dictionaries(
        st.sampled_from(["action", "name", "kind", "queue", "key", "value", "arguments", "if_empty", "if_unused"])
        | st.text(max_size=5),
        st.sampled_from(["list", "read", "create", "delete", "purge", "update", "bind", "unbind", "amq.topic"])
        | anything,
    ),
)
def test_any_request_is_answered_or_refused(method: str, params: dict[str, object]) -> None:
    refused: list[int] = []
    try:
        Desk().ask(method, **params)
    except ControlError as error:
        refused.append(error.code)
    assert refused in ([], [INVALID_PARAMS], [REFUSED])
