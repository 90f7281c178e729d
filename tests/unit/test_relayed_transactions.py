"""Transactions of clients whose links a proxy relays: a client, the proxy, the primary, a connection that breaks."""

from __future__ import annotations

from typing import Any

import proton
import pytest

from paired_engines import PairedClient, queued_bodies
from paired_links import condition
from paired_proxy import PairedProxy
from paired_transactions import RELEASED, TRANSACTIONAL, PairedCoordinator, answer, publish
from qpid_ha_broker.amqp.connections.container import ContainerSettings
from qpid_ha_broker.amqp.links.coordinator import CoordinatorLink
from qpid_ha_broker.amqp.nodes.directory import ServedElsewhere
from qpid_ha_broker.amqp.wire import engine
from qpid_ha_broker.amqp.wire.conditions import AmqpError
from qpid_ha_broker.amqp.wire.relay import COORDINATOR, RelayRequest
from several_sets import SeveralSets

ACCEPTED, REJECTED = proton.Delivery.ACCEPTED, proton.Delivery.REJECTED
ROLLBACK = "amqp:transaction:rollback"


class Worker:
    """A client of a proxy with a coordinator, a publisher's link, and consumers."""

    def __init__(self, proxied: PairedProxy, address: str = "q", container: str = "client") -> None:
        self.proxied = proxied
        self.client = proxied.client(container=container)
        self.coordinator = PairedCoordinator(self.client)
        self.out = self.client.sender(address)

    def consumer(self, credit: int = 10, address: str = "q") -> Any:
        return self.client.receiver(address, credit, answers_first=True)

    def publish(self, transaction_id: bytes, *texts: str, link: Any = None) -> list[Any]:
        deliveries = [publish(self.client, link or self.out, transaction_id, text) for text in texts]
        self.proxied.settle_down()
        return deliveries

    def send(self, *texts: str, link: Any = None) -> list[Any]:
        return self.client.send_all(link or self.out, *texts)

    def received(self, link: Any) -> list[Any]:
        return [delivery for delivery, _ in self.client.received(link)]

    def begin_with(self, text: str) -> tuple[Any, bytes]:
        """A message that it has received, and the id of a transaction that has done nothing yet."""
        self.send(text)
        (held,) = self.received(self.consumer(1))
        return held, self.coordinator.declare()

    def answer(self, transaction_id: bytes, *deliveries: Any, settles: bool = False, outcome: Any = None) -> None:
        for delivery in deliveries:
            if outcome is None:
                answer(delivery, transaction_id, settles=settles)
            else:
                answer(delivery, transaction_id, outcome, settles=settles)
        self.proxied.settle_down()


def there(proxied: PairedProxy, name: str = "q") -> list[str]:
    """What a queue at the primary has."""
    return queued_bodies(proxied.primary.queue(name))


def step_down(proxied: PairedProxy) -> None:
    default = proxied.primary.container.default
    default.read_only = True
    default.end_links(ServedElsewhere(proxied.primary.container.directory, "default"), browsers=False)
    proxied.settle_down()


def open_at_primary(proxied: PairedProxy) -> int:
    """Transactions that clients of the proxy have there."""
    assert proxied.accepted is not None
    owners = dict(proxied.accepted.relay._owners or {})
    return sum(len(each._open) for owner in owners.values() for each in owner.transactions.values())


def text_of(delivery: Any) -> str:
    return str(delivery.remote.condition.description)


@pytest.fixture
def proxied() -> PairedProxy:
    return PairedProxy()


@pytest.fixture
def worker(proxied: PairedProxy) -> Worker:
    return Worker(proxied)


def test_what_is_published_counts_when_the_primary_has_committed_it(proxied: PairedProxy, worker: Worker) -> None:
    work = worker.coordinator.declare()
    answers = worker.publish(work, "a", "b")
    assert [(each.remote_state, bytes(each.remote.data[0])) for each in answers] == [(TRANSACTIONAL, work)] * 2
    assert all(each.settled for each in answers)
    assert there(proxied) == []
    log = proxied.primary.container.default.resources.replicated.log
    log.add_witness("backup")
    commit = worker.coordinator.discharge(work)
    assert not commit.settled
    log.acknowledge("backup", log.last_lsn)
    proxied.settle_down()
    assert (commit.remote_state, there(proxied)) == (ACCEPTED, ["a", "b"])


def test_what_is_rolled_back_never_was(proxied: PairedProxy, worker: Worker) -> None:
    work = worker.coordinator.declare()
    worker.publish(work, "a")
    assert worker.coordinator.discharge(work, fails=True).remote_state == ACCEPTED
    assert there(proxied) == []
    assert open_at_primary(proxied) == 0


def test_the_discharge_waits_for_what_was_published_before_it(proxied: PairedProxy, worker: Worker) -> None:
    work = worker.coordinator.declare()
    body = proton.Described(proton.symbol("amqp:discharge:list"), [work, False])
    for text in "abc":
        publish(worker.client, worker.out, work, text)
    commit = worker.client.send(worker.coordinator.link, proton.Message(body=body))
    proxied.settle_down()
    assert (commit.remote_state, there(proxied)) == (ACCEPTED, ["a", "b", "c"])


def test_a_transaction_without_work_needs_no_primary(proxied: PairedProxy, worker: Worker) -> None:
    proxied.cut()
    first, second = worker.coordinator.declare(), worker.coordinator.declare()
    assert worker.coordinator.discharge(first).remote_state == ACCEPTED
    assert worker.coordinator.discharge(second, fails=True).remote_state == ACCEPTED


@pytest.mark.parametrize("settles", [False, True])
def test_what_is_accepted_is_forgotten_with_the_commit(proxied: PairedProxy, worker: Worker, settles: bool) -> None:
    worker.send("a", "b", "c")
    link = worker.consumer(2)
    held = worker.received(link)
    work = worker.coordinator.declare()
    worker.answer(work, *held, settles=settles)
    assert there(proxied) == ["a", "b", "c"]
    assert worker.coordinator.discharge(work).remote_state == ACCEPTED
    assert there(proxied) == ["c"]
    assert settles or [(each.settled, each.remote_state) for each in held] == [(True, ACCEPTED)] * 2
    assert proxied.proxy.container.relayed.bytes == 0
    link.flow(1)
    proxied.settle_down()
    assert worker.client.bodies(link) == ["c"]


def test_what_is_rolled_back_is_the_consumers_and_can_be_accepted_again(proxied: PairedProxy, worker: Worker) -> None:
    worker.send("a")
    (held,) = worker.received(worker.consumer(1))
    for fails in (True, False):
        work = worker.coordinator.declare()
        worker.answer(work, held)
        assert proxied.primary.queue("q").messages.acquired == 1
        assert worker.coordinator.discharge(work, fails=fails).remote_state == ACCEPTED
        assert held.settled is not fails
    assert there(proxied) == []


def test_what_was_settled_before_the_rollback_goes_to_somebody_else(proxied: PairedProxy, worker: Worker) -> None:
    worker.send("a")
    link = worker.consumer(1)
    (held,) = worker.received(link)
    work = worker.coordinator.declare()
    worker.answer(work, held)
    held.settle()
    proxied.settle_down()
    assert worker.coordinator.discharge(work, fails=True).remote_state == ACCEPTED
    (entry,) = proxied.primary.queue("q").messages
    assert (entry.holder, entry.delivery_count) == (None, 1)
    link.flow(1)
    proxied.settle_down()
    assert worker.client.bodies(link) == ["a"]


def test_what_was_settled_before_the_primary_was_lost_is_not_reclaimed(proxied: PairedProxy, worker: Worker) -> None:
    worker.send("a")
    link = worker.consumer(1)
    worker.answer(worker.coordinator.declare(), *worker.received(link), settles=True)
    proxied.cut()
    proxied.connect_upstream()
    assert proxied.primary.queue("q").messages.acquired == 0
    link.flow(1)
    proxied.settle_down()
    assert worker.client.bodies(link) == ["a"]


def test_other_outcomes_do_not_wait_for_the_discharge(proxied: PairedProxy, worker: Worker) -> None:
    worker.send("a")
    link = worker.consumer(1)
    work = worker.coordinator.declare()
    worker.answer(work, *worker.received(link), outcome=RELEASED)
    (entry,) = proxied.primary.queue("q").messages
    assert (entry.holder, entry.delivery_count) == (None, 0)


def test_a_message_can_be_answered_outside_of_the_transaction_after_all(proxied: PairedProxy, worker: Worker) -> None:
    worker.send("a")
    (held,) = worker.received(worker.consumer(1))
    work = worker.coordinator.declare()
    worker.answer(work, held)
    held.update(ACCEPTED)
    proxied.settle_down()
    assert there(proxied) == []
    assert worker.coordinator.discharge(work, fails=True).remote_state == ACCEPTED
    assert there(proxied) == []


def test_a_move_between_queues_counts_although_its_links_are_closed_before(
    proxied: PairedProxy, worker: Worker
) -> None:
    worker.send("a", "b")
    link, out = worker.consumer(2), worker.client.sender("other")
    held = worker.received(link)
    work = worker.coordinator.declare()
    for delivery in held:  # all of it at once: nothing is sent before the primary has said its id
        answer(delivery, work, settles=True)
        publish(worker.client, out, work, "moved")
    link.close()
    out.close()
    proxied.settle_down()
    assert worker.coordinator.discharge(work).remote_state == ACCEPTED
    assert (there(proxied), there(proxied, "other")) == ([], ["moved", "moved"])
    assert len(proxied.links) == 2  # the other publisher's, and the coordinator


def test_what_comes_before_the_primary_has_said_its_id_waits_in_order(proxied: PairedProxy, worker: Worker) -> None:
    other = worker.client.sender("q")
    work = worker.coordinator.declare()
    proxied.cut()
    for text in "abcd":
        worker.publish(work, text, link=other if text in "bd" else worker.out)
    worker.send("now")
    proxied.connect_upstream()
    assert there(proxied) == ["now"]
    assert worker.coordinator.discharge(work).remote_state == ACCEPTED
    assert there(proxied) == ["now", "a", "b", "c", "d"]


def test_what_waits_takes_of_the_credit() -> None:
    proxied = PairedProxy(ContainerSettings("primary", "0", publisher_credit=10))
    worker = Worker(proxied)
    work = worker.coordinator.declare()
    proxied.is_held_back = True
    worker.publish(work, *"abcd")
    worker.send("now")
    assert worker.out.credit == 5
    assert proxied.proxy.container.relayed.bytes > 0
    proxied.attach_those_left()
    assert proxied.proxy.container.relayed.bytes == 0
    assert worker.coordinator.discharge(work).remote_state == ACCEPTED
    assert there(proxied) == ["now", *"abcd"]


@pytest.mark.parametrize("deliver", [False, True])
def test_a_primary_that_is_lost_before_the_discharge_has_rolled_back(
    proxied: PairedProxy, worker: Worker, deliver: bool
) -> None:
    held, work = worker.begin_with("there")
    worker.answer(work, held)
    worker.publish(work, "a")
    under_way = publish(worker.client, worker.out, work, "b")
    worker.client.exchange()
    proxied.cut(deliver=deliver)
    assert (under_way.remote_state, under_way.remote.condition.name) == (REJECTED, ROLLBACK)
    (late,) = worker.publish(work, "c")
    assert (late.remote_state, late.remote.condition.name) == (REJECTED, ROLLBACK)
    proxied.connect_upstream()
    commit = worker.coordinator.discharge(work)
    assert (commit.remote_state, commit.remote.condition.name) == (REJECTED, ROLLBACK)
    assert "lost" in text_of(commit)
    assert there(proxied) == ["there"]
    (entry,) = proxied.primary.queue("q").messages
    assert (entry.holder is None, entry.delivery_count) == (False, 0)
    again = worker.coordinator.declare()
    worker.answer(again, held)
    worker.publish(again, "d")
    assert worker.coordinator.discharge(again).remote_state == ACCEPTED
    assert there(proxied) == ["d"]
    assert held.settled


@pytest.mark.parametrize("settles", [False, True], ids=["unsettled", "settled"])
def test_what_is_accepted_after_the_primary_was_lost_does_not_count_and_its_consumer_goes_on(
    proxied: PairedProxy, worker: Worker, settles: bool
) -> None:
    """As a transacted session of Qpid JMS does, which hears of it by its commit, and goes on with its consumer."""
    worker.send("a", "b")
    link = worker.consumer(2)
    first, second = worker.received(link)
    work = worker.coordinator.declare()
    worker.answer(work, first)
    proxied.cut()
    worker.answer(work, second, settles=settles)
    proxied.connect_upstream()
    assert worker.coordinator.discharge(work).remote_state == REJECTED
    assert link.state & proton.Endpoint.REMOTE_ACTIVE
    assert there(proxied) == ["a", "b"]
    assert [entry.holder is None for entry in proxied.primary.queue("q").messages] == [False, settles]
    again = worker.coordinator.declare()
    if settles:
        link.flow(1)
        proxied.settle_down()
        (second,) = worker.received(link)
    worker.answer(again, first, second)
    assert worker.coordinator.discharge(again).remote_state == ACCEPTED
    assert there(proxied) == []


def test_a_message_that_comes_when_its_primary_has_ended_the_link_is_rolled_back_with_the_rest(
    proxied: PairedProxy, worker: Worker
) -> None:
    work = worker.coordinator.declare()
    worker.publish(work, "a")
    late = publish(worker.client, worker.out, work, "b")
    default = proxied.primary.container.default
    default.end_links(ServedElsewhere(proxied.primary.container.directory, "default"), browsers=False)
    proxied.settle_down()
    assert (late.remote_state, late.remote.condition.name) == (REJECTED, ROLLBACK)
    assert worker.coordinator.discharge(work).remote_state == REJECTED
    assert there(proxied) == []


def test_a_rollback_after_the_primary_was_lost_is_what_has_happened(proxied: PairedProxy, worker: Worker) -> None:
    work = worker.coordinator.declare()
    worker.publish(work, "a")
    proxied.cut()
    assert worker.coordinator.discharge(work, fails=True).remote_state == ACCEPTED


def test_a_set_that_moves_takes_no_transaction_with_it(proxied: PairedProxy, worker: Worker) -> None:
    held, work = worker.begin_with("there")
    worker.answer(work, held)
    worker.publish(work, "a")
    step_down(proxied)
    proxied.primary.container.default.read_only = False
    proxied.attach_those_left()
    commit = worker.coordinator.discharge(work)
    assert (commit.remote_state, commit.remote.condition.name) == (REJECTED, ROLLBACK)
    again = worker.coordinator.declare()
    worker.answer(again, held)
    assert worker.coordinator.discharge(again).remote_state == ACCEPTED
    assert there(proxied) == []


@pytest.mark.parametrize("deliver", [False, True])
def test_nobody_knows_of_a_commit_that_was_sent_and_not_answered(
    proxied: PairedProxy, worker: Worker, deliver: bool
) -> None:
    held, work = worker.begin_with("there")
    worker.answer(work, held)
    worker.publish(work, "a")
    body = proton.Described(proton.symbol("amqp:discharge:list"), [work, False])
    commit = worker.client.send(worker.coordinator.link, proton.Message(body=body))
    worker.client.exchange()
    proxied.cut(deliver=deliver)
    assert not commit.settled
    assert condition(worker.coordinator.link) == "amqp:link:detach-forced"
    assert "not known" in worker.coordinator.link.remote_condition.description
    proxied.connect_upstream()
    assert there(proxied) == (["a"] if deliver else ["there"])
    again = PairedCoordinator(worker.client)
    work = again.declare()
    answer(held, work)
    proxied.settle_down()
    if not deliver:
        assert again.discharge(work).remote_state == ACCEPTED
        assert there(proxied) == []


@pytest.fixture(params=["of this version", "of the version before"])
def late_requests(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """How the primary answers what comes on a coordinator link that it has ended: the version before released all."""
    if request.param == "of the version before":
        monkeypatch.setattr("qpid_ha_broker.amqp.links.attach.answer_late", None)


@pytest.mark.usefixtures("late_requests")
@pytest.mark.parametrize("fails", [False, True], ids=["commit", "rollback"])
def test_a_discharge_that_its_primary_does_not_look_at_has_rolled_back(
    proxied: PairedProxy, worker: Worker, fails: bool
) -> None:
    held, work = worker.begin_with("there")
    worker.publish(work, "a", "b")
    worker.answer(work, held)
    body = proton.Described(proton.symbol("amqp:discharge:list"), [work, fails])
    discharge = worker.client.send(worker.coordinator.link, proton.Message(body=body))
    worker.client.exchange()
    step_down(proxied)  # what the proxy has sent comes behind that, in the same turn
    if fails:
        assert discharge.remote_state == ACCEPTED
    else:
        assert (discharge.remote_state, discharge.remote.condition.name) == (REJECTED, ROLLBACK)
    assert there(proxied) == ["there"]
    assert open_at_primary(proxied) == 0
    proxied.primary.container.default.read_only = False
    proxied.attach_those_left()
    again = worker.coordinator.declare()
    worker.publish(again, "c")
    worker.answer(again, held)
    assert worker.coordinator.discharge(again).remote_state == ACCEPTED
    assert there(proxied) == ["c"]


@pytest.mark.usefixtures("late_requests")
def test_what_its_primary_does_not_declare_is_declared_at_the_next_one(proxied: PairedProxy, worker: Worker) -> None:
    first = worker.coordinator.declare()
    worker.publish(first, "a")
    assert worker.coordinator.discharge(first).remote_state == ACCEPTED
    work = worker.coordinator.declare()
    publish(worker.client, worker.out, work, "b")
    worker.client.exchange()
    step_down(proxied)
    proxied.primary.container.default.read_only = False
    proxied.attach_those_left()
    assert worker.coordinator.discharge(work).remote_state == ACCEPTED
    assert there(proxied) == ["a", "b"]


def test_of_a_commit_that_is_settled_without_a_word_nobody_knows(
    proxied: PairedProxy, worker: Worker, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = worker.coordinator.declare()
    worker.publish(work, "a")
    transfer = CoordinatorLink.transfer

    def settle_at_the_primary(link: CoordinatorLink, delivery: Any, payload: bytes, settled: bool, state: int) -> None:
        if link.connection is proxied.accepted:
            engine.forget(delivery)
        else:
            transfer(link, delivery, payload, settled, state)

    monkeypatch.setattr(CoordinatorLink, "transfer", settle_at_the_primary)
    body = proton.Described(proton.symbol("amqp:discharge:list"), [work, False])
    commit = worker.client.send(worker.coordinator.link, proton.Message(body=body))
    proxied.settle_down()
    assert not commit.settled
    assert condition(worker.coordinator.link) == "amqp:link:detach-forced"


def test_a_rollback_that_was_sent_and_not_answered_has_rolled_back(proxied: PairedProxy, worker: Worker) -> None:
    work = worker.coordinator.declare()
    worker.publish(work, "a")
    body = proton.Described(proton.symbol("amqp:discharge:list"), [work, True])
    rollback = worker.client.send(worker.coordinator.link, proton.Message(body=body))
    worker.client.exchange()
    proxied.cut()
    assert rollback.remote_state == ACCEPTED


@pytest.mark.parametrize("how", ["vanishes", "closes", "ends the coordinator"])
def test_a_client_that_goes_rolls_back_its_own_transactions_only(proxied: PairedProxy, how: str) -> None:
    one, other = Worker(proxied, container="one"), Worker(proxied, container="other")
    mine, theirs = one.coordinator.declare(), other.coordinator.declare()
    one.publish(mine, "one")
    other.publish(theirs, "other")
    assert open_at_primary(proxied) == 2
    if how == "vanishes":
        one.client.vanish()
    elif how == "closes":
        one.client.connection.close()
    else:
        one.coordinator.link.close()
    proxied.settle_down()
    assert open_at_primary(proxied) == 1
    assert other.coordinator.discharge(theirs).remote_state == ACCEPTED
    assert there(proxied) == ["other"]


def test_a_lost_client_gives_back_what_it_accepted_as_failed(proxied: PairedProxy, worker: Worker) -> None:
    worker.send("a")
    work = worker.coordinator.declare()
    worker.answer(work, *worker.received(worker.consumer(1)))
    worker.client.vanish()
    proxied.settle_down()
    (entry,) = proxied.primary.queue("q").messages
    assert (entry.holder, entry.delivery_count) == (None, 1)


def test_the_transaction_of_another_client_cannot_be_used(proxied: PairedProxy) -> None:
    one, other = Worker(proxied, container="one"), Worker(proxied, container="other")
    mine = one.coordinator.declare()
    one.publish(mine, "one")
    (refused,) = other.publish(mine, "other")
    assert (refused.remote_state, refused.remote.condition.name) == (REJECTED, "amqp:transaction:unknown-id")
    other.consumer()
    assert other.coordinator.discharge(mine).remote.condition.name == "amqp:transaction:unknown-id"


def test_at_the_primary_an_id_is_that_of_one_client_in_one_set(proxied: PairedProxy, worker: Worker) -> None:
    work = worker.coordinator.declare()
    worker.publish(work, "a")
    (client,) = [connection.relay.name for connection in proxied.proxy.connections.open]
    assert proxied.accepted is not None
    relay = proxied.accepted.relay
    assert len(relay.transactions_of(RelayRequest(("proxy",), client), "default")._open) == 1
    for of, set_name in (("somebody", "default"), (client, "red")):
        with pytest.raises(AmqpError, match="amqp:transaction:unknown-id"):
            relay.transactions_of(RelayRequest(("proxy",), of), set_name)


def test_limits_are_those_of_one_client_and_take_the_transaction_with_them() -> None:
    proxied = PairedProxy(ContainerSettings("primary", "0", max_transaction_messages=3))
    one, other = Worker(proxied, container="one"), Worker(proxied, container="other")
    for worker in (one, other):
        work = worker.coordinator.declare()
        *taken, refused = worker.publish(work, *"abcd")
        assert [each.remote_state for each in taken] == [TRANSACTIONAL] * 3
        assert (refused.remote_state, refused.remote.condition.name) == (REJECTED, "amqp:resource-limit-exceeded")
        commit = worker.coordinator.discharge(work)
        assert (commit.remote_state, commit.remote.condition.name) == (REJECTED, ROLLBACK)
        assert text_of(commit) == text_of(refused)
        work = worker.coordinator.declare()
        assert [each.remote_state for each in worker.publish(work, *"abc")] == [TRANSACTIONAL] * 3
        assert worker.coordinator.discharge(work).remote_state == ACCEPTED
    assert there(proxied) == list("abcabc")
    assert open_at_primary(proxied) == 0


def test_a_commit_that_the_primary_refuses_is_rolled_back(proxied: PairedProxy, worker: Worker) -> None:
    proxied.primary.container.default.configuration.declare_queue(
        "small", {"qpid.max_count": 1, "qpid.policy_type": "reject"}
    )
    worker.send("kept")
    (held,) = worker.received(worker.consumer(1))
    work = worker.coordinator.declare()
    worker.publish(work, "a", "b", link=worker.client.sender("small"))
    worker.answer(work, held)
    commit = worker.coordinator.discharge(work)
    assert (commit.remote_state, commit.remote.condition.name) == (REJECTED, ROLLBACK)
    assert "small" in text_of(commit)
    held.update(ACCEPTED)
    proxied.settle_down()
    assert (there(proxied), there(proxied, "small")) == ([], [])


def test_a_rollback_leaves_no_gap_among_the_numbers_of_a_publisher(proxied: PairedProxy, worker: Worker) -> None:
    for fails in (True, False, True):
        work = worker.coordinator.declare()
        worker.send("before")
        worker.publish(work, "within")
        worker.send("between")
        worker.coordinator.discharge(work, fails=fails)
        log = proxied.primary.container.default.resources.replicated.log
        log.add_witness("backup")
        after = [worker.client.send(worker.out, proton.Message("after")) for _ in range(2)]
        worker.client.exchange()
        proxied.cut(deliver=not fails)
        proxied.connect_upstream()
        log.remove_witness("backup")
        proxied.settle_down()
        assert [each.remote_state for each in after] == [ACCEPTED] * 2
    rolled_back, committed = ["before", "between", "after", "after"], ["before", "between", "within", "after", "after"]
    assert there(proxied) == [*rolled_back, *committed, *rolled_back]


def test_a_second_set_is_refused_as_at_the_primary() -> None:
    proxied = PairedProxy(primary=SeveralSets(), proxy=SeveralSets())
    proxy: Any = proxied.proxy
    proxy.lead_elsewhere("red")
    worker = Worker(proxied, "red")
    to_blue, to_default = worker.client.sender("blue"), worker.client.sender("plain")
    for first, others in ((worker.out, (to_blue, to_default)), (to_blue, (worker.out, to_default))):
        for link in others:
            work = worker.coordinator.declare()
            worker.publish(work, "a", link=first)
            (refused,) = worker.publish(work, "b", link=link)
            assert (refused.remote_state, refused.remote.condition.name) == (REJECTED, "amqp:not-implemented")
            assert "stays within one resource set" in text_of(refused)
            commit = worker.coordinator.discharge(work)
            assert (commit.remote_state, commit.remote.condition.name) == (REJECTED, ROLLBACK)
        work = worker.coordinator.declare()
        worker.publish(work, "a", link=first)
        assert worker.coordinator.discharge(work).remote_state == ACCEPTED
    primary: Any = proxied.primary
    assert (primary.count("red"), proxy.count("blue"), primary.count("blue")) == (1, 1, 0)
    assert open_at_primary(proxied) == 0
    assert [link.set_name for link in proxied.links].count("blue") == 0


def test_a_consumer_of_a_second_set_is_ended_as_at_the_primary() -> None:
    proxied = PairedProxy(primary=SeveralSets(), proxy=SeveralSets())
    worker = Worker(proxied, "plain")
    proxy: Any = proxied.proxy
    proxy.lead_elsewhere("red")
    worker.send("a", link=worker.client.sender("red"))
    link = worker.consumer(1, "red")
    work = worker.coordinator.declare()
    worker.publish(work, "b")
    worker.answer(work, *worker.received(link))
    assert condition(link) == "amqp:not-implemented"


def test_all_of_a_client_comes_to_a_set_in_one_way_also_when_it_moves_here() -> None:
    proxied = PairedProxy(primary=SeveralSets(), proxy=SeveralSets())
    proxy: Any = proxied.proxy
    proxy.lead_elsewhere("red")
    worker = Worker(proxied, "red")
    hosted = proxy.set("red")
    hosted.read_only, hosted.resources.replication.read_only = False, ""
    worker.client.sender("red")
    worker.consumer(1, "red")
    assert [link.set_name for link in proxied.links] == ["red"] * 3
    assert len(hosted.links) == 0
    assert Worker(proxied, "red", container="other").out.state & proton.Endpoint.REMOTE_ACTIVE
    assert len(hosted.links) == 1


@pytest.mark.parametrize("how", ["unknown", "discharged twice", "no id", "a text"])
def test_bad_input_gets_an_error_and_the_link_goes_on(proxied: PairedProxy, worker: Worker, how: str) -> None:
    work: Any = worker.coordinator.declare()
    expected = "amqp:transaction:unknown-id"
    if how == "unknown":
        work = b"never declared"
    elif how == "discharged twice":
        worker.publish(work, "a")
        assert worker.coordinator.discharge(work).remote_state == ACCEPTED
        assert worker.coordinator.discharge(work).remote.condition.name == expected
    else:
        work, expected = (None if how == "no id" else "text"), "amqp:invalid-field"
    (refused,) = worker.publish(work, "b")
    assert (refused.remote_state, refused.remote.condition.name) == (REJECTED, expected)
    assert worker.send("c")[0].remote_state == ACCEPTED


def test_a_consumer_that_names_no_transaction_is_ended(proxied: PairedProxy, worker: Worker) -> None:
    worker.send("a")
    link = worker.consumer(1)
    worker.answer(b"never declared", *worker.received(link))
    assert condition(link) == "amqp:transaction:unknown-id"
    assert there(proxied) == ["a"]


def test_the_address_of_relayed_coordinators_is_no_node_for_clients(proxied: PairedProxy) -> None:
    client = PairedClient(proxied.primary, container="liar")
    assert condition(client.sender(COORDINATOR)) == "amqp:not-found"
    link = client.session.sender("relayed")
    link.target.address = COORDINATOR
    link.properties = RelayRequest(("proxy",), "client", set_name="default").properties()
    link.open()
    proxied.primary.settle_down()
    assert condition(link) == "amqp:not-found"


def test_a_primary_of_an_older_version_is_named(proxied: PairedProxy, worker: Worker) -> None:
    assert proxied.upstream is not None
    proxied.upstream.relays_sets = False  # as its open would have it
    work = worker.coordinator.declare()
    (refused,) = worker.publish(work, "a")
    assert (refused.remote_state, refused.remote.condition.name) == (REJECTED, "amqp:not-implemented")
    assert "of an older version" in text_of(refused)
    assert "upgrade it" in text_of(refused)
    commit = worker.coordinator.discharge(work)
    assert (commit.remote_state, commit.remote.condition.name) == (REJECTED, ROLLBACK)
    assert worker.send("b")[0].remote_state == ACCEPTED
    assert there(proxied) == ["b"]


def test_a_message_that_somebody_else_got_meanwhile_takes_the_transaction_with_it(
    proxied: PairedProxy, worker: Worker
) -> None:
    worker.send("a")
    (held,) = worker.received(worker.consumer(1))
    work = worker.coordinator.declare()
    proxied.cut()
    worker.answer(work, held)  # it was not sent yet
    worker.publish(work, "b")
    other = PairedClient(proxied.primary, container="other")
    assert len(other.received(other.receiver("q", 1))) == 1
    proxied.connect_upstream()
    commit = worker.coordinator.discharge(work)
    assert (commit.remote_state, commit.remote.condition.name) == (REJECTED, ROLLBACK)
    assert there(proxied) == ["a"]


@pytest.mark.parametrize("settles", [False, True])
def test_a_message_that_is_somebody_elses_since_does_not_keep_a_transaction_from_its_end(
    proxied: PairedProxy, worker: Worker, settles: bool
) -> None:
    worker.send("a")
    (held,) = worker.received(worker.consumer(1))
    proxied.cut()
    other = PairedClient(proxied.primary, container="other")
    assert len(other.received(other.receiver("q", 1))) == 1
    proxied.connect_upstream()
    work = worker.coordinator.declare()
    worker.answer(work, held, settles=settles)
    worker.publish(work, "b")
    commit = worker.coordinator.discharge(work)
    assert (commit.remote_state, commit.remote.condition.name) == (REJECTED, ROLLBACK)
    assert there(proxied) == ["a"]


def test_what_was_accepted_while_there_was_no_primary_is_part_of_the_transaction(
    proxied: PairedProxy, worker: Worker
) -> None:
    worker.send("a")
    (held,) = worker.received(worker.consumer(1))
    proxied.cut()
    work = worker.coordinator.declare()
    worker.answer(work, held)
    worker.publish(work, "b")
    proxied.connect_upstream()
    assert worker.coordinator.discharge(work).remote_state == ACCEPTED
    assert held.settled
    assert there(proxied) == ["b"]
