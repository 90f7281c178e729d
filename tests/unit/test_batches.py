"""The compiled kernel and plain Python do the same with batches of deliveries: effect by effect, on random traffic."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from kernel_use import WAYS, engines_of
from paired_batches import Pair, random_frame, story
from qpid_ha_broker.amqp.wire import batches, engine, message_format
from qpid_ha_broker.amqp.wire.batches import RECEIVE_BUFFER
from qpid_ha_broker.amqp.wire.message_format import FormatReader

STORIES = 30
"""Each is some two hundred messages."""


@pytest.mark.parametrize("first", range(0, STORIES, 10))
def test_both_tell_the_same_of_random_traffic(first: int) -> None:
    seen: set[object] = set()
    for seed in range(first, first + 10):
        told = []
        for way in WAYS:
            with engines_of(way):
                told.append(story(seed))
        assert told[0] == told[1], f"seed {seed}"
        seen |= {line[0] for end in told[0] for line in end}
    assert {"transfer", "partial", "disposition", "flow"} <= seen, "or it shows nothing"


def test_the_random_traffic_has_all_that_can_come() -> None:
    """Settled before it was sent, taken back, in parts, released, and settled by the sender alone."""
    kinds: set[object] = set()
    with engines_of("python"):
        for seed in range(STORIES):
            for end in story(seed):
                for line in end:
                    kinds.add(line[0])
                    if line[0] == "transfer":
                        kinds.add(("transfer", line[3]))
                    elif line[0] == "disposition":
                        kinds.add(("disposition", *line[2:]))
    assert {"partial", "aborted", "settlement", ("transfer", True), ("transfer", False)} <= kinds
    assert {("disposition", engine.ACCEPTED, False), ("disposition", engine.ACCEPTED, True)} <= kinds
    assert ("disposition", engine.RELEASED, True) in kinds


@pytest.fixture(params=WAYS)
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    with engines_of(request.param):
        pair = Pair(1 << 16, consumes=False, ends_at=-1)
        engine.give_credit(pair.far.link, 1000)
        pair.carry()
        yield pair
        pair.close()


def test_messages_that_do_not_fit_into_the_buffer_together_come_all_the_same(pair: Pair) -> None:
    payloads = [bytes((number,)) * (RECEIVE_BUFFER // 4) for number in range(20)]
    pair.sender.send_all(payloads)
    pair.carry()
    assert [line[2] for line in pair.far.told if line[0] == "transfer"] == payloads


def test_tags_of_settled_messages_serve_again(pair: Pair) -> None:
    sent = pair.sender.send_all([b"m"] * 5)
    pair.carry()
    engine.accept_all(pair.far.open)
    pair.carry()
    engine.forget_all([delivery for delivery, _ in sent])
    tags = [tag for _, tag in sent]
    pair.sender.free_all(tags)
    again = [tag for _, tag in pair.sender.send_all([b"n"] * 6)]
    assert {id(tag) for tag in again} > {id(tag) for tag in tags}
    assert len({id(tag) for tag in again}) == 6


def test_a_link_that_ends_at_a_message_gets_nothing_more(pair: Pair) -> None:
    pair.far.ends_at = 1
    pair.sender.send_all([b"x" * (RECEIVE_BUFFER // 2)] * 6)
    pair.carry()
    assert [line[0] for line in pair.far.told].count("transfer") == 1
    assert [line[2:] for line in pair.near.told if line[0] == "disposition"] == [(engine.RELEASED, True)] * 5


def test_numbers_are_tags_of_sixteen_digits(pair: Pair) -> None:
    pair.sender.send_numbered([b"m"] * 6, 0xFFFFFFFFFE)
    pair.carry()
    names = [line[1] for line in pair.far.told if line[0] == "transfer"]
    assert names == [f"{number:016x}" for number in range(0xFFFFFFFFFE, 0xFFFFFFFFFE + 6)]


# --- frames that nobody looks into


def usual_in_python(data: bytes, at: int) -> tuple[int, bool]:
    """As `FrameWalk`, by the regular expression."""
    has_attach = False
    while at < len(data) and message_format._USUAL(data, at):
        has_attach |= data[at + 5] == 0 and data[at + 8 : at + 11] == b"\x00S\x12"
        at += int.from_bytes(data[at : at + 4], "big") or 1
    return at, has_attach


@pytest.mark.parametrize("seed", range(4))
def test_the_kernel_goes_past_the_same_frames_as_the_expression(seed: int) -> None:
    chance, passed, attaches = random.Random(seed), 0, 0
    with engines_of("kernel"):
        walk = batches.frame_walk()
    assert walk is not None
    for _ in range(2000):
        data = b"".join(random_frame(chance) for _ in range(chance.randrange(1, 6)))
        data = data[: chance.randrange(len(data) + 1)] if chance.random() < 0.3 else data
        start = chance.randrange(len(data)) if data and chance.random() < 0.05 else 0
        expected = usual_in_python(data, start)
        assert walk(data, start) == expected, data.hex()
        assert walk(memoryview(data), start) == expected
        passed, attaches = passed + (expected[0] > start), attaches + expected[1]
    assert passed > 200
    assert attaches > 20


@pytest.mark.parametrize("seed", range(4))
def test_reading_with_the_kernel_gives_proton_the_same(seed: int) -> None:
    """However the bytes are cut, and with formats among them; and no attach is passed over."""
    chance = random.Random(100 + seed)
    for _ in range(100):
        data = b"".join(random_frame(chance) for _ in range(chance.randrange(1, 30)))
        cut = chance.choice((1, 5, 11, 50, 1000))
        with engines_of("kernel"):
            fast = FormatReader(1 << 16, batches.frame_walk())
        slow = FormatReader(1 << 16)
        attaches = places_of_attaches(data)
        for at in range(0, len(data), cut):
            given = bytes(fast.feed(data[at : at + cut]))
            assert given == bytes(slow.feed(data[at : at + cut]))
            assert fast.beyond == slow.beyond
            seen = any(at <= begin + 10 < at + cut for begin in attaches)
            assert fast.may_have_attach or not seen, (at, cut, data.hex())


def places_of_attaches(data: bytes) -> list[int]:
    """Where they begin, if all before them are frames."""
    places, at = [], 0
    while at < len(data):
        if data[at + 4 : at + 6] == b"\x02\x00" and data[at + 8 : at + 11] == b"\x00S\x12":
            places.append(at)
        at += int.from_bytes(data[at : at + 4], "big") or 1
    return places
