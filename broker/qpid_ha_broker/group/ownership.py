"""Who hands out the messages of which queue, and who still holds some: the same at all members in step.

| delivered | nobody owns the queue | another member owns it | its sender owns it |
| --- | --- | --- | --- |
| QueueWanted | its sender owns it | its sender waits, behind those who do | nothing |
| QueueYielded | nothing | its sender waits no more | it holds what it names; who waits first owns it |
| QueueDeleted | forgotten | forgotten | forgotten |
| a member leaves the group | | what it held goes back; it waits no more | and who waits first owns the queue |

A *position* counts what was delivered of this; that a member owns a queue counts for it once all in sync have come to
the position with which it became so: whoever goes on without it then knows that it may have handed out anything.

A message that is held is taken or given back by its holder alone, any other one by the owner of its queue alone: so
whether a unit may be written follows from this table and needs no message, which a member that joins may not have yet.

What a client's session holds is in the log (`SessionAcquired`), and nobody's but the session's, whoever owns the queue.
It is answered where the link is attached on which it went out:

| a link of a session | who answers for what the session holds on it |
| --- | --- |
| is attached at a member (LinkTaken) | that member; while it owns the queue the session gets more on the link |
| is attached at another one, by no older connection | the other one; what the first has said meanwhile is skipped |
| the same, by an older connection (its epoch is lower) | as before: the attach is refused |
| has ended (LinkLeft), or its member has left the group | nobody until it is attached again; it stays held |
| of a session that has ended | the first member, which attaches it for good and gives back what it held |
| of any: its queue is yielded | as before: the queue's owner has nothing to do with it |
| of any: its queue is deleted | nobody: it is gone |

An exclusive queue is had by a client of one member, its *user*. Which of that member's clients it is, that member
knows, and `QueueUsed` with an owner is written for the first link of each:

| delivered | nobody has it | a client of its sender has it | one of another member has it |
| --- | --- | --- | --- |
| QueueUsed with an owner | its sender's has it | the sender's next one has it | skipped: the attach is refused |
| QueueUsed without one: its last link has ended | skipped | nobody has it | skipped: that one did not get it |
| QueueDeleted | forgotten | forgotten | forgotten |
| its member leaves the group | | | nobody has it; members keep it for who had it, for a while |
| it joins, or is shown the group | as before | as before | as before |
| a session is resumed at another member | its link gets it | the same | refused until its older link has ended |

Who takes a link over says nothing for it before all in sync have come to that position: what the member that had it
said without knowing has its place by then, and is skipped. Who knows says nothing more.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import Final, NamedTuple

from qpid_ha_broker.group.frames import LinkPlace, QueueShare, Ranges
from qpid_ha_broker.model.queues.queue import NOTHING_HELD, SessionLink
from qpid_ha_broker.model.queues.sequence import SessionOwner


class Returned(NamedTuple):
    """What becomes free of a queue because members left."""

    queue: int
    held: tuple[int, ...]
    was_owned: bool
    """One of them owned it: it may have handed out anything that is there."""


@dataclass(slots=True)
class _Share:
    owner: str = ""
    since: int = 0
    wanting: list[str] = field(default_factory=list)
    held: dict[int, str] = field(default_factory=dict)
    links: dict[SessionOwner, tuple[int, str]] = field(default_factory=dict)
    """Of sessions: the epoch with which, and the member at which each is attached."""
    user: str = ""
    """Of an exclusive queue: the member of whose clients one has it; empty: nobody does."""

    def pass_on(self, position: int) -> None:
        """Nobody owns the queue: who waits first does."""
        self.owner, self.since = (self.wanting.pop(0) if self.wanting else ""), position


class Ownership:
    """The promise: a queue has at most one owner, and a message at most one holder, at any place of the order."""

    def __init__(self, shares: Iterable[QueueShare] = ()) -> None:
        self._shares: dict[int, _Share] = {}
        for share in shares:
            held = {number: member for member, ranges in share.held for number in ids_of(ranges)}
            links = {SessionOwner(place.session, place.name, place.link): place[3:] for place in share.links}
            self._shares[share.queue] = _Share(share.owner, share.since, list(share.wanting), held, links, share.user)
        self.moved: dict[int, int] = {}
        """Queues that somebody else may own by now, or wait for, and how often a member has come to own each; whoever
        looks at them takes them out."""

    def shares(self) -> tuple[QueueShare, ...]:
        """All of it, for a member that joins."""
        return tuple(
            QueueShare(
                queue,
                share.owner,
                share.since,
                tuple(share.wanting),
                _held_by_member(share.held),
                tuple(LinkPlace(*link, *place) for link, place in share.links.items()),
                share.user,
            )
            for queue, share in self._shares.items()
        )

    def owner(self, queue: int) -> tuple[str, int]:
        """Who owns the queue, and since which position; empty: nobody."""
        share = self._shares.get(queue)
        return (share.owner, share.since) if share is not None else ("", 0)

    def wanting(self, queue: int) -> tuple[str, ...]:
        """Who waits for the queue, in order."""
        share = self._shares.get(queue)
        return tuple(share.wanting) if share is not None else ()

    def held(self, queue: int) -> dict[int, str]:
        """Ids of messages that were out when their holders yielded, with these."""
        share = self._shares.get(queue)
        return dict(share.held) if share is not None else {}

    def want(self, queue: int, member: str, position: int) -> None:
        """By the table above."""
        share = self._shares.setdefault(queue, _Share())
        if member != share.owner and member not in share.wanting:
            share.wanting.append(member)
        self._note(queue, has_come=not share.owner)
        if not share.owner:
            share.pass_on(position)

    def give_up(self, queue: int, member: str, held: Iterable[int], position: int) -> bool:
        """QueueYielded, by the table above; whether it was the owner's."""
        share = self._shares.get(queue)
        self._note(queue, has_come=share is not None and share.owner == member and bool(share.wanting))
        if share is None or share.owner != member:
            if share is not None and member in share.wanting:
                share.wanting.remove(member)
            return False
        share.held.update(dict.fromkeys(held, member))
        share.pass_on(position)
        return True

    def user(self, queue: int) -> str:
        """The member of whose clients one has the exclusive queue; empty: nobody."""
        share = self._shares.get(queue)
        return share.user if share is not None else ""

    def use_alone(self, queue: int, member: str) -> None:
        """A client of the member has the exclusive queue from here on; empty: nobody has."""
        self._note(queue)
        self._shares.setdefault(queue, _Share()).user = member

    def take_link(self, queue: int, link: SessionOwner, epoch: int, member: str) -> bool:
        """LinkTaken, by the second table above; False: it is attached by a later connection."""
        links = self._shares.setdefault(queue, _Share()).links
        if link in links and links[link][0] > epoch:
            return False
        links[link] = epoch, member
        return True

    def leave_link(self, queue: int, link: SessionOwner, member: str) -> None:
        """LinkLeft; of one that is attached elsewhere by now it says nothing."""
        share = self._shares.get(queue)
        if share is not None and self.link_at(queue, link) == member:
            del share.links[link]

    def link_at(self, queue: int, link: SessionOwner) -> str:
        """The member at which the link is attached; empty: none."""
        share = self._shares.get(queue)
        return share.links.get(link, _NOWHERE)[1] if share is not None else ""

    def may_take(
        self, queue: int, member: str, ids: Collection[int], of_sessions: Mapping[int, SessionLink] = NOTHING_HELD
    ) -> bool:
        """Whether these messages are the member's: to remove, or to give back. `of_sessions`: those of the queue that
        sessions hold, with those who do."""
        share = self._shares.get(queue)
        if share is None:
            return False
        if of_sessions:
            links = {of_sessions[number].owner for number in ids if number in of_sessions}
            if not {self.link_at(queue, link) for link in links} <= {member}:
                return False
            ids = [number for number in ids if number not in of_sessions]
        holders = {share.held.get(number, share.owner) for number in ids}
        return holders <= {member}

    def answered(self, queue: int, ids: Iterable[int]) -> None:
        """Messages were removed or given back."""
        held = self._shares[queue].held
        if held:
            for number in ids:
                held.pop(number, None)

    def forget(self, queue: int) -> None:
        """The queue is deleted."""
        self._note(queue)
        self._shares.pop(queue, None)

    def leave(self, gone: Collection[str], position: int) -> list[Returned]:
        """Members left the group."""
        returned = []
        for queue, share in self._shares.items():
            share.wanting = [member for member in share.wanting if member not in gone]
            share.links = {link: place for link, place in share.links.items() if place[1] not in gone}
            held = tuple(sorted(number for number, member in share.held.items() if member in gone))
            for number in held:
                del share.held[number]
            if share.user in gone:
                share.user = ""
            was_owned = share.owner in gone
            if was_owned:
                share.pass_on(position)
            self._note(queue, has_come=was_owned and bool(share.owner))
            if held or was_owned:
                returned.append(Returned(queue, held, was_owned))
        return returned

    def _note(self, queue: int, *, has_come: bool = False) -> None:
        self.moved[queue] = self.moved.get(queue, 0) + has_come

    def check_invariants(self) -> None:
        """Raise AssertionError where somebody waits for what nobody owns, or waits twice."""
        for queue, share in self._shares.items():
            if share.wanting and not share.owner:
                raise AssertionError(f"queue {queue}: {share.wanting} wait, and nobody owns it")
            if len({share.owner, *share.wanting}) != 1 + len(share.wanting):
                raise AssertionError(f"queue {queue}: {share.owner} owns it, and {share.wanting} wait")


_NOWHERE: Final = (0, "")


def ids_of(ranges: Ranges) -> Iterable[int]:
    """The single ids."""
    return (number for first, last in ranges for number in range(first, last + 1))


def ranges_of(ids: Iterable[int]) -> Ranges:
    """Ids as runs (first, last)."""
    runs = []
    for _, run in groupby(enumerate(sorted(ids)), key=lambda pair: pair[1] - pair[0]):
        numbers = [number for _, number in run]
        runs.append((numbers[0], numbers[-1]))
    return tuple(runs)


def _held_by_member(held: dict[int, str]) -> tuple[tuple[str, Ranges], ...]:
    members = sorted(set(held.values()))
    return tuple(
        (member, ranges_of(number for number, holder in held.items() if holder == member)) for member in members
    )
