"""What publishers were told, and what consumers got: the promises that clients have of a cluster with proxies.

1. What was accepted is in its queue, or was consumed. What was refused is not there. Nothing is there twice.
2. What was handed out before comes marked as a redelivery: one delivery at most is not marked, which may be the last to
   arrive. Nothing that was handed out is missing at a later primary.
3. It does not come again at all unless it was given back, or its client's link has ended, for the client or for its
   broker, or its proxy could not come for it in time: what `Custodian` says. Or somebody had got it before, had not
   answered, and lost the connection to a primary that lived: the next primary lets that one have it again, if its
   proxy is the first to come for it.
4. Of one publisher's link, a consumer gets what comes for the first time in the order in which it was sent. That is
   what comes without a mark, unless a primary gave it to somebody else before, whose proxy gave it back unseen. It is
   also what its primary gave to this one alone, on one link, again and again, and it never came: the proxy may give it
   back, but not where that changes the order. What a session held before is not this one's alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from simulation.violations import Violation


class Sent(NamedTuple):
    """A message, as it is known: each is sent once, by one link of a publisher."""

    publisher: str
    """The link."""
    number: int
    queue: str

    def text(self, room: int = 0) -> str:
        """Its body, with so many bytes more."""
        return f"{self.publisher} {self.number} {self.queue} {'.' * room}"

    @staticmethod
    def read(text: str) -> Sent:
        publisher, number, queue, _ = text.split(" ", 3)
        return Sent(publisher, int(number), queue)


@dataclass(eq=False)
class ClientSession:
    """A session of a client."""

    name: str
    """Its UUID."""
    timeout_s: float
    attached_s: float = -math.inf
    """When it was seen last that by what is committed its client is connected; -inf: never."""
    may_end: bool = False
    """Its client goes for good."""
    has_ended: bool = False
    """Its client, or the primary that leads `default` in the newest generation, has ended it."""


class Given(NamedTuple):
    """A message that a primary gave to a client."""

    at_s: float
    client: str
    attached_s: float
    """When the link was attached there on which it goes."""


@dataclass(eq=False)
class Reading:
    """A consumer's link."""

    client: str
    """Container id of its connection."""
    queue: str
    opened_s: float
    attached_s: float = math.inf
    """When its client heard that, before it gave any credit; inf: nobody has noted it."""
    has_ended: bool = False
    latest: dict[str, Handout] = field(default_factory=dict)
    """By publisher: what came last for the first time."""
    session: ClientSession | None = None
    """In which it goes on on other connections, and nothing goes out before it is confirmed whose it is."""


@dataclass(eq=False)
class Handout:
    """A message that a consumer got, once."""

    sent: Sent
    reading: Reading
    generation: int
    """Of the primary that handed it out; where nobody saw that, the newest in which anybody led when it came."""
    is_returned: bool = False
    is_consumed: bool = False
    """The client has accepted it, or rejected it."""
    is_rejected: bool = False
    is_confirmed: bool = False
    """The broker has settled that."""
    is_marked: bool = False
    at_s: float = 0.0


class Custodian(Protocol):
    """Who knows what brokers were there when."""

    @property
    def generation(self) -> int:
        """The newest in which anybody leads, or has led."""

    def is_its_own(self, handout: Handout) -> bool:
        """Whether what `handout` is about must still be its consumer's, if that has not given it back."""

    def browses_replica(self, client: str) -> bool:
        """Whether one who looked at a primary, and whose broker leads no more, looks at what that has as a backup."""

    def has_left(self, reading: Reading) -> bool:
        """Whether the proxy that relays it has found its client gone, of which the client may not know."""

    def may_be_outdated(self) -> bool:
        """Whether what comes now may come from a primary that does not know yet that it is one no more."""


class Ledger:
    """Everything that is checked of messages. Raises Violation where a promise is broken."""

    def __init__(self, now_s: Callable[[], float], custodian: Custodian) -> None:
        self._now_s = now_s
        self._custodian = custodian
        self.accepted: dict[Sent, float] = {}
        """When its publisher was told so."""
        self.confirmed: Callable[[Sent, bool, float], None] | None = None
        """Told of each that is accepted before anybody has got it, whether it is durable, and when it was sent."""
        self.refused: set[Sent] = set()
        self._durable: set[Sent] = set()
        self._sent_s: dict[Sent, float] = {}
        self.handouts: dict[Sent, list[Handout]] = {}
        self.handed_out = 0
        self.ended = self.late = 0
        """How often something came again because a consumer's link had ended, or because its proxy was late."""
        self._deleted_s: dict[str, float] = {}
        self._left: dict[tuple[Sent, str], list[tuple[float, int]]] = {}
        """By message and client: when primaries gave it to that one, and in which generation, until it has come."""
        self._given: dict[Sent, list[Given]] = {}
        self._reclaimed: dict[Sent, tuple[int, str]] = {}
        """In which generation a primary last let a client have it again, and which one."""
        self._held: set[Sent] = set()
        """What a session has held, which has it before it is sent, and whether it is sent or not."""

    # --- publishers

    def sends(self, sent: Sent, *, is_durable: bool = False) -> None:
        """It is on its way."""
        self._sent_s[sent] = self._now_s()
        if is_durable:
            self._durable.add(sent)

    def is_accepted(self, sent: Sent) -> None:
        """Its publisher was told so."""
        if sent in self.refused or sent in self.accepted:
            raise Violation(f"{sent} was answered twice")
        self.accepted[sent] = self._now_s()
        is_gone = sent in self.handouts or self.may_be_deleted(sent)
        if self.confirmed is not None and not is_gone:
            self.confirmed(sent, sent in self._durable, self._sent_s[sent])

    def is_refused(self, sent: Sent) -> None:
        """Its publisher was told so."""
        if sent in self.refused or sent in self.accepted:
            raise Violation(f"{sent} was answered twice")
        self.refused.add(sent)
        if self.handouts.get(sent):
            raise Violation(f"{sent} was refused, and a consumer had it")

    def queue_deleted(self, queue: str) -> None:
        """What was sent to it before may be gone."""
        self._deleted_s[queue] = self._now_s()

    def check_drained(self, wanted: set[Sent], seen: set[Sent], queue: str, client: str) -> None:
        """One who looks has drained `queue`. `wanted`: what was `untouched` when that began. Raises Violation."""
        missing = (wanted & self.untouched(queue)) - seen
        if missing and not self._custodian.browses_replica(client):
            raise Violation(f"{client} has drained {queue} and has not seen {min(missing)}, of {len(missing)}")

    def untouched(self, queue: str) -> set[Sent]:
        """What was accepted for `queue`, and nobody has ever had: it is there, and whoever looks is shown it.

        Who looks does not go back for what was held for a session when he came to it, and was never sent.
        """
        touched = {sent for sent, _ in self._left} | self._held
        return {
            sent
            for sent in self.accepted
            if sent.queue == queue and not (sent in self.handouts or sent in touched or self.may_be_deleted(sent))
        }

    def may_be_deleted(self, sent: Sent) -> bool:
        """Whether its queue was deleted after it was sent."""
        return self._sent_s[sent] <= self._deleted_s.get(sent.queue, -1.0)

    def give_up(self) -> None:
        """An operator has decided that what was lost is lost: nobody counts any more on what was told until now."""
        for known in (self.accepted, self.handouts, self._left, self._given, self._reclaimed):
            known.clear()
        self.refused.clear()
        self._held.clear()

    def lose_what_is_not_durable(self) -> None:
        """Whoever alone was in sync has ended: what was in its memory alone may be lost."""
        self.accepted = {sent: at_s for sent, at_s in self.accepted.items() if sent in self._durable}

    # --- consumers

    def hands_out(self, sent: Sent, reading: Reading, is_marked: bool) -> Handout:
        """A consumer has got it."""
        if sent not in self._sent_s:
            raise Violation(f"{sent} came, and nobody has sent it")
        if sent in self.refused and not self._custodian.may_be_outdated():
            raise Violation(f"{sent} was refused, and came")
        generation = self._generation_of(sent, reading)
        handout = Handout(sent, reading, generation, is_marked=is_marked, at_s=self._now_s())
        earlier = self.handouts.setdefault(sent, [])
        if not is_marked and any(not each.is_marked for each in earlier):
            raise Violation(f"{sent} came again to {reading.client}, without a mark")
        if self._must_be_in_order(handout):
            self._check_order(handout)
        self.handouts[sent].append(handout)
        self.handed_out += 1
        return handout

    def _generation_of(self, sent: Sent, reading: Reading) -> int:
        """In which the primary led that handed it out, which may have died while the message was on its way."""
        left = self._left.pop((sent, reading.client), [])
        left = [(at_s, generation) for at_s, generation in left if at_s >= reading.opened_s]
        if not left:
            return self._custodian.generation
        if left[1:]:
            self._left[sent, reading.client] = left[1:]
        return left[0][1]

    def leaves_primary(self, sent: Sent, client: str, attached_s: float) -> None:
        """The newest primary gives it to `client`, on a link that was attached there at `attached_s`: it must be
        nobody's."""
        for earlier in self.handouts.get(sent, ()):
            if earlier.is_returned:
                continue
            is_left = self._is_left(earlier, client)
            if self._must_be_its_own(earlier) and not is_left:
                raise Violation(
                    f"{sent} goes to {client}, and belongs to {earlier.reading.client} since {earlier.at_s:.3f} s"
                    f" ({'consumed' if earlier.is_consumed else 'not answered'})"
                )
            has_ended = earlier.reading.has_ended or is_left
            self.ended += has_ended
            self.late += not has_ended
        self._given.setdefault(sent, []).append(Given(self._now_s(), client, attached_s))
        self._left.setdefault((sent, client), []).append((self._now_s(), self._custodian.generation))

    def comes_to_proxy(self, sent: Sent, client: str, most_s: float) -> None:
        """The proxy of `client` is about to pass it on: its primary gave it no longer than `most_s` ago. Raises
        Violation."""
        left = self._left.get((sent, client))
        if left and self._now_s() - left[-1][0] > most_s:
            late_s = self._now_s() - left[-1][0]
            raise Violation(f"{sent} was under way for {late_s:.3f} s, and is passed on to {client} all the same")

    def leaves_overtaken(self, sent: Sent, client: str, generation: int) -> None:
        """A primary that was overtaken a moment ago gives it to `client`."""
        self._left.setdefault((sent, client), []).append((self._now_s(), generation))

    def is_held(self, sent: Sent) -> None:
        """A primary holds it for a session, to which it is sent once that is committed."""
        self._held.add(sent)

    def is_reclaimed(self, sent: Sent, client: str) -> None:
        """A new primary lets `client` have it again, whose proxy has come for it."""
        latest = [each for each in self.handouts.get(sent, ()) if each.reading.client == client][-1:]
        if not any(each.is_returned or each.is_confirmed for each in latest):  # else nobody should come for it
            self._reclaimed[sent] = self._custodian.generation, client

    def _must_be_its_own(self, handout: Handout) -> bool:
        """As the custodian says, unless a primary since then let somebody else have it again."""
        generation, client = self._reclaimed.get(handout.sent, (0, ""))
        is_elsewhere = generation > handout.generation and client != handout.reading.client
        return self._custodian.is_its_own(handout) and not is_elsewhere

    def _is_left(self, handout: Handout, client: str) -> bool:
        """Whether its proxy may have given it back, for `client` to get, in the name of one that is gone.

        The proxy says so of each message, and then ends its link at the primary: that may not have come yet. Before
        both it has taken that link's credit back, so the one that is gone gets nothing of it again.
        """
        is_other = client != handout.reading.client
        return is_other and not handout.is_confirmed and self._custodian.has_left(handout.reading)

    def _must_be_in_order(self, handout: Handout) -> bool:
        """See 4. What a session gives back is marked in any case."""
        reading, given = handout.reading, self._given.get(handout.sent, [])
        if reading.session is not None:
            return not handout.is_marked and all(each.client.startswith("s") for each in given)
        if any(each.client != reading.client for each in given):
            return False
        if not handout.is_marked:
            return True
        # A link that its client has ended may be there yet, at a primary that has not read so: it takes its share.
        is_alone = len(given) > 1 and all(
            each.at_s >= reading.attached_s and each.attached_s >= reading.opened_s for each in given
        )
        is_alone = is_alone and handout.sent not in self._held  # a session gives back what it was never sent, too
        return is_alone and not self.handouts[handout.sent] and self._custodian.is_its_own(handout)

    def _check_order(self, handout: Handout) -> None:
        sent, latest = handout.sent, handout.reading.latest
        before = latest.get(sent.publisher)
        if before is not None and before.sent.number >= sent.number:
            if not self._custodian.may_be_outdated():
                text = f"{sent} came to {handout.reading.client} for the first time, behind {before.sent.number}"
                raise Violation(text)
            return
        latest[sent.publisher] = handout

    def was_consumed(self, sent: Sent, but: Handout | None = None) -> bool:
        """Whether somebody has accepted it, other than by `but`."""
        return any(handout.is_consumed for handout in self.handouts.get(sent, ()) if handout is not but)

    # --- at rest

    def check_rest(self, left: dict[str, list[Sent]]) -> None:
        """`left`: what was in each queue when all clients had gone, in its order. Raises Violation."""
        present: dict[Sent, int] = {}
        for queue, messages in left.items():
            latest: dict[str, int] = {}
            for sent in messages:
                present[sent] = present.get(sent, 0) + 1
                if sent.queue != queue:
                    raise Violation(f"{sent} is in {queue}")
                if sent.number < latest.get(sent.publisher, 0):
                    raise Violation(f"{sent} is behind {latest[sent.publisher]} in {queue}")
                latest[sent.publisher] = sent.number
        for sent, times in present.items():
            if times > 1:
                raise Violation(f"{sent} is there {times} times")
            if sent in self.refused:
                raise Violation(f"{sent} was refused, and is there")
            for handout in self.handouts.get(sent, ()):
                if handout.reading.session is not None and handout.is_confirmed and handout.is_consumed:
                    raise Violation(f"{sent} was consumed in session {handout.reading.client}, and is there")
                if handout.is_confirmed and self._must_be_its_own(handout):
                    raise Violation(f"{sent} was consumed by {handout.reading.client}, and is there")
        for sent in self.accepted:
            is_consumed = any(handout.is_consumed for handout in self.handouts.get(sent, ()))
            if not (is_consumed or self.may_be_deleted(sent) or sent in present):
                raise Violation(f"{sent} was accepted at {self.accepted[sent]:.3f} s, and is lost")
