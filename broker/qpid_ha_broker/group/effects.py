"""What happens to a member of a group, and what it wants done: the two closed lists between the core and a driver.

The core is `GroupMember.handle(input, now_s) -> list[Effect]`; `now_s` is a clock that never goes back. A driver feeds
inputs in the order in which they happen and carries effects out in the order in which they come; it decides nothing.
What members of a primary set and of a group have in common is one value: see `ha.effects`.

The transport's side of it: a multicast is delivered to each member of the view in which it is sent, the sender among
them, or to none of a part that goes on without the sender; deliveries and views come in one order at all members that
go from one view to the next together. What one part got of the old view, another part may not have got.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from qpid_ha_broker.events.types import Event
from qpid_ha_broker.group.frames import GroupFrame, Ranges
from qpid_ha_broker.ha.effects import (
    CheckpointPersisted,
    Discarded,
    Notice,
    Persist,
    Persisted,
    ReadRecord,
    RecordRead,
    RecordWritten,
    Started,
    Stop,
    Stopping,
    StoreFailed,
    Ticked,
    WriteCheckpoint,
    WriteRecord,
)
from qpid_ha_broker.model.errors import ModelError
from qpid_ha_broker.model.queues.sequence import SessionOwner

__all__ = [
    "CheckpointPersisted",
    "Delivered",
    "Discarded",
    "Effect",
    "GroupRole",
    "GroupTurnEnded",
    "Input",
    "LinkDetached",
    "LinkTakeAsked",
    "MinInSyncChanged",
    "Multicast",
    "Notice",
    "Persist",
    "Persisted",
    "Placed",
    "Progressed",
    "ReadRecord",
    "RecordRead",
    "RecordWritten",
    "RoleChanged",
    "Started",
    "Stop",
    "Stopping",
    "StoreFailed",
    "SubmitAsked",
    "SubmitRefused",
    "Ticked",
    "ViewChanged",
    "WantAsked",
    "WriteCheckpoint",
    "WriteRecord",
    "YieldAsked",
]


class GroupRole(StrEnum):
    """What a member is to its group."""

    OUTSIDE = "outside"
    """Its copy does not count: it waits to be let in, or that there is nobody who could."""
    CATCHING_UP = "catching-up"
    """It takes part in what is delivered, and is shown what it lacks. Nobody waits for it."""
    WITHHELD = "withheld"
    """Its copy counts, but some whom the record names are not in step with it, or it has to be recorded that it goes on
    alone: what needs them is not confirmed, and nothing is handed out."""
    SERVING = "serving"
    """All whom the record names are in step with it."""


# --- inputs


class ViewChanged(NamedTuple):
    """The transport says who is there from here on."""

    members: tuple[str, ...]
    """Nobody: nothing is delivered until the next view, not even what this member sends."""
    joined: tuple[str, ...]
    """To whom nothing was delivered before, or not what was delivered here; this member itself, in its first view."""
    left: tuple[str, ...]
    ended: tuple[str, ...] = ()
    """Of those who left: processes that have ended. The others may live, and be somewhere else."""


class Delivered(NamedTuple):
    """A batch came, perhaps this member's own."""

    sender: str
    frames: tuple[GroupFrame, ...]
    size: int
    """Bytes of the batch."""


class SubmitAsked(NamedTuple):
    """A unit is to be written. `Placed` or `SubmitRefused` follows, or that the member is outside: then nobody knows
    what becomes of it."""

    request: int
    events: tuple[Event, ...]


class WantAsked(NamedTuple):
    """A consumer of the queue has credit here."""

    queue: int


class YieldAsked(NamedTuple):
    """Nothing more is handed out from the queue here. `held`: what consumers have, and have not answered."""

    queue: int
    held: Ranges


class LinkTakeAsked(NamedTuple):
    """A link of a client's session is being attached here, which consumes from the queue. `Placed` follows once all in
    sync know that what the session holds on it is answered here; or, as of a unit, `SubmitRefused`."""

    request: int
    queue: int
    link: SessionOwner
    epoch: int
    """Which connection of the session."""


class LinkDetached(NamedTuple):
    """It has ended here; what the session holds on it waits."""

    queue: int
    link: SessionOwner


class MinInSyncChanged(NamedTuple):
    """So many members have to be in sync from now on."""

    least: int


class GroupTurnEnded(NamedTuple):
    """The end of a turn: what was said in it is multicast as one, and what was delivered is stored as one."""


Input = (
    Started
    | Ticked
    | ViewChanged
    | Delivered
    | SubmitAsked
    | WantAsked
    | YieldAsked
    | LinkTakeAsked
    | LinkDetached
    | MinInSyncChanged
    | GroupTurnEnded
    | RecordRead
    | RecordWritten
    | Persisted
    | CheckpointPersisted
    | StoreFailed
    | Stopping
)

# --- effects


class Multicast(NamedTuple):
    """Hand this batch to the transport, after all before. It is this member's until it comes back as `Delivered`."""

    data: bytes


class Placed(NamedTuple):
    """The unit that was asked for, or the one whose duplicate it is, is in the log and counts. It is committed once
    `Progressed` comes to `lsn`."""

    request: int
    lsn: int
    """Of the last of its records, or one behind it."""


class SubmitRefused(NamedTuple):
    """The unit that was asked for was skipped, by all members, or not even multicast."""

    request: int
    failure: ModelError


class Progressed(NamedTuple):
    """All up to `lsn` is on the disk of everybody whom the record names, and more that was delivered of ownership has
    come to them: whoever waits is to be told, and consumers may get what they did not get before."""

    lsn: int


class RoleChanged(NamedTuple):
    """The member is something else to its group. Outside and catching up it has no clients."""

    before: GroupRole
    after: GroupRole
    reason: str


Effect = (
    Multicast
    | Placed
    | SubmitRefused
    | Progressed
    | RoleChanged
    | Persist
    | WriteCheckpoint
    | ReadRecord
    | WriteRecord
    | Discarded
    | Notice
    | Stop
)
