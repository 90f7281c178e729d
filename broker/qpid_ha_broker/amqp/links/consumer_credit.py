"""How much a consumer that is relayed asks for at the other end, what is held for it here, and when its drain is over.

The client has attached here (*near*), its link goes on to somebody else (*far*). The promise: what one consumer gets of
one queue by one link is in the queue's order, as long as nobody gave anything back. By what the client has credit for
(`wanted`), what is held here for it, and what the far end may still send (`asked`):

| wanted | held | asked | what is done |
| --- | --- | --- | --- |
| more than held | 0 | less than wanted | the far end is asked for the rest (1.) |
| more than held | some | any | what is held goes first, as far as the client's window takes it (7.) |
| less than held + asked | any | some | the client took credit back: the far end drains (2.), what comes is held (7.) |
| less than held | some | 0 | it is held; when it is due, all of it goes back (8.) |
| 0 | 0 | 0 | nothing |

1. The far end has credit for no more than the client gave, nor for more than may be on its way here, or than the
   client's window takes.
2. Credit that the client takes back is drained at the far end. What had been sent by then comes all the same, and may
   not go to a client that takes nothing (AMQP 1.0 section 2.6.7), nor back: what is behind it may still be on its way,
   and would overtake it as soon as there is credit again.
3. A client that drains has all of its credit drained at the far end, and hears that it is over when the far end has
   given up what was left. If the far end used all of it, there may be more: the client's credit is asked for again.
4. While the far end drains, nothing else is asked of it.
5. A client whose window is closed hears that its drain is over behind the messages that wait for it. Until then
   nothing is asked for, unless it changes its credit. It does not wait for what it has no credit for.
6. What comes in one read has used its credit together, a drain that is over with it included: so what is left is
   looked at behind the last message of it. Looked at before, the rest would come to a client without credit.
7. What the client does not take yet is held here, in its order, and goes out before anything else does. It is not given
   to Proton: that would not give it back when the client takes back its credit, or goes. While anything is held nothing
   more is asked for, so it is never more than the credit that was given ahead.
8. What is held without credit is due when the client has drained, which says that it wants no more, or after HELD_S,
   so that somebody else gets it. It goes back when the far end has no credit left, so nothing is on its way; all of it,
   and before anything is asked for again. The far end puts it back in its place, so what this client then gets is in
   order, too. Nobody has seen it. What nobody else can have is not given back: what a browser sees, what is held for
   the client's session, what was settled when it came, and what came before that.
9. It goes back with the end of the client's link, too.
"""

from __future__ import annotations

from collections import deque
from enum import Enum
from typing import Final, NamedTuple

import proton

from qpid_ha_broker.amqp.connections.connection import Connection
from qpid_ha_broker.amqp.connections.relayed_memory import FIRST_BYTES, FIRST_MESSAGES
from qpid_ha_broker.amqp.connections.send_window import NewestSent
from qpid_ha_broker.amqp.nodes.link_endpoint import LinkEndpoint
from qpid_ha_broker.amqp.wire import engine
from qpid_ha_broker.amqp.wire.engine import Delivery, Disposition, Sender, Transfer

ASKED_MESSAGES: Final = 1000
"""Most messages that the far end may be sending to one consumer, whatever its credit and their size: a client that
stops reading must not fill this broker's memory."""


HELD_S: Final = 0.5
"""What is held for a client without credit goes back after so long. A client that changes its mind, or that takes
messages one by one, gives credit again within its round trip and the time it takes for a message, some milliseconds to
0.3 s; sooner, its messages would travel twice. Other consumers of the queue wait no longer than this for them."""


class Room(Enum):
    """Whether the client's connection takes more messages."""

    THERE_IS = "there-is"
    NONE = "none"
    """Its socket, or what waits for it, is full."""
    ANSWERS_FIRST = "answers-first"
    """The client has to answer some of what it has."""
    NO_MEMORY = "no-memory"
    """What is relayed here takes all that it may."""


class CreditStep(NamedTuple):
    """What is to be done, in this order."""

    client_drained: bool = False
    """The client's drain is over."""
    gives_back: bool = False
    """What is held goes back to the far end."""
    drains: bool = False
    """The far end is to give up what it does not use, of what it has and `credit` together."""
    credit: int = 0
    """So much more for the far end."""


NOTHING_TO_DO: Final = CreditStep()
CLIENT_DRAINED: Final = CreditStep(client_drained=True)


class ConsumerCredit:
    """The promise: what is asked for at the far end is never more than the client gave, unless that drains; and what is
    held goes back only while the far end can send nothing."""

    __slots__ = ("_held_since_s", "client_drains", "gives_back", "is_draining", "keeps_held", "most")

    def __init__(self) -> None:
        self.is_draining = False
        """The far end is to give up what credit it has not used."""
        self.client_drains = False
        """The client wants its credit used or given up now."""
        self.gives_back = False
        """What is held without credit is due, until the client gives some: see 8."""
        self.keeps_held = False
        """Nobody else can have what is held."""
        self._held_since_s: float | None = None
        """Since when the client has had no credit for what is held; None: it has, or nothing is held."""
        self.most = FIRST_MESSAGES
        """That may be on their way here, by the size of those that came last."""

    def next_step(self, wanted: int, asked: int, room: Room, limit: int = ASKED_MESSAGES, held: int = 0) -> CreditStep:
        """What to do about credit for `wanted` messages at the client, of which `asked` are at the far end.

        `limit`: messages that the client's window takes now. `held`: messages that wait here, for which the client's
        credit is used first.
        """
        if self.is_draining:
            return NOTHING_TO_DO
        new = wanted - held if wanted > held else 0
        is_over = self.client_drains and new == 0
        if is_over:
            self._end_drain()
        if new < asked:  # it has taken some back
            return self._drain(0, client_drained=is_over)
        if held and wanted <= 0 and self.gives_back and not self.keeps_held:
            return CreditStep(is_over, gives_back=True)
        if is_over:
            return CLIENT_DRAINED
        if room is Room.NONE:
            return NOTHING_TO_DO
        if room in (Room.ANSWERS_FIRST, Room.NO_MEMORY):
            return self._drained_for_now(asked)
        most = min(new, self.most, limit)
        if self.client_drains:
            return self._drain(max(most - asked, 0))
        if most > asked and (most - asked) * 2 >= most:
            return CreditStep(credit=most - asked)
        return NOTHING_TO_DO

    def _end_drain(self) -> None:
        self.client_drains = False
        self.gives_back = True

    def _drained_for_now(self, asked: int) -> CreditStep:
        """A client that must answer first, or wait for memory, has all that it can get."""
        if not self.client_drains:
            return NOTHING_TO_DO
        self._end_drain()
        return self._drain(0, client_drained=True) if asked > 0 else CLIENT_DRAINED

    def _drain(self, credit: int, *, client_drained: bool = False) -> CreditStep:
        self.is_draining = True
        return CreditStep(client_drained, drains=True, credit=credit)

    def far_drained(self, given_up: int) -> CreditStep:
        """The far end has no credit any more, and has given up so much of it; `next_step` comes next."""
        self.is_draining = False
        if self.client_drains and given_up:
            self._end_drain()
            return CLIENT_DRAINED
        return NOTHING_TO_DO

    def far_lost(self) -> None:
        """Nobody has any credit, and nothing is held."""
        self.is_draining = self.gives_back = False
        self._held_since_s = None

    def note_held(self, now_s: float | None) -> None:
        """Something is held for which the client has no credit, by now; None: nothing is."""
        if now_s is None or self._held_since_s is None:
            self._held_since_s = now_s

    def is_due(self, now_s: float) -> bool:
        """Whether what is held is to go back."""
        if self._held_since_s is not None and now_s - self._held_since_s >= HELD_S:
            self.gives_back = True
        return self.gives_back and self._held_since_s is not None

    def note_size(self, largest: int, link_bytes: int) -> None:
        """Messages came, of so many bytes at most; `link_bytes` may be under way."""
        self.most = most_messages(largest, link_bytes)


def most_messages(largest: int, link_bytes: int) -> int:
    """How many may be under way on one link, of so many bytes each; 0: nobody knows."""
    most = min(ASKED_MESSAGES, link_bytes // largest) if largest else min(FIRST_MESSAGES, link_bytes // FIRST_BYTES)
    return max(1, most)


class CreditedConsumer(LinkEndpoint):
    """Carries out what `ConsumerCredit` decides, for a client's link and the one that it goes on to."""

    connection: Connection
    far: proton.Link | None
    is_open: bool
    _is_stopped = False
    _largest = 0
    """Bytes of the largest message of those that came last; 0: none has."""
    _is_drained = False
    """What the client drains is over, but for messages before the flow that says so: they wait for its window."""
    _has_returned = False
    """Messages went back that are to be there before the far end hears of new credit."""

    def begin_credit(self, sender: Sender) -> None:
        """`sender`: the client's link."""
        self._sender = sender
        self._credit = ConsumerCredit()
        self._parts = bytearray()
        self._backlog: deque[Transfer] = deque()
        """What came and the client does not take yet: see 7. It is under way, as `relayed_memory` counts it."""
        self._newest = NewestSent(self.connection.window, sender)
        self.connection.container.relayed.links.add(self)

    @property
    def _still_to_come(self) -> int:
        """Of the far end's credit, what is not for new messages."""
        return 0

    @property
    def _may_pass_on(self) -> bool:
        """Whether what is held is the client's, as far as is known."""
        return True

    def _touch_far(self) -> None:
        raise NotImplementedError(f"{type(self).__name__} does not say what it is attached to")

    def _return_unseen(self, delivery: Delivery) -> None:
        """Give a message back to the far end, which the client has not seen."""
        engine.settle(delivery, engine.RELEASED)

    def flow(self) -> None:
        """The client changed its credit."""
        credit = self._credit
        credit.client_drains = self._sender.draining
        if credit.gives_back and self._sender.credit > 0:  # what is held is wanted again
            credit.gives_back = False
        self._is_drained = False  # if it drains, it is looked at anew
        self._send_backlog()
        self._ask()

    def update_window(self) -> None:
        """The client reads again, or has answered."""
        self._send_backlog()
        self._ask()

    def _ask(self) -> None:
        """Have the far end send as much as the client takes, as far as that may wait here."""
        far = self.far
        if far is None or not self.is_open or self._is_stopped or self._credit.is_draining:
            return
        if self._is_drained and not self._tell_drained():
            return
        self._credit.note_size(self._largest, self.connection.container.relayed.link_bytes)
        # Below 0: credit was taken back for what is on its way to the client. To ask for less than nothing has no end.
        wanted, asked = max(self._sender.credit, 0), engine.credit(far) - self._still_to_come
        room, held = self._room(), len(self._backlog)
        limit = self.connection.window.most_messages(self._sender)
        step = self._credit.next_step(wanted, asked, room, limit, held)
        if step is NOTHING_TO_DO:
            if room is Room.NONE and (wanted or not held):  # else it waits for credit
                self.connection.window.congested[self] = None
            elif room is Room.ANSWERS_FIRST:
                self.connection.window.waiting_for_answers[self] = None
        self._carry_out(far, step)

    def _room(self) -> Room:
        window = self.connection.window
        if self._backlog or not window.is_writable or window.room_bytes(self._sender) <= 0:
            return Room.NONE
        if window.has_enough_unsettled:
            return Room.ANSWERS_FIRST
        return Room.THERE_IS if self.connection.container.relayed.has_room(self) else Room.NO_MEMORY

    def _carry_out(self, far: proton.Link, step: CreditStep) -> None:
        if step.client_drained and self.is_open:
            self._tell_drained()
        if step.gives_back:
            self._give_held_back(far)
        if self._has_returned and (step.drains or step.credit):
            self._has_returned = False
            engine.write(far)  # Proton would write the flow before what was said of messages
        if step.drains:
            self._drain(far, step.credit)
        elif step.credit:
            engine.give_credit(far, step.credit)
        else:
            return
        self._touch_far()

    def _tell_drained(self) -> bool:
        """Tell the client that its drain is over; False: messages for it are to go first."""
        self._is_drained = (bool(self._backlog) and self._sender.credit > 0) or not self._sender.drained()
        if self._is_drained:
            self.connection.window.congested[self] = None
        self.connection.touch()
        return not self._is_drained

    def _drain(self, far: proton.Link, more: int) -> None:
        engine.drain(far, more)

    def drained(self) -> None:
        """The far end may have used or given up its credit."""
        far = self.far
        if far is not None and self._credit.is_draining and engine.credit(far) <= 0:
            self._carry_out(far, self._credit.far_drained(engine.stop_draining(far)))
            self._ask()

    # --- messages

    def transfers(self, batch: list[Transfer]) -> None:
        """Messages for the client."""
        if self._parts:
            delivery, payload, settled, state = batch[0]
            batch[0] = delivery, bytes(self._parts) + payload, settled, state
            self._parts.clear()
        sender = self._sender
        if not self.is_open:
            self._take_all(batch)
        elif not self._backlog and sender.credit >= len(batch) and self.connection.window.is_wide(sender):
            self._take_all(batch)
            self.connection.touch()
        else:
            self._backlog += batch
            self.connection.container.relayed.hold(sum([len(payload) for _, payload, _, _ in batch]))
            self._send_backlog()
            self.connection.touch()
        self._look_for_credit()

    def _send_backlog(self) -> None:
        """As far as the client takes it."""
        backlog, window, sender = self._backlog, self.connection.window, self._sender
        if not (backlog and self._may_pass_on):
            return
        if sender.credit > 0:
            self._credit.note_held(None)
        while backlog and self.is_open:
            size = len(backlog[0][1])
            if size or not self._still_to_come:  # else the client has it already
                if sender.credit <= 0:
                    break
                if size and not window.admit(sender, 1, (size,)):
                    window.congested[self] = None
                    break
            self.connection.container.relayed.let_go(size)
            self._take_all([backlog.popleft()])
            self.connection.touch()
        self._note_held()

    def _note_held(self) -> None:
        """What is held has changed, or what the client has credit for."""
        credit, container = self._credit, self.connection.container
        is_waiting = bool(self._backlog) and self._sender.credit <= 0 and self.is_open
        credit.note_held(container.clock() if is_waiting else None)
        if is_waiting and not credit.keeps_held:
            container.relayed.holding[self] = None
        else:
            container.relayed.holding.pop(self, None)

    def look_at_held(self) -> None:
        """Time went by, while messages are held for which the client has no credit."""
        if self._credit.is_due(self.connection.container.clock()):
            self._ask()

    @property
    def _may_return(self) -> bool:
        """Whether nothing is on its way here, where the far end has no credit."""
        return True

    def _give_held_back(self, far: proton.Link) -> None:
        """All that others can have. From its end: what is behind something that stays, stays behind it."""
        if not self._may_return:
            return  # it is looked at again in the next turn
        returned: list[Delivery] = []
        while self._backlog and not self._backlog[-1][2]:
            delivery, payload, _, _ = self._backlog.pop()
            self.connection.container.relayed.let_go(len(payload))
            returned.append(delivery)
        for delivery in reversed(returned):
            self._return_unseen(delivery)
        self._has_returned = bool(returned)
        self._note_held()
        if self._backlog:  # what is left of it nobody else can have
            self.connection.container.relayed.holding.pop(self, None)
        self._touch_far()

    def _give_backlog_back(self) -> None:
        """The client's link has ended, while the far one has not: nobody has seen these."""
        for delivery, _, settled, _ in self._empty_backlog():
            if settled:
                engine.forget(delivery)
            else:
                self._return_unseen(delivery)
        self._touch_far()

    def _empty_backlog(self) -> deque[Transfer]:
        backlog, self._backlog = self._backlog, deque()
        self.connection.container.relayed.let_go(sum([len(payload) for _, payload, _, _ in backlog]))
        return backlog

    def _forget_in_backlog(self, batch: list[Disposition]) -> None:
        """The far end has taken messages back without being asked."""
        gone = {delivery for delivery, _, _ in batch}
        self._backlog = deque(each for each in self._empty_backlog() if each[0] not in gone)
        self.connection.container.relayed.hold(sum([len(payload) for _, payload, _, _ in self._backlog]))
        self._note_held()

    def _look_for_credit(self) -> None:
        """The far end has used some of its credit."""
        if self._credit.is_draining:
            self.drained()
        else:
            self._ask()

    def _take_all(self, batch: list[Transfer]) -> None:
        raise NotImplementedError(f"{type(self).__name__} does not say what to do with messages")

    def replenish(self) -> None:
        """There is memory again."""
        self._ask()

    def stop(self) -> None:
        """It ends: ask for nothing more."""
        self._is_stopped = True
        self.connection.container.relayed.holding.pop(self, None)
        self.connection.container.relayed.forget(self)
