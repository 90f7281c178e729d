"""Requests to `$management` about queues that another broker leads: carried out there, and answered to the client."""

from __future__ import annotations

from typing import Any

import proton
import pytest

from paired_engines import PairedClient
from paired_proxy import PairedProxy
from qpid_ha_broker.amqp.connections.connection import Connection
from qpid_ha_broker.amqp.links import relayed_management
from qpid_ha_broker.amqp.links.management_link import ManagementLink
from qpid_ha_broker.amqp.links.relayed_management import _FarRequests
from qpid_ha_broker.amqp.nodes.directory import ServedElsewhere
from qpid_ha_broker.amqp.nodes.identity import PeerIdentity
from several_sets import BETA, WITNESS, SeveralSets

REPLIES = 100


class Managed(PairedProxy):
    """The broker of the client leads `default` and `blue`, the other one `red`."""

    def __init__(self) -> None:
        self.here, self.there = SeveralSets(), SeveralSets()
        super().__init__(primary=self.there, proxy=self.here)
        self.here.container.default.read_only = False
        self.here.lead_elsewhere("red")
        self.there.lead_elsewhere("default")
        self.there.lead_elsewhere("blue")
        self.one = self.client()
        self.desk = Desk(self, self.one)

    def publish_red(self, *texts: str) -> None:
        self.there.connect().publish("red", *texts)

    def sets_asked(self) -> list[str]:
        """The sets to which there are far links for requests."""
        return [link.set_name for link in self.links if isinstance(link, _FarRequests)]

    def asked_for(self) -> list[tuple[str, str, str]]:
        """User, container and set of each far link, as the other broker is told."""
        assert self.accepted is not None
        links = [link for link in self.accepted.links if isinstance(link, ManagementLink)]
        requests = [link._requester.relay for link in links if link._requester.relay is not None]
        return [(each.user, each.container, each.set_name) for each in requests]


class Desk:
    """A client's links to and from `$management`."""

    def __init__(self, managed: Managed, client: PairedClient) -> None:
        self._managed, self._client = managed, client
        self.requests, self._replies = client.sender("$management"), client.receiver("$management", REPLIES)

    def ask(self, number: object, operation: str, name: str = "red", body: Any = None, **properties: object) -> Any:
        request: Any = proton.Message(reply_to="$management", correlation_id=number, body=body)
        request.properties = {"operation": operation, "type": "queue", "name": name, **properties}
        delivery = self._client.send(self.requests, request)
        self._managed.settle_down()
        return delivery

    def answers(self) -> list[tuple[object, int, Any]]:
        """Number, status and body of each reply that has come since the last call."""
        self._managed.settle_down()
        replies: list[Any] = [reply for _, reply in self._client.received(self._replies)]
        return [(each.correlation_id, each.properties["statusCode"], each.body) for each in replies]

    def answer(self, operation: str, name: str = "red", body: Any = None, **properties: object) -> tuple[int, Any]:
        self.ask(1, operation, name, body, **properties)
        ((_, status, found),) = self.answers()
        return status, found


@pytest.fixture
def managed() -> Managed:
    return Managed()


def test_a_queue_is_read_changed_and_purged_by_who_leads_its_set(managed: Managed) -> None:
    managed.publish_red("a", "b")
    status, found = managed.desk.answer("READ")
    assert (status, found["messages"], found["set"]) == (200, 2, "red")
    status, found = managed.desk.answer("UPDATE", body={"arguments": {"qpid.max_count": 7}})
    assert (status, found["arguments"]) == (200, {"qpid.max_count": 7})
    assert managed.there.set("red").resources.catalog.queues["red"].arguments.given == {"qpid.max_count": 7}
    assert managed.desk.answer("PURGE") == (200, {"purged": 2})
    assert managed.there.count("red") == 0
    assert managed.desk.answer("READ", "blue")[0] == 200
    assert managed.sets_asked() == ["red"]


def test_errors_are_passed_on(managed: Managed) -> None:
    assert managed.desk.answer("UPDATE", body={"arguments": {"qpid.max_count": "many"}})[0] == 400
    assert managed.desk.answer("MEASURE", after="nonsense")[0] == 400
    managed.there.set("red").configuration.delete_queue("red")
    managed.there.settle_down()
    assert managed.desk.answer("READ")[0] == 404


def test_the_answer_comes_when_the_set_has_committed_it_and_others_do_not_wait_for_it(managed: Managed) -> None:
    managed.publish_red("a")
    managed.there.set("red").resources.replicated.log.add_witness(WITNESS)
    managed.desk.ask("slow", "PURGE")
    managed.desk.ask("quick", "READ", "blue")
    assert [number for number, _, _ in managed.desk.answers()] == ["quick"]
    managed.there.acknowledge("red")
    assert managed.desk.answers() == [("slow", 200, {"purged": 1})]


def test_each_client_gets_its_own_answers_and_the_other_broker_is_told_whose_request_it_is(
    managed: Managed, monkeypatch: pytest.MonkeyPatch
) -> None:
    identity = property(
        lambda connection: PeerIdentity("127.0.0.1:9", "alice", connection.is_admin, connection.relay.is_broker)
    )
    monkeypatch.setattr(Connection, "identity", identity)
    other = Desk(managed, managed.client(container="other"))
    managed.desk.ask(1, "READ")
    other.ask(1, "READ", "red")
    other.ask(2, "READ", "red")
    assert [(number, status) for number, status, _ in other.answers()] == [(1, 200), (2, 200)]
    assert [(number, status) for number, status, _ in managed.desk.answers()] == [(1, 200)]
    assert managed.asked_for() == [("", "client", "red"), ("alice", "other", "red")]


def test_who_wants_no_reply_has_it_done(managed: Managed) -> None:
    managed.publish_red("a")
    request: Any = proton.Message()
    request.properties = {"operation": "PURGE", "type": "queue", "name": "red"}
    managed.one.send(managed.desk.requests, request)
    managed.settle_down()
    assert managed.there.count("red") == 0
    assert managed.desk.answers() == []


def test_an_older_primary_is_not_asked_and_the_client_is_told_where_it_is(
    managed: Managed, monkeypatch: pytest.MonkeyPatch
) -> None:
    older = ["qpid.relay", "qpid.relay-sets", "qpid.relay-own-nodes"]
    monkeypatch.setattr("qpid_ha_broker.amqp.connections.connection._RELAY_CAPABILITIES", older)
    managed.connect_upstream()
    status, found = managed.desk.answer("READ")
    assert (status, found["hostname"]) == (307, BETA.broker)
    assert managed.asked_for() == []
    assert managed.sets_asked() == []


def test_a_broker_that_relays_nothing_says_where_the_queue_is(managed: Managed) -> None:
    managed.proxy.connections.relays = None
    desk = Desk(managed, managed.client())
    assert desk.answer("READ")[0] == 307


def test_a_request_waits_for_a_primary_and_is_carried_out_once(managed: Managed) -> None:
    managed.publish_red("a")
    managed.cut()
    managed.desk.ask(1, "PURGE")
    assert managed.desk.answers() == []
    managed.connect_upstream()
    assert managed.desk.answers() == [(1, 200, {"purged": 1})]


def test_of_what_a_lost_primary_was_asked_nothing_is_known_and_the_next_request_is_carried_out(
    managed: Managed,
) -> None:
    managed.publish_red("a")
    managed.there.set("red").resources.replicated.log.add_witness(WITNESS)
    managed.desk.ask(1, "PURGE")
    managed.cut()
    assert [(number, status) for number, status, _ in managed.desk.answers()] == [(1, 503)]
    managed.there.acknowledge("red")
    managed.connect_upstream()
    assert managed.desk.answer("READ")[1]["messages"] == 0


def test_a_primary_that_leads_no_more_ends_what_it_was_asked(managed: Managed) -> None:
    managed.publish_red("a")
    managed.there.set("red").resources.replicated.log.add_witness(WITNESS)
    managed.desk.ask(1, "PURGE")
    managed.there.lead_elsewhere("red")
    managed.there.set("red").end_links(ServedElsewhere(managed.there.directory, "red"), browsers=False)
    managed.settle_down()
    assert [(number, status) for number, status, _ in managed.desk.answers()] == [(1, 503)]
    managed.there.set("red").read_only = False
    managed.there.set("red").resources.replication.read_only = ""
    managed.there.acknowledge("red")
    managed.attach_those_left()
    assert managed.desk.answer("READ")[0] == 200


def test_a_primary_that_leads_no_more_ends_links_of_which_nothing_is_asked(managed: Managed) -> None:
    assert managed.desk.answer("READ")[0] == 200
    managed.there.lead_elsewhere("red")
    managed.there.set("red").end_links(ServedElsewhere(managed.there.directory, "red"), browsers=False)
    managed.settle_down()
    assert managed.asked_for() == []
    assert managed.sets_asked() == []


@pytest.mark.parametrize(("is_sent", "expected"), [(False, 307), (True, 503)])
def test_a_request_is_not_waited_for_without_end(managed: Managed, is_sent: bool, expected: int) -> None:
    managed.publish_red("a")
    if is_sent:
        managed.there.set("red").resources.replicated.log.add_witness(WITNESS)
    else:
        managed.cut()
    managed.desk.ask(1, "PURGE")
    container, began_s = managed.here.container, managed.here.container.clock()
    container.clock = lambda: began_s + container.settings.attach_timeout_s
    container.tick()
    assert [(number, status) for number, status, _ in managed.desk.answers()] == [(1, expected)]
    assert not container.waiting


def test_a_request_about_a_set_that_is_out_of_reach_is_answered_at_once_unless_it_was_sent(managed: Managed) -> None:
    managed.publish_red("a")
    managed.there.set("red").resources.replicated.log.add_witness(WITNESS)
    managed.desk.ask(1, "PURGE")
    for link in list(managed.links):
        link.out_of_reach()
    assert managed.desk.answers() == []
    managed.cut()
    assert [(number, status) for number, status, _ in managed.desk.answers()] == [(1, 503)]
    managed.desk.ask(2, "PURGE")
    for link in list(managed.links):
        link.out_of_reach()
    assert [(number, status) for number, status, _ in managed.desk.answers()] == [(2, 307)]
    assert managed.sets_asked() == []


def test_what_a_client_asked_that_has_gone_is_nobodys(managed: Managed) -> None:
    managed.there.set("red").resources.replicated.log.add_witness(WITNESS)
    managed.desk.ask(1, "PURGE")
    managed.one.vanish()
    managed.settle_down()
    assert managed.sets_asked() == []
    assert managed.asked_for() == []
    assert not managed.here.container.waiting
    managed.there.acknowledge("red")


def test_far_links_of_few_sets_are_kept(managed: Managed, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(relayed_management, "FAR_SETS", 1)
    managed.here.lead_elsewhere("blue")
    blue = managed.there.set("blue")
    blue.read_only, blue.resources.replication.read_only = False, ""
    for name in ("red", "blue", "red"):
        assert managed.desk.answer("READ", name)[0] == 200
        assert managed.sets_asked() == [name]


def test_what_waits_for_a_primary_is_not_sent_once_its_client_has_hung_up(managed: Managed) -> None:
    managed.publish_red("a")
    managed.cut()
    managed.desk.ask(1, "PURGE")
    managed.one.peer.engine.input.has_hung_up = lambda: True
    managed.connect_upstream()
    assert managed.there.count("red") == 1
    assert [(number, status) for number, status, _ in managed.desk.answers()] == [(1, 408)]
    (warning,) = [notice.text for notice in managed.here.container.take_notices() if notice.level == "warning"]
    assert "PURGE queue red was asked for by" in warning
    assert not managed.here.container.waiting
