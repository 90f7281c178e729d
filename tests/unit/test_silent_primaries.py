"""A broker that relays passes on nothing that comes of a primary that was silent: another one may lead by then."""

from __future__ import annotations

from typing import Any

import pytest

from paired_engines import PairedClient, take_from
from paired_proxy import SILENCE_S, PairedProxy
from qpid_ha_broker.server.runtime.member_settings import RELAY_SILENCE_LEAST_S, relay_silence_s
from qpid_ha_config.settings import BrokerSettings


class Clock:
    """Of the broker that relays."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def proxied(clock: Clock) -> PairedProxy:
    """With a queue that a consumer at the proxy may read."""
    proxied = PairedProxy()
    proxied.primary.container.default.configuration.declare_queue("q", {})
    proxied.silence_clock = clock
    proxied.cut()
    proxied.connect_upstream()
    proxied.ended.clear()
    return proxied


def publish(proxied: PairedProxy, *bodies: str) -> None:
    """At the primary itself."""
    client = PairedClient(proxied.primary)
    proxied.primary.settle_down()
    sender = client.session.sender("to")
    sender.target.address = "q"
    sender.open()
    proxied.primary.settle_down()
    client.send_all(sender, *bodies)
    proxied.settle_down()


def came(client: PairedClient, link: Any) -> list[tuple[str, bool]]:
    """What the messages say, and whether they are the first copies."""
    return [(message.body, message.first_acquirer) for _, message in client.received(link)]


def come_back(proxied: PairedProxy) -> None:
    """The proxy connects again."""
    proxied.cut()
    proxied.connect_upstream()


def test_what_comes_of_a_silent_primary_is_not_passed_on_and_comes_again_marked(
    proxied: PairedProxy, clock: Clock
) -> None:
    client = proxied.client()
    link = client.receiver("q", 5)
    with proxied.held_up():
        publish(proxied, "late")
        clock.now_s += SILENCE_S + 0.1
    assert came(client, link) == []
    assert "another broker may have begun to lead" in proxied.ended[0]

    come_back(proxied)
    assert came(client, link) == [("late", False)]


def test_what_comes_in_time_is_passed_on(proxied: PairedProxy, clock: Clock) -> None:
    client = proxied.client()
    link = client.receiver("q", 5)
    for body in ("first", "second"):
        with proxied.held_up():
            publish(proxied, body)
            clock.now_s += SILENCE_S - 0.1
        assert came(client, link) == [(body, True)]
    assert proxied.ended == []


def test_a_consumer_keeps_what_it_has_when_its_primary_was_silent(proxied: PairedProxy, clock: Clock) -> None:
    client = proxied.client()
    link = client.receiver("q", 5)
    publish(proxied, "has")
    [(delivery, _)] = client.received(link)
    with proxied.held_up():
        publish(proxied, "late")
        clock.now_s += SILENCE_S + 0.1
    delivery.update(delivery.ACCEPTED)
    delivery.settle()
    proxied.settle_down()

    come_back(proxied)
    assert [body for body, _ in came(client, link)] == ["late"]
    assert proxied.queue("q").messages.count == 1  # what was accepted is gone


def test_what_waits_for_credit_is_not_passed_on_once_its_primary_is_silent(proxied: PairedProxy, clock: Clock) -> None:
    client = proxied.client()
    link = client.receiver("q", 1)
    with proxied.held_up():
        publish(proxied, "held")
        link.flow(-1)
        client.exchange()
    assert came(client, link) == []
    clock.now_s += SILENCE_S + 0.1
    link.flow(1)
    client.exchange()
    client.exchange()
    assert came(client, link) == []


def test_a_primary_that_is_at_rest_says_that_it_is_there(proxied: PairedProxy, clock: Clock) -> None:
    client = proxied.client()
    link = client.receiver("q", 5)
    assert proxied.accepted is not None
    assert proxied.upstream is not None
    for _ in range(40):
        clock.now_s += 0.25
        now_ms = int(clock.now_s * 1000)
        proxied.accepted.heartbeat(now_ms)
        proxied.settle_down()
        proxied.upstream.heartbeat(now_ms)
        assert not proxied.upstream.silence.is_too_long
    assert proxied.ended == []
    assert take_from(client.transport) == b""
    publish(proxied, "at last")
    assert came(client, link) == [("at last", True)]


@pytest.mark.parametrize(
    ("heartbeat", "failure_timeout", "silence_s"),
    [("1s", "4s", 1.5), ("10s", "4s", 3.0), ("100ms", "4s", RELAY_SILENCE_LEAST_S)],
)
def test_the_limit_is_less_than_what_others_need_to_replace_a_primary(
    heartbeat: str, failure_timeout: str, silence_s: float
) -> None:
    settings = BrokerSettings.from_values({"link-heartbeat-interval": heartbeat, "ha.failure-timeout": failure_timeout})
    assert relay_silence_s(settings) == pytest.approx(silence_s)
