"""Many sub-channels on one connection, both ends joined in memory: order, bundles, heartbeats, and how they end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from qpid_ha_broker.amqp.wire.peer_frames import Channel, PeerListener
from qpid_ha_broker.ha.bundles import Purpose, SubChannelFrame, SubChannelOpened, encode_bundle
from qpid_ha_broker.ha.frames import FrameError
from qpid_ha_broker.server.peers.sub_channels import (
    AT_ONCE,
    LATE_S,
    PAUSE_S,
    PIECES,
    Losses,
    Multiplexer,
    SharedTimes,
    SubChannel,
)

TIMES = SharedTimes(heartbeat_s=1.0, silence_s=2.0, unused_s=30.0)


@dataclass
class Told:
    """A listener: what it was told, in order."""

    story: list[tuple[str, object]]
    name: str = ""
    on_frame: Callable[[Channel, bytes], None] = lambda channel, data: None
    channels: list[Channel] = field(default_factory=list)

    def opened(self, channel: Channel) -> None:
        self.channels.append(channel)
        self.story.append(("opened", self.name))

    def received(self, channel: Channel, data: bytes) -> None:
        self.story.append((self.name, data))
        self.on_frame(channel, data)

    def closed(self, channel: Channel, reason: str) -> None:
        self.story.append(("closed", f"{self.name}: {reason}"))


class Ends:
    """The end that opens sub-channels (`ours`) and the other one, with what happened there."""

    def __init__(self) -> None:
        self.here: list[tuple[str, object]] = []
        self.there: list[tuple[str, object]] = []
        self.accepted: list[SubChannel] = []
        self.refusal = ""
        self.unsent = 0
        self.pressing: set[str] = set()
        self.wanted: list[float] = []
        """Pieces that were asked for, by the seconds until then; 0.0: who is in a hurry."""
        self.losses = Losses(self.pressing.__contains__, self.wanted.append, lambda: self.wanted.append(0.0))
        self.ours = Multiplexer(TIMES, None, lambda: None, lambda: "there", lambda: self.unsent, self.losses)
        self.theirs = Multiplexer(TIMES, self._accept, lambda: None, lambda: "here", lambda: 0, self.losses)
        self.bundles = 0

    def _accept(self, sub_channel: SubChannel) -> PeerListener | str:
        if self.refusal:
            return self.refusal
        self.accepted.append(sub_channel)
        return Told(self.there, f"{sub_channel.set}/{Purpose(sub_channel.purpose).name}")

    def open(self, name: str) -> SubChannel:
        return self.ours.open(name, Purpose.FOLLOW, Told(self.here, name), "amqp://there")

    @property
    def ended(self) -> list[str]:
        """The sets whose listeners at this end have heard that the connection is gone, in that order."""
        return [str(what).removesuffix(": reset") for said, what in self.here if said == "closed"]

    def exchange(self) -> None:
        """Until neither has anything to say."""
        self.ours.announce()
        while True:
            up, down = self.ours.take_bundles(), self.theirs.take_bundles()
            for bundle in up:
                self.theirs.received(bundle)
            for bundle in down:
                self.ours.received(bundle)
            self.bundles += len(up) + len(down)
            if not up and not down:
                return


@pytest.fixture
def ends() -> Ends:
    return Ends()


def test_frames_go_both_ways_on_the_sub_channel_that_they_are_for(ends: Ends) -> None:
    first, second = ends.open("orders"), ends.open("bills")
    ends.exchange()
    first.send(b"1")
    second.send(b"2")
    ends.accepted[1].send(b"3")
    ends.exchange()
    assert ends.here == [("opened", "orders"), ("opened", "bills"), ("bills", b"3")]
    assert ends.there == [("opened", "orders/FOLLOW"), ("opened", "bills/FOLLOW"), ("orders/FOLLOW", b"1"),
                          ("bills/FOLLOW", b"2")]  # fmt: skip


def test_what_three_hundred_sets_send_in_one_turn_is_one_bundle(ends: Ends) -> None:
    sub_channels = [ends.open(f"set{number}") for number in range(300)]
    ends.exchange()
    for sub_channel in sub_channels:
        sub_channel.send(b"batch")
    assert len(ends.ours.take_bundles()) == 1


def test_much_is_divided_between_frames(ends: Ends) -> None:
    sub_channel = ends.open("orders")
    ends.exchange()
    before = ends.bundles
    for _ in range(5):
        sub_channel.send(bytes(700_000))
    ends.exchange()
    assert ends.bundles - before == 5
    assert [len(data) for name, data in ends.there if isinstance(data, bytes)] == [700_000] * 5


def test_nothing_is_sent_before_the_listener_was_told(ends: Ends) -> None:
    sub_channel = ends.open("orders")
    assert not sub_channel.is_open
    sub_channel.send(b"too early")
    ends.exchange()
    assert ends.there == [("opened", "orders/FOLLOW")]


def test_a_sub_channel_that_nobody_listens_to_ends_with_the_reason(ends: Ends) -> None:
    ends.refusal = "there is no resource set orders here"
    ends.open("orders")
    ends.exchange()
    assert ends.here == [("opened", "orders"), ("closed", "orders: there is no resource set orders here")]


def test_the_other_end_hears_why_a_sub_channel_ends_after_all_that_was_sent(ends: Ends) -> None:
    sub_channel = ends.open("orders")
    ends.exchange()
    sub_channel.send(b"last")
    sub_channel.close("promoted")
    ends.exchange()
    assert ends.there[1:] == [("orders/FOLLOW", b"last"), ("closed", "orders/FOLLOW: promoted")]
    assert ends.here == [("opened", "orders")]
    assert ends.ours.count == ends.theirs.count == 0


def test_what_comes_for_a_sub_channel_that_was_just_closed_is_let_go(ends: Ends) -> None:
    sub_channel = ends.open("orders")
    ends.exchange()
    ends.accepted[0].send(b"on its way")
    sub_channel.close("promoted")
    ends.exchange()
    assert ends.here == [("opened", "orders")]


def test_when_the_connection_is_lost_listeners_hear_in_the_order_of_opening(ends: Ends) -> None:
    for name in ("c", "a", "b"):
        ends.open(name)
    ends.exchange()
    ends.ours.lost("reset")
    ends.theirs.lost("reset")
    assert ends.here[3:] == [("closed", "c: reset"), ("closed", "a: reset"), ("closed", "b: reset")]
    assert [name for word, name in ends.there if word == "closed"] == [f"{name}/FOLLOW: reset" for name in "cab"]


def lost_with(ends: Ends, count: int) -> list[SubChannel]:
    """A connection with so many sub-channels that is lost; `set0` and so on."""
    sub_channels = [ends.open(f"set{number}") for number in range(count)]
    ends.exchange()
    ends.ours.lost("reset")
    return sub_channels


def test_when_many_sets_lose_a_channel_most_that_wait_for_nothing_hear_of_it_later_and_a_piece_at_a_time(
    ends: Ends,
) -> None:
    count = PIECES * (AT_ONCE + 10) + AT_ONCE
    sub_channels = lost_with(ends, count)
    assert ends.ended == [f"set{number}" for number in range(AT_ONCE)]
    assert not any(sub_channel.is_open for sub_channel in sub_channels)
    assert ends.wanted == [LATE_S]

    for piece in range(1, PIECES + 1):
        ends.losses.tell_piece()
        assert len(ends.ended) == AT_ONCE + piece * (AT_ONCE + 10)

    assert ends.ended == [f"set{number}" for number in range(count)]
    assert ends.wanted == [LATE_S] + [PAUSE_S] * (PIECES - 1)


def test_a_set_that_waits_for_something_hears_at_once_that_its_channel_is_lost(ends: Ends) -> None:
    ends.pressing.update(("set500", "set600"))
    lost_with(ends, 700)
    assert ends.ended == [*(f"set{number}" for number in range(AT_ONCE)), "set500", "set600"]


def test_a_sub_channel_that_is_for_something_else_than_to_follow_a_set_is_never_told_late(ends: Ends) -> None:
    for number in range(AT_ONCE):
        ends.open(f"set{number}")
    for purpose in (Purpose.ASK, Purpose.CONTROL, Purpose.FORWARD):
        ends.ours.open("orders", purpose, Told(ends.here, purpose.name), "amqp://there")
    ends.exchange()
    ends.ours.lost("reset")
    assert ends.ended[AT_ONCE:] == ["ASK", "CONTROL", "FORWARD"]


def test_a_connection_that_never_came_about_is_told_of_at_once(ends: Ends) -> None:
    for number in range(AT_ONCE + 5):
        ends.open(f"set{number}")
    ends.ours.lost("reset")
    assert len(ends.ended) == AT_ONCE + 5


def test_who_sends_on_a_lost_channel_of_which_nothing_was_told_yet_hears_of_it_next(ends: Ends) -> None:
    sub_channels = lost_with(ends, 700)
    sub_channels[650].send(b"batch")
    sub_channels[0].send(b"batch")  # it has heard
    assert ends.wanted == [LATE_S, 0.0]

    ends.losses.tell_hurried()

    assert ends.ended[AT_ONCE:] == ["set650"]
    ends.losses.tell_piece()
    assert ends.ended[AT_ONCE + 1 : AT_ONCE + 3] == [f"set{AT_ONCE}", f"set{AT_ONCE + 1}"]


def test_a_lost_channel_is_told_of_before_the_next_one_for_its_set_comes(ends: Ends) -> None:
    lost_with(ends, 700)
    ends.losses.tell_of("set650")
    assert ends.ended[AT_ONCE:] == ["set650"]
    ends.losses.tell_of("set650")
    assert ends.ended.count("set650") == 1


def test_who_closes_a_lost_channel_hears_nothing_more_of_it(ends: Ends) -> None:
    sub_channels = lost_with(ends, AT_ONCE + 2)
    sub_channels[AT_ONCE].close("not needed any more")
    ends.losses.tell_piece()
    assert ends.ended[AT_ONCE:] == [f"set{AT_ONCE + 1}"]
    assert ends.ours.take_bundles() == []


def test_one_that_does_not_read_is_stopped_and_the_others_go_on(ends: Ends) -> None:
    slow, quick = ends.open("slow"), ends.open("quick")
    ends.exchange()
    has_room = False
    ends.accepted[0].may_read = lambda: has_room
    slow.send(b"1")
    ends.exchange()
    slow.send(b"2")
    quick.send(b"3")
    ends.exchange()
    assert ends.there[2:] == [("slow/FOLLOW", b"1"), ("quick/FOLLOW", b"3")]
    assert slow.unsent_bytes == 1
    assert quick.unsent_bytes == 0
    has_room = True
    ends.theirs.tick(1.0)
    ends.exchange()
    assert ends.there[4:] == [("slow/FOLLOW", b"2")]
    assert slow.unsent_bytes == 0


def test_what_waits_on_the_connection_waits_for_each_of_its_sub_channels(ends: Ends) -> None:
    first, second = ends.open("first"), ends.open("second")
    ends.exchange()
    ends.unsent = 100
    first.send(b"12345")
    assert first.unsent_bytes == second.unsent_bytes == 105


def test_a_heartbeat_is_an_empty_bundle_and_only_due_when_nothing_else_was_sent(ends: Ends) -> None:
    sub_channel = ends.open("orders")
    ends.ours.tick(1.0)
    ends.exchange()
    ends.ours.tick(1.4)
    assert ends.ours.take_bundles() == []
    sub_channel.send(b"x")
    ends.exchange()
    ends.ours.tick(1.9)
    ends.ours.tick(2.3)
    assert ends.ours.take_bundles() == []
    ends.ours.tick(2.5)
    assert ends.ours.take_bundles() == [encode_bundle([])]


def test_a_silent_connection_is_lost_and_a_pause_of_this_process_is_no_silence(ends: Ends) -> None:
    now_s = 1.0
    assert ends.ours.tick(now_s) is None
    assert ends.ours.tick(now_s + 60) is None  # the process was stopped
    ends.ours.received(encode_bundle([]))
    times_s = [now_s + 60 + 0.25 * step for step in range(1, 10)]
    assert [ends.ours.tick(time_s) is None for time_s in times_s] == [True] * 8 + [False]


def test_a_connection_without_sub_channels_is_unused_after_a_while(ends: Ends) -> None:
    sub_channel = ends.open("orders")
    for step in range(200):
        ends.ours.tick(1 + step / 4)
    assert not ends.ours.is_unused
    sub_channel.close("done")
    for step in range(200, 310):
        ends.ours.tick(1 + step / 4)
    assert not ends.ours.is_unused
    for step in range(310, 330):
        ends.ours.tick(1 + step / 4)
    assert ends.ours.is_unused


@pytest.mark.parametrize(
    "bundle",
    [
        pytest.param(b"\x70garbage that is no bundle", id="garbage"),
        pytest.param(encode_bundle([SubChannelFrame(7, b"x")]), id="a sub-channel that was never opened"),
        pytest.param(encode_bundle([SubChannelOpened(1, "orders", 1)]), id="a number for the second time"),
        pytest.param(encode_bundle([SubChannelOpened(0, "orders", 1)]), id="number 0"),
    ],
)
def test_nonsense_is_an_error_of_the_whole_connection(ends: Ends, bundle: bytes) -> None:
    ends.open("orders")
    ends.exchange()
    with pytest.raises(FrameError):
        ends.theirs.received(bundle)


def test_only_who_opened_the_connection_opens_sub_channels(ends: Ends) -> None:
    with pytest.raises(FrameError, match="who did not open"):
        ends.ours.received(encode_bundle([SubChannelOpened(1, "orders", 1)]))
