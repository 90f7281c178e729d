"""The frames of a peer channel by their kinds: the fields of each in the order of the bytes, and what they may hold.

What is frequent is binary (`events.forms`). What is rare is JSON (`events.json_forms`), where a field that is `Later`
is neither sent to a broker that is older than it nor expected from one. docs/protocol.md, "Peer channels", has the
tables.
"""

from __future__ import annotations

from enum import IntEnum
from operator import le, lt
from typing import Any, Final

from qpid_ha_broker.events.fields import IDS, TEXT, TRUTH, U64, checked, list_of, pairs_to_end, tuple_of
from qpid_ha_broker.events.forms import Form
from qpid_ha_broker.events.json_forms import (
    JsonForm,
    Later,
    arguments,
    choice,
    integer,
    line,
    seconds,
    sequence,
    text,
    truth,
)
from qpid_ha_broker.ha import frames as fr
from qpid_ha_broker.ha.frames import Frame, GenerationDetails, GenerationEntry
from qpid_ha_broker.ha.sealed_frames import FrameTable
from qpid_ha_broker.ha.states import State
from qpid_ha_broker.model.sets.message_clock import LAST_MS

MAX_NAME: Final = 64
"""Characters of a broker's name, a process's, a cluster's."""
MAX_TEXT: Final = 2000
"""Characters of a reason or an address."""
MAX_FACTS: Final = 1024 * 1024
MAX_REQUEST: Final = 256 * 1024
"""Of what is wanted with a question: the longest value of a setting, or a command that is passed on."""
"""Characters of an answer's text, which may be a broker's facts and figures."""
MAX_HISTORY: Final = 100_000
MAX_DETAILS: Final = 1000
"""Of generations: more than anybody looks at."""
MAX_MEMBERS: Final = 1000
MAX_CLAIMS: Final = 100
MAX_JSON_BYTES: Final = 32 * 1024 * 1024
"""More than the longest history takes."""
MAX_SECONDS: Final = 1_000_000.0


class FrameKind(IntEnum):
    """The first byte. A number that was once used is not given to another frame."""

    HELLO = 0x10
    WELCOME = 0x11
    REFUSED = 0x12
    BATCH = 0x20
    ACK = 0x21
    HEARTBEAT = 0x22
    CLOCK_READING = 0x23
    HOLDINGS = 0x30
    HOLDINGS_DONE = 0x31
    OBJECTS = 0x32
    CHUNK = 0x33
    CAUGHT_UP = 0x34
    OBSERVE = 0x35
    TAKE_OVER = 0x40
    SHUTDOWN = 0x41
    QUESTION = 0x50
    ANSWER = 0x51
    FOLLOW = 0x60
    FOLLOWED = 0x61


def _reading(now_ms: int) -> int:
    if now_ms > LAST_MS:
        raise ValueError(f"expected milliseconds up to the year 9999, {LAST_MS}; found {now_ms}")
    return now_ms


def _ascending(numbers: tuple[int, ...]) -> tuple[int, ...]:
    if not all(map(le, numbers[::2], numbers[1::2])) or not all(map(lt, numbers[1::2], numbers[2::2])):
        raise ValueError("expected ranges (first, last) that ascend and do not touch each other's ids")
    return numbers


def _state(value: Any) -> str:
    return str(choice(State)(value))


NAME: Final = text(MAX_NAME)
SENTENCE: Final = text(MAX_TEXT)
LSN: Final = integer()
SMALL: Final = integer(2**32 - 1)
NAMES: Final = sequence(NAME, MAX_MEMBERS)
HISTORY: Final = sequence(line(LSN, NAME, LSN, made=GenerationEntry), MAX_HISTORY)
DETAILS: Final = sequence(line(LSN, truth, SENTENCE, made=GenerationDetails), MAX_DETAILS)
TIMES: Final = sequence(LSN, MAX_HISTORY)
SECONDS: Final = seconds(MAX_SECONDS)


def _json(made: type[Frame], **fields: Any) -> JsonForm:
    return JsonForm(made, fields, MAX_JSON_BYTES)


def _binary(made: type[Frame], data: str = "", **fields: Any) -> Form:
    return Form(made, fields, data)


# fmt: off
_FRAMES: Final[FrameTable[Frame]] = FrameTable("a kind that this release knows", {
    FrameKind.HELLO: _json(
        fr.Hello,
        version=SMALL, name=NAME, instance=NAME, cluster=NAME, history=HISTORY, last_lsn=LSN, applied_lsn=LSN,
        complete=truth, lacks_transient=truth, promised=LSN, remembers=truth, set=Later(NAME), started=Later(TIMES),
        reads_clock=Later(truth), store_problem=Later(SENTENCE), reads_marks=Later(truth),
        reads_schedules=Later(truth), reads_annotations=Later(truth), reads_details=Later(truth),
    ),
    FrameKind.WELCOME: _json(
        fr.Welcome,
        name=NAME, cluster=NAME, generation=LSN, history=HISTORY, common_lsn=LSN, resync=choice(fr.Resync),
        clients_url=SENTENCE, link_timeout_s=SECONDS, details=Later(DETAILS),
    ),
    FrameKind.REFUSED: _json(fr.Refused, code=choice(fr.RefusalCode), text=SENTENCE, primary_address=SENTENCE),
    FrameKind.BATCH: _binary(fr.Batch, "data", generation=U64, first_lsn=U64, last_lsn=U64, committed_lsn=U64),
    FrameKind.ACK: _binary(fr.Ack, generation=U64, lsn=U64, chunks=U64),
    FrameKind.HEARTBEAT: _binary(fr.Heartbeat, generation=U64, committed_lsn=U64, last_lsn=U64),
    FrameKind.CLOCK_READING: _binary(fr.ClockReading, generation=U64, now_ms=checked(U64, _reading)),
    FrameKind.HOLDINGS: _binary(fr.Holdings, queue=U64, ranges=pairs_to_end(_ascending)),
    FrameKind.HOLDINGS_DONE: _binary(fr.HoldingsDone),
    FrameKind.OBJECTS: _binary(
        fr.Objects, "data",
        generation=U64, lsn=U64, epoch=U64, members=list_of("H", checked(TEXT, NAME), MAX_MEMBERS),
        used=list_of("I", tuple_of(U64, TEXT)), unreplicated=IDS,
    ),
    FrameKind.CHUNK: _binary(
        fr.Chunk, "data",
        generation=U64, queue=U64, low=U64, high=U64, last=checked(TRUTH, truth), dropped=IDS, failures=pairs_to_end(),
    ),
    FrameKind.CAUGHT_UP: _json(fr.CaughtUp, generation=LSN, lsn=LSN),
    FrameKind.OBSERVE: _json(fr.Observe, generation=LSN, why=SENTENCE),
    FrameKind.TAKE_OVER: _json(fr.TakeOver, generation=LSN),
    FrameKind.SHUTDOWN: _json(fr.Shutdown, generation=LSN, lsn=LSN, uuid=NAME),
    FrameKind.QUESTION: _json(
        fr.Question,
        number=LSN, topic=choice(fr.Topic), asker=NAME, instance=NAME, cluster=NAME, generation=LSN, lsn=LSN,
        address=SENTENCE, set=Later(NAME), request=Later(text(MAX_REQUEST)),
    ),
    FrameKind.ANSWER: _json(
        fr.Answer,
        number=LSN, name=NAME, instance=NAME, cluster=NAME, state=_state, generation=LSN, epoch=LSN, members=NAMES,
        newest_members=NAMES, lsn=LSN, complete=truth, promised=LSN, promised_to=NAME, granted=truth,
        text=text(MAX_FACTS), min_in_sync=SMALL, store=choice(fr.StoreOrigin), committed_generation=Later(LSN),
        committed_lsn=Later(LSN), claims=Later(sequence(LSN, MAX_CLAIMS)), clock_ms=Later(integer(LAST_MS)),
        record_identity=Later(NAME), record_place=Later(SENTENCE),
    ),
    FrameKind.FOLLOW: _json(
        fr.Follow,
        version=SMALL, name=NAME, queue=SENTENCE, cluster=NAME, history=HISTORY, last_lsn=LSN, reads_clock=Later(truth),
    ),
    FrameKind.FOLLOWED: _json(
        fr.Followed,
        name=NAME, cluster=NAME, generation=LSN, history=HISTORY, common_lsn=LSN, queue=LSN, arguments=arguments,
        link_timeout_s=SECONDS,
    ),
})
# fmt: on

encode: Final = _FRAMES.encode
decode: Final = _FRAMES.decode
