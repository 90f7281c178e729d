"""Who comes level asks for pieces of queues until it has them all, whoever was to answer and is in step no more."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import pytest

from qpid_ha_broker.events import types as ev
from qpid_ha_broker.group import effects as fx
from qpid_ha_broker.group import frames as fr
from qpid_ha_broker.group.context import GroupSettings
from qpid_ha_broker.group.frames import GroupFrame, decode_batch
from qpid_ha_broker.group.lineage import Lineage
from qpid_ha_broker.group.member import GroupMember
from qpid_ha_broker.ha.cluster_record import ClusterRecord
from qpid_ha_broker.ha.frame_codec import encode as encode_shown
from qpid_ha_broker.ha.objects import objects_frame
from qpid_ha_broker.model.sets.resource_set import ResourceSets

Kind = TypeVar("Kind")
NAMES = "a", "b", "c"


def record(epoch: int, *members: str) -> ClusterRecord:
    return ClusterRecord("uuid", epoch, members[0], epoch, members, False)


class Joining:
    """Member `d`, which `a` lets in; `a`, `b` and `c` are in step, and have queue `q`."""

    def __init__(self) -> None:
        self.member = GroupMember(GroupSettings("d", "d-1"), ResourceSets("orders").replicated)
        self.said: list[GroupFrame] = []
        self._reads: list[int] = []
        self.handle(fx.Started())
        self.handle(fx.ViewChanged((*NAMES, "d"), (*NAMES, "d"), ()))
        self.read()
        (asked,) = self.take(fr.JoinAsked)
        self.deliver("d", asked)
        shown = Lineage(record(4, *NAMES), NAMES, 0)
        shown.joining["d"] = fr.AdmissionAsked(asked.number, "a")
        there = ResourceSets("orders").replicated
        there.write(ev.QueueDeclared("q", {}))
        objects = encode_shown(objects_frame(there.state, 4, there.log.last_lsn))
        self.deliver("a", shown.shown("d", "d-1", asked.number), fr.ObjectsShown("d", "d-1", asked.number, objects))
        self.read()

    def handle(self, happened: fx.Input) -> None:
        for effect in self.member.handle(happened, 0.0) + self.member.handle(fx.GroupTurnEnded(), 0.0):
            if isinstance(effect, fx.Multicast):
                self.said += decode_batch(effect.data)[1]
            elif isinstance(effect, fx.ReadRecord):
                self._reads.append(effect.number)

    def read(self) -> None:
        self.handle(fx.RecordRead(self._reads.pop(), record(4, *NAMES), ""))

    def deliver(self, sender: str, *frames: GroupFrame) -> None:
        self.handle(fx.Delivered(sender, frames, 0))

    def take(self, kind: type[Kind]) -> list[Kind]:
        """What was said since, which is all of that kind."""
        said, self.said = self.said, []
        of_kind: list[Kind] = [frame for frame in said if isinstance(frame, kind)]
        assert len(of_kind) == len(said)
        return of_kind


def drop(joining: Joining, who: str) -> None:
    """The others have recorded that they go on without it: it was slow, say, and is in the view still."""
    left = [name for name in NAMES if name != who]
    joining.deliver(left[0], fr.EpochBegun(record(5, *left), False, ()))


def leave(joining: Joining, who: str) -> None:
    left = tuple(name for name in NAMES if name != who)
    joining.handle(fx.ViewChanged((*left, "d"), (), (who,)))


def fall_out(joining: Joining, who: str) -> None:
    """It asks to be let in itself."""
    joining.deliver(who, fr.JoinAsked(f"{who}-2", 1))


@pytest.mark.parametrize("who", NAMES)
@pytest.mark.parametrize("goes", [drop, leave, fall_out])
def test_a_piece_is_asked_for_again_when_one_goes_who_may_have_been_asked(
    who: str, goes: Callable[[Joining, str], None]
) -> None:
    """Who answers is who is first in step where the question is delivered: that may have been anybody meanwhile."""
    joining = Joining()
    asked = joining.take(fr.ChunkAsked)
    assert len(asked) == 1

    goes(joining, who)

    assert joining.take(fr.ChunkAsked) == asked


def test_it_is_not_asked_for_again_where_nobody_went() -> None:
    joining = Joining()
    joining.take(fr.ChunkAsked)
    joining.deliver("a", fr.Acknowledged(1, 0))
    joining.deliver("b", fr.EpochBegun(record(5, *NAMES), False, ()))
    assert joining.take(fr.ChunkAsked) == []
