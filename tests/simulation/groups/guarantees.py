"""What the books of a simulated group look for, and which guarantee of a group is broken by each finding."""

from __future__ import annotations

from enum import Enum, StrEnum

from simulation.violations import Violation


class Guarantee(StrEnum):
    """By the names of the design, which `tests/lab/test_groups.py` has for real nodes."""

    TRANSFER = "transfer"
    """What was confirmed is at the same place of every log, and stays until a consumer has done with it."""
    ACQUIRE = "acquire"
    """A message is out at one consumer at a time, and says so when it comes again."""
    ACCEPT = "accept"
    """What was accepted, and that confirmed, comes to nobody again."""
    RELEASE = "release"
    """What a consumer gives back comes again."""
    REJECT = "reject"
    """What was rejected, and that confirmed, comes to nobody again."""
    DISCONNECT = "disconnect"
    """What a consumer had that has gone, alone or with its member, comes again."""
    ORDER = "order"
    """Messages of one publisher come to a consumer in order, but for those that come again."""


class Check(Enum):
    """A guarantee, and what is said when it is broken. `who`: the member that breaks it."""

    OTHER_EVENT = Guarantee.TRANSFER, "{who} has another event at LSN {lsn} than the one that was committed there"
    LOST = Guarantee.TRANSFER, "{payload} was confirmed, nobody has accepted it, and it is not there"
    LAST_VALUE = Guarantee.TRANSFER, "the last value {payload} of {key} was dropped"
    DISPLACED = Guarantee.TRANSFER, "{who} hands out {payload}, which has left for newer messages"
    OUT_TWICE = Guarantee.ACQUIRE, "{who} hands out {payload}, which is out at {other}"
    UNKNOWN_OWNER = Guarantee.ACQUIRE, "{who} hands out from {queue}, and {other} does not know yet that it may"
    UNMARKED = Guarantee.ACQUIRE, "{who} hands out {payload} for the second time without saying so"
    OF_SESSION = Guarantee.ACQUIRE, "{who} hands out {payload}, which session {other} holds"
    EXCLUSIVE = Guarantee.ACQUIRE, "{who} hands out from the exclusive queue {queue}, which a client of {other} has"
    ACCEPTED_AGAIN = Guarantee.ACCEPT, "{who} has {payload}, whose acceptance was confirmed"
    REJECTED_AGAIN = Guarantee.REJECT, "{who} has {payload}, which was rejected, and that confirmed"
    RELEASED_LOST = Guarantee.RELEASE, "{payload} was given back, nobody has accepted it since, and it is not there"
    BROKEN_LOST = Guarantee.DISCONNECT, "{payload} was at a consumer that has gone, and it is not there"
    OUT_OF_ORDER = Guarantee.ORDER, "{payload} comes to a consumer of {who} behind number {number}"

    @property
    def guarantee(self) -> Guarantee:
        return self.value[0]

    def broken(self, **facts: object) -> Violation:
        """To be raised: which guarantee, and what was seen."""
        guarantee, text = self.value
        return Violation(f"{guarantee}: {text.format(**facts)}")
