"""Where the time of a failover under Pacemaker went, read from the logs of nodes whose clock is this machine's."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from itertools import pairwise
from typing import Final, NamedTuple

DETECTION: Final = {
    "process": r"Setting master-broker\[{old}\]: \S+ -> -INFINITY",
    "node": r"Node {old} state is now lost",
    "order": r"Initiating demote operation broker_demote_0 .*on {old}",
}
"""In Pacemaker's log, by what happened: the watch rules the broker out; membership is lost; the plan is made."""
ELECTION: Final = r"Initiating promote operation broker_promote_0 .*on {new}"
PROMOTION: Final = r"Promoted to primary: generation"
"""In the new primary's own log."""
_PACEMAKER_TIME: Final = re.compile(r"^(\w{3} \d\d \d\d:\d\d:\d\d\.\d{3}) ")
_BROKER_TIME: Final = re.compile(r"^(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3})Z ")


class Phases(NamedTuple):
    """Seconds. Their sum is the time from the event to the first confirmed publish."""

    detection: float
    election: float
    promotion: float
    recovery: float


class PhaseMissing(Exception):
    """A log does not say what it should."""


class Logs(NamedTuple):
    """What nodes wrote: Pacemaker's logs of all that are on, and the new primary's broker's log."""

    pacemaker: Mapping[str, str]
    broker: str


def phases(kind: str, old: str, new: str, logs: Logs, began_s: float, confirmed_s: float) -> Phases:
    """Of one failover from `old` to `new`; times in seconds since the epoch. Raises PhaseMissing."""
    lines = [line for text in logs.pacemaker.values() for line in text.splitlines()]
    detected_s = _first(DETECTION[kind].format(old=old), lines, began_s)
    elected_s = _first(ELECTION.format(new=new), lines, detected_s)
    promoted_s = _first(PROMOTION, logs.broker.splitlines(), elected_s)
    edges = (began_s, detected_s, elected_s, promoted_s, confirmed_s)
    return Phases(*(later - earlier for earlier, later in pairwise(edges)))


def node_lost_after_s(node: str, logs: Logs, began_s: float) -> float:
    """From `began_s`, in seconds since the epoch, until membership of `node` was lost. Raises PhaseMissing."""
    lines = [line for text in logs.pacemaker.values() for line in text.splitlines()]
    return _first(DETECTION["node"].format(old=node), lines, began_s) - began_s


def _first(pattern: str, lines: Iterable[str], since_s: float) -> float:
    times = [at_s for at_s in _times(re.compile(pattern), lines) if at_s >= since_s - 0.001]
    if not times:
        raise PhaseMissing(f"no log says {pattern!r} after {datetime.fromtimestamp(since_s, UTC):%H:%M:%S.%f}")
    return min(times)


def _times(pattern: re.Pattern[str], lines: Iterable[str]) -> Iterator[float]:
    for line in lines:
        if pattern.search(line):
            at_s = time_of(line)
            if at_s is not None:
                yield at_s


def time_of(line: str) -> float | None:
    """When a line was written, in seconds since the epoch; Pacemaker leaves out the year, and takes local time."""
    if found := _BROKER_TIME.match(line):
        return datetime.fromisoformat(found[1]).replace(tzinfo=UTC).timestamp()
    if found := _PACEMAKER_TIME.match(line):
        year = time.localtime().tm_year
        return datetime.strptime(f"{year} {found[1]}", "%Y %b %d %H:%M:%S.%f").astimezone().timestamp()
    return None
