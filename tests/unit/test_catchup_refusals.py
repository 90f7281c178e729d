"""Frames of a catch-up that cannot be: refused with a sentence, and the right ones still fit."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from catchup_support import GENERATION, Pair, pair_with
from model_support import Core, picture
from qpid_ha_broker.events import types as ev
from qpid_ha_broker.events.codec import LogRecord, encode
from qpid_ha_broker.events.layout import LOCAL_BASE
from qpid_ha_broker.ha.browser import objects_frame
from qpid_ha_broker.ha.catchup import CatchUp, CatchUpError
from qpid_ha_broker.ha.frames import Chunk
from qpid_ha_broker.model.sets.state import ReplayError


def caught_in_the_middle() -> tuple[Pair, Chunk]:
    """A pair, and the second of three chunks."""
    pair, queue = pair_with(2)
    pair.primary.publish(queue, "3", "4", "5", "6")
    pair.meet()
    pair.step()
    frame = pair.next()
    assert isinstance(frame, Chunk)
    return pair, frame


Spoil = Callable[[Chunk], Chunk]
spoilt: dict[str, Spoil] = {
    "unknown queue": lambda chunk: chunk._replace(queue=99),
    "gap": lambda chunk: chunk._replace(high=chunk.high - 1),
    "overlap": lambda chunk: chunk._replace(high=chunk.high + 2),
    "upside down": lambda chunk: chunk._replace(low=chunk.high + 2),
    "above": lambda chunk: chunk._replace(data=encode(chunk.high + 1, an_enqueued(chunk.queue))),
    "below": lambda chunk: chunk._replace(data=encode(chunk.low - 1, an_enqueued(chunk.queue))),
    "twice": lambda chunk: chunk._replace(data=encode(chunk.high, an_enqueued(chunk.queue)) * 2),
    "another queue's": lambda chunk: chunk._replace(data=encode(chunk.high, an_enqueued(chunk.queue + 1))),
    "a part": lambda chunk: chunk._replace(data=encode(chunk.high, an_enqueued(chunk.queue), part=True)),
    "no message": lambda chunk: chunk._replace(data=encode(chunk.high, ev.QueueDeleted(chunk.queue))),
    "damaged": lambda chunk: chunk._replace(data=chunk.data[:-1] + b"\xff"),
    "cut short": lambda chunk: chunk._replace(data=chunk.data[:-1]),
    "held and sent": lambda chunk: chunk._replace(low=0, data=encode(3, an_enqueued(chunk.queue))),
}


def an_enqueued(queue: int) -> ev.Enqueued:
    return ev.Enqueued((queue,), b";;false", False, 4, 0, "")


@pytest.mark.parametrize("how", spoilt)
def test_a_chunk_that_cannot_be_is_refused_and_the_right_one_still_fits(how: str) -> None:
    pair, right = caught_in_the_middle()
    before = picture(pair.backup.sets)
    with pytest.raises(CatchUpError):
        pair.catch_up.chunk(spoilt[how](right))
    assert picture(pair.backup.sets) == before
    pair.catch_up.check_invariants()
    pair.take(right)
    pair.finish()


def test_an_end_before_the_end_is_refused() -> None:
    pair, _ = caught_in_the_middle()
    with pytest.raises(CatchUpError, match="before 1 queue was level: a"):
        pair.catch_up.finish()
    with pytest.raises(CatchUpError, match="before it sent its objects"):
        CatchUp(Core().resources.replicated, 0).finish()


def test_a_chunk_after_the_last_is_refused() -> None:
    pair, queue = pair_with(1)
    pair.meet()
    pair.step()
    with pytest.raises(CatchUpError, match="its browser has ended"):
        pair.catch_up.chunk(Chunk(GENERATION, queue.id, 0, 0, True, (), (), b""))


def test_objects_that_cannot_be_are_refused_and_nothing_changes() -> None:
    pair, queue = pair_with(2)
    frame = objects_frame(pair.primary.state, GENERATION, pair.common_lsn)
    declared = ev.QueueDeclared("b", {})
    wrong = {
        "damaged": frame._replace(data=frame.data[:-1]),
        "from the future": frame._replace(data=encode(1000, declared)),
        "the same id twice": frame._replace(data=frame.data * 2),
        "the same name twice": frame._replace(data=encode(1, declared) + encode(2, declared)),
        "local": frame._replace(lsn=1 << 63, data=encode(LOCAL_BASE, declared)),
        "a message": frame._replace(data=encode(1, an_enqueued(queue.id))),
        "unknown arguments": frame._replace(data=encode(1, ev.QueueDeclared("b", {"qpid.max_count": "many"}))),
        "unknown kind": frame._replace(data=encode(1, ev.ExchangeDeclared("x", "circular", {}))),
        "a binding from nowhere": frame._replace(data=encode(1, ev.Bound(77, queue.id, "", {}))),
        "a local binding": frame._replace(
            data=frame.data
            + encode(3, ev.ExchangeDeclared("x", "fanout", {}))
            + encode(3, ev.Bound(3, queue.id, "", {"qpid.replicate": "none"}))
        ),
        "used and not there": frame._replace(used=((99, ""),)),
        "unreplicated and not there": frame._replace(unreplicated=(99,)),
    }
    before = picture(pair.backup.sets)
    catch_up = CatchUp(pair.backup.resources.replicated, pair.common_lsn)
    for what, each in wrong.items():
        with pytest.raises(CatchUpError, match="objects"):
            catch_up.objects(each)
        assert picture(pair.backup.sets) == before, what
    catch_up.objects(frame)
    with pytest.raises(CatchUpError, match="twice"):
        catch_up.objects(frame)


def test_a_stream_that_takes_what_a_chunk_should_have_brought_does_not_fit() -> None:
    pair, queue = pair_with()
    pair.primary.publish(queue, "1", "2")
    pair.meet()
    pair.step()
    pair.written()
    with pytest.raises(ReplayError):
        pair.catch_up.follow(LogRecord(99, ev.Dequeued(queue.id, (50,), ev.DequeueReason.CONSUMED), False))
