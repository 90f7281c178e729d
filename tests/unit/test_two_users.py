"""Clients of two users, with rules, proxies and sessions: whatever one does, what the other has stays as it was.

`owner` publishes numbered messages, consumes, subscribes, and comes back by its session; `stranger` does what the
protocol lets it write. A model of a few lists says what the owner has; after each step the broker has just that. What
the stranger's connections cost has to be given back when they have gone, without Python's cycle collector.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextlib import ExitStack
from itertools import count
from typing import Any, cast

import proton
import pytest
from cproton_ffi import lib
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from live_objects import leave_out_what_lives, no_collector
from paired_engines import PairedBroker, PairedClient, queued_bodies
from paired_links import condition, subscribe
from paired_proxy import PairedProxy
from paired_transactions import PairedCoordinator
from qpid_ha_broker.amqp.links import attach
from qpid_ha_broker.amqp.nodes import session_attachment
from qpid_ha_broker.amqp.wire.engine import Engine
from qpid_ha_broker.model.transactions import producers
from qpid_ha_config.access_rules import parse_entries
from session_clients import PRODUCER, SEQUENCE, confirmed, open_session, status
from session_support import FIRST, SECOND

OWNER, STRANGER, REPLICATOR = "olga", "mallory", "replicator"
RULES = (
    f"allow {REPLICATOR} all",
    f"allow {OWNER} create,publish,consume,browse olga.*",
    f"allow {OWNER} publish,consume amq.topic*",
    f"allow {STRANGER} create,publish,consume,browse mallory.*",
    f"allow {STRANGER} browse olga.*",
    f"allow {STRANGER} publish,consume amq.topic*",
)
QUEUE, OTHERS_QUEUE = "olga.orders", "mallory.orders"
OUT, SUBSCRIPTION, CONTAINER = "out", "events", "olga's"
ADDRESSES = (
    QUEUE, OTHERS_QUEUE, "mallory.new", "amq.topic/others", "$management", "$relay/session", "$relay/coordinator",
    "$peers", "$nothing", "", None,
)  # fmt: skip
LINK_NAMES = (OUT, "in", SUBSCRIPTION, "link", "another")
AHEAD = (0, 1, 1, 2, 1000, 2**31, 2**63 - 1, 2**64 - 1)
"""How far above the owner's last number."""
CREDITS = (0, 1, 10, 2**31 - 1)
OUTCOMES = (
    proton.Delivery.ACCEPTED, proton.Delivery.REJECTED, proton.Delivery.RELEASED, proton.Delivery.MODIFIED,
)  # fmt: skip
CLIENTS_MOST = 4
INVENTED = 8
"""Names of producers that are invented at once: more than are remembered."""


@pytest.fixture(autouse=True, scope="module")
def without_the_rest() -> None:
    """Each walk looks twice for garbage."""
    leave_out_what_lives()


class TwoUsers(RuleBasedStateMachine):
    """`broker` is where both connect to, `primary` the one that has the queues: the same, unless there is a proxy."""

    @initialize(is_proxied=st.booleans(), has_session=st.booleans())
    def begin(self, is_proxied: bool, has_session: bool) -> None:
        self.stack = ExitStack()
        self.stack.enter_context(no_collector())
        self.numbers = count(1)
        self.primary = PairedBroker()
        self.broker = self.primary
        if is_proxied:
            proxied = PairedProxy(primary=self.primary, user=REPLICATOR)
            self.brokers = [self.primary, proxied.proxy]
            self.broker = cast(PairedBroker, proxied)
        else:
            self.brokers = [self.primary]
        for each in self.brokers:
            each.container.access.change(parse_entries(RULES).rules, REPLICATOR)
        resources = self.primary.container.default.resources
        resources.deduplication.producers = INVENTED // 2
        self.has_session = has_session
        self.queued: list[str] = []
        """What the owner's queue holds."""
        self.unread: list[str] = []
        """What its durable subscription holds."""
        self.sent = 0
        """How many messages it has numbered."""
        self.last = ""
        self.owner = self.open_owner(resume=None)
        self.strangers: list[PairedClient] = []
        self.links: list[tuple[PairedClient, Any]] = []
        self.transactions: list[bytes] = []
        self.unfinished: dict[int, proton.Delivery] = {}
        """By the strangers' links on which it goes out: of this a part has gone."""
        self.gone: list[weakref.ref[object]] = []
        self.stranger_comes_to_work()

    def teardown(self) -> None:
        self.stack.close()

    # --- the owner

    def open_owner(self, *, resume: bool | None) -> PairedClient:
        """Connected, with a link for each thing it does."""
        if self.has_session:
            client = open_session(self.broker, FIRST, resume=resume, user=OWNER, container=CONTAINER)
            assert status(client) == ("resumed" if resume else "new")
        else:
            client = PairedClient(self.broker, user=OWNER, container=CONTAINER)
            self.broker.settle_down()
        self.sender = client.sender(QUEUE, OUT)
        assert condition(self.sender) is None
        if self.has_session:
            assert confirmed(self.sender) == self.sent
        self.receiver = client.receiver(QUEUE, 0, "in")
        self.subscriber = subscribe(client, "amq.topic/olga", SUBSCRIPTION, durable=True)
        self.topic = client.sender("amq.topic/olga", "to-topic")
        return client

    def send(self, number: int, text: str) -> None:
        message = proton.Message(text)
        message.annotations = {PRODUCER: f"{FIRST}/{OUT}", SEQUENCE: proton.ulong(number)}
        (delivery,) = self.owner.send_all(self.sender, message)
        assert delivery.remote_state == proton.Delivery.ACCEPTED
        delivery.settle()

    @rule()
    def owner_publishes(self) -> None:
        self.sent += 1
        self.last = f"m{self.sent}"
        self.send(self.sent, self.last)
        self.queued.append(self.last)

    @precondition(lambda self: self.sent)
    @rule()
    def owner_repeats_what_was_accepted(self) -> None:
        self.send(self.sent, self.last)

    @precondition(lambda self: self.queued)
    @rule()
    def owner_consumes(self) -> None:
        self.receiver.flow(1)
        self.broker.settle_down()
        ((delivery, message),) = self.owner.received(self.receiver)
        assert message.body == self.queued.pop(0)
        delivery.update(proton.Delivery.ACCEPTED)
        delivery.settle()
        self.broker.settle_down()

    @rule()
    def owner_publishes_to_its_topic(self) -> None:
        text = f"e{next(self.numbers)}"
        (delivery,) = self.owner.send_all(self.topic, text)
        assert delivery.remote_state == proton.Delivery.ACCEPTED
        delivery.settle()
        self.unread.append(text)

    @precondition(lambda self: self.unread)
    @rule()
    def owner_reads_its_subscription(self) -> None:
        self.subscriber.flow(len(self.unread))
        self.broker.settle_down()
        received = self.owner.received(self.subscriber)
        assert [message.body for _, message in received] == self.unread
        for delivery, _ in received:
            delivery.update(proton.Delivery.ACCEPTED)
            delivery.settle()
        self.unread.clear()
        self.broker.settle_down()

    @rule()
    def owner_is_cut_off_and_comes_back(self) -> None:
        self.owner.vanish()
        self.broker.clients.remove(self.owner)
        self.broker.settle_down()
        self.owner = self.open_owner(resume=True if self.has_session else None)

    # --- the stranger

    @precondition(lambda self: len(self.strangers) < CLIENTS_MOST)
    @rule(
        container=st.sampled_from([CONTAINER, "mallory's", ""]),
        session=st.sampled_from([None, FIRST, SECOND]),
        resume=st.sampled_from([None, False, True]),
    )
    def stranger_opens(self, container: str, session: str | None, resume: bool | None) -> None:
        if session is None:
            client = PairedClient(self.broker, user=STRANGER, container=container)
            self.broker.settle_down()
        else:
            client = open_session(self.broker, session, resume=resume, user=STRANGER, container=container)
        self.strangers.append(client)

    @precondition(lambda self: not self.strangers)
    @rule()
    def stranger_comes_to_work(self) -> None:
        """What most of the other rules need: a publisher to a queue of its own, and a browser of the owner's."""
        self.stranger_opens("mallory's", None, None)
        (client,) = self.strangers
        self.links.append((client, client.sender(OTHERS_QUEUE, "to-work")))
        browser: Any = client.session.receiver("browser")
        browser.source.address = QUEUE
        browser.source.distribution_mode = proton.Terminus.DIST_MODE_COPY
        self.links.append((client, client.attach(browser, 10)))
        assert all(condition(link) is None for _, link in self.links)

    def is_usable(self, client: PairedClient) -> bool:
        return bool(client.connection.state & proton.Endpoint.REMOTE_ACTIVE and client.session.state & 16)

    def usable(self, index: int) -> PairedClient | None:
        there = [client for client in self.strangers if self.is_usable(client)]
        return there[index % len(there)] if there else None

    def usable_link(self, index: int, *, is_sender: bool) -> tuple[PairedClient, Any] | None:
        there = [
            (client, link)
            for client, link in self.links
            if self.is_usable(client) and link.is_sender == is_sender and not link.state & proton.Endpoint.REMOTE_CLOSED
        ]
        return there[index % len(there)] if there else None

    @rule(
        index=st.integers(0, 3),
        address=st.sampled_from(ADDRESSES),
        name=st.sampled_from(LINK_NAMES),
        is_sender=st.booleans(),
        is_durable=st.booleans(),
        browses=st.booleans(),
        credit=st.sampled_from(CREDITS),
    )
    def stranger_attaches(
        self, index: int, address: str | None, name: str, is_sender: bool, is_durable: bool, browses: bool, credit: int
    ) -> None:
        client = self.usable(index)
        if client is None:
            return
        link: Any = client.session.sender(name) if is_sender else client.session.receiver(name)
        if link.state & proton.Endpoint.LOCAL_ACTIVE:
            return  # Proton gives the one that is there
        terminus = link.target if is_sender else link.source
        terminus.address = address
        if not is_sender and is_durable:
            link.source.durability = proton.Terminus.DELIVERIES
            link.source.expiry_policy = proton.Terminus.EXPIRE_NEVER
        if not is_sender and browses:
            link.source.distribution_mode = proton.Terminus.DIST_MODE_COPY
        client.attach(link, 0 if is_sender else credit)
        self.links.append((client, link))

    @rule(
        index=st.integers(0, 7),
        session=st.sampled_from([FIRST, FIRST, SECOND, "invented"]),
        name=st.sampled_from([OUT, OUT, "another"]),
        ahead=st.sampled_from(AHEAD),
        to=st.sampled_from([QUEUE, OTHERS_QUEUE, "amq.topic/others", None]),
    )
    def stranger_sends(self, index: int, session: str, name: str, ahead: int, to: str | None) -> None:
        found = self.usable_link(index, is_sender=True)
        if found is None:
            return
        client, link = found
        if not link.credit:
            return
        message = proton.Message("x" * 100, address=to)
        if id(link) in self.unfinished:  # it becomes the rest of that, and what is read nowhere is taken off nowhere
            del self.unfinished[id(link)]
        else:
            number = proton.ulong(min(self.sent + ahead, 2**64 - 1))
            message.annotations = {PRODUCER: f"{session}/{name}", SEQUENCE: number}
        client.send(link, message)
        self.broker.settle_down()

    @rule(index=st.integers(0, 7), first=st.integers(0, 1_000_000))
    def stranger_invents_producers(self, index: int, first: int) -> None:
        for offset in range(INVENTED):
            found = self.usable_link(index, is_sender=True)
            if found is None or not found[1].credit or id(found[1]) in self.unfinished:
                return
            client, link = found
            message = proton.Message("x", address=OTHERS_QUEUE)
            message.annotations = {PRODUCER: f"{first + offset}/out", SEQUENCE: proton.ulong(1)}
            client.send(link, message)
            self.broker.settle_down()

    @rule(index=st.integers(0, 7), some=st.booleans(), is_aborted=st.booleans())
    def stranger_sends_a_part(self, index: int, some: bool, is_aborted: bool) -> None:
        found = self.usable_link(index, is_sender=True)
        if found is None or not found[1].credit:
            return
        _, link = found
        delivery = self.unfinished.pop(id(link), None)
        if delivery is None:
            delivery = link.delivery(f"part-{next(self.numbers)}")
        if some:
            link.stream(b"\x00Sw\xa1\x03abc"[:4])
            self.broker.settle_down()
        if is_aborted:
            delivery.abort()
        else:
            self.unfinished[id(link)] = delivery
        self.broker.settle_down()

    @rule(index=st.integers(0, 7), outcome=st.sampled_from(OUTCOMES), credit=st.sampled_from(CREDITS))
    def stranger_answers(self, index: int, outcome: int, credit: int) -> None:
        found = self.usable_link(index, is_sender=False)
        if found is None:
            return
        client, link = found
        for delivery, message in client.received(link):
            assert PRODUCER not in (message.annotations or {}), "a key of others is shown"
            delivery.update(outcome)
            delivery.settle()
        link.flow(credit)
        self.broker.settle_down()

    @rule(index=st.integers(0, 3), ids=st.integers(0, 3), fails=st.booleans())
    def stranger_transacts(self, index: int, ids: int, fails: bool) -> None:
        client = self.usable(index)
        if client is None:
            return
        coordinator = PairedCoordinator(client)
        if not coordinator.link.credit:
            return
        delivery = coordinator.ask("declare", None)
        if delivery.remote_state == 0x33:
            self.transactions.append(bytes(delivery.remote.data[0]))
        if self.is_usable(client) and self.transactions and coordinator.link.credit:
            coordinator.discharge(self.transactions[ids % len(self.transactions)], fails=fails)

    @rule(index=st.integers(0, 7), is_sender=st.booleans(), closes=st.booleans())
    def stranger_ends_a_link(self, index: int, is_sender: bool, closes: bool) -> None:
        found = self.usable_link(index, is_sender=is_sender)
        if found is None:
            return
        _, link = found
        (link.close if closes else link.detach)()
        self.broker.settle_down()

    @precondition(lambda self: self.strangers)
    @rule(index=st.integers(0, 3), how=st.sampled_from(["closes", "ends its session", "is lost"]))
    def stranger_goes(self, index: int, how: str) -> None:
        client = self.strangers.pop(index % len(self.strangers))
        if how == "closes":
            client.connection.close()
            self.broker.settle_down()
        elif how == "ends its session":
            client.session.close()
            self.broker.settle_down()
        client.vanish()
        self.broker.settle_down()
        self.broker.clients.remove(client)
        self.links = [(each, link) for each, link in self.links if each is not client]
        self.gone.append(weakref.ref(client.peer))
        del client.peer

    # --- what stays as it was

    @invariant()
    def owner_has_what_it_had(self) -> None:
        assert queued_bodies(self.primary.queue(QUEUE)) == self.queued
        queues = self.primary.container.default.resources.catalog.queues.values()
        kept = [queue for queue in queues if SUBSCRIPTION in queue.name and "olga" in queue.name]
        assert [queued_bodies(queue) for queue in kept] == [self.unread], [queue.name for queue in queues]
        for link in (self.sender, self.receiver, self.subscriber, self.topic):
            assert link.state & proton.Endpoint.REMOTE_ACTIVE, (link.name, condition(link))
        assert self.owner.connection.state & proton.Endpoint.REMOTE_ACTIVE

    @invariant()
    def what_is_gone_costs_nothing(self) -> None:
        assert not [gone() for gone in self.gone if gone() is not None]
        self.gone.clear()
        if not self.strangers:
            assert sum(broker.container.held.partial_bytes for broker in self.brokers) == 0
            assert sum(broker.container.held.unsettled_bytes for broker in self.brokers) == 0

    @invariant()
    def queues_agree_with_their_counters(self) -> None:
        self.primary.check_invariants()


FEW = settings(
    max_examples=120,
    stateful_step_count=30,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),  # what is found is short enough, and shrinking takes minutes
    suppress_health_check=list(HealthCheck),
)
TestTwoUsers = TwoUsers.TestCase
TestTwoUsers.settings = FEW


# --- the machine itself: what was wrong before is found when it is put back


def everybody_is_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """A producer's name is anybody's."""
    monkeypatch.setattr(producers, "_user_digest", lambda user: bytes(16))


def own_addresses_are_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rules are asked who may publish to the address by which brokers keep sessions."""
    monkeypatch.setattr(attach, "_own_address", lambda link, relay: None)
    monkeypatch.setattr(attach, "is_own", lambda address: False)


def what_is_aborted_is_a_bug(monkeypatch: pytest.MonkeyPatch) -> None:
    """An aborted delivery comes with a length of less than nothing."""
    tell_unusual = Engine._tell_unusual

    def tell(engine: Engine, pointer: Any, delivery: Any, link: Any) -> None:
        if lib.pn_delivery_aborted(delivery):
            raise ValueError("'length' cannot be negative")
        tell_unusual(engine, pointer, delivery, link)

    monkeypatch.setattr(Engine, "_tell_unusual", tell)


def a_session_keeps_its_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection and its session hold each other."""
    monkeypatch.setattr(session_attachment, "ref", lambda kept: lambda: kept)


@pytest.mark.parametrize(
    ("put_back", "error", "says"),
    [
        (everybody_is_the_same, AssertionError, r"assert \[|REJECTED"),  # its message is dropped, or has no place
        (own_addresses_are_nodes, AssertionError, "None == 'new'"),  # the session's status
        (what_is_aborted_is_a_bug, ValueError, "cannot be negative"),
        (a_session_keeps_its_connection, AssertionError, r"not \[<.*Connection object"),
    ],
)
def test_what_was_wrong_before_is_found(
    put_back: Callable[[pytest.MonkeyPatch], None],
    error: type[Exception],
    says: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    put_back(monkeypatch)
    with pytest.raises(error, match=says):
        run_state_machine_as_test(TwoUsers, settings=settings(FEW, max_examples=500, derandomize=True, database=None))
