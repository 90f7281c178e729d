"""Messages for queues of several sets, of which one refuses them: each queue has each of them once, or never.

`default` and `blue` are led by the broker with the exchange, `red` by another one, whose queue takes no large messages.
"""

from __future__ import annotations

from typing import Any

import proton
import pytest

from handed_on import ToRed, a_receiver, deliver
from model_support import Core, TextReader
from paired_engines import PairedClient, queued_bodies
from paired_proxy import PairedProxy
from qpid_ha_broker.model.queues.queue import Queue
from qpid_ha_broker.model.sets.resources import Resources
from several_sets import SeveralSets, fan_out

ACCEPTED, REJECTED = proton.Delivery.ACCEPTED, proton.Delivery.REJECTED
LARGE = "b" * 1000


class RedBroker(ToRed):
    """Who leads `red`, and the way there."""

    def __init__(self) -> None:
        super().__init__()
        self.core = Core(Resources(TextReader(), "red"))
        self.queue = self.core.queue("red", max_size=900)
        self._receiver = a_receiver(self.core.resources)

    def take(self) -> None:
        """All that was handed on comes, and the answers."""
        deliver(self.sender, self._receiver)
        self.core.commit()
        deliver(self.sender, self._receiver)


class FannedOut:
    """An exchange that leads to `plain` of `default`, `blue` and `red`."""

    def __init__(self) -> None:
        self.broker = SeveralSets()
        fan_out(self.broker)
        self.broker.lead_elsewhere("red")
        self.red = RedBroker()
        self.broker.container.publisher.forwarder = self.red

    def queued(self) -> dict[str, str]:
        """The first letters of what the queues have."""
        blue = self.broker.set("blue").resources.catalog.queues["blue"]
        return {"plain": letters(self.broker.queue("plain")), "blue": letters(blue), "red": letters(self.red.queue)}


def letters(queue: Queue) -> str:
    return "".join(body[0] for body in queued_bodies(queue))


def states(deliveries: list[Any]) -> list[int]:
    return [delivery.remote_state for delivery in deliveries]


@pytest.mark.parametrize("hears", [True, False], ids=["who hears of it", "who hears nothing"])
def test_a_proxy_does_not_send_again_what_is_behind_a_message_that_another_set_refuses(hears: bool) -> None:
    """It was taken already: under other numbers it would be there twice."""
    fanned = FannedOut()
    proxied = PairedProxy(primary=fanned.broker)
    client = proxied.client()
    link = client.sender("fan")
    sent = [client.send(link, proton.Message(text)) for text in ("a", LARGE, "c", "d")]
    client.exchange()
    if hears:
        proxied.settle_down()
        fanned.red.take()
    else:
        proxied.cut(deliver=True)
        fanned.red.take()
        fanned.broker.settle_down()
        proxied.connect_upstream()
        fanned.red.take()
    proxied.settle_down()
    fanned.red.take()
    proxied.settle_down()
    assert states(sent) == [ACCEPTED, REJECTED, ACCEPTED, ACCEPTED]
    assert fanned.queued() == {"plain": "abcd", "blue": "abcd", "red": "acd"}


def numbered(number: int, text: str) -> proton.Message:
    message = proton.Message(text)
    message.annotations = {"x-opt-qpid-producer": "app", "x-opt-qpid-sequence": proton.ulong(number)}
    return message


def send(fanned: FannedOut, client: PairedClient, *messages: proton.Message) -> list[int]:
    sent = client.publish("fan", *messages)
    fanned.red.take()
    fanned.broker.settle_down()
    return states(sent)


def test_a_numbered_message_that_one_set_has_and_another_one_refused_is_refused_when_it_is_sent_again() -> None:
    """Before, that set took it for a copy of what it had not: a later one had been accepted there."""
    fanned = FannedOut()
    messages = [numbered(1, "a"), numbered(2, LARGE), numbered(3, "c")]
    assert send(fanned, fanned.broker.connect(), *messages) == [ACCEPTED, REJECTED, ACCEPTED]
    assert send(fanned, fanned.broker.connect(), *messages, numbered(4, "d")) == [
        ACCEPTED,
        REJECTED,
        ACCEPTED,
        ACCEPTED,
    ]
    assert fanned.queued() == {"plain": "abcd", "blue": "abcd", "red": "acd"}


def test_where_nothing_later_was_accepted_what_is_missing_is_there_once_the_set_takes_it() -> None:
    fanned = FannedOut()
    messages = [numbered(1, "a"), numbered(2, LARGE)]
    assert send(fanned, fanned.broker.connect(), *messages) == [ACCEPTED, REJECTED]
    fanned.red.core.configuration.update_queue("red", {"qpid.max_size": 2000})
    assert send(fanned, fanned.broker.connect(), *messages) == [ACCEPTED, ACCEPTED]
    assert fanned.queued() == {"plain": "ab", "blue": "ab", "red": "ab"}


def test_what_one_of_several_sets_here_refuses_none_has_and_none_takes_for_a_copy() -> None:
    fanned = FannedOut()
    blue = fanned.broker.set("blue")
    blue.configuration.update_queue("blue", {"qpid.max_size": 900})
    messages = [numbered(1, "a"), numbered(2, LARGE), numbered(3, "c")]
    for _ in range(2):
        assert send(fanned, fanned.broker.connect(), *messages) == [ACCEPTED, REJECTED, ACCEPTED]
    assert fanned.queued() == {"plain": "ac", "blue": "ac", "red": "ac"}
