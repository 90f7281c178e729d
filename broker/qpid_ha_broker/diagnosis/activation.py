"""Who may lead, and who not, by what the coordinator, stores and brokers that answer say: the promotion verdict, asked
for each broker before anybody is promoted. Pure.

The activation sequence is (generation, epoch). It is in the coordinator's record and in each store, and a broker whose
own is older than the newest that is known does not lead. A store counts as a broker that was started with it and has
not found a primary; a broker that answers counts as what it says. So what is said here of a broker is what it would say
itself (`ha.verdict`), if all that are seen here answered it, and nobody else.

The record is set by hand (`objections`) where nobody may lead, and somebody has to decide who does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from shlex import quote
from typing import Any, Final, NamedTuple

from qpid_ha_broker.ha.cluster_record import ClusterRecord
from qpid_ha_broker.ha.frames import Answer, StoreOrigin
from qpid_ha_broker.ha.record_keeper import COORDINATOR
from qpid_ha_broker.ha.states import State
from qpid_ha_broker.ha.verdict import PromotionEvidence, Refusal, judge
from qpid_ha_broker.store.advice import host_of
from qpid_ha_broker.store.best import Admin, Standing, best, leading
from qpid_ha_broker.store.facts import StoreFacts


class RunningBroker(NamedTuple):
    """What a broker answers to `status`; that of others may come from the one that was asked."""

    name: str
    state: State
    generation: int
    epoch: int
    lsn: int
    members: tuple[str, ...]
    store: StoreOrigin
    problem: str = ""
    """Why it follows nobody and does not lead; only the broker that was asked tells."""

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> RunningBroker | None:
        """A row of `status --all`; None for a broker that did not answer, or is in no cluster."""
        name, state = row.get("name"), row.get("state")
        if not isinstance(name, str) or state not in list(State) or not isinstance(row.get("generation"), int):
            return None
        restored = row.get("restored")
        store = StoreOrigin(restored) if restored in list(StoreOrigin) else StoreOrigin.MEMORY
        members = tuple(str(member) for member in row.get("members") or ())
        problem = str(row.get("problem") or "")
        return cls(name, State(state), row["generation"], int(row.get("epoch") or 0), int(row.get("lsn") or 0),
                   members, store, problem)  # fmt: skip


@dataclass(frozen=True)
class ActivationFacts:
    """All that was found out."""

    stores: tuple[StoreFacts, ...]
    brokers: tuple[RunningBroker, ...] = ()
    record: ClusterRecord | None = None
    """None: there is no coordinator, or it cannot be read."""
    has_coordinator: bool = True
    problem: str = ""
    """Why the coordinator cannot be read."""
    min_in_sync: int = 1
    auto_recover: bool = True


class Standpoint(NamedTuple):
    """One broker, or one store that is no broker's of this cluster: where it stands in the sequence."""

    name: str
    where: str
    """Of its store; empty: it was not looked at."""
    state: str
    generation: int
    epoch: int
    lsn: int
    members: tuple[str, ...]
    claimed: int
    """The newest generation that it claimed for itself or promised to somebody; 0: none."""
    claimed_by: str
    is_recorded: bool
    """It is in the in-sync set that the record has."""
    may_lead: bool
    why: str


class NextStep(NamedTuple):
    """What to do where nobody may lead. `instead`: what to do if that is impossible."""

    text: str
    commands: tuple[str, ...]
    instead: tuple[str, ...] = ()


@dataclass(frozen=True)
class Assessment:
    """What came of it."""

    standpoints: tuple[Standpoint, ...]
    missing: tuple[str, ...]
    """Who may know more, and neither answers nor has a store here."""
    next_step: NextStep | None
    """None: somebody may lead, or does."""
    primary: str = ""
    """Who leads; empty: nobody that answers."""

    @property
    def leaders(self) -> tuple[str, ...]:
        """Who may lead."""
        return tuple(standpoint.name for standpoint in self.standpoints if standpoint.may_lead)


def assess(facts: ActivationFacts) -> Assessment:
    """Ask the promotion verdict about each broker."""
    case = _Activation(facts)
    standpoints = tuple(sorted((*case.members(), *case.outsiders()), key=lambda standpoint: standpoint.name))
    is_nobody = not any(standpoint.may_lead for standpoint in standpoints)
    primary = next((broker.name for broker in facts.brokers if broker.state is State.PRIMARY), "")
    return Assessment(standpoints, case.missing, case.next_step() if is_nobody else None, primary)


class _Activation:
    """Brokers of one cluster, by name, each with its furthest store, what it answers, or both."""

    def __init__(self, facts: ActivationFacts) -> None:
        self.facts = facts
        verdict = best(facts.stores, facts.record) if facts.stores else None
        self._left_out = {
            reason.where: reason.text
            for reason in (verdict.reasons if verdict is not None else ())
            if reason.standing in (Standing.COPY, Standing.STRANGER)
        }
        self.stores = {store.label: store for store in facts.stores if store.where not in self._left_out}
        self.brokers = {broker.name: broker for broker in facts.brokers if broker.state is not State.LOADING}
        self.loading = {broker.name for broker in facts.brokers} - set(self.brokers)
        names = [*self.brokers, *(name for name, store in self.stores.items() if store.is_readable)]
        self.answers = {name: self._answer_of(name) for name in dict.fromkeys(names)}
        self.missing = tuple(sorted(self._wanted() - set(self.answers)))

    def _wanted(self) -> set[str]:
        """Whom the record and the newest in-sync set that is known name."""
        record = self.facts.record or ClusterRecord()
        newest = max(self.answers.values(), key=lambda answer: (answer.generation, answer.epoch), default=None)
        named = {record.primary} if record.claimed else set()
        return named | set(record.members) | set(newest.members if newest is not None else ())

    def _answer_of(self, name: str) -> Answer:
        """What the broker would tell another one, or tells."""
        store, broker = self.stores.get(name, StoreFacts("")), self.brokers.get(name)
        origin = StoreOrigin.CLEAN if store.clean else StoreOrigin.DIRTY
        before = store.members_before if origin is StoreOrigin.DIRTY else ()
        answer = Answer(
            number=0,
            name=name,
            instance=name,
            cluster=store.cluster or self._cluster,
            state=State.CONNECTING.value,
            generation=store.generation,
            epoch=store.epoch,
            members=tuple(sorted({*store.members, *before})),
            newest_members=store.members,
            lsn=store.last_lsn,
            complete=True,
            promised=store.promised,
            promised_to=store.promised_to,
            claims=store.claims,
            granted=True,
            text="",
            min_in_sync=self.facts.min_in_sync,
            store=StoreOrigin.MEMORY if store.is_empty else origin,
        )
        if broker is None:
            return answer
        return answer._replace(
            cluster=self._cluster if broker.generation else "",
            state=broker.state.value,
            generation=broker.generation,
            epoch=broker.epoch,
            members=broker.members,
            newest_members=broker.members,
            lsn=broker.lsn,
            complete=broker.state is not State.CATCHUP,
            store=broker.store,
        )

    @property
    def _cluster(self) -> str:
        """The UUID that most of the stores have; of a broker that answers nothing else is known."""
        return next((store.cluster for store in self.stores.values() if store.cluster), "")

    def _evidence(self, name: str) -> PromotionEvidence:
        facts, store = self.facts, self.stores.get(name, StoreFacts(""))
        knows_own_store = name not in self.brokers and bool(store.history)
        record = facts.record or ClusterRecord()
        # Of a broker that answers it is not known who wrote its last generation: in doubt, whom the record names.
        primary = store.history[-1].primary if knows_own_store else record.primary
        return PromotionEvidence(
            own=self.answers[name],
            own_primary=primary,
            answers=tuple(answer for other, answer in self.answers.items() if other != name),
            unreachable=self.missing,
            record=facts.record,
            has_coordinator=facts.has_coordinator,
            min_in_sync=facts.min_in_sync,
            is_chosen=store.is_chosen and name not in self.brokers,
            auto_recover=facts.auto_recover,
        )

    # --- where each stands

    def members(self) -> list[Standpoint]:
        """Of this cluster."""
        damaged = [name for name, store in self.stores.items() if not store.is_readable and name not in self.answers]
        return [self._standpoint(name, *self._may_lead(name)) for name in self.answers] + [
            self._standpoint(name, False, f"a broker refuses this store: {self.stores[name].detail}")
            for name in damaged
        ]

    def outsiders(self) -> list[Standpoint]:
        """Stores that are copies, or another cluster's."""
        return [
            _standpoint_of(store, store.label, self.facts.record, False, self._left_out[store.where])
            for store in self.facts.stores
            if store.where in self._left_out
        ]

    def _standpoint(self, name: str, may_lead: bool, why: str) -> Standpoint:
        store = self.stores.get(name, StoreFacts(""))
        standpoint = _standpoint_of(store, name, self.facts.record, may_lead, why)
        broker = self.brokers.get(name)
        if broker is None:
            return standpoint._replace(state=State.LOADING.value) if name in self.loading else standpoint
        return standpoint._replace(
            state=broker.state.value,
            generation=broker.generation,
            epoch=broker.epoch,
            lsn=broker.lsn,
            members=broker.members,
        )

    def _may_lead(self, name: str) -> tuple[bool, str]:
        broker = self.brokers.get(name)
        if broker is not None and broker.state is State.PRIMARY:
            return True, "leads"
        if self.facts.has_coordinator and self.facts.record is None:
            return False, f"without the coordinator's record nobody knows who is in sync: {self.facts.problem}"
        verdict = judge(self._evidence(name))
        if isinstance(verdict, Refusal):
            hint = COORDINATOR.look_around
            return False, verdict.text.removesuffix(f"; {hint}").removesuffix(f", and {hint}")
        primary = next((broker.name for broker in self.brokers.values() if broker.state is State.PRIMARY), "")
        if primary:
            return True, f"in sync, and {primary} leads"
        said = f"; when it was asked last it said: {broker.problem}" if broker is not None and broker.problem else ""
        return True, f"holds all that was confirmed, as far as is known{said}"

    # --- what to do

    def next_step(self) -> NextStep:
        """The first row of the table that applies."""
        for applies, make in _NEXT_STEPS:
            if applies(self):
                return make(self)
        raise LookupError("no row of the table of next steps fits")

    @property
    def damaged(self) -> list[StoreFacts]:
        """Stores of this cluster that no broker loads."""
        return [store for store in self.stores.values() if not store.is_readable]

    @property
    def furthest(self) -> StoreFacts | None:
        """The store to go on with if all others are given up, of the recorded set if it can be; None: nobody has
        anything here."""
        filled = [store for store in self.stores.values() if store.is_readable and not store.is_empty]
        if not filled:
            return None
        first = leading(filled)
        recorded = self.facts.record.members if self.facts.record is not None else ()
        level = [store for store in filled if store.broker in recorded and store.position == first.position]
        return level[0] if level else first

    def set_commands(self) -> tuple[str, ...]:
        """Have the record say what the furthest store does, then promote its broker."""
        store = self.furthest
        if store is None:
            return ()
        wanted = record_of(store)
        is_forced = bool(objections(wanted, self.facts))
        command = f"qpid-ha activation set --from-store {quote(store.where)}{' --force' if is_forced else ''}"
        others = [quote(other_store.where) for other_store in self.facts.stores if other_store is not store]
        return " ".join([command, *others]), promote_command(store)


def _read_coordinator(case: _Activation) -> NextStep:
    text = f"Nobody is promoted without the coordinator's record. {case.facts.problem}"
    return NextStep(text, ("qpid-ha coordinator check",))


def _bring_missing(case: _Activation) -> NextStep:
    names = ", ".join(case.missing)
    text = f"{names} may hold what nobody here does. Start {'it' if len(case.missing) == 1 else 'them'}, with its store"
    starts = tuple(f"systemctl start qpid-ha   # on {name}" for name in case.missing)
    return NextStep(f"{text}.", starts, case.set_commands())


def _mend_damaged(case: _Activation) -> NextStep:
    text = "A store is damaged, and the others do not know as much as was confirmed."
    return NextStep(text, tuple(f"qpid-ha store check {quote(store.where)}" for store in case.damaged),
                    case.set_commands())  # fmt: skip


def _set_record(case: _Activation) -> NextStep:
    text = "All stores are here, and the coordinator's record is not theirs: it was lost or put back, or they were."
    return NextStep(text, case.set_commands())


def _begin_anew(case: _Activation) -> NextStep:
    text = "Nothing is left here: name the stores of the other brokers, or copies. To begin with nothing:"
    return NextStep(text, ("qpid-ha promote --force",))


_NEXT_STEPS: Final[tuple[tuple[Callable[[_Activation], bool], Callable[[_Activation], NextStep]], ...]] = (
    (lambda case: case.facts.has_coordinator and case.facts.record is None, _read_coordinator),
    (lambda case: bool(case.missing), _bring_missing),
    (lambda case: bool(case.damaged), _mend_damaged),
    (lambda case: case.furthest is not None, _set_record),
    (lambda case: True, _begin_anew),
)


def _standpoint_of(store: StoreFacts, name: str, record: ClusterRecord | None, may_lead: bool, why: str) -> Standpoint:
    has_promise = store.promised > 0
    return Standpoint(
        name=name,
        where=store.where,
        state=_state_of(store),
        generation=store.generation,
        epoch=store.epoch,
        lsn=store.last_lsn,
        members=store.members,
        claimed=store.promised,
        claimed_by=store.promised_to if has_promise else "",
        is_recorded=record is not None and name in record.members,
        may_lead=may_lead,
        why=why,
    )


def _state_of(store: StoreFacts) -> str:
    if store.is_running:
        return "running"
    if not store.is_readable:
        return str(store.integrity)
    return "empty" if store.is_empty else "clean" if store.clean else "dirty"


# --- setting the record


def record_of(store: StoreFacts, *, is_alone: bool = False) -> ClusterRecord:
    """What the record says if the store is the newest that there is. `is_alone`: whatever others hold is given up."""
    primary = store.history[-1].primary if store.history else ""
    members = (store.broker,) if is_alone else store.members
    return ClusterRecord(store.cluster, store.generation, primary, store.epoch, members)


def promote_command(store: StoreFacts) -> str:
    """Have its broker lead."""
    host = host_of(store.where)[0]
    return (
        f"qpid-ha promote -b amqp://{host}:5672"
        if host
        else f"qpid-ha promote -b {quote(store.label)}   # on {store.label}"
    )


def objections(wanted: ClusterRecord, facts: ActivationFacts) -> list[str]:
    """Why something that was confirmed could be lost if the record became `wanted`; empty: for no reason."""
    record = facts.record or ClusterRecord()
    stores = [store for store in facts.stores if not store.is_empty]
    texts = [
        f"{broker.name} leads generation {broker.generation}: it keeps the record itself"
        for broker in facts.brokers
        if broker.state is State.PRIMARY
    ]
    texts += [
        f"a broker works on {store.where} and does not answer: ask it for its state, or stop it"
        for store in stores
        if store.is_running and store.broker not in {broker.name for broker in facts.brokers}
    ]
    if record.cluster not in ("", wanted.cluster):
        texts.append(f"the record is of the cluster {record.cluster}, not of {wanted.cluster}")
    elif wanted.position < record.position:
        texts.append(
            f"the record says generation {record.generation}, epoch {record.epoch}: what was confirmed since generation"
            f" {wanted.generation}, epoch {wanted.epoch} is given up"
        )
    texts += [_objection_of_store(store, wanted) for store in stores]
    texts += [_objection_of_broker(broker, wanted) for broker in facts.brokers]
    verdict = best(stores) if stores else None
    if verdict is None:
        texts.append("no store is here that shows who was in sync last")
    elif isinstance(verdict, Admin):
        texts.append(f"these stores alone do not show who was in sync last: {verdict.question}")
    elif not set(wanted.members) <= set(leading(stores).members):
        strangers = ", ".join(sorted(set(wanted.members) - set(leading(stores).members)))
        texts.append(f"{strangers} is not in the last in-sync set of these stores, and may lack what was confirmed")
    return [text for text in texts if text]


def _objection_of_store(store: StoreFacts, wanted: ClusterRecord) -> str:
    if store.cluster and store.cluster != wanted.cluster:
        return f"the store of {store.label} is of the cluster {store.cluster}"
    if (store.generation, store.epoch) > (wanted.generation, wanted.epoch):
        return f"the store of {store.label} knows generation {store.generation}, epoch {store.epoch}"
    return ""


def _objection_of_broker(broker: RunningBroker, wanted: ClusterRecord) -> str:
    if (broker.generation, broker.epoch) > (wanted.generation, wanted.epoch):
        return f"{broker.name} answers that it knows generation {broker.generation}, epoch {broker.epoch}"
    return ""


def with_record(facts: ActivationFacts, record: ClusterRecord) -> ActivationFacts:
    """The facts once `record` is the record; what a broker said of the one before does not count any more."""
    return replace(
        facts, record=record, problem="", brokers=tuple(broker._replace(problem="") for broker in facts.brokers)
    )
