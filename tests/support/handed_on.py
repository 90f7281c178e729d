"""Messages that are handed on to the set `red`: a sender, and the receiver that it has now, without a sub-channel."""

from __future__ import annotations

from model_support import NOW_MS
from qpid_ha_broker.ha.forward_frames import ForwardFrame, decode, encode
from qpid_ha_broker.ha.forwarding import DEFAULT_LIMITS, ForwardLimits, ForwardReceiver, ForwardSender
from qpid_ha_broker.model.logs.log import Commitment
from qpid_ha_broker.model.sets.message_clock import MessageClock
from qpid_ha_broker.model.sets.resources import Resources
from qpid_ha_broker.model.transactions.transaction import Message


def a_sender(gone: set[str] | None = None, limits: ForwardLimits = DEFAULT_LIMITS) -> ForwardSender:
    """It is connected. `gone`: queues that are no more."""
    sender = ForwardSender("red", b"beta/red", lambda name: name in (gone or set()), limits)
    sender.connected()
    return sender


def a_receiver(resources: Resources) -> ForwardReceiver:
    """Whose clock is that of the exchanges."""
    return ForwardReceiver(resources, MessageClock(), lambda: None)


def frames_of(sender: ForwardSender) -> list[ForwardFrame]:
    """All that it has to say now."""
    return list(iter(sender.take_frame, None))


def deliver(sender: ForwardSender, receiver: ForwardReceiver) -> None:
    """All that there is, both ways, until nobody has anything to say. A turn is over when all has come."""
    while frames := frames_of(sender):
        answers = [answer for frame in frames for answer in receiver.received(decode(encode(frame)), NOW_MS)]
        for answer in answers + receiver.write(NOW_MS):
            sender.received(decode(encode(answer)))
        sender.check_invariants()
    for answer in receiver.committed():
        sender.received(answer)


class ToRed:
    """A `model.publishing.Forwarder` with one sender."""

    is_full = False

    def __init__(self) -> None:
        self.sender = a_sender()

    def has_unwritten(self, set_name: str) -> bool:
        """See `model.publishing.Forwarder`."""
        return set_name == "red" and self.sender.has_unwritten

    def forward(self, set_name: str, queues: tuple[str, ...], message: Message) -> Commitment:
        """See `model.publishing.Forwarder`."""
        assert set_name == "red"
        return self.sender.forward(queues, message)
