"""May this broker become primary? One pure function, which explains itself in a sentence.

The safety property that it defends: a broker that is promoted without an operator's override holds everything that was
ever confirmed. Whoever was in the newest in-sync set does; so the question is whether a newer one could exist than
those that can be seen, and whether this broker's memory is still the one that was in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from qpid_ha_broker.ha.effects import Record
from qpid_ha_broker.ha.frames import Answer
from qpid_ha_broker.ha.states import State


@dataclass(frozen=True)
class Known:
    """What there is to judge by. `own`: what this broker would answer to a peer; `record` None: not to be had."""

    own: Answer
    own_primary: str
    """Who wrote the last generation of this broker's log; empty for an empty one."""
    answers: tuple[Answer, ...]
    unreachable: tuple[str, ...]
    record: Record | None
    has_coordinator: bool
    min_in_sync: int
    handed_over_by: str = ""
    """The primary that stepped down for this broker."""
    force: bool = False


class Refuse(NamedTuple):
    """No, because."""

    text: str


class StepDownFirst(NamedTuple):
    """Yes, once the live primary has handed over."""

    primary: str


class Accept(NamedTuple):
    """Yes: as primary of `generation`, with an in-sync set to begin with."""

    generation: int
    epoch: int
    members: tuple[str, ...]
    text: str


Verdict = Refuse | StepDownFirst | Accept


class _View(NamedTuple):
    """Somebody's knowledge of the in-sync set; the greatest is the newest."""

    generation: int
    epoch: int
    members: tuple[str, ...]
    source: str


def judge(known: Known) -> Verdict:
    """The promotion verdict (DESIGN section 4)."""
    strangers = _stranger(known)
    if strangers:
        return Refuse(strangers)
    if known.force:
        reason = ""
    elif known.own.state == State.CATCHUP or not known.own.complete:
        reason = "this broker is still catching up and lacks messages: promote one that is ready"
    elif known.own.generation:
        reason = _why_not_with_data(known)
    else:
        reason = _why_not_empty(known)
    if reason:
        return Refuse(reason)
    live = next((answer for answer in known.answers if answer.state == State.PRIMARY), None)
    if live is not None and live.name != known.handed_over_by:
        return StepDownFirst(live.name)
    return _accept(known)


def _stranger(known: Known) -> str:
    own = known.own
    for answer in known.answers:
        if answer.name == own.name:
            return f"two brokers are called {own.name}: give each its own `name` and restart one of them"
        if own.cluster and answer.cluster and own.cluster != answer.cluster:
            return (
                f"{answer.name} belongs to the cluster {answer.cluster}, this broker to {own.cluster}:"
                " take one of them out of ha.brokers-url"
            )
    record = known.record
    if record is None and known.has_coordinator:
        return "the coordinator cannot be reached, and without its record nobody knows who is in sync: try again"
    if record is not None and record.cluster and own.cluster and record.cluster != own.cluster:
        return f"the coordinator is of the cluster {record.cluster}, this broker of {own.cluster}: check ha.coordinator"
    return ""


def _why_not_empty(known: Known) -> str:
    """For a broker without data: a first start, or one that has lost its memory."""
    owners = [answer.name for answer in known.answers if answer.generation]
    if owners:
        return f"this broker holds no data, and {' and '.join(owners)} does: promote that one"
    if known.record is not None and known.record.generation:
        members = ", ".join(known.record.members)
        return (
            f"this broker holds no data; generation {known.record.generation} was confirmed by {members}: start those,"
            " or use --force if their data is lost for good"
        )
    if known.unreachable and not known.has_coordinator:
        return (
            f"this broker holds no data, and {', '.join(known.unreachable)} cannot be asked for any: start all brokers,"
            " or use --force if there is none"
        )
    return ""


def _why_not_with_data(known: Known) -> str:
    own = known.own
    if own.name not in own.members:
        return f"this broker is not in the in-sync set of its own log ({', '.join(own.members)}): promote one of those"
    view = _newest_view(known)
    if own.name not in view.members:
        return (
            f"{view.source} knows a newer in-sync set without this broker (generation {view.generation}, epoch"
            f" {view.epoch}: {', '.join(view.members)}): promote one of those"
        )
    if not known.has_coordinator and known.min_in_sync > 1:
        return _why_no_majority(known)
    return ""


def _why_no_majority(known: Known) -> str:
    """Without a coordinator, enough others must remember: those who do not could have gone on without this broker.

    A broker that was started anew remembers nothing, and may have confirmed, with one that cannot be asked, what nobody
    here knows. If all can be asked, whatever else was confirmed is in no memory any more.
    """
    forgetful = [answer.name for answer in known.answers if not answer.generation or not answer.complete]
    silent = [*known.unreachable, *forgetful]
    half = (1 + len(known.answers) + len(known.unreachable)) / 2
    if 1 + len(known.answers) > half and (not known.unreachable or len(silent) < known.min_in_sync):
        return ""
    return (
        f"{', '.join(silent)} cannot be asked what they confirmed, and may have gone on without this broker: start"
        " one that remembers first"
    )


def _newest_view(known: Known) -> _View:
    own = known.own
    views = [_View(own.generation, own.epoch, own.members, "this broker")]
    views += [_View(each.generation, each.epoch, each.members, each.name) for each in known.answers]
    if known.record is not None:
        record = known.record
        views.append(_View(record.generation, record.epoch, record.members, "the coordinator"))
    return max(views, key=lambda view: view[:2])


def _accept(known: Known) -> Accept:
    own, view = known.own, _newest_view(known)
    generations = [view.generation, own.promised, *[answer.promised for answer in known.answers]]
    # Whoever has a name in the set but not its memory any more cannot stay: it would have to say so at once anyway.
    hollow = {answer.name for answer in known.answers if not answer.complete or answer.name not in answer.members}
    gone = {known.own_primary, known.record.primary if known.record is not None else ""} - {known.handed_over_by}
    staying = set() if known.force else set(view.members) - gone - hollow
    members = tuple(sorted(staying | {own.name}))
    return Accept(max(generations) + 1, view.epoch + 1, members, f"in sync with {', '.join(members)}")
