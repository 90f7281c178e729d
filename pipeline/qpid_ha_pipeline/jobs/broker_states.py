"""For how long each broker was what, as far as journals tell.

A journal knows who began a generation and who was in the in-sync set. It does not know of a broker that is neither
whether it is connecting, catching up, stopping or dead; nor, behind the last event of a primary, whether that still led
and had nothing to do, or was gone already.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from .failovers import Generation, InSyncSetChange


class TimeInStates(NamedTuple):
    """Of one broker, in seconds; together they are the time from the first event to the last."""

    broker: str
    primary_s: float
    """From the start of its generations to their last events."""
    ready_s: float
    """In the in-sync set under another primary; also while nobody led."""
    silent_s: float
    """Behind the last event of a generation of its own, before the next one: it led, or was gone."""
    apart_s: float
    """`connecting`, `catchup`, `stopping`, or not there at all."""


def times_in_states(
    generations: Sequence[Generation], memberships: Sequence[InSyncSetChange]
) -> tuple[TimeInStates, ...]:  # fmt: skip
    """For each broker that is named anywhere; both ascending."""
    brokers = sorted({each.primary for each in generations} | {name for each in memberships for name in each.members})
    spent = {broker: dict.fromkeys(TimeInStates._fields[1:], 0.0) for broker in brokers}
    for begin, end in pairwise(_moments(generations, memberships)):
        led = next((each for each in reversed(generations) if each.started_s <= begin), None)
        members = next((each.members for each in reversed(memberships) if each.at_s <= begin), ())
        for broker in brokers:
            spent[broker][_state(broker, led, members, begin)] += end - begin
    return tuple(TimeInStates(broker, **times) for broker, times in spent.items())


def _moments(generations: Sequence[Generation], memberships: Sequence[InSyncSetChange]) -> list[float]:
    """At which anything changes, no later than the last event."""

    def all_of() -> Iterator[float]:
        for each in generations:
            yield from (each.started_s, each.last_s)
        yield from (each.at_s for each in memberships)

    last = max((each.last_s for each in generations), default=0.0)
    return sorted({moment for moment in all_of() if moment <= last})


def _state(broker: str, led: Generation | None, members: Sequence[str], moment: float) -> str:
    if led is not None and led.primary == broker:
        return "primary_s" if moment < led.last_s else "silent_s"
    return "ready_s" if broker in members else "apart_s"
