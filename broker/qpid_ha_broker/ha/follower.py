"""The primary's side of copies of single queues that are kept outside of the cluster.

Such a copy is an asynchronous replica of one queue: it gets all events of the queue, in order. It is in no in-sync set,
nobody waits for it, and what it is sent is committed: a frame waits until the in-sync set has committed what the frame
says. So a copy never holds what the cluster may take back.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from enum import Enum, auto
from typing import Final

from qpid_ha_broker.events import types as ev
from qpid_ha_broker.events.codec import decode, encode
from qpid_ha_broker.ha import frames as fr
from qpid_ha_broker.ha.backup_link import ReadingsDue
from qpid_ha_broker.ha.browser import ReplicatingBrowser
from qpid_ha_broker.ha.context import MemberContext
from qpid_ha_broker.ha.history import common_lsn, newest, problem
from qpid_ha_broker.ha.tail import Tail
from qpid_ha_broker.model.logs.log import LogBatch
from qpid_ha_broker.model.queues.queue import Queue
from qpid_ha_broker.model.replication import has_replicated_messages

AWAITING_COMMIT_MAX: Final = 8
"""Frames that wait for the in-sync set: with so many, the browser takes no other step."""


class CopyProgress(Enum):
    """How far a follower is."""

    HOLDINGS = auto()
    """It tells what it holds."""
    DUE = auto()
    BROWSING = auto()
    FOLLOWING = auto()
    ENDED = auto()
    """The queue is gone, and the follower will hear of that."""


class Follower:
    """One who keeps a copy of `queue_id`."""

    def __init__(self, link: int, follow: fr.Follow, queue: Queue, sent_s: float) -> None:
        self.link = link
        self.name = follow.name
        self.queue_name = queue.name
        self.queue_id = queue.id
        self.progress = CopyProgress.HOLDINGS
        self.holdings: list[tuple[int, int]] = []
        self.browser: ReplicatingBrowser | None = None
        self.writable = True
        self.unread_bytes = 0
        """Sent while there was no room on its channel."""
        self.awaiting_commit: deque[tuple[int, fr.Frame]] = deque()
        """Each with the LSN that has to be committed."""
        self.is_greeted = False
        self.readings = ReadingsDue(follow.reads_clock)
        self.told_committed = 0
        self.sent_s = sent_s

    @property
    def has_room(self) -> bool:
        """Whether the browser may take a step."""
        return (
            self.progress is CopyProgress.BROWSING and self.writable and len(self.awaiting_commit) < AWAITING_COMMIT_MAX
        )


class Followers:
    """The promise: what is sent is committed, and is all that happened to the queue up to a `committed_lsn` told."""

    def __init__(self, ctx: MemberContext, tail: Tail, generation: int) -> None:
        self._ctx = ctx
        self._tail = tail
        self._generation = generation
        self.links: dict[int, Follower] = {}

    # --- one comes

    def follow(self, link: int, frame: fr.Follow, history: Sequence[fr.GenerationEntry], cluster: str) -> None:
        """Somebody wants to keep a copy."""
        queue = self._ctx.resource_set.catalog.queues.get(frame.queue)
        refused = self._why_refused(link, frame, cluster, queue)
        if refused is not None or queue is None:
            self._refuse(link, refused or _no_queue(frame.queue))
            return
        settings = self._ctx.settings
        follower = self.links[link] = Follower(link, frame, queue, self._ctx.clock_s)
        common = common_lsn(history, self._tail.last_lsn, frame.history, frame.last_lsn)
        followed = fr.Followed(
            settings.name, cluster, self._generation, tuple(history), common, queue.id, queue.arguments.given,
            settings.link_timeout_s,
        )  # fmt: skip
        follower.awaiting_commit.append((queue.id, followed))
        self._ctx.note("info", f"{frame.name} keeps a copy of queue {frame.queue}")
        self._ctx.want_turn()

    def _why_refused(self, link: int, frame: fr.Follow, cluster: str, queue: Queue | None) -> fr.Refused | None:
        if frame.version != fr.PROTOCOL_VERSION:
            text = f"it speaks version {frame.version} of the protocol, the primary {fr.PROTOCOL_VERSION}: upgrade it"
            return fr.Refused(fr.RefusalCode.VERSION, text, "")
        if link in self.links:
            return fr.Refused(fr.RefusalCode.PROTOCOL, "a channel carries one queue", "")
        if frame.cluster and frame.cluster != cluster:
            text = f"the copy is of the cluster {frame.cluster}, and this is {cluster}: end it, and begin another one"
            return fr.Refused(fr.RefusalCode.OTHER_CLUSTER, text, "")
        wrong = problem(frame.history, frame.last_lsn)
        if wrong:
            return fr.Refused(fr.RefusalCode.BAD_HISTORY, f"no log has such a history: {wrong}", "")
        if newest(frame.history) > self._generation:
            text = f"the copy knows generation {newest(frame.history)}; this is the primary of {self._generation}"
            return fr.Refused(fr.RefusalCode.NOT_PRIMARY, text, "")
        if queue is not None and not has_replicated_messages(queue):
            text = f"the messages of queue {frame.queue} are not replicated (qpid.replicate), so they cannot be copied"
            return fr.Refused(fr.RefusalCode.NO_QUEUE, text, "")
        return None

    def _refuse(self, link: int, refused: fr.Refused) -> None:
        self._ctx.send(link, refused)
        self._ctx.close(link, refused.text)

    def received(self, link: int, frame: fr.Frame) -> None:
        """A follower tells what it holds."""
        follower = self.links.get(link)
        if follower is None or follower.progress is not CopyProgress.HOLDINGS:
            return
        if isinstance(frame, fr.Holdings):
            follower.holdings += frame.ranges
        elif isinstance(frame, fr.HoldingsDone):
            follower.progress = CopyProgress.DUE
            self._ctx.want_turn()

    # --- the stream

    def turn_ended(self, batch: LogBatch | None, committed_lsn: int) -> None:
        """Send what the turn did to the queues, and let the browsers take a step."""
        if not self.links:
            return
        if batch is not None:
            self._stream(batch)
        for follower in self.links.values():
            queue = self._ctx.resource_set.catalog.queues_by_id.get(follower.queue_id)
            if queue is None or not has_replicated_messages(queue):
                self._end_of_queue(follower)
            elif follower.progress is CopyProgress.DUE:
                follower.browser = ReplicatingBrowser(queue, self._tail.last_lsn, follower.holdings)
                follower.holdings = []
                follower.progress = CopyProgress.BROWSING
            elif follower.has_room:
                self._browse(follower)
        self.release(committed_lsn)

    def _stream(self, batch: LogBatch) -> None:
        streams = (CopyProgress.BROWSING, CopyProgress.FOLLOWING)
        watching = [follower for follower in self.links.values() if follower.progress in streams]
        found: dict[int, list[bytes]] = {follower.queue_id: [] for follower in watching}
        if not found:
            return
        for lsn, event, _ in decode(batch.data).records:
            if isinstance(event, ev.Enqueued):
                for queue_id in event.queues:
                    if queue_id in found:
                        found[queue_id].append(encode(lsn, event._replace(queues=(queue_id,))))
            elif isinstance(event, ev.Dequeued) and event.queue in found:
                found[event.queue].append(encode(lsn, event))
        for follower in watching:
            data = b"".join(found[follower.queue_id])
            if data:
                frame = fr.Batch(self._generation, batch.first_lsn, batch.last_lsn, batch.last_lsn, data)
                follower.awaiting_commit.append((batch.last_lsn, frame))

    def _browse(self, follower: Follower) -> None:
        if follower.browser is None:
            return
        settings, lsn = self._ctx.settings, self._tail.last_lsn
        chunk = follower.browser.next_chunk(self._generation, settings.chunk_messages, settings.chunk_bytes)
        follower.awaiting_commit.append((lsn, chunk))
        if follower.browser.done:
            follower.browser = None
            follower.progress = CopyProgress.FOLLOWING
            follower.awaiting_commit.append((lsn, fr.CaughtUp(self._generation, lsn)))

    def _end_of_queue(self, follower: Follower) -> None:
        if follower.progress is not CopyProgress.ENDED:
            follower.progress = CopyProgress.ENDED
            follower.awaiting_commit.append((self._tail.last_lsn, _no_queue(follower.queue_name)))

    def release(self, committed_lsn: int) -> None:
        """Send what is committed now."""
        for follower in list(self.links.values()):
            if follower.unread_bytes > self._ctx.settings.unread_most_bytes:
                reason = f"it does not read, and {follower.unread_bytes} bytes wait for it"
                self._ctx.close(follower.link, reason)
                self.lost(follower.link, reason)
                continue
            waiting = follower.awaiting_commit
            while waiting and waiting[0][0] <= committed_lsn:
                _, frame = waiting.popleft()
                follower.is_greeted = True
                follower.told_committed, follower.sent_s = committed_lsn, self._ctx.clock_s
                self._ctx.send(follower.link, frame)
                if isinstance(frame, fr.Batch) and not follower.writable:
                    follower.unread_bytes += len(frame.data)
                if isinstance(frame, fr.Followed):
                    self._tell_clock(follower)
                if isinstance(frame, fr.Refused):
                    del self.links[follower.link]
                    self._ctx.close(follower.link, frame.text)

    def _tell_clock(self, follower: Follower) -> None:
        if follower.readings.take(self._ctx.clock_s):
            self._ctx.send(follower.link, fr.ClockReading(self._generation, self._ctx.message_time_ms()))

    @property
    def has_work(self) -> bool:
        """Whether another turn would bring one further at once."""
        return any(each.progress is CopyProgress.DUE or each.has_room for each in self.links.values())

    # --- time and loss

    def tick(self, committed_lsn: int) -> None:
        """Tell what is committed, also where nothing happened to the queue."""
        interval_s, clock_s = self._ctx.settings.heartbeat_interval_s, self._ctx.clock_s
        for follower in self.links.values():
            is_due = follower.told_committed != committed_lsn or clock_s - follower.sent_s >= interval_s
            if follower.is_greeted and is_due:
                follower.told_committed, follower.sent_s = committed_lsn, clock_s
                self._ctx.send(follower.link, fr.Heartbeat(self._generation, committed_lsn, self._tail.last_lsn))
            if follower.is_greeted:
                self._tell_clock(follower)

    def set_writable(self, link: int, writable: bool) -> None:
        """Whether there is room on its channel."""
        follower = self.links.get(link)
        if follower is not None:
            follower.writable, follower.unread_bytes = writable, 0

    def lost(self, link: int, reason: str) -> bool:
        """A channel is gone; whether it was a follower's."""
        follower = self.links.pop(link, None)
        if follower is not None:
            text = f"{follower.name} does not follow queue {follower.queue_name} any more: {reason}"
            self._ctx.note("info", text)
        return follower is not None

    def end(self) -> None:
        """Primary no more."""
        for link in self.links:
            self._ctx.close(link, "no longer primary")
        self.links.clear()


def _no_queue(name: str) -> fr.Refused:
    return fr.Refused(fr.RefusalCode.NO_QUEUE, f"there is no queue {name}, or its messages are replicated no more", "")
