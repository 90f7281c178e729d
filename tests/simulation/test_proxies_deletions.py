"""Clients with sessions whose queue is deleted, in clusters of proxies: their checkers find planted bugs, soon."""

from __future__ import annotations

import pytest

from qpid_ha_broker.amqp.links.relayed_links import RelayedLink
from qpid_ha_broker.amqp.nodes.ended_queues import EndedQueues
from qpid_ha_broker.amqp.wire.conditions import INTERNAL_ERROR, RESOURCE_DELETED, AmqpError
from qpid_ha_broker.model.sessions import SessionHoldings
from simulation.brokers.deletions import DeletionConsumer
from simulation.brokers.ledger import ClientSession, Sent
from simulation.brokers.plan import draw_deletions_plan, draw_proxies_plan
from simulation.brokers.sessions import HeldMessage
from simulation.planted import found_by
from simulation.test_proxies_ledger import Market
from simulation.violations import Violation


def test_some_clusters_of_proxies_have_clients_whose_queue_is_deleted() -> None:
    assert 10 < sum(draw_proxies_plan(seed).bereft > 0 for seed in range(200)) < 40


def test_a_deletion_of_which_consumers_are_not_told_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def tell_nobody(self: EndedQueues, *, read_only: bool) -> None:
        self._resources.catalog.deleted_queues.clear()

    monkeypatch.setattr(EndedQueues, "look", tell_nobody)

    assert "has a link to deleted" in found_by(monkeypatch, map(draw_deletions_plan, range(6))).problem


def test_a_session_that_holds_messages_of_a_deleted_queue_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SessionHoldings, "drop_queue", lambda self, queue: None)

    assert "which was deleted" in found_by(monkeypatch, map(draw_deletions_plan, range(2))).problem


def test_a_proxy_that_gives_another_reason_for_a_deletion_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    detached = RelayedLink.detached

    def give_another_reason(self: RelayedLink, error: AmqpError) -> None:
        detached(self, AmqpError(INTERNAL_ERROR, "") if error.name == RESOURCE_DELETED else error)

    monkeypatch.setattr(RelayedLink, "detached", give_another_reason)

    assert "whose queue was deleted" in found_by(monkeypatch, map(draw_deletions_plan, range(2))).problem


def with_held(market: Market, sent: Sent) -> DeletionConsumer:
    """A consumer that got `sent`, and whose link was lost since."""
    consumer = DeletionConsumer(ClientSession("s0", 9.0), "s0-3", sent.queue, market.ledger, market.now_s())
    market.pass_time()
    consumer._held[1] = HeldMessage(market.ledger.hands_out(sent, consumer.reading, False), None, 1)
    return consumer


def test_what_was_on_its_way_when_its_queue_was_deleted_need_not_come_again() -> None:  # seed 2102
    market, sent = Market(), Sent("a0-1", 1, "deleted")
    market.ledger.sends(sent)
    market.pass_time()
    market.ledger.queue_deleted("deleted")
    consumer = with_held(market, sent)
    consumer._look_what_did_not_come()
    assert not consumer._held


def test_what_was_sent_after_its_queue_was_deleted_comes_again() -> None:
    market, sent = Market(), Sent("a0-1", 1, "deleted")
    market.ledger.queue_deleted("deleted")
    market.pass_time()
    market.ledger.sends(sent)
    consumer = with_held(market, sent)
    with pytest.raises(Violation, match="did not come again"):
        consumer._look_what_did_not_come()


def test_what_a_client_forgot_with_its_queue_may_go_out_where_nobody_knows_of_the_deletion() -> None:  # seed 7327
    market, sent = Market(), Sent("a0-1", 1, "deleted")
    market.ledger.sends(sent)
    market.pass_time()
    market.ledger.queue_deleted("deleted")
    consumer = with_held(market, sent)
    consumer.told(RESOURCE_DELETED)  # by a primary that nobody follows any more
    market.generations.have_all_come_in_time = True
    market.ledger.leaves_primary(sent, "s0.4", market.now_s())
