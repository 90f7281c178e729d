"""A member of a group as its clients have it: commands on the resource set on one side, the member's core on the other.

What commands submit goes to the core as inputs, and what the core says of it comes back to whoever waits: `Grouped` has
both ends. `feed` is the driver's: it handles an input and carries out what follows, at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import inf
from typing import Final, NamedTuple

from qpid_ha_broker.events.types import Dequeued, Event
from qpid_ha_broker.group import effects as fx
from qpid_ha_broker.group.context import GroupSettings
from qpid_ha_broker.group.effects import GroupRole
from qpid_ha_broker.group.member import GroupMember
from qpid_ha_broker.group.slices import Slices
from qpid_ha_broker.model.queues.sequence import ELSEWHERE, SUBMITTED, SessionOwner
from qpid_ha_broker.model.sets.grouped import Grouped, QueueUsers, Taken
from qpid_ha_broker.model.sets.resources import Resources

STUCK_S: Final = 10.0
"""A member that owns a queue and does not yield it for so long, though others wait, does not do what it should."""


class StuckQueue(NamedTuple):
    """A queue that has not come, although it was asked for."""

    queue: str
    owner: str
    for_s: float


class GroupServing:
    """`committed_lsn`: how far the store of `resources` was told that the log is committed."""

    def __init__(
        self,
        settings: GroupSettings,
        resources: Resources,
        replication: Grouped,
        committed_lsn: int,
        feed: Callable[[fx.Input], None],
        slice_s: float,
    ) -> None:
        self.resources = resources
        self.member = GroupMember(settings, resources.replicated, committed_lsn)
        self._replication = replication
        self._feed = feed
        self._turned_s = 0.0
        """When the last turn ended."""
        self._hands_out = False
        """It serves, as `look` found it last."""
        self._slices = Slices(resources, replication.due, slice_s, settings.comeback_s)
        replication.multicast, replication.window_bytes = self._multicast, settings.window_bytes
        replication.queues_here, replication.users = self.member.queues, self._users
        replication.give_back = self._give_back
        replication.ask_for_link = self._ask_for_link
        replication.link_ended = lambda queue, link: feed(fx.LinkDetached(queue, link))
        replication.is_first_member = lambda: self.member.is_first
        replication.read_only = f"{settings.name} has not come to its group yet"

    @property
    def moves_total(self) -> int:
        """How often a queue came to this member, since it came to its group."""
        return self._slices.moves_total

    def _users(self, queue: int) -> QueueUsers:
        queues = self.member.queues
        moves = self._slices.recent_moves.count(queue, self._turned_s)
        return QueueUsers(*queues.users(queue), queues.is_wanted_elsewhere(queue), moves)

    def stuck(self, now_s: float) -> list[StuckQueue]:
        """Queues for which consumers here wait longer than any slices of others take."""
        waited_for = self._slices.waited_for(now_s, STUCK_S)
        return [StuckQueue(queue.name, self.member.queues.owner(queue.id), for_s) for queue, for_s in waited_for]

    def _multicast(self, number: int, events: Sequence[Event]) -> None:
        self._feed(fx.SubmitAsked(number, tuple(events)))

    def _ask_for_link(self, number: int, queue: int, link: SessionOwner, epoch: int) -> None:
        self._feed(fx.LinkTakeAsked(number, queue, link, epoch))

    def placed(self, effect: fx.Placed) -> None:
        """A unit of ours has come to its place."""
        for event in self._replication.placed(effect.request, effect.lsn):
            self._give_back(event)

    def refused(self, effect: fx.SubmitRefused) -> None:
        """A unit of ours counts nowhere."""
        for event in self._replication.skipped(effect.request, self.resources.replicated.log.last_lsn, effect.failure):
            self._give_back(event)

    def _give_back(self, event: Taken) -> None:
        """What was to leave a queue stays there.

        1. The queue has gone: nothing.
        2. The message is this member's, and a client may have had it: all are told that it comes back, marked.
        3. A session holds it: it does so still.
        4. It is another's to decide about, or it was to come back anyway: nobody holds it here any more.
        """
        queue = self.resources.catalog.queues_by_id.get(event.queue)
        if queue is None:
            return
        entries = [entry for entry in queue.messages.find_all(event.ids) if entry.holder is SUBMITTED]
        for entry in entries if queue.held else ():
            if entry.id in queue.held:
                queue.messages.hold(entry, queue.held[entry.id])
        entries = [entry for entry in entries if entry.holder is SUBMITTED]
        if not entries:
            return
        ids = [entry.id for entry in entries]
        if isinstance(event, Dequeued) and self.member.queues.may_take(queue.id, ids):
            for entry in entries:
                queue.messages.hold(entry, ELSEWHERE)  # that unit is over
            self.resources.replicated.release(queue, entries, failed=False)
            return
        own, holders = self.member.name, self.member.queues.held(queue.id)
        for entry in entries:
            if holders.get(entry.id, own) == own:
                queue.messages.give_back(entry, failed=False)
            else:
                queue.messages.hold(entry, ELSEWHERE)
        self.resources.catalog.note_arrival(queue)
        if queue.displaces:
            self._replication.note_due(queue)

    def look(self, reason: str) -> None:
        """Whether commands are taken may have changed, because of `reason`: `Grouped.read_only` says so from here on.

        Where they were and are no more, clients are to be ended before they are told anything: what they wait for has
        failed here, and may count all the same.
        """
        replication, member = self._replication, self.member
        if member.takes_units:
            if replication.read_only:
                replication.read_only = ""
            if not self._hands_out and member.role is GroupRole.SERVING:
                self._begin()
            self._hands_out = member.role is GroupRole.SERVING
            return
        self._hands_out = False
        if not replication.read_only:
            why = f"{member.name} is {member.role} ({reason}): ask another member of the group"
            replication.left_behind(why)
            replication.read_only = why
            self._slices.forget()

    def _begin(self) -> None:
        """What came while this member did not hand out has woken nobody, or was shown to it."""
        self._slices.begin()
        for queue in self.resources.catalog.queues.values():
            if queue.displaces or queue.messages.expiries.next_ms is not None:
                self.resources.timers.watch(queue)

    def progressed(self) -> None:
        """More is committed, or known to all."""
        if self.member.role is GroupRole.SERVING:
            self._slices.wake(self.member)

    def turn_ends(self, now_s: float) -> float:
        """Submit what was gathered, ask for queues, and hand them on; before the core ends its turn.

        Returns when the next turn has to be, at the latest: a slice ends then.
        """
        self._replication.flush()
        self._turned_s = now_s
        refusal, ends_s = self.member.standing.refusal, inf
        if str(refusal) != str(self._replication.refusal):
            self._replication.refusal = refusal
        if self.member.role is GroupRole.SERVING:
            for asked in self._slices.turn(self.member, now_s):
                self._feed(asked)
            ends_s = self._slices.ends_s
        self.resources.purges.owned.resume()
        return ends_s
