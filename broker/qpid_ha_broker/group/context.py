"""What every part of a group's member shares: settings, the log and state, the time, effects, and what it will say."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Final

from qpid_ha_broker.group.effects import Effect, Multicast
from qpid_ha_broker.group.frames import GroupFrame, encode_batch, encode_frame
from qpid_ha_broker.ha.effects import Notice
from qpid_ha_broker.model.sets.resource_set import ResourceSet

WITNESS: Final = "group"
"""The log's witness: what the group has committed."""


@dataclass(frozen=True)
class GroupSettings:
    """Times in seconds. Raises ValueError where they do not go together."""

    name: str
    instance: str
    """Of this process; another one after each start. The first claim gives it to the set's log as its UUID,
    where the record has none for it."""
    heartbeat_interval_s: float = 1.0
    backup_timeout_s: float = 10.0
    """A member that owes an acknowledgement for so long is dropped."""
    patience_s: float = 1.0
    """Who was restarted, or is with fewer than half, waits so long for others before it goes on without them; the
    second in the order of names twice as long, and so on."""
    comeback_s: float = 10.0
    """Users of a queue that deletes itself have so long to come back to it when a member has left, perhaps theirs."""
    ask_again_s: float = 1.0
    """What was not answered is asked again."""
    min_in_sync: int = 1
    """With fewer members in the record nothing is committed, and nothing is to be published."""
    window_bytes: int = 1024 * 1024
    """Of this member's batches, so much may be on the way; what comes then waits here."""
    chunk_messages: int = 1000
    chunk_bytes: int = 256 * 1024
    chunks_ahead: int = 8
    """Queues of which a piece was asked for at a time."""

    @property
    def silence_s(self) -> float:
        """Who was delivered nothing for so long judges nobody by it."""
        return self.backup_timeout_s / 2

    @property
    def present_every_s(self) -> float:
        """Each says that it is there: so often that a transport that works is never silent."""
        return min(self.heartbeat_interval_s, self.silence_s / 2)

    def __post_init__(self) -> None:
        if self.patience_s > self.backup_timeout_s:
            raise ValueError(f"a patience of {self.patience_s} s is longer than the timeout, {self.backup_timeout_s} s")
        if self.min_in_sync < 1:
            raise ValueError("min_in_sync: at least 1, this member itself")
        if self.window_bytes < 1:
            raise ValueError("nothing could be sent through a window of 0 bytes")


class Outbox:
    """The promise: frames leave in the order in which they were said, and not more bytes than the window are on the
    way."""

    def __init__(self, set_name: str, window_bytes: int) -> None:
        self._set_name = set_name
        self._window_bytes = window_bytes
        self._frames: deque[bytes] = deque()
        self._waiting_bytes = 0
        self._on_the_way = 0

    @property
    def is_full(self) -> bool:
        """Whether more than the window is on the way or waits to be."""
        return self._on_the_way + self._waiting_bytes >= self._window_bytes

    @property
    def has_frames(self) -> bool:
        """Whether something waits to be multicast."""
        return bool(self._frames)

    def add(self, frame: GroupFrame) -> None:
        """To be multicast. Raises ValueError for what no frame can hold."""
        encoded = encode_frame(frame)
        self._frames.append(encoded)
        self._waiting_bytes += len(encoded)

    def take(self) -> bytes | None:
        """The next batch; None: there is nothing to say, or the window is full. One frame goes, however large it is."""
        room = self._window_bytes - self._on_the_way
        if not self._frames or room <= 0:
            return None
        frames = [self._frames.popleft()]
        length = len(frames[0])
        while self._frames and length + len(self._frames[0]) <= room:
            frames.append(self._frames.popleft())
            length += len(frames[-1])
        self._waiting_bytes -= length
        batch = encode_batch(self._set_name, frames)
        self._on_the_way += len(batch)
        return batch

    def came_back(self, size: int) -> None:
        """A batch of this member was delivered to it."""
        self._on_the_way = max(self._on_the_way - size, 0)

    def drop_waiting(self) -> None:
        """What was not multicast is void."""
        self._frames.clear()
        self._waiting_bytes = 0


class GroupContext:
    """`now_s` never goes back."""

    def __init__(self, settings: GroupSettings, resource_set: ResourceSet) -> None:
        self.settings = settings
        self.resource_set = resource_set
        self.outbox = Outbox(resource_set.name, settings.window_bytes)
        self.now_s = 0.0
        self.effects: list[Effect] = []
        self._last_number = 0
        resource_set.log.add_witness(WITNESS)

    @property
    def last_lsn(self) -> int:
        """Of the log."""
        return self.resource_set.log.last_lsn

    def number(self) -> int:
        """For a request whose answer comes back later."""
        self._last_number += 1
        return self._last_number

    def say(self, *frames: GroupFrame) -> None:
        """Multicast with the end of the turn."""
        for frame in frames:
            self.outbox.add(frame)

    def note(self, level: str, text: str) -> None:
        """A line for the operator's log."""
        self.effects.append(Notice(level, text))

    def multicast(self) -> None:
        """The end of a turn: as much as the window lets through."""
        while (batch := self.outbox.take()) is not None:
            self.effects.append(Multicast(batch))
