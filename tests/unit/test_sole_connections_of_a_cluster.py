"""A client id that is in use at another broker: who is told it alone has it, whatever goes wrong in the cluster."""

from __future__ import annotations

from typing import Any

import proton
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from paired_engines import PairedClient
from qpid_ha_broker.amqp.connections import connection as connection_module
from qpid_ha_broker.amqp.connections.reservation_keeper import DOUBT_MS
from qpid_ha_broker.amqp.nodes.reservations import ANSWER_MS, MARGIN_MS
from qpid_ha_broker.amqp.relaying.relayed_reservations import LIMIT_MORE_MS
from qpid_ha_broker.amqp.wire.conditions import (
    CONNECTION_FORCED,
    INVALID_FIELD,
    RESOURCE_LOCKED,
    SOLE_CONNECTION,
    AmqpError,
)
from qpid_ha_broker.amqp.wire.relay import RELAY_RESERVATIONS_CAPABILITY
from qpid_ha_broker.amqp.wire.reservation_request import ReservationRequest, read_reservation
from qpid_ha_broker.model.queues.lead_proof import LeadProof
from reserving_cluster import (
    SILENCE_MS,
    TICK_MS,
    ReservingCluster,
    is_open,
    is_refused_as_second,
    is_told,
    refusal,
    told_on_refusal,
)

HOLD_MS = 6_000
FREE_MS = HOLD_MS + MARGIN_MS


@pytest.fixture
def cluster() -> ReservingCluster:
    return ReservingCluster()


def test_a_second_connection_at_another_broker_is_refused_while_the_first_lives(cluster: ReservingCluster) -> None:
    first = cluster.connect(0)
    assert is_told(first)
    second = cluster.connect(1)
    assert is_refused_as_second(second)
    assert "to broker node0" in told_on_refusal(second)[0]
    assert is_open(first)
    assert cluster.told() == [first]


def test_other_ids_and_those_who_do_not_ask_are_not_in_the_way(cluster: ReservingCluster) -> None:
    first, other, silent = cluster.connect(0), cluster.connect(1, "other"), cluster.connect(1, asks=False)
    assert [is_open(client) for client in (first, other, silent)] == [True] * 3
    assert not is_told(silent)


def test_who_does_not_ask_needs_nobody(cluster: ReservingCluster) -> None:
    cluster.proxies[0].cut()
    assert is_open(cluster.connect(0, asks=False))
    assert not is_open(cluster.connect(0))


@pytest.mark.parametrize("ends", ["closes", "vanishes"])
def test_when_the_first_one_has_ended_the_next_one_is_let_in(cluster: ReservingCluster, ends: str) -> None:
    first = cluster.connect(0)
    if ends == "closes":
        first.connection.close()
    else:
        first.vanish()
    cluster.settle_down()
    assert is_told(cluster.connect(1))


def test_the_next_one_at_the_same_broker_has_the_id_for_the_cluster(cluster: ReservingCluster) -> None:
    cluster.connect(0)
    second = cluster.connect(0, closes=True)
    assert cluster.told() == [second]
    assert is_refused_as_second(cluster.connect(1))


def test_what_comes_with_the_open_is_answered_after_it(cluster: ReservingCluster) -> None:
    cluster.proxies[0].cut()
    client = cluster.connect(0)
    sender = client.sender("amq.topic")
    assert not is_open(client)
    cluster.proxies[0].reach(cluster.primary)
    cluster.settle_down()
    assert is_told(client)
    assert sender.state & proton.Endpoint.REMOTE_ACTIVE


def test_who_asks_for_it_takes_the_place_of_one_at_another_broker(cluster: ReservingCluster) -> None:
    first = cluster.connect(0)
    second = cluster.connect(1, closes=True)
    assert refusal(first) == RESOURCE_LOCKED
    assert told_on_refusal(first)[1] == {"sole-connection-enforcement": True}
    assert cluster.told() == [second]


def test_a_client_that_comes_back_to_another_broker_before_its_loss_was_noticed_is_let_in(
    cluster: ReservingCluster,
) -> None:
    dead = cluster.connect(0)
    dead.peer.engine.transport.idle_timeout = 60
    cluster.advance(20_000)
    assert is_refused_as_second(cluster.connect(1))
    cluster.advance(TICK_MS)
    assert is_told(cluster.connect(1))
    assert refusal(dead) == RESOURCE_LOCKED


# --- who keeps ids is lost


def test_clients_do_not_notice_that_another_broker_leads_and_keep_their_ids(cluster: ReservingCluster) -> None:
    first = cluster.connect(0)
    cluster.replace_primary()
    cluster.step_down()
    for proxy in cluster.proxies:
        proxy.reach(cluster.primary)
    second = cluster.connect(1)
    assert is_refused_as_second(second)
    cluster.advance(2 * FREE_MS)
    assert cluster.told() == [first]


def test_nobody_new_gets_an_id_before_all_have_had_time_to_come_for_theirs(cluster: ReservingCluster) -> None:
    first = cluster.connect(0)
    cluster.proxies[0].is_silent = True
    cluster.replace_primary(doubts_ms=500)
    cluster.proxies[1].reach(cluster.primary)
    second = cluster.connect(1)
    cluster.advance(FREE_MS - 500)
    assert refusal(first) == CONNECTION_FORCED, "its broker has not reached the primary for too long"
    assert not is_open(second)
    cluster.advance(1_000)
    assert cluster.told() == [second]


def test_a_broker_that_is_late_finds_its_id_as_it_was(cluster: ReservingCluster) -> None:
    first = cluster.connect(0)
    cluster.proxies[0].primary_notices()
    second = cluster.connect(1)
    cluster.advance(HOLD_MS - 2 * TICK_MS)
    cluster.proxies[0].reach(cluster.primary)
    cluster.settle_down()
    assert cluster.told() == [first]
    assert is_refused_as_second(second)


def test_the_id_of_a_broker_that_has_died_is_free_in_the_time_of_one_open(cluster: ReservingCluster) -> None:
    """Nothing says that it died: its machine is gone."""
    cluster.connect(0)
    cluster.kill(0)
    cluster.proxies[0].cut()
    second = cluster.connect(1)
    assert not is_open(second)
    cluster.advance(ANSWER_MS + FREE_MS + 2 * TICK_MS)
    assert cluster.told() == [second]


def test_a_broker_that_was_started_again_has_its_ids_at_once(cluster: ReservingCluster) -> None:
    cluster.connect(0)
    cluster.kill(0)
    assert is_told(cluster.connect(0))


def test_where_nobody_is_asked_a_client_is_told_to_try_elsewhere_and_has_nothing(cluster: ReservingCluster) -> None:
    """It would be let in without being told that it is not the only one: Qpid JMS does not read what it is told."""
    cluster.proxies[0].cut()
    client = cluster.connect(0)
    cluster.advance(HOLD_MS + LIMIT_MORE_MS - TICK_MS)
    assert refusal(client) is None
    cluster.advance(2 * TICK_MS)
    assert refusal(client) == CONNECTION_FORCED
    assert not is_told(client)


def test_a_primary_that_is_not_sure_gives_nothing_and_ends_what_it_keeps(cluster: ReservingCluster) -> None:
    first = cluster.connect(0)
    cluster.primary.container.default.prove_lead = lambda: LeadProof.MISSING
    second = cluster.connect(1, "other")
    assert not is_open(second)
    cluster.advance(DOUBT_MS + TICK_MS)
    assert is_open(first)
    cluster.advance(HOLD_MS)
    assert refusal(first) == CONNECTION_FORCED


def test_who_comes_back_to_a_primary_that_is_not_sure_waits_until_it_is(cluster: ReservingCluster) -> None:
    first, default = cluster.connect(0), cluster.primary.container.default
    default.prove_lead = lambda: LeadProof.MISSING
    cluster.advance(DOUBT_MS + 2 * TICK_MS)
    second = cluster.connect(1)
    cluster.advance(HOLD_MS // 2)
    assert [is_open(first), is_open(second)] == [True, False]
    assert not cluster.proxies[0].again, "its link is attached again, and not answered"
    default.prove_lead = lambda: LeadProof.PROVEN
    cluster.advance(TICK_MS)
    assert is_refused_as_second(second)
    cluster.advance(2 * HOLD_MS)
    assert cluster.told() == [first]


def test_a_primary_that_is_not_sure_gives_nobody_the_id_that_it_has_back(cluster: ReservingCluster) -> None:
    first, waiting = (
        cluster.connect(0),
        PairedClient(cluster.proxies[1].proxy, None, (SOLE_CONNECTION,), container="shop"),
    )
    cluster.proxies[0].is_silent = True  # so that nobody says that the first one lives
    cluster.settle_down()
    cluster.primary.container.default.prove_lead = lambda: LeadProof.MISSING
    cluster.proxies[0].is_silent = False
    first.vanish()
    cluster.settle_down()
    assert not is_open(waiting)
    cluster.primary.container.default.prove_lead = lambda: LeadProof.PROVEN
    cluster.advance(TICK_MS)
    assert is_told(waiting)


def test_a_broker_that_leads_again_is_told_by_all_what_they_have(cluster: ReservingCluster) -> None:
    first = cluster.connect(0)
    container = cluster.primary.container
    container.led(container.default)
    cluster.settle_down()
    cluster.proxies[0].attach_those_left()
    assert is_open(first)
    assert is_refused_as_second(cluster.connect(1))


def test_a_broker_that_was_stopped_counts_the_time_in_which_it_heard_nothing(cluster: ReservingCluster) -> None:
    first, stopped = cluster.connect(0), cluster.proxies[0]
    cluster.proxies[0].is_silent = True
    cluster.advance(TICK_MS)
    stopped.proxy.container.now_ms += FREE_MS
    assert stopped.upstream is not None
    stopped.upstream.receive(b"")
    stopped.notices()
    stopped.proxy.container.tick()
    stopped.settle_down()
    assert refusal(first) == CONNECTION_FORCED


def test_a_broker_that_goes_on_after_a_stop_is_told_that_its_id_is_another_ones(cluster: ReservingCluster) -> None:
    """Before it has looked at its clock: this is the moment that is not promised."""
    first, stopped = cluster.connect(0), cluster.proxies.pop(0)
    stopped.primary_notices()
    cluster.advance(FREE_MS)
    cluster.connect(0)
    cluster.proxies.insert(0, stopped)
    stopped.reach(cluster.primary)
    cluster.settle_down()
    assert refusal(first) == RESOURCE_LOCKED
    assert len(cluster.told()) == 1


def test_what_comes_late_of_a_connection_that_was_given_up_takes_no_id(cluster: ReservingCluster) -> None:
    waiting, proxy = cluster.connect(0, "waits"), cluster.proxies[0]
    assert is_told(waiting)
    proxy.cut()
    client = cluster.connect(0)
    proxy.connect_upstream()
    accepted, late = proxy.give_up_upstream()
    assert is_told(client)
    accepted.receive(late)
    cluster.settle_down()
    proxy.attach_those_left()
    accepted.lost()
    cluster.settle_down()
    assert is_open(client)
    assert is_refused_as_second(cluster.connect(1))


# --- older releases


def test_a_primary_of_an_older_release_is_no_reason_to_refuse_and_nobody_is_told(
    cluster: ReservingCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    older = [name for name in connection_module._RELAY_CAPABILITIES if name != RELAY_RESERVATIONS_CAPABILITY]
    monkeypatch.setattr(connection_module, "_RELAY_CAPABILITIES", tuple(older))
    first = cluster.connect(0)
    assert is_told(first), "the connection to the primary was there before"
    cluster.proxies[0].reach(cluster.primary)
    assert refusal(first) == CONNECTION_FORCED, "nobody sees to it any more"
    again, second, third = cluster.connect(0), cluster.connect(1), cluster.connect(0)
    cluster.proxies[1].reach(cluster.primary)
    assert [is_open(again), is_told(again)] == [True, False]
    assert is_refused_as_second(third), "each broker knows its own"
    assert not is_told(second) or cluster.told() == [second]


# --- what is said


@pytest.mark.parametrize("closes_existing", [False, True])
@pytest.mark.parametrize("is_held", [False, True])
def test_what_a_proxy_asks_comes_as_it_was(is_held: bool, closes_existing: bool) -> None:
    request = ReservationRequest("k", 6_000, is_held, closes_existing)
    assert read_reservation(request.properties()) == request


@pytest.mark.parametrize(
    "fields",
    [
        None,
        [],
        ["", 1, False, False],
        ["k" * 129, 1, False, False],
        ["k", -1, False, False],
        ["k", True, False, False],
        ["k", 1 << 40, False, False],
        ["k", 1, 0, False],
        ["k", 1, False],
        [1, 1, False, False],
    ],
)
def test_what_makes_no_sense_is_refused(fields: Any) -> None:
    with pytest.raises(AmqpError, match=INVALID_FIELD):
        read_reservation({"qpid.relay-reservation": fields})


# --- whatever happens


class AnyTrouble(RuleBasedStateMachine):
    """The safety property of `nodes.reservations`, through all layers and both ends of each link."""

    def __init__(self) -> None:
        super().__init__()
        self.cluster = ReservingCluster(3)

    @rule(at=st.integers(0, 2), closes=st.sampled_from([False, False, True]))
    def a_client_comes(self, at: int, closes: bool) -> None:
        self.cluster.connect(at, closes=closes)

    @rule(number=st.integers(0, 5), closes=st.booleans())
    def a_client_goes(self, number: int, closes: bool) -> None:
        alive = [client for client in self.cluster.clients if not client.peer.has_ended]
        if number < len(alive) and closes:
            alive[number].connection.close()
        elif number < len(alive):
            alive[number].vanish()
        self.cluster.settle_down()

    @rule(ms=st.sampled_from([TICK_MS, 1_000, SILENCE_MS, 3_000, HOLD_MS, FREE_MS]))
    def time_goes_by(self, ms: int) -> None:
        self.cluster.advance(ms)

    @rule(at=st.integers(0, 2))
    def a_connection_falls_silent(self, at: int) -> None:
        self.cluster.proxies[at].is_silent = True

    @rule(at=st.integers(0, 2))
    def the_primary_notices_a_loss(self, at: int) -> None:
        self.cluster.proxies[at].primary_notices()

    @rule(at=st.integers(0, 2))
    def a_broker_notices_a_loss(self, at: int) -> None:
        self.cluster.proxies[at].is_silent = True
        self.cluster.proxies[at].notices()

    @rule(at=st.integers(0, 2))
    def a_broker_reaches_the_primary(self, at: int) -> None:
        self.cluster.proxies[at].reach(self.cluster.primary)

    @rule(at=st.integers(0, 2))
    def a_broker_dies(self, at: int) -> None:
        self.cluster.kill(at)

    @rule()
    def another_broker_leads(self) -> None:
        """The one before goes on, without a proof: it has had none for as long as others need to replace it."""
        self.cluster.replace_primary(doubts_ms=500)

    @rule()
    def it_leads_again(self) -> None:
        container = self.cluster.primary.container
        container.led(container.default)
        self.cluster.settle_down()

    @rule()
    def who_led_before_hears_of_it(self) -> None:
        self.cluster.step_down()

    @invariant()
    def one_at_most_was_told_and_lives(self) -> None:
        assert len(self.cluster.told()) <= 1
        for primary in (self.cluster.primary, *self.cluster.old):
            primary.container.reservations.table.check_invariants()

    def teardown(self) -> None:
        """It is had again, however bad it was."""
        self.cluster.step_down()
        for at, proxy in enumerate(self.cluster.proxies):
            proxy.reach(self.cluster.primary)
            if at:
                for client in list(self.cluster.clients):
                    if client.broker is proxy.proxy and not client.peer.has_ended:
                        client.vanish()
        self.cluster.advance(2 * FREE_MS)
        for _ in self.cluster.proxies:  # dead ones may have waited, too: each is found out when it has the id
            if not self.cluster.told():
                self.cluster.connect(0)
                self.cluster.advance(ANSWER_MS + FREE_MS + 2 * TICK_MS)
        assert self.cluster.told()


TestAnyTrouble = AnyTrouble.TestCase
TestAnyTrouble.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)
