"""What members of a group say to each other by multicast: one value per kind of frame, and the batch that carries them.

A *batch* is what one member multicasts at the end of a turn: the version, the set, and frames, each behind its length.
Every member gets all batches in one order, its own among them. The form of a frame is that of `ha.sealed_frames`: what
is frequent is binary, what is rare is JSON. `decode_batch` is total: any bytes give frames or FrameError.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum
from typing import Any, Final, NamedTuple

from qpid_ha_broker.events.fields import MAX_TEXT_BYTES, SHORT_TEXT, TEXT, U8, U32, U64, UNREADABLE, pairs_to_end
from qpid_ha_broker.events.forms import Form
from qpid_ha_broker.events.json_forms import JsonForm, Later, integer, line, sequence, text, truth
from qpid_ha_broker.ha.cluster_record import ClusterRecord
from qpid_ha_broker.ha.frame_codec import HISTORY, MAX_JSON_BYTES, NAME, NAMES
from qpid_ha_broker.ha.frames import FrameError, GenerationEntry
from qpid_ha_broker.ha.sealed_frames import Buffer, FrameTable

GROUP_VERSION: Final = 2
"""The first byte of a batch. Who reads another one than its own takes nothing from that batch."""

Ranges = tuple[tuple[int, int], ...]
"""Ids as (first, last), ascending."""


class GroupKind(IntEnum):
    """The first byte of a frame. No other frame of brokers has it, and a number is not given to another frame."""

    SUBMITTED = 0xB0
    ACKNOWLEDGED = 0xB1
    QUEUE_WANTED = 0xB2
    QUEUE_YIELDED = 0xB3
    LINK_TAKEN = 0xB4
    LINK_LEFT = 0xB5
    EPOCH_BEGUN = 0xB8
    MEMBER_PRESENT = 0xB9
    JOIN_ASKED = 0xC0
    LINEAGE_SHOWN = 0xC1
    OBJECTS_SHOWN = 0xC2
    CHUNK_ASKED = 0xC3
    CHUNK_SHOWN = 0xC4
    ADMISSION_ASKED = 0xC5


class LinkPlace(NamedTuple):
    """At which member a consuming link of a client's session is attached."""

    session: int
    """The session's id in `default`."""
    name: str
    """The session's UUID."""
    link: str
    epoch: int
    """Which connection of the session."""
    member: str


class QueueShare(NamedTuple):
    """Who has what of a queue: see `ownership`."""

    queue: int
    owner: str
    """Empty: nobody."""
    since: int
    """The position with which it became so."""
    wanting: tuple[str, ...]
    """Who is next, in this order."""
    held: tuple[tuple[str, Ranges], ...]
    """By members that have yielded the queue: ids of messages that their consumers have not answered."""
    links: tuple[LinkPlace, ...]
    """Of sessions of clients, that consume from the queue."""
    user: str = ""
    """Of an exclusive queue: the member of whose clients one has it; empty: nobody."""


# --- of members that are in step


class Submitted(NamedTuple):
    """A unit of events, to be given the next LSNs or to be skipped, by all alike."""

    number: int
    """Of the member's units; it ascends."""
    data: bytes
    """Records whose LSNs are 1, 2, ...: their places in the unit."""


class Acknowledged(NamedTuple):
    """The member has the log up to `lsn` on disk, and has taken in ownership up to `position`."""

    lsn: int
    position: int


class QueueWanted(NamedTuple):
    """The member has a consumer with credit."""

    queue: int


class QueueYielded(NamedTuple):
    """The member hands out from the queue no more, or wants it no more; its consumers still hold these messages."""

    queue: int
    held: Ranges


class LinkTaken(NamedTuple):
    """A link of a client's session was attached at the member: what the session holds on it is answered there."""

    number: int
    """Of the member's units: it is answered as one."""
    queue: int
    session: int
    name: str
    link: str
    epoch: int


class LinkLeft(NamedTuple):
    """That link has ended at the member; what the session holds on it waits."""

    queue: int
    session: int
    name: str
    link: str


class EpochBegun(NamedTuple):
    """The set's record is `record`: from here on its members, and none else, are waited for."""

    record: ClusterRecord
    is_cold: bool
    """Whoever says so does not know who owned what: it was restarted. All that is there may have been handed out."""
    given_up: tuple[str, ...]
    """Of those whose admission had begun."""


class MemberPresent(NamedTuple):
    """The member is there, goes by that record, and `is_serving` clients or waits for the record."""

    record: ClusterRecord
    is_serving: bool


# --- of a member that joins, and whoever lets it in


class JoinAsked(NamedTuple):
    """The member's copy does not count: it wants to be shown the group's."""

    instance: str
    """Of its process."""
    number: int


class LineageShown(NamedTuple):
    """What is known of the group at the place where `JoinAsked(instance, number)` of `to` was delivered."""

    to: str
    instance: str
    number: int
    record: ClusterRecord
    in_step: tuple[str, ...]
    admitting: tuple[tuple[str, int], ...]
    """(member, LSN that it has to acknowledge)."""
    gone: tuple[str, ...]
    """Of those: who left meanwhile, and is waited for all the same."""
    joining: tuple[tuple[str, int, str], ...]
    """Who was shown the lineage, the number of its question, and who has answered it."""
    acknowledged: tuple[tuple[str, int, int], ...]
    """(member, LSN, position)."""
    committed_lsn: int
    position: int
    shares: tuple[QueueShare, ...]
    history: tuple[GenerationEntry, ...] = ()
    """The generations of the log. Empty: of a member of an older release, which does not tell."""


class ObjectsShown(NamedTuple):
    """The configuration at the same place as a LineageShown has it, of which it says again whose answer it is: a frame
    `ha.frames.Objects`."""

    to: str
    instance: str
    number: int
    data: bytes


class ChunkAsked(NamedTuple):
    """The member wants the next piece of a queue: ids up to `high`, of which it holds `held`."""

    queue: int
    high: int
    held: Ranges


class ChunkShown(NamedTuple):
    """The piece that `to` asked for, as of the place where its ChunkAsked was delivered: an `ha.frames.Chunk`."""

    to: str
    data: bytes


class AdmissionAsked(NamedTuple):
    """The member's copy is whole, and on disk: it can be waited for."""

    number: int
    """Of its JoinAsked."""
    shown_by: str
    """Who has answered that: members of another lineage may have heard it, too, and answered."""


GroupFrame = (
    Submitted
    | Acknowledged
    | QueueWanted
    | QueueYielded
    | LinkTaken
    | LinkLeft
    | EpochBegun
    | MemberPresent
    | JoinAsked
    | LineageShown
    | ObjectsShown
    | ChunkAsked
    | ChunkShown
    | AdmissionAsked
)

_NUMBER: Final = integer()
_RECORD: Final = line(NAME, _NUMBER, NAME, _NUMBER, NAMES, truth, made=ClusterRecord)
_RANGES: Final = sequence(line(_NUMBER, _NUMBER))
_LINK_NAME: Final = text(MAX_TEXT_BYTES, "bytes")
_PLACE: Final = line(_NUMBER, NAME, _LINK_NAME, _NUMBER, NAME, made=LinkPlace)
_SHARE: Final = line(
    _NUMBER, NAME, _NUMBER, NAMES, sequence(line(NAME, _RANGES)), sequence(_PLACE), NAME, made=QueueShare
)  # fmt: skip


def _json(made: type[GroupFrame], **fields: Any) -> JsonForm:
    return JsonForm(made, fields, MAX_JSON_BYTES)


# fmt: off
_FRAMES: Final[FrameTable[GroupFrame]] = FrameTable("a frame of a group", {
    GroupKind.SUBMITTED: Form(Submitted, {"number": U64}, "data"),
    GroupKind.ACKNOWLEDGED: Form(Acknowledged, {"lsn": U64, "position": U64}),
    GroupKind.QUEUE_WANTED: Form(QueueWanted, {"queue": U64}),
    GroupKind.QUEUE_YIELDED: Form(QueueYielded, {"queue": U64, "held": pairs_to_end()}),
    GroupKind.LINK_TAKEN: Form(
        LinkTaken, {"number": U64, "queue": U64, "session": U64, "name": TEXT, "link": TEXT, "epoch": U64},
    ),
    GroupKind.LINK_LEFT: Form(LinkLeft, {"queue": U64, "session": U64, "name": TEXT, "link": TEXT}),
    GroupKind.EPOCH_BEGUN: _json(EpochBegun, record=_RECORD, is_cold=truth, given_up=NAMES),
    GroupKind.MEMBER_PRESENT: _json(MemberPresent, record=_RECORD, is_serving=truth),
    GroupKind.JOIN_ASKED: _json(JoinAsked, instance=NAME, number=_NUMBER),
    GroupKind.LINEAGE_SHOWN: _json(
        LineageShown,
        to=NAME, instance=NAME, number=_NUMBER, record=_RECORD, in_step=NAMES,
        admitting=sequence(line(NAME, _NUMBER)), gone=NAMES, joining=sequence(line(NAME, _NUMBER, NAME)),
        acknowledged=sequence(line(NAME, _NUMBER, _NUMBER)),
        committed_lsn=_NUMBER, position=_NUMBER, shares=sequence(_SHARE),
        history=Later(HISTORY),
    ),
    GroupKind.OBJECTS_SHOWN: Form(ObjectsShown, {"to": TEXT, "instance": TEXT, "number": U64}, "data"),
    GroupKind.CHUNK_ASKED: Form(ChunkAsked, {"queue": U64, "high": U64, "held": pairs_to_end()}),
    GroupKind.CHUNK_SHOWN: Form(ChunkShown, {"to": TEXT}, "data"),
    GroupKind.ADMISSION_ASKED: Form(AdmissionAsked, {"number": U64, "shown_by": TEXT}),
})
# fmt: on


def encode_frame(frame: GroupFrame) -> bytes:
    """The bytes of one frame. Raises ValueError for a value that no frame can hold."""
    return _FRAMES.encode(frame)


def encode_batch(set_name: str, frames: Sequence[bytes]) -> bytes:
    """What is multicast as one: encoded frames about `set_name`, in their order."""
    pieces = [U8.write(GROUP_VERSION), SHORT_TEXT.write(set_name)]
    for frame in frames:
        pieces += (U32.write(len(frame)), frame)
    return b"".join(pieces)


def decode_batch(batch: Buffer) -> tuple[str, list[GroupFrame]]:
    """The set, and the frames about it. Raises FrameError."""
    view = memoryview(batch).cast("B")
    frames: list[GroupFrame] = []
    try:
        version, at = U8.read(view, 0)
        if version != GROUP_VERSION:
            raise FrameError(f"expected version {GROUP_VERSION} of what groups say, found {version}: another release?")
        set_name, at = SHORT_TEXT.read(view, at)
        while at < len(view):
            length, at = U32.read(view, at)
            if at + length > len(view):
                raise FrameError(f"expected a frame of {length} bytes, found {len(view) - at}")
            frames.append(_FRAMES.decode(view[at : at + length]))
            at += length
    except UNREADABLE as error:
        raise FrameError(f"frame {len(frames) + 1} of a batch: {error}") from error
    return set_name, frames
