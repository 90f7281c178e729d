"""Finds out what can be found out within a limit of time, with half of the cluster dead, and puts it together.

Asked at the same time: the broker of this machine, the others of `ha.brokers-url`, the coordinator, and this machine
itself. What each broker sees of the others is kept, because a broker may be silent to one and not to another.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, Final

from qpid_ha_agent.broker_address import AddressError, find_broker, is_http
from qpid_ha_agent.control import ControlFailure
from qpid_ha_agent.diagnosis.machine import (
    LookedAt,
    config_of_process,
    look_at_machine,
    look_at_process,
    read_written,
)
from qpid_ha_agent.diagnosis.questions import (
    ClosableClient,
    ask_broker,
    ask_for_all_figures,
    in_parallel,
)
from qpid_ha_broker.coordination.coordinator import CoordinatorError
from qpid_ha_broker.coordination.moved import decode_pointer
from qpid_ha_broker.coordination.pause import PAUSE_NOTE, Pause, PauseView
from qpid_ha_broker.coordination.registry import open_coordinator, open_place
from qpid_ha_broker.diagnosis.activation import ActivationFacts, Assessment, RunningBroker, assess
from qpid_ha_broker.diagnosis.answers import BrokerAnswers, facts_of
from qpid_ha_broker.diagnosis.facts import (
    CoordinatorState,
    DiagnosisFacts,
    LocalProcess,
)
from qpid_ha_broker.ha.states import State
from qpid_ha_broker.model.logs.log import DEFAULT_SET
from qpid_ha_broker.store.facts import StoreFacts, by_set
from qpid_ha_config.addresses import Address
from qpid_ha_config.defaults import find_file
from qpid_ha_config.errors import ConfigError, SettingsError

FIRST_SHARE: Final = 0.6
"""Of the time for what is asked first; what follows from the answers has the rest."""
CALL_SHARE: Final = 0.4
"""Of the time, for each call to a broker."""

MakeClient = Callable[[str | None, float], ClosableClient]
"""For a broker as `-b` names it, or for that of this machine; with a limit for each call, in seconds."""


@dataclass
class Gathered:
    """The facts, and what they were made of. `not_asked`: who was not asked, and why; what is not known because of
    that is in no finding."""

    facts: DiagnosisFacts = field(default_factory=DiagnosisFacts)
    answers: list[BrokerAnswers] = field(default_factory=list)
    machine: LookedAt = field(default_factory=LookedAt)
    coordinator: CoordinatorNotes = field(default_factory=lambda: CoordinatorNotes())
    not_asked: dict[str, str] = field(default_factory=dict)
    is_here: bool = True
    """This machine's broker was meant, and not one elsewhere."""
    started_with: str = ""
    """The configuration of the broker of this machine that was asked, where the machine has none by itself."""

    @property
    def has_anything(self) -> bool:
        """Whether anybody or anything could be asked: otherwise that nothing is wrong means nothing."""
        is_configured = self.machine.written is not None or bool(self.machine.state.config_problem)
        return bool(self.facts.brokers) or (self.is_here and is_configured)


@dataclass
class CoordinatorNotes:
    """What the coordinator holds, as far as it was read."""

    state: CoordinatorState = field(default_factory=CoordinatorState)
    pause: Pause | None = None
    notes: dict[str, str] = field(default_factory=dict)


def gather(make_client: MakeClient, named: str | None, timeout_s: float, environment: Mapping[str, str]) -> Gathered:
    """Everything, within about `timeout_s`. `named`: the broker of `-b`; None: that of this machine."""
    return _Gathering(make_client, named, timeout_s, environment).run()


class _Gathering:
    def __init__(
        self, make_client: MakeClient, named: str | None, timeout_s: float, environment: Mapping[str, str]
    ) -> None:
        self._make_client, self._named, self._environment = make_client, named, environment
        self._timeout_s, self._began_s = timeout_s, time.monotonic()
        self._gathered = Gathered()
        self._stores: list[StoreFacts] = []
        self._is_ours = False
        """This machine's configuration is of the cluster that is asked."""

    def run(self) -> Gathered:
        looked, named = self._gathered.machine, self._named
        path = find_file(None, self._environment)
        if path is not None:
            read_written(path, looked)
        is_here = self._gathered.is_here = named is None or self._is_own_socket(named)
        own = BrokerAnswers(_without_user(named or "the broker of this machine"), is_local=is_here)
        calls = {own.where: self._asking(own, named)}
        calls |= self._asking_listed(is_here)
        self._is_ours = looked.written is not None and (is_here or self._is_listed(named or ""))
        if self._is_ours:
            calls["the coordinator"] = self._look_at_coordinator
        if is_here:
            calls["this machine"] = lambda: look_at_machine(looked, self._environment)
        self._gathered.answers.insert(0, own)
        self._run(calls, FIRST_SHARE)
        self._follow_up(own, is_here)
        pid = own.mapping("query").get("pid")
        if is_here and path is None and isinstance(pid, int):
            self._gathered.started_with = config_of_process(pid)
        self._gathered.not_asked |= looked.problems
        self._gathered.facts = self._facts(own)
        return self._gathered

    # --- asking

    def _is_own_socket(self, named: str) -> bool:
        with suppress(AddressError, ControlFailure):
            return not isinstance(find_broker(named, self._environment), Address)
        return ":" not in named

    def _is_listed(self, named: str) -> bool:
        written = self._gathered.machine.written
        with suppress(ConfigError, AddressError, ControlFailure):
            broker = find_broker(named, self._environment)
            if isinstance(broker, Address) and written is not None:
                return broker.place in {address.place for address in written.get("ha.brokers-url")}
        return False

    def _asking(self, reply: BrokerAnswers, broker: str | None) -> Callable[[], None]:
        return lambda: ask_broker(lambda: self._make_client(broker, CALL_SHARE * self._timeout_s), reply)

    def _asking_listed(self, is_here: bool) -> dict[str, Callable[[], None]]:
        """Calls to the brokers of `ha.brokers-url` but the one of this machine, for whoever asks here."""
        written = self._gathered.machine.written
        if written is None or not is_here:
            return {}
        with suppress(ConfigError):
            own = {address.place for address in written.get("listen")}
            listed: list[Address] = [address for address in written.get("ha.brokers-url") if address.place not in own]
            return dict(self._asking_more(map(str, listed)))
        return {}

    def _asking_more(self, addresses: Iterable[str]) -> Iterable[tuple[str, Callable[[], None]]]:
        user = self._named.rpartition("@")[0].rpartition("/")[2] if self._named and "@" in self._named else ""
        for address in addresses:
            reply = BrokerAnswers(address)
            self._gathered.answers.append(reply)
            yield address, self._asking(reply, address.replace("://", f"://{user}@") if user else address)

    def _run(self, calls: Mapping[str, Callable[[], None]], share: float) -> None:
        late = in_parallel(calls, self._began_s + share * self._timeout_s)
        for reply in self._gathered.answers:
            if reply.where in late and reply.status is None:
                reply.silence, reply.timed_out = f"no answer within {share * self._timeout_s:g} s", True
        for name in set(late) - {reply.where for reply in self._gathered.answers}:
            self._gathered.not_asked[name] = f"it took longer than {share * self._timeout_s:g} s: give more --timeout"

    def _follow_up(self, own: BrokerAnswers, is_here: bool) -> None:
        """What is asked because of the answers."""
        calls: dict[str, Callable[[], None]] = {}
        known = (
            {reply.where for reply in self._gathered.answers} | self._answered_addresses() | set(self._own_addresses())
        )
        rows = [row for reply in self._gathered.answers for row in reply.rows("status-all")]
        if self._named is None or not is_http(self._named):
            more = {str(row["address"]) for row in rows if row.get("address")} - known
            calls |= dict(self._asking_more(sorted(more)))
        names = {row.get("name") for row in rows if row.get("state") in list(State)}
        first = next((reply for reply in self._gathered.answers if reply.rows("status-all")), None)
        if first is not None and names - {reply.mapping("query").get("name") for reply in self._gathered.answers}:
            broker = self._named if first is own else first.where
            make = self._make_client
            calls["all figures"] = lambda: _quietly(
                lambda: ask_for_all_figures(lambda: make(broker, CALL_SHARE * self._timeout_s), first)
            )
        looked = self._gathered.machine
        if is_here and own.status is None and looked.written is not None:
            look_at_process(looked, own.timed_out, not own.is_silent)
            if looked.state.process is LocalProcess.ABSENT and looked.state.data_dir:
                calls["the stores of this machine"] = self._look_at_stores
        elif own.status is not None and looked.written is not None and is_here:
            looked.state = replace(looked.state, process=LocalProcess.ANSWERS)
        self._run(calls, 1.0)

    def _answered_addresses(self) -> set[str]:
        """Of brokers that answered here: each has its own address in its list."""
        addresses = set()
        for reply in self._gathered.answers:
            status = reply.status or {}
            own = [row for row in reply.rows("status-all") if row.get("name") == status.get("name")]
            addresses |= {str(row["address"]) for row in own if row.get("address")}
        return addresses

    def _look_at_stores(self) -> None:
        from qpid_ha_agent.store_sources import SourceError, facts_of_source

        try:
            self._stores += facts_of_source(self._gathered.machine.state.data_dir)
        except SourceError as error:
            self._gathered.not_asked["the stores of this machine"] = str(error)

    def _look_at_coordinator(self) -> None:
        written, notes = self._gathered.machine.written, self._gathered.coordinator
        if written is None:
            return
        try:
            settings = written.coordinator_settings()
        except ConfigError:
            return  # the check of the configuration says it
        url = str(settings.url)
        notes.state = CoordinatorState(url)
        if settings.url.is_none:
            return
        try:
            with closing(open_place(settings)) as place:
                pointer = decode_pointer(place.read())
            with closing(open_coordinator(settings)) as opened:
                record = opened.read()
                notes.state = CoordinatorState(url, "", record, "" if pointer is None else pointer.url)
                for name in (PAUSE_NOTE, "restart", "priorities", "history"):
                    notes.notes[name] = opened.read_note(name)
        except (SettingsError, CoordinatorError) as error:
            notes.state = notes.state._replace(problem=str(error))
        view, now_s = PauseView(), time.monotonic()
        view.note(notes.notes.get(PAUSE_NOTE, ""), now_s)
        notes.pause = view.at(datetime.now(UTC), now_s)

    # --- putting it together

    def _facts(self, own: BrokerAnswers) -> DiagnosisFacts:
        answers, machine = self._gathered.answers, self._gathered.machine
        coordinator = self._gathered.coordinator
        facts = facts_of(
            answers,
            time.time(),
            machine=replace(machine.state, stores=tuple(self._stores)),
            coordinator=coordinator.state,
            pause=coordinator.pause,
            own_addresses=self._own_addresses(),
            is_in_cluster=self._is_in_cluster(),
        )
        answering = {broker.address for broker in facts.brokers}
        for reply in answers:
            if reply.silence and (not reply.is_silent or reply.where in answering):
                self._gathered.not_asked[reply.where] = reply.silence
            for name, why in reply.refused.items():
                if name not in ("sets", "backups", "query-all"):
                    self._gathered.not_asked[f"{name} of {reply.where}"] = why
        if facts.is_cluster and facts.primary is None and (facts.brokers or self._stores):
            facts = replace(facts, assessment=self._assess(answers))
        return facts

    def _is_in_cluster(self) -> bool:
        with suppress(ConfigError):
            written = self._gathered.machine.written
            return written is not None and bool(written.get("ha.cluster"))
        return False

    def _own_addresses(self) -> list[str]:
        """Of this machine's broker, if it does not answer."""
        written, own = self._gathered.machine.written, self._gathered.answers[0]
        if written is None or not own.is_local or own.status is not None or not own.is_silent:
            return []
        with suppress(ConfigError):
            places = {address.place for address in written.get("listen")}
            return [str(address) for address in written.get("ha.brokers-url") if address.place in places]
        return []

    def _assess(self, answers: list[BrokerAnswers]) -> Assessment | None:
        """None: whether there is a coordinator is not known."""
        if not self._is_ours:
            return None
        rows: dict[str, dict[str, Any]] = {}
        for reply in answers:
            for row in reply.rows("status-all"):
                rows.setdefault(str(row.get("name")), row)
        rows |= {str(reply.status["name"]): reply.status for reply in answers if reply.status is not None}
        running = [broker for row in rows.values() if (broker := RunningBroker.from_row(row)) is not None]
        state, written = self._gathered.coordinator.state, self._gathered.machine.written
        min_in_sync, auto_recover = 1, True
        if written is not None:
            with suppress(ConfigError):
                min_in_sync, auto_recover = written.get("ha.min-in-sync"), written.get("ha.auto-recover")
        stores = by_set(self._stores).get(DEFAULT_SET, [])
        has_coordinator = state.url != "none"
        return assess(
            ActivationFacts(
                tuple(stores), tuple(running), state.record, has_coordinator, state.problem, min_in_sync, auto_recover
            )
        )


def _without_user(broker: str) -> str:
    """What `-b` said, as it may be shown."""
    scheme, separator, rest = broker.rpartition("://")
    return f"{scheme}{separator}{rest.rpartition('@')[2]}"


def _quietly(call: Callable[[], None]) -> None:
    """What is only nice to have."""
    with suppress(ControlFailure, AddressError, ConfigError):
        call()
