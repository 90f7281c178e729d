"""Changes of state as brokers reported them when they happened: `qpid-ha events --format json`, or a broker's log.

Journals hold what was done; an idle primary does nothing. These say when a primary came and went, also without traffic.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Sequence, Set
from datetime import datetime
from pathlib import Path
from typing import Any, Final, NamedTuple

from qpid_ha_broker.model.exchanges.broker_events import EventSubject
from qpid_ha_broker.model.logs.log import DEFAULT_SET
from qpid_ha_pipeline.errors import PipelineError

from .timeline import BoundSource, Generation, InSyncSetChange, Sign

LINK_TIMEOUT_S: Final = 3.0
"""After so long a silence a backup gives the link to its primary up: three times `link-heartbeat-interval`."""

PRIMARY, READY, CATCHUP, CONNECTING = "primary", "ready", "catchup", "connecting"
"""States of a broker: docs/states.md."""

_SHOWN_CHARACTERS: Final = 160
_LINE: Final = re.compile(r"(?P<at>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3})Z \w+ \w+ (?P<text>.*)")
_NAME: Final = re.compile(r"(?P<name>\S+) listens on .*control socket ")
_OF_STATES: Final = (EventSubject.BROKER_STATE, EventSubject.SET_STATE)
"""Of what `qpid-ha events` lists with `--match`, `--count` or `--follow`."""
_CHANGE: Final = re.compile(r"Status change: (?P<before>\w+) -> (?P<state>\w+) \(")


class StateChange(NamedTuple):
    """One line of such a file."""

    broker: str
    at_s: float
    """Seconds since the epoch, by the broker's clock."""
    before: str
    """Empty: the state stayed, and something else was reported."""
    state: str
    set: str = DEFAULT_SET
    """Of which resource set the broker is that; a line of a log that names none is about `default`."""


def read_state_changes(paths: Sequence[str]) -> list[StateChange]:
    """Of all files, by time. Raises PipelineError for a file that cannot be read, or is of neither kind."""
    changes: list[StateChange] = []
    for path in paths:
        try:
            with Path(path).open(encoding="utf-8", errors="replace") as file:
                changes += _read(path, file)
        except OSError as error:
            raise PipelineError(f"{path}: {error.strerror}") from None
    return sorted(changes, key=lambda change: change.at_s)


def _read(path: str, lines: Iterable[str]) -> Iterator[StateChange]:
    broker, unnamed, is_any = "", [], False
    for number, line in enumerate(lines, start=1):
        if line.startswith("{"):
            is_any = True
            yield from _event(path, number, line)
            continue
        match = _LINE.search(line)
        if match is None:
            continue
        is_any = True
        at_s = datetime.fromisoformat(f"{match['at']}+00:00").timestamp()
        if name := _NAME.match(match["text"]):
            broker = name["name"]
        elif change := _CHANGE.match(match["text"]):
            unnamed.append((at_s, change["before"], change["state"]))
    if unnamed and not broker:
        raise PipelineError(
            f"{path}: a log in which no line says which broker it is of: give the lines from its start on, with"
            " `NAME listens on ...`"
        )
    if not is_any:
        raise PipelineError(f"{path}: neither what `qpid-ha events --format json` prints nor a broker's log")
    yield from (StateChange(broker, *change) for change in unnamed)


def _event(path: str, number: int, line: str) -> Iterator[StateChange]:
    """The first line of a stream is a status without a time. A last line that is torn was being written."""
    if not line.endswith("\n"):
        return
    try:
        event: Any = json.loads(line)
        event = event.get("params", event)  # as the control socket has it
        subject = event.get("subject")
        if "at_ms" in event and subject in (None, *_OF_STATES):
            yield StateChange(
                event["name"] if subject is None else event["broker"],
                event["at_ms"] / 1000,
                event.get("before", ""),
                event["state"],
                event.get("set", DEFAULT_SET),
            )
    except (ValueError, KeyError, TypeError, AttributeError):
        shown = line.strip()[:_SHOWN_CHARACTERS]
        raise PipelineError(f"{path}, line {number}: expected an event of a broker, found {shown}") from None


def narrowed(
    generations: Sequence[Generation], memberships: Sequence[InSyncSetChange], changes: Sequence[StateChange],
    link_timeout_s: float = LINK_TIMEOUT_S,
) -> tuple[Generation, ...]:  # fmt: skip
    """The generations with what the changes tell of when each primary still led and when it was gone; all ascending."""
    result, reporting = [], {change.broker for change in changes}
    for place, generation in enumerate(generations):
        end_s = generations[place + 1].started_s if place + 1 < len(generations) else float("inf")
        within = [change for change in changes if generation.started_s <= change.at_s <= end_s]
        own = [change for change in within if change.broker == generation.primary]
        links = _lost_links(within, reporting, generation, memberships)
        result.append(_narrowed(generation, own, links, link_timeout_s))
    return tuple(result)


def _narrowed(
    generation: Generation, own: Sequence[StateChange], links: Sequence[float], link_timeout_s: float
) -> Generation:
    led, gone = generation.led, generation.gone
    leads = [change.at_s for change in own if PRIMARY in (change.state, change.before)]
    ends = [change.at_s for change in own if change.before == PRIMARY != change.state]
    if leads and max(leads) > led.at_s:
        led = Sign(max(leads), BoundSource.OWN_STREAM)
    if links and max(links) - link_timeout_s > led.at_s and not ends:
        led = Sign(max(links) - link_timeout_s, BoundSource.LINK)
    if ends:
        gone = Sign(max(ends), BoundSource.OWN_STREAM)
    elif links and max(links) >= led.at_s:
        gone = Sign(max(links), BoundSource.LINK)
    return generation._replace(led=led, gone=gone)


def _lost_links(
    changes: Sequence[StateChange], reporting: Set[str], generation: Generation, memberships: Sequence[InSyncSetChange]
) -> list[float]:
    """When each backup of the last in-sync set lost its link to the primary for good; none while one of them has not.

    One that came back to this primary has not seen its end, nor has one that the primary dropped from the set.
    """
    members = next((change.members for change in reversed(memberships) if change.generation == generation.number), ())
    lost: dict[str, float] = {}
    for change in changes:
        if change.before == READY and change.state == CONNECTING:
            lost[change.broker] = change.at_s
        elif change.state in (READY, CATCHUP):
            lost.pop(change.broker, None)
    backups = reporting & set(members) - {generation.primary}
    return [lost[broker] for broker in backups] if backups <= lost.keys() else []
