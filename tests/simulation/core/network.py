"""The network between the nodes: ordered channels that delay, break, and hide that they are broken; partitions.

Within a channel nothing is lost or reordered: what is lost breaks the channel, and either end notices after a while or
not at all. A partition holds frames back, as a transport that sends again does, until it heals or somebody gives up.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial

from qpid_ha_broker.ha.effects import (
    Ask,
    FrameDamaged,
    FrameReceived,
    Input,
    LinkLost,
    LinkOpened,
    LinkWritable,
)
from qpid_ha_broker.ha.frames import Answer, ClockReading, Frame
from qpid_ha_broker.ha.link_ends import end_of
from simulation.core.channel import Bye, Call, Channel, Damaged, Delivery, End, Host, Parcel
from simulation.virtual_time import Schedule

CONNECT_LIMIT_S = 1.5
TRY_AGAIN_S = 0.15
DEAF_WHILE_PAUSED = 0.8
Recoded = Callable[[Frame], Frame]


class Network:
    """Carries what brokers send. `hosts` has a host for each address."""

    def __init__(
        self, schedule: Schedule, draw: random.Random, delay_s: float, channel_frames: int, recoded: Recoded | None
    ) -> None:
        self._schedule = schedule
        self._draw = draw
        self._clock_draw = random.Random("readings of clocks")
        """Apart from the other: what time it is changes nothing of what else happens in a run."""
        self._delay_s = delay_s
        self._channel_frames = channel_frames
        self._recoded = recoded
        self.hosts: dict[str, Host] = {}
        self._ends: dict[tuple[int, int], End] = {}
        self._channels: dict[End, Channel] = {}
        self._blocked: dict[tuple[int, int], int] = {}
        self._to_damage: set[tuple[int, int]] = set()

    # --- what brokers ask for

    def connect(self, host: Host, link: int, address: str) -> None:
        opener = End(host, link)
        self._ends[host.index, link] = opener
        deadline_s = self._schedule.now_s + CONNECT_LIMIT_S
        self._schedule.after(self._delay(), partial(self._try_connect, opener, address, deadline_s))

    def _try_connect(self, opener: End, address: str, deadline_s: float) -> None:
        if not opener.is_alive:
            return
        host = self.hosts[address]
        if self._is_cut_off(opener.host, host) or host.is_paused:
            if self._schedule.now_s < deadline_s:
                self._schedule.after(TRY_AGAIN_S, partial(self._try_connect, opener, address, deadline_s))
            else:
                self._lose(opener, "no answer")
        elif not host.is_up:
            self._lose(opener, "refused")
        else:
            self._open(opener, host)
            opener.host.feed(LinkOpened(opener.link))

    def _open(self, opener: End, host: Host) -> None:
        other = End(host, host.next_link())
        other.is_known = False
        channel = Channel(opener, other)
        self._channels[opener] = self._channels[other] = channel
        self._ends[host.index, other.link] = other

    def send(self, host: Host, link: int, frame: Frame) -> None:
        end = self._ends.get((host.index, link))
        if end is not None and end.is_alive and end in self._channels:
            self._transmit(end, frame if self._recoded is None else self._recoded(frame))

    def close(self, host: Host, link: int, reason: str) -> None:
        end = self._ends.get((host.index, link))
        if end is not None and end.is_alive:
            self._say_bye(end, reason)

    def ask(self, host: Host, ask: Ask) -> None:
        call = Call(ask.question, ask.addresses)
        deadline_s = self._schedule.now_s + ask.limit_s
        for address in ask.addresses:
            opener = End(host, 0, call, address)
            self._schedule.after(self._delay(), partial(self._try_ask, opener, call, deadline_s))
            self._schedule.at(deadline_s, partial(self._hang_up, opener))
        self._schedule.at(deadline_s, partial(self._end_call, host, host.process, call))

    def _try_ask(self, opener: End, call: Call, deadline_s: float) -> None:
        host = self.hosts[opener.address]
        if call.is_over or not opener.is_alive:
            return
        # A process that is stopped may still have a connection that was opened before.
        if host.is_up and not self._is_cut_off(opener.host, host):
            call.taken.add(opener.address)
        is_deaf = host.is_paused and self._draw.random() < DEAF_WHILE_PAUSED
        if self._is_cut_off(opener.host, host) or is_deaf:
            if self._schedule.now_s < deadline_s:
                self._schedule.after(TRY_AGAIN_S, partial(self._try_ask, opener, call, deadline_s))
        elif not host.is_up:
            self._settle_call(opener, call, None)
        else:
            self._open(opener, host)
            self._transmit(opener, call.question if self._recoded is None else self._recoded(call.question))

    def _answered(self, opener: End, call: Call, parcel: Parcel) -> None:
        is_answer = isinstance(parcel, Answer) and parcel.number == call.question.number
        self._hang_up(opener)
        if not call.is_over:
            self._settle_call(opener, call, parcel if is_answer and isinstance(parcel, Answer) else None)

    def _settle_call(self, opener: End, call: Call, answer: Answer | None) -> None:
        call.settle(opener.address, answer)
        if not call.expected:
            self._end_call(opener.host, opener.process, call)

    def _hang_up(self, opener: End) -> None:
        if opener.is_alive:
            self._say_bye(opener, "done")

    def _end_call(self, host: Host, process: int, call: Call) -> None:
        if not call.is_over:
            self._feed_later(host, process, call.end())

    # --- what goes wrong

    def block(self, sender: int, receiver: int) -> None:
        """Nothing goes from `sender` to `receiver` until as many `unblock`s."""
        self._blocked[sender, receiver] = self._blocked.get((sender, receiver), 0) + 1

    def unblock(self, sender: int, receiver: int) -> None:
        self._blocked[sender, receiver] -= 1
        if self._blocked[sender, receiver] > 0:
            return
        del self._blocked[sender, receiver]
        for end, channel in list(self._channels.items()):
            if end.held and end.host.index == sender and channel.other(end).host.index == receiver:
                held, end.held = end.held, type(end.held)()
                for parcel in held:
                    self._put(end, parcel)

    def damage(self, sender: int, receiver: int) -> None:
        """The next frame is none."""
        self._to_damage.add((sender, receiver))

    def break_between(self, one: int, other: int, first_notices: bool, second_notices: bool) -> None:
        """All channels between two nodes."""
        for end, channel in list(self._channels.items()):
            if end is channel.ends[0] and {end.host.index, channel.ends[1].host.index} == {one, other}:
                for side in channel.ends:
                    notices = first_notices if side.host.index == one else second_notices
                    self._break(channel, side, notices)

    def break_all(self, index: int) -> None:
        """All channels of one node; both ends notice."""
        for other in {host.index for host in self.hosts.values()} - {index}:
            self.break_between(index, other, True, True)

    def died(self, host: Host, is_silent: bool) -> None:
        """A process is gone; `is_silent`: with its machine, so that nobody says so to those at the other ends."""
        for end, channel in list(self._channels.items()):
            if end.host is host and end.process == host.process:
                if is_silent:
                    self._break(channel, channel.other(end), False)
                else:
                    self._say_bye(end, "connection reset")
                end.is_open = False
        self._tidy()

    def _tidy(self) -> None:
        """Forget what no living process can use."""
        gone = [end for end in self._channels if not end.is_alive and not self._channels[end].other(end).is_alive]
        for end in gone:
            del self._channels[end]
        self._ends = {key: end for key, end in self._ends.items() if end.is_alive}

    def _break(self, channel: Channel, side: End, notices: bool) -> None:
        if not channel.is_broken:
            channel.is_broken = True
            channel.drops = self._draw.random() < 0.5
        if notices:
            self._schedule.after(self._draw.uniform(0.001, 1.0), partial(self._lose, side, "connection reset"))

    # --- how it gets there

    def _is_cut_off(self, one: Host, other: Host) -> bool:
        return (one.index, other.index) in self._blocked or (other.index, one.index) in self._blocked

    def _delay(self, draw: random.Random | None = None) -> float:
        draw = draw or self._draw
        drawn = draw.random()
        if drawn > 0.99:
            return draw.uniform(0.0, 0.2 + 20 * self._delay_s)
        return self._delay_s * (0.5 + drawn)

    def _say_bye(self, end: End, reason: str) -> None:
        if end in self._channels:
            self._transmit(end, Bye(reason))
        end.is_open = False

    def _transmit(self, end: End, parcel: Parcel) -> None:
        channel = self._channels[end]
        if channel.is_broken:
            return
        between = (end.host.index, channel.other(end).host.index)
        if between in self._to_damage and not isinstance(parcel, Bye | ClockReading):
            self._to_damage.discard(between)
            parcel = Damaged("a checksum that does not fit")
        end.in_flight += not isinstance(parcel, ClockReading)
        if end.is_writable and end.in_flight >= self._channel_frames and end.call is None:
            end.is_writable = False
            self._feed_later(end.host, end.process, LinkWritable(end.link, False))
        self._put(end, parcel)

    def _put(self, end: End, parcel: Parcel) -> None:
        if isinstance(parcel, ClockReading):  # what comes after it does not wait for it
            arrives_at_s = max(end.last_at_s, self._schedule.now_s + self._delay(self._clock_draw))
        else:
            arrives_at_s = end.last_at_s = max(end.last_at_s, self._schedule.now_s + self._delay())
        self._schedule.at(arrives_at_s, partial(self._arrive, end, parcel))

    def _arrive(self, sender: End, parcel: Parcel) -> None:
        channel = self._channels.get(sender)
        if channel is None or channel.drops:
            return
        receiver = channel.other(sender)
        if sender.held or (sender.host.index, receiver.host.index) in self._blocked:
            sender.held.append(parcel)
        elif receiver.is_alive:
            self._hand_over(sender, receiver, parcel)

    def _hand_over(self, sender: End, receiver: End, parcel: Parcel) -> None:
        if receiver.call is not None:
            self._answered(receiver, receiver.call, parcel)
        elif isinstance(parcel, Bye):
            self._lose(receiver, parcel.reason)
        else:
            receiver.is_known = True
            if isinstance(parcel, Damaged):
                happening: Input = FrameDamaged(receiver.link, parcel.problem)
            else:
                happening = FrameReceived(receiver.link, parcel)
            counts = not isinstance(parcel, ClockReading)
            receiver.host.feed(happening, Delivery(sender, self._channel_frames) if counts else None)

    def settle(self, delivery: Delivery) -> None:
        """A host has dealt with a frame."""
        if delivery.done() and delivery.sender.is_alive:
            sender = delivery.sender
            self._feed_later(sender.host, sender.process, LinkWritable(sender.link, True))

    def _lose(self, end: End, reason: str) -> None:
        if not end.is_alive:
            return
        end.is_open = False
        if end.is_known and end.call is None:
            end.host.feed(LinkLost(end.link, reason, end_of(reason)))

    def _feed_later(self, host: Host, process: int, happening: Input) -> None:
        def feed() -> None:
            if host.is_up and host.process == process:
                host.feed(happening)

        self._schedule.after(0.0, feed)
