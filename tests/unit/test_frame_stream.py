"""The short way of frames between brokers: the bare stream, how both ends of a channel come to it, how it ends."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import pairwise

import proton
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paired_engines import BROKER, PROOF, PairedClient
from paired_peers import Backup, Cluster, condition_of
from qpid_ha_broker.amqp.wire.conditions import CONNECTION_FORCED
from qpid_ha_broker.amqp.wire.engine import Engine
from qpid_ha_broker.amqp.wire.frame_stream import (
    HEADER,
    MAX_FRAME_BYTES,
    STREAM_CAPABILITY,
    FrameStream,
    IdleTimes,
)
from qpid_ha_broker.amqp.wire.peer_frames import ADDRESS
from qpid_ha_broker.ha.link_ends import LinkEnd
from qpid_ha_broker.server.peers.peer_links import link_end

NEVER = IdleTimes(0, 0)


class End:
    """One end of a stream: what it was given, and how it ended."""

    def __init__(self, times: IdleTimes = NEVER) -> None:
        self.frames: list[bytes] = []
        self.endings: list[str] = []
        self.stream = FrameStream()
        self.stream.begin(b"", self.frames.append, times)
        self.stream.begin_reading(b"")
        self.head = self.stream.take_output(None)

    def hear(self, data: bytes) -> None:
        self.stream.feed(data)
        self.stream.tell(self)

    def closed(self) -> None:
        self.endings.append(f"closed {self.stream.reason}")

    def failed(self, name: str, description: str) -> None:
        self.endings.append(f"failed {name}: {description}")

    def malformed(self, name: str, description: str) -> None:
        self.endings.append(f"malformed {name}: {description}")


def in_pieces(data: bytes, cuts: list[int]) -> Iterator[bytes]:
    places = sorted({0, len(data), *(cut % (len(data) + 1) for cut in cuts)})
    for start, stop in pairwise(places):
        yield data[start:stop]


# --- the bare stream


def test_the_bytes_are_those_of_the_protocol() -> None:
    end = End()
    assert end.head == HEADER == b"AMQPH\x01\x00\x00"
    end.stream.send(b"frame")
    assert end.stream.take_output(None) == b"\x00\x00\x00\x06\x01frame"
    assert end.stream.take_output("x:y: z") == b"\x00\x00\x00\x07\x02x:y: z"
    assert end.stream.finished


@given(st.lists(st.binary(max_size=300), max_size=8), st.lists(st.integers(0, 10_000), max_size=12), st.booleans())
def test_frames_come_whole_and_in_order_however_they_are_cut(frames: list[bytes], cuts: list[int], ends: bool) -> None:
    sender, receiver = End(), End()
    for frame in frames:
        sender.stream.send(frame)
    output = sender.stream.take_output("a: b" if ends else None)
    for piece in in_pieces(output, cuts):
        receiver.hear(piece)
    assert receiver.frames == frames
    assert receiver.endings == (["closed a: b"] if ends else [])


@given(st.binary(max_size=200), st.lists(st.integers(0, 10_000), max_size=6))
def test_any_bytes_make_frames_or_an_end_and_the_same_however_they_are_cut(noise: bytes, cuts: list[int]) -> None:
    whole, cut = End(), End()
    whole.hear(noise)
    for piece in in_pieces(noise, cuts):
        cut.hear(piece)
    assert cut.frames == whole.frames
    assert cut.endings == whole.endings
    assert len(whole.endings) <= 1


@pytest.mark.parametrize(
    ("data", "ending"),
    [
        (b"\x00\x00\x00\x01\x00", "malformed amqp:connection:framing-error: kind 0x00"),
        (b"\x00\x00\x00\x01\x03", "malformed amqp:connection:framing-error: kind 0x03"),
        (b"\x00\x00\x00\x09\x41", "malformed amqp:connection:framing-error: kind 0x41"),
        (b"HTTP/1.1 400", "malformed amqp:link:message-size-exceeded: a frame of more than "),
        (b"\xff\xff\xff\xff", "malformed amqp:link:message-size-exceeded: a frame of more than "),
        ((MAX_FRAME_BYTES + 2).to_bytes(4, "big"), "malformed amqp:link:message-size-exceeded: a frame of more than "),
    ],
)
def test_what_is_no_frame_is_refused_before_it_is_kept_and_nothing_behind_it_is_read(data: bytes, ending: str) -> None:
    end = End()
    end.hear(b"\x00\x00\x00\x04\x01one" + data)
    end.hear(b"\x00\x00\x00\x04\x01two")
    assert end.frames == [b"one"]
    assert len(end.endings) == 1
    assert end.endings[0].startswith(ending)
    assert not end.stream._came


def test_the_largest_frame_is_taken() -> None:
    end = End()
    end.hear((MAX_FRAME_BYTES + 1).to_bytes(4, "big") + b"\x01")
    assert end.endings == []


def test_nothing_is_sent_behind_the_end_and_nothing_is_given_away() -> None:
    end = End()
    end.stream.send(b"last")
    assert end.stream.take_output("amqp:connection:forced: stopping").endswith(b"stopping")
    end.stream.send(b"late")
    assert end.stream.take_output("again") == b""
    assert end.stream.unsent_bytes == 0
    end.stream.stop()
    end.hear(b"\x00\x00\x00\x04\x01one")
    assert end.frames == []


def test_what_waits_is_counted_until_it_is_taken() -> None:
    end = End()
    end.stream.send(bytes(1000))
    end.stream.send(bytes(1000))
    assert end.stream.unsent_bytes == 2 * (1000 + 5)
    assert len(end.stream.take_output(None)) == 2 * (1000 + 5)
    assert end.stream.unsent_bytes == 0


def test_a_bug_at_a_frame_does_not_come_again() -> None:
    end = End()

    def stumble(frame: bytes) -> None:
        end.frames.append(frame)
        raise ZeroDivisionError

    end.stream.begin(b"", stumble, NEVER)
    with pytest.raises(ZeroDivisionError):
        end.hear(b"\x00\x00\x00\x02\x01a\x00\x00\x00\x02\x01b")
    with pytest.raises(ZeroDivisionError):
        end.hear(b"")
    assert end.frames == [b"a", b"b"]


# --- who is there


def test_the_idle_time_outs_are_those_that_proton_keeps() -> None:
    """Step by step beside an AMQP connection with the same times, through traffic that comes and goes."""
    rng = random.Random(1)
    for _ in range(30):
        silence_ms, pace_ms = rng.choice([0, 1000, 3000]), rng.choice([0, 1000, 5000])
        transports = proton.Transport(), proton.Transport(proton.Transport.SERVER)
        connections = proton.Connection(), proton.Connection()
        transports[0].idle_timeout, transports[1].idle_timeout = silence_ms / 1000, pace_ms / 1000
        for transport, connection in zip(transports, connections, strict=True):
            transport.bind(connection)
            connection.open()
        exchange(transports)
        remote_s = transports[0].remote_idle_timeout or 0
        end, now_ms = End(IdleTimes(silence_ms, int(remote_s * 500))), 1000
        for _ in range(40):
            now_ms += rng.choice([10, 250, 700, 1600])
            if rng.random() < 0.3:
                transports[0].push(b"\x00\x00\x00\x08\x02\x00\x00\x00")
                end.hear(b"\x00\x00\x00\x00")
            transports[0].tick(now_ms / 1000)
            end.stream.tick(now_ms)
            end.stream.tell(end)
            assert bool(end.endings) == (transports[0].condition is not None)
            if end.endings:
                break
            pending = transports[0].pending()
            assert end.stream.take_output(None) == (b"\x00\x00\x00\x00" if pending else b"")
            if pending:
                transports[0].pop(pending)
            elif rng.random() < 0.3:
                connections[0].session().open()
                transports[0].pop(transports[0].pending())
                end.stream.send(b"frame")
                end.stream.take_output(None)


def exchange(transports: tuple[proton.Transport, ...]) -> None:
    for source, target in (transports, transports[::-1], transports, transports[::-1]):
        while (pending := source.pending()) > 0:
            target.push(source.peek(pending) or b"")
            source.pop(pending)


# --- how two brokers come to it


def is_stream(backup: Backup) -> bool:
    """Whether frames go by the stream both ways."""
    streams = backup.client.engine.input.stream, backup.peer.engine.input.stream
    return all(stream is not None and stream.is_reading and stream.is_writing for stream in streams)


@pytest.mark.parametrize(("here", "there"), [(True, True), (True, False), (False, True), (False, False)])
def test_two_brokers_leave_amqp_where_both_can_and_only_there(here: bool, there: bool) -> None:
    broker = Cluster(here=here, there=there)
    backup = broker.backup()
    (channel,) = broker.peers.channels
    backup.client.send(b"up")
    channel.send(b"down")
    backup.settle_down()
    assert (broker.peers.frames, backup.frames) == ([b"up"], [b"down"])
    assert is_stream(backup) is (here and there)


def test_a_backup_and_its_primary_come_to_the_stream_however_what_they_say_is_cut() -> None:
    for size in (1, 2, 3, 5, 7, 11, 64):
        broker = Cluster()
        backup = Backup(broker, broker.accept())
        backup.client.send(b"first")
        for _ in range(20):
            outgoing = backup.client.take_output()
            for at in range(0, len(outgoing), size):
                backup.peer.receive(outgoing[at : at + size])
            broker.turn()
            incoming = backup.peer.take_output()
            for at in range(0, len(incoming), size):
                backup.client.receive(incoming[at : at + size])
            for channel in broker.peers.channels[:1]:
                channel.send(b"down")
        assert is_stream(backup)
        assert broker.peers.frames == [b"first"]
        assert set(backup.frames) == {b"down"}


def test_who_is_no_broker_is_offered_no_stream() -> None:
    broker = Cluster()
    client = PairedClient(broker, desired_capabilities=[STREAM_CAPABILITY])
    marked = PairedClient(broker, {**BROKER, "qpid.ha-proof": "guessed"}, desired_capabilities=[STREAM_CAPABILITY])
    broker.settle_down()
    for connection in (client.connection, marked.connection):
        assert STREAM_CAPABILITY not in list(connection.remote_offered_capabilities or ())


def test_the_header_of_who_is_no_broker_is_garbage_and_ends_the_connection() -> None:
    broker = Cluster()
    client = PairedClient(broker, desired_capabilities=[STREAM_CAPABILITY])
    broker.settle_down()
    client.peer.receive(HEADER + b"\x00\x00\x00\x06\x01frame")
    broker.settle_down()
    assert client.peer.has_ended
    assert broker.peers.frames == []
    assert condition_of(client).name == "amqp:connection:framing-error"


def test_the_header_of_a_broker_that_has_offered_no_stream_ends_the_channel() -> None:
    broker = Cluster(here=False)
    backup = broker.backup()
    backup.client.receive(HEADER + b"\x00\x00\x00\x06\x01frame")
    backup.settle_down()
    assert backup.frames == []
    assert "amqp:connection:framing-error" in backup.reasons[0]


def test_frames_of_who_has_no_channel_end_its_connection() -> None:
    broker = Cluster()
    backup = Backup(broker, broker.accept())
    until_open, _ = backup.client.take_output().split(b"\x00\x53\x11", 1)
    backup.peer.receive(until_open[:-8])  # the begin of the AMQP session has not come
    broker.turn()
    backup.peer.receive(HEADER + b"\x00\x00\x00\x06\x01frame")
    broker.turn()
    assert backup.peer.has_ended
    assert broker.peers.frames == []
    assert any("before the channel was open" in text for text in broker.warnings())


@pytest.mark.parametrize(
    ("noise", "reason"),
    [
        (b"\x00\x00\x00\x01\x07", "amqp:connection:framing-error"),
        (b"GET / HTTP/1.1\r\n\r\n", "amqp:link:message-size-exceeded"),
    ],
)
def test_noise_in_the_stream_ends_the_channel_at_both_ends_and_is_logged(noise: bytes, reason: str) -> None:
    broker = Cluster()
    backup = broker.backup()
    backup.client.send(b"good")
    backup.settle_down()
    backup.peer.receive(noise)
    backup.settle_down()
    assert broker.peers.frames == [b"good"]
    assert broker.peers.reasons[0].startswith(reason)
    assert backup.reasons[0].startswith(reason)
    assert any(reason in text for text in broker.warnings())


@given(st.binary(min_size=1, max_size=60), st.lists(st.integers(0, 60), max_size=4), st.integers(0, 12))
def test_whatever_one_backup_says_the_other_one_is_served(noise: bytes, cuts: list[int], kept: int) -> None:
    broker = Cluster()
    noisy, good = broker.backup(), broker.backup()
    noisy.client.send(b"sound")
    head = noisy.client.take_output()[:kept]  # a header or a frame that is cut, or neither
    for piece in in_pieces(head + noise, cuts):
        noisy.peer.receive(piece)
    noisy.settle_down()
    noisy.vanish()
    good.client.send(b"good")
    broker.peers.channels[1].send(b"down")
    good.settle_down()
    assert broker.peers.frames[-1] == b"good"
    assert good.frames == [b"down"]
    assert len(broker.peers.reasons) == 1
    assert good.reasons == []


def test_noise_that_the_broker_sends_ends_the_channel_of_who_connected() -> None:
    broker = Cluster()
    backup = broker.backup()
    backup.settle_down()
    backup.client.receive(b"\x00\x00\x00\x01\x07")
    backup.settle_down()
    assert backup.reasons[0].startswith("amqp:connection:framing-error")
    assert broker.peers.reasons[0].startswith("amqp:connection:framing-error")


def test_a_frame_that_was_cut_off_by_the_end_of_the_socket_is_given_to_nobody() -> None:
    broker = Cluster()
    backup = broker.backup()
    backup.client.send(b"whole")
    backup.client.send(b"half of it is lost")
    backup.peer.receive(backup.client.take_output()[:-5])
    backup.vanish()
    assert broker.peers.frames == [b"whole"]
    assert broker.peers.reasons == ["the connection was lost"]


def test_the_word_of_who_stops_is_the_same_on_both_ways() -> None:
    for can in (True, False):
        broker = Cluster(here=can, there=can)
        backup = broker.backup()
        broker.peers.channels[0].close("stopping")
        backup.settle_down()
        assert link_end(backup.reasons[0]) is LinkEnd.STOPPING
        assert backup.client.finished
        assert backup.peer.engine.finished


def of_two_seconds() -> Engine:
    """Of a broker that waits for no other one longer than that."""
    transport = proton.Transport()
    transport.idle_timeout = 2
    engine = Engine(transport, proton.Connection())
    engine.proof = PROOF
    engine.input.may_stream = True
    return engine


def test_who_is_silent_on_a_stream_is_lost_after_the_idle_time_out_and_not_before() -> None:
    broker = Cluster()
    backup = Backup(broker, broker.accept(), of_two_seconds())
    backup.settle_down()
    assert is_stream(backup)
    for now_ms in (1000, 2000, 2900):
        backup.client.heartbeat(now_ms)
    assert backup.reasons == []
    backup.client.heartbeat(3100)
    assert backup.reasons == [f"{CONNECTION_FORCED}: nothing came for longer than the idle time-out"]
    backup.settle_down()
    assert backup.client.finished
    assert broker.peers.reasons == backup.reasons


def test_who_has_nothing_to_say_on_a_stream_says_that_it_is_there() -> None:
    broker = Cluster()
    backup = Backup(broker, broker.accept(), of_two_seconds())
    backup.settle_down()
    for now_ms in range(1000, 30_000, 250):
        backup.client.heartbeat(now_ms)
        backup.peer.heartbeat(now_ms)
        backup.settle_down()
    assert backup.reasons == broker.peers.reasons == []


def test_who_has_not_left_amqp_yet_is_heard_as_well() -> None:
    """The broker has opened its end of the channel; what it has said is on its way for long."""
    broker = Cluster()
    backup = Backup(broker, broker.accept())
    backup.peer.engine.transport.idle_timeout = 2
    backup.peer.receive(backup.client.take_output())
    for now_ms in range(1000, 9000, 500):
        backup.peer.receive(b"\x00\x00\x00\x08\x02\x00\x00\x00")
        backup.peer.heartbeat(now_ms)
    assert broker.peers.channels
    assert broker.peers.reasons == []
    backup.settle_down()
    assert is_stream(backup)


def test_a_tool_that_speaks_amqp_alone_is_offered_no_stream() -> None:
    broker = Cluster()
    client = broker.admin()
    client.receiver(ADDRESS)
    assert client.peer.engine.input.stream is None
