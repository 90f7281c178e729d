"""Who has a container id where brokers ask for it, lose their links and do not answer: short stories in all orders."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product

import pytest

from qpid_ha_broker.amqp.connections.container import ContainerSettings
from qpid_ha_broker.amqp.nodes.reservations import (
    ANSWER_MS,
    MARGIN_MS,
    Effect,
    HolderQuestion,
    Replaced,
    Reservation,
    ReservationAsked,
    ReservationGranted,
    ReservationRefused,
    ReservationTable,
)
from qpid_ha_broker.amqp.relaying.relayed_reservations import LIMIT_MORE_MS
from qpid_ha_broker.server.broker import container_settings
from qpid_ha_config.settings import BrokerSettings

HOLD_MS = 6_000
FREE_MS = HOLD_MS + MARGIN_MS
LENGTH = 5


class Story:
    """Two brokers, one id, and what each of them may believe."""

    def __init__(self) -> None:
        self.table = ReservationTable()
        self.now_ms = 0
        self.links: dict[str, Reservation] = {}
        """By broker: the one that it has attached, answered or not."""
        self.believes_until_ms: dict[str, float] = {}
        """By broker: so long its client is told, or may be, that it is the only one."""

    def tell(self, effects: list[Effect]) -> None:
        for effect in effects:
            broker = effect.reservation.broker
            match effect:
                case ReservationGranted():
                    others = [name for name, until_ms in self.believes_until_ms.items() if until_ms >= self.now_ms]
                    assert set(others) <= {broker}, "another one may still believe that"
                    if self.links.get(broker) is effect.reservation:  # else it has given that link up
                        self.believes_until_ms[broker] = float("inf")
                case ReservationRefused() if self.links.get(broker) is effect.reservation:
                    del self.links[broker]
                    self.believes_until_ms.pop(broker, None)
                case Replaced() if self.links.get(broker) is effect.reservation:
                    self._is_cut_off(broker)
        self.table.check_invariants()

    def _is_cut_off(self, broker: str) -> None:
        del self.links[broker]
        if self.believes_until_ms.get(broker) == float("inf"):
            self.believes_until_ms[broker] = self.now_ms + HOLD_MS

    # --- what may happen

    def ask(self, broker: str) -> None:
        """Its link, or its next one, is attached; it says whether its client was told."""
        is_held = self.believes_until_ms.get(broker, -1.0) >= self.now_ms
        self.links[broker] = reservation = Reservation("k", broker, HOLD_MS, is_held, closes_existing=broker == "b")
        self.tell(self.table.ask(reservation, self.now_ms))

    def close(self, broker: str) -> None:
        """Its client goes."""
        reservation = self.links.pop(broker, None)
        self.believes_until_ms.pop(broker, None)
        if reservation is not None:
            self.tell(self.table.closed(reservation, self.now_ms))

    def lose(self, broker: str) -> None:
        """The primary notices that its link is gone."""
        reservation = self.links.get(broker)
        if reservation is not None:
            self._is_cut_off(broker)
            self.tell(self.table.lost(reservation, self.now_ms))

    def live(self, broker: str) -> None:
        """It says that its client lives."""
        if broker in self.links:
            self.tell(self.table.lives(self.links[broker], self.now_ms))

    def wait(self, ms: int) -> None:
        """Time goes by: who has heard nothing for too long ends its client's connection, and its link."""
        self.now_ms += ms
        for broker in [name for name, until_ms in self.believes_until_ms.items() if until_ms < self.now_ms]:
            self.close(broker)
        self.tell(self.table.look(self.now_ms))

    def begin(self) -> None:
        """Another broker leads, of which nobody has heard yet."""
        for broker in list(self.links):
            self._is_cut_off(broker)
        self.table.begin(self.now_ms, HOLD_MS)

    def doubt(self) -> None:
        """It is not sure that this broker leads, or it is again."""
        self.table.is_sure = not self.table.is_sure


EVENTS: tuple[Callable[[Story], None], ...] = (
    lambda story: story.ask("a"),
    lambda story: story.ask("b"),
    lambda story: story.close("a"),
    lambda story: story.lose("a"),
    lambda story: story.lose("b"),
    lambda story: story.live("a"),
    lambda story: story.wait(ANSWER_MS),
    lambda story: story.wait(HOLD_MS),
    Story.begin,
    Story.doubt,
)


@pytest.mark.parametrize("first", range(len(EVENTS)))
def test_an_id_is_given_to_nobody_while_another_broker_may_believe_that_it_has_it(first: int) -> None:
    for rest in product(EVENTS, repeat=LENGTH - 1):
        story = Story()
        for event in (EVENTS[first], *rest):
            event(story)
        story.table.is_sure = True
        for _ in range(4):  # whatever it was, in the end the id can be had
            story.wait(FREE_MS)
        story.close("a")
        story.close("b")
        story.ask("a")
        for _ in range(2):
            story.wait(ANSWER_MS)
            story.wait(FREE_MS)
        assert story.believes_until_ms["a"] == float("inf")


def test_a_holder_is_asked_once_and_again_where_it_is_to_end() -> None:
    table = ReservationTable()
    holder, second, third = (Reservation("k", broker, HOLD_MS) for broker in "abc")
    closing = Reservation("k", "d", HOLD_MS, closes_existing=True)
    assert table.ask(holder, 0) == [ReservationGranted(holder)]
    assert table.ask(second, 0) == [ReservationAsked(holder, HolderQuestion.LIVES)]
    assert table.ask(third, 0) == []
    assert table.ask(closing, 0) == [ReservationAsked(holder, HolderQuestion.ENDS)]
    assert table.lives(holder, 0) == [ReservationRefused(second, "a"), ReservationRefused(third, "a")]
    assert table.closed(holder, 0) == [ReservationGranted(closing)]
    assert table.closed(closing, 0) == []
    assert len(table) == 0


def test_whose_link_is_lost_waits_no_more() -> None:
    table = ReservationTable()
    holder, second, third = (Reservation("k", broker, HOLD_MS) for broker in "abc")
    for reservation in (holder, second, third):
        table.ask(reservation, 0)
    assert table.lost(second, 0) == []
    assert table.closed(holder, 0) == [ReservationGranted(third)]
    table.is_sure = False
    table.ask(second, 0)
    assert table.lost(second, 0) == []
    table.is_sure = True
    assert table.look(0) == []


def test_an_open_waits_longer_than_any_id_is_kept_and_an_id_is_kept_longer_than_a_failover_takes() -> None:
    for failure_timeout in ("1s", "2s", "10s"):
        values = {"ha.failure-timeout": failure_timeout, "link-heartbeat-interval": "10s"}
        settings = BrokerSettings.from_values(values)
        hold_ms = container_settings(settings).reservation_hold_ms
        assert hold_ms >= 3 * settings.replicas.failure_timeout_s * 1000
        assert hold_ms + LIMIT_MORE_MS > ANSWER_MS + hold_ms + MARGIN_MS
    assert container_settings(BrokerSettings()).reservation_hold_ms == ContainerSettings("a", "0").reservation_hold_ms
