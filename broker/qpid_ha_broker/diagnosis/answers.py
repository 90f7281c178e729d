"""What a diagnosis makes of what brokers answer, whoever has asked them. Pure.

`qpid-ha diagnose` asks each from a machine; a broker asks the others for its web page.

What each broker sees of the others is kept apart, because a broker may be silent to one and not to another.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, Final

from qpid_ha_broker.coordination.pause import Pause, decode_pause
from qpid_ha_broker.diagnosis.facts import (
    BackupLag,
    BrokenLink,
    BrokerFigures,
    BrokerState,
    CoordinatorState,
    DiagnosisFacts,
    LocalProcess,
    MachineState,
    QueueState,
    RefusedLogin,
    SetStanding,
    SilentBroker,
)
from qpid_ha_broker.ha.history import was_asked_for
from qpid_ha_broker.ha.states import State
from qpid_ha_config.scalars import parse_size_bytes

_HANGS: Final = (LocalProcess.SILENT, LocalProcess.HELD)


@dataclass
class BrokerAnswers:
    """What one broker answered, by method; `status-all`, `query-all` and `queues-again` are looks of their own."""

    where: str
    """Its address, or its control socket."""
    is_local: bool = False
    answers: dict[str, Any] = field(default_factory=dict)
    refused: dict[str, str] = field(default_factory=dict)
    """Why there is no answer to a method."""
    silence: str = ""
    """Why there is none at all."""
    is_silent: bool = True
    """By `silence`: False where somebody is there, and does not let us in."""
    timed_out: bool = False
    clock_ahead_s: float = 0.0

    @property
    def status(self) -> dict[str, Any] | None:
        """What it says of itself; None: nothing."""
        status = self.answers.get("status")
        return status if isinstance(status, dict) and isinstance(status.get("state"), str) else None

    def mapping(self, name: str) -> dict[str, Any]:
        """The answer `name`, as an object; empty: there is none."""
        answer = self.answers.get(name)
        return answer if isinstance(answer, dict) else {}

    def rows(self, name: str) -> list[dict[str, Any]]:
        """The answer `name`, as a list of objects."""
        answer = self.answers.get(name)
        return [row for row in answer if isinstance(row, dict)] if isinstance(answer, list) else []


def facts_of(
    answers: Sequence[BrokerAnswers],
    now_s: float,
    *,
    machine: MachineState,
    coordinator: CoordinatorState,
    pause: Pause | None = None,
    own_addresses: Sequence[str] = (),
    is_in_cluster: bool = False,
) -> DiagnosisFacts:
    """All but who may lead. `answers`: the first is of the broker that was meant.

    `pause`: by the coordinator, of use where no broker tells. `own_addresses`: of a broker of this machine that does
    not answer. `is_in_cluster`: whether it is in a cluster, by its configuration; brokers that answer know better.
    """
    brokers = _brokers(answers)
    is_cluster = any(broker.state != State.STANDALONE for broker in brokers) if brokers else is_in_cluster
    names = _names_by_address(answers) | dict.fromkeys(own_addresses, machine.name)
    silent = tuple(_silent(answers, brokers, names, own_addresses, machine)) if is_cluster else ()
    facts = DiagnosisFacts(
        brokers=tuple(brokers),
        is_cluster=is_cluster,
        silent=silent,
        broken_links=tuple(_broken_links(answers, brokers)),
        refused_logins=tuple(_refused_logins(answers)),
        twins=tuple(_twins(answers)),
        coordinator=coordinator,
        pause=_pause(answers) or pause,
        machine=machine,
        draining=tuple(sorted(_draining(answers))),
        now_s=now_s,
    )
    leading = _leading_answers(answers)
    return _with_the_missing_name(facts if leading is None else _with_leading(facts, leading))


def _silent(
    answers: Sequence[BrokerAnswers],
    brokers: Sequence[BrokerState],
    names: Mapping[str, str],
    own_addresses: Sequence[str],
    machine: MachineState,
) -> Iterable[SilentBroker]:
    """Addresses at which nobody answers, neither here nor another broker."""
    alive = {broker.address for broker in brokers}
    seen_by: dict[str, list[str]] = {}
    for reply in answers:
        for row in reply.rows("status-all"):
            if row.get("address") and row.get("state") not in list(State) and not row.get("refused"):
                seen_by.setdefault(str(row["address"]), []).append(str((reply.status or {}).get("name")))
    tried = {reply.where: reply for reply in answers if "://" in reply.where}
    for address in dict.fromkeys([*tried, *seen_by, *own_addresses]):
        asked = tried.get(address)
        if address in alive or address.startswith("http") or (asked is not None and not asked.is_silent):
            continue
        if asked is not None and asked.status is not None:
            continue
        why = "" if asked is None else asked.silence
        if address in own_addresses and asked is None:
            why = "" if seen_by.get(address) else answers[0].silence
            if machine.process in (LocalProcess.ABSENT, *_HANGS) and brokers:
                continue  # told as the broker of this machine
        yield SilentBroker(address, names.get(address, ""), why, tuple(sorted(seen_by.get(address, ()))))


def _brokers(answers: Sequence[BrokerAnswers]) -> list[BrokerState]:
    """The brokers that answer here, then those that others see."""
    brokers: dict[str, BrokerState] = {}
    figures = {
        str(row.get("name")): BrokerFigures.from_answer(row) for reply in answers for row in reply.rows("query-all")
    }
    for reply in answers:
        broker = None if reply.status is None else BrokerState.from_row(reply.status)
        if broker is None or (broker.name in brokers and not reply.is_local):
            continue
        rows = [row for row in reply.rows("status-all") if row.get("name") == broker.name]
        address = next((str(row["address"]) for row in rows if row.get("address")), "")
        if not address and "://" in reply.where:
            address = reply.where
        data_dir = str(reply.mapping("get").get("data-dir") or "")
        own = BrokerFigures.from_answer(reply.mapping("query"))
        own = own._replace(clock_ahead_s=reply.clock_ahead_s, data_dir=data_dir)
        with suppress(ValueError):
            own = own._replace(memory_limit_bytes=parse_size_bytes(reply.mapping("get").get("memory-limit")))
        brokers[broker.name] = broker._replace(address=address, is_local=reply.is_local, figures=own)
    for reply in answers:
        for row in reply.rows("status-all"):
            seen = BrokerState.from_row(row)
            if seen is not None and seen.name not in brokers:
                brokers[seen.name] = seen._replace(figures=figures.get(seen.name, BrokerFigures()))
    return [brokers[name] for name in sorted(brokers)]


def _leading_answers(answers: Sequence[BrokerAnswers]) -> BrokerAnswers | None:
    """The answers of the primary of the newest generation, or of a standalone broker."""
    leading = [
        reply
        for reply in answers
        if reply.status is not None and reply.status["state"] in (State.PRIMARY, State.STANDALONE)
    ]
    return max(leading, key=lambda reply: int((reply.status or {}).get("generation") or 0), default=None)


def _with_leading(facts: DiagnosisFacts, leading: BrokerAnswers) -> DiagnosisFacts:
    before = {row.get("name"): row.get("messages") for row in leading.rows("queues")}
    queues = []
    for row in leading.rows("queues-again") or leading.rows("queues"):
        queue = QueueState.from_row(row)
        first = before.get(queue.name)
        queues.append(queue._replace(grown=queue.messages - first if isinstance(first, int) else 0))
    failovers = [row for row in leading.rows("history") if not _was_asked_for(row)]
    began = [row.get("started_at_ms") for row in failovers]
    return replace(
        facts,
        backups=tuple(map(BackupLag.from_row, leading.rows("backups"))),
        sets=tuple(map(SetStanding.from_row, leading.rows("sets"))),
        sets_problem=leading.refused.get("sets", ""),
        queues=tuple(queues),
        failovers_ms=tuple(began_ms for began_ms in began if isinstance(began_ms, int)),
    )


def _was_asked_for(row: Mapping[str, Any]) -> bool:
    return was_asked_for(str(row.get("cause") or ""), forced=row.get("forced") is True)


def _with_the_missing_name(facts: DiagnosisFacts) -> DiagnosisFacts:
    """Where one broker is silent, and one that is spoken of does not answer, it is that one."""
    record = facts.coordinator.record
    spoken_of = {name for broker in facts.brokers for name in broker.members} | {
        backup.name for backup in facts.backups
    }
    spoken_of |= set() if record is None else set(record.members)
    missing = spoken_of - {broker.name for broker in facts.brokers} - {facts.machine.name}
    nameless = [silent for silent in facts.silent if not silent.name]
    if len(nameless) != 1 or len(missing - {silent.name for silent in facts.silent}) != 1:
        return facts
    (name,) = missing - {silent.name for silent in facts.silent}
    named = tuple(silent if silent.name else silent._replace(name=name) for silent in facts.silent)
    return replace(facts, silent=named)


def _names_by_address(answers: Sequence[BrokerAnswers]) -> dict[str, str]:
    """By the cluster map, and by what brokers see of each other."""
    rows = [row for reply in answers for name in ("brokers", "status-all") for row in reply.rows(name)]
    return {str(row["address"]): str(row["name"]) for row in rows if row.get("address") and row.get("name")}


def _broken_links(answers: Sequence[BrokerAnswers], brokers: Sequence[BrokerState]) -> Iterable[BrokenLink]:
    """Of brokers that answer somebody; one that loads its store answers no other broker, which is no fault."""
    for broker in brokers:
        if not broker.address or broker.state == State.LOADING:
            continue
        blind = {
            str(reply.status["name"])
            for reply in answers
            if reply.status is not None
            for row in reply.rows("status-all")
            if row.get("address") == broker.address and row.get("state") not in list(State) and not row.get("refused")
        } - {broker.name}
        if blind:
            yield BrokenLink(broker.name, broker.address, tuple(sorted(blind)))


def _refused_logins(answers: Sequence[BrokerAnswers]) -> Iterable[RefusedLogin]:
    """Of brokers that are there, by those whom they do not let in."""
    for reply in answers:
        name = str((reply.status or {}).get("name"))
        for row in reply.rows("status-all"):
            if row.get("refused") is True and row.get("address"):
                yield RefusedLogin(name, str(row["address"]), str(row.get("why") or "it does not say why"))


def _twins(answers: Sequence[BrokerAnswers]) -> Iterable[tuple[str, tuple[str, ...]]]:
    """Names under which more than one process answers, here or another broker."""
    by_name: dict[str, dict[str, str]] = {}
    for reply in answers:
        own = reply.status
        rows = [*reply.rows("status-all"), *([] if own is None else [{**own, "address": own.get("address")}])]
        for row in rows:
            if isinstance(row.get("name"), str) and isinstance(row.get("instance"), str) and row["instance"]:
                where = str(row.get("address") or "")
                is_own = own is not None and row["instance"] == own.get("instance")
                known = by_name.setdefault(row["name"], {})
                known[row["instance"]] = where or known.get(row["instance"], "") or (reply.where if is_own else "")
    return [(name, tuple(sorted(places.values()))) for name, places in sorted(by_name.items()) if len(places) > 1]


def _pause(answers: Sequence[BrokerAnswers]) -> Pause | None:
    for reply in answers:
        paused = (reply.status or {}).get("paused")
        if isinstance(paused, dict):
            return decode_pause(json.dumps(paused))
    return None


def _draining(answers: Sequence[BrokerAnswers]) -> set[str]:
    rows = [row for reply in answers for row in reply.rows("brokers")]
    rows += [reply.status for reply in answers if reply.status is not None]
    return {str(row["name"]) for row in rows if row.get("draining") and row.get("name")}
