"""No frame is longer than the peer takes (AMQP 1.0 section 2.7.1): texts are cut, or what is asked for is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import proton
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paired_engines import PairedBroker, PairedClient
from paired_failover import FailingOver
from paired_proxy import paired_broker
from paired_remote import PairedRemote
from qpid_ha_broker.amqp.links.remote_connection import RemoteConnection
from qpid_ha_broker.amqp.relaying.silence import Silence
from qpid_ha_broker.amqp.relaying.upstream import Upstream
from qpid_ha_broker.amqp.wire.conditions import AmqpError
from qpid_ha_broker.amqp.wire.engine import Engine
from raw_frames import RawClient
from raw_peer import ATTACH, CLOSE, DETACH, DISPOSITION, OPEN, RECEIVER, SENDER, SOURCE, TRANSFER, described

SMALLEST = 512
TOO_SMALL = "amqp:frame-size-too-small"


def broker_of(kind: str) -> Any:
    broker = paired_broker(kind)
    broker.container.default.configuration.declare_queue("q", {"qpid.max_count": 1})
    return broker


def selecting(length: int) -> Any:
    """A source with a selector of so many characters."""
    selector = f"colour = '{'r' * length}'"
    described_filter = proton.Described(proton.symbol("apache.org:selector-filter:string"), selector)
    fields = ["q", None, None, None, None, None, None, {proton.symbol("selector"): described_filter}]
    return described(SOURCE, fields)


def error_of(client: RawClient, code: int) -> tuple[str, str]:
    """Condition and description of the last detach or close."""
    fields = client.got(code)[-1]
    error = fields[2 if code == DETACH else 0].value
    return str(error[0]), str(error[1])


@pytest.mark.parametrize("kind", ["direct", "proxied"])
def test_an_attach_whose_answer_is_too_long_is_refused(kind: str) -> None:
    broker = broker_of(kind)
    client = RawClient(broker, max_frame=SMALLEST)
    client.attach("long", 0, RECEIVER, "q", source=selecting(400))
    assert error_of(client, DETACH)[0] == TOO_SMALL
    assert broker.queue("q").dispatcher.consumers == []
    client.attach("short", 1, RECEIVER, "q", source=selecting(5))
    assert len(client.got(DETACH)) == 1
    assert len(broker.queue("q").dispatcher.consumers) == 1
    assert max(client.sizes) <= SMALLEST


def test_a_link_whose_name_is_too_long_to_be_refused_ends_the_connection() -> None:
    client = RawClient(broker_of("direct"), max_frame=SMALLEST)
    client.attach("n" * 600, 0, RECEIVER, "nowhere")
    assert error_of(client, CLOSE)[0] == TOO_SMALL
    assert max(client.sizes) <= SMALLEST


def test_descriptions_of_errors_are_cut() -> None:
    broker = broker_of("direct")
    client = RawClient(broker, max_frame=SMALLEST)
    client.attach("in", 0, RECEIVER, "$" + "nowhere" * 100)
    name, description = error_of(client, DETACH)
    assert name == "amqp:not-found"
    assert 300 < len(description) < 500
    client.peer.end(AmqpError("amqp:not-allowed", "\u00e4" * 5000, {"network-host": "h" * 5000}))
    client.hear()
    assert set(error_of(client, CLOSE)[1]) == {"\u00e4"}
    assert max(client.sizes) <= SMALLEST


def test_reasons_to_reject_a_message_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    broker = PairedBroker()
    broker.container.default.configuration.declare_queue("long" * 200, {"qpid.max_count": 1})
    client = RawClient(broker, max_frame=SMALLEST)
    client.attach("out", 0, SENDER, "", source=described(SOURCE, ["x"]))
    for number in range(2):
        client.transfer(0, number, proton.Message("x", address="long" * 200).encode())
    (rejected,) = [fields for fields in client.got(DISPOSITION) if int(fields[4].descriptor) == 0x25]
    assert str(rejected[4].value[0].value[0]) == "amqp:resource-limit-exceeded"
    assert max(client.sizes) <= SMALLEST


def test_a_peer_with_small_frames_hears_of_as_many_brokers_as_fit() -> None:
    broker = PairedBroker()
    servers: list[dict[str, object]] = [
        {"network-host": f"broker-{number}.example.org", "port": 5672, "scheme": "amqps"} for number in range(50)
    ]
    broker.container.greeting.failover_servers = servers
    told = []
    for limit in (SMALLEST, 1000, 65536):
        client = RawClient(broker, max_frame=limit)
        assert max(client.sizes) <= limit
        told.append(len(client.got(OPEN)[0][9][proton.symbol("failover-server-list")]))
    assert told[-1] == 50
    assert told[0] < told[1] < 50


@pytest.mark.parametrize("kind", ["direct", "proxied"])
@given(
    limit=st.integers(SMALLEST, 900),
    name=st.text(min_size=1, max_size=300),
    address=st.text(max_size=300),
    length=st.integers(0, 400),
    role=st.booleans(),
)
@settings(deadline=None, max_examples=25)
def test_whatever_is_attached_no_frame_is_too_long(
    kind: str, limit: int, name: str, address: str, length: int, role: bool
) -> None:
    client = RawClient(broker_of(kind), max_frame=limit)
    client.attach(name, 0, role, address or "q")
    if not client.peer.has_ended:
        client.attach("s", 1, RECEIVER, "q", source=selecting(length))
    assert max(client.sizes) <= limit
    assert client.got(ATTACH) or client.got(CLOSE)


def test_messages_are_cut_into_frames_that_the_peer_takes() -> None:
    broker = PairedBroker()
    broker.container.default.configuration.declare_queue("q", {})
    PairedClient(broker).publish("q", "x" * 5000)
    client = RawClient(broker, max_frame=SMALLEST)
    client.attach("in", 0, RECEIVER, "q")
    client.flow(0, 1)
    assert max(client.sizes) <= SMALLEST


def test_messages_of_the_next_primary_are_cut_for_a_client_of_a_proxy() -> None:
    world = FailingOver()
    world.leader.declare("q")
    client = RawClient(world, max_frame=SMALLEST)
    client.attach("in", 0, RECEIVER, "q")
    client.flow(0, 2)
    world.fail_over()
    world.direct().publish("q", "x" * 5000)
    client.hear()
    assert len(client.got(TRANSFER)) > 10
    assert max(client.sizes) <= SMALLEST


def open_upstream(
    engine: Engine, name: str, hostname: str, touched: Callable[[], None], ended: Callable[[str], None]
) -> Upstream:
    return Upstream(engine, name, hostname, touched, ended, Silence(lambda: 0.0, 1.0))


@pytest.mark.parametrize("made", [open_upstream, RemoteConnection])
def test_an_open_of_ours_is_within_what_every_peer_takes(made: Any) -> None:
    """Before it has said more: section 2.7.1."""
    engine = Engine(proton.Transport(), proton.Connection())
    made(engine, f"{'n' * 60}/{'u' * 36}", "host.example.org", lambda: None, lambda reason: None)
    assert len(engine.take_output()) - 8 <= SMALLEST


def test_a_link_that_another_broker_has_no_frame_for_is_refused_to_its_client_and_others_go_on() -> None:
    remote = PairedRemote()
    remote.cut()
    client = remote.client()
    links = []
    for length in (400, 5):
        link = client.session.receiver(f"in-{length}")
        link.source.address = "orders"
        selector = proton.Described(proton.symbol("apache.org:selector-filter:string"), f"colour = '{'r' * length}'")
        link.source.filter.put_object({proton.symbol("selector"): selector})
        links.append(client.attach(link))
    remote.connect_far(max_frame_bytes=SMALLEST)
    assert links[0].remote_condition.name == TOO_SMALL
    remote.answer()
    assert links[1].remote_source.address == "orders"
    assert links[1].state & proton.Endpoint.REMOTE_ACTIVE
    assert remote.ended == ["cut"]
