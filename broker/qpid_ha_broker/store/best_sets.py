"""After a crash of everything: what becomes of each resource set, by `best` on its stores, beside its record.

The record of a set is in the log of `default`, so the stores of `default` come first. Where it is known which of those
holds all that was confirmed, its records are the newest that there are, as a coordinator's is for `default`. Where it
is not, they are older ones at worst: what they tell of did happen, and there may have been more.

What is said of a set, the first that applies; the map is that of `default`, newest or not:

1. No store of `default` that tells of other sets is here: the verdict on its stores alone.
2. The newest map does not have it: it was deleted, and nothing is to be decided.
3. Stores are of another UUID than its record in the newest map: they are strangers, of an earlier set of its name.
4. No other store holds anything: nothing is to be decided where the record says that it was never led; else somebody
   has to decide, and who was in sync is named.
5. A store goes further than the record in a map that may be an old one: the verdict on its stores alone.
6. Else the verdict on its stores beside the record.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from qpid_ha_broker.events.types import SetRecorded
from qpid_ha_broker.ha.cluster_record import ClusterRecord
from qpid_ha_broker.model.logs.log import DEFAULT_SET
from qpid_ha_broker.store.advice import Option
from qpid_ha_broker.store.best import Admin, Doubt, Equal, Reason, Standing, Verdict, Winner, best, leading
from qpid_ha_broker.store.facts import StoreFacts, by_set, in_order


@dataclass(frozen=True)
class Nothing:
    """There is nothing to begin with again, and nothing to lose."""

    text: str
    reasons: tuple[Reason, ...]
    next_commands: tuple[str, ...] = ()


class SetVerdict(NamedTuple):
    """What is said of a set. `record`: as the map has it; None: of `default`, or not known."""

    verdict: Verdict | Nothing
    record: SetRecorded | None
    best: StoreFacts | None
    """The copy to begin with, or that is furthest where somebody has to decide; None: there is none."""

    @property
    def is_recorded(self) -> bool | None:
        """Whether the broker of `best` is in sync by the record; None: there is nothing to compare."""
        if self.record is None or self.best is None or not self.record.generation:
            return None
        return self.best.broker in self.record.members


class MapRecords(NamedTuple):
    """What the stores of `default` tell of the other sets."""

    records: Mapping[str, SetRecorded]
    is_newest: bool


def best_of_sets(
    stores: Sequence[StoreFacts], record: ClusterRecord | None = None, *, has_all: bool = True
) -> dict[str, SetVerdict]:
    """Of each resource set, `default` first. `record`: of `default`.

    `has_all`: stores of all sets were looked for, so one of which there is only a record lacks them.
    """
    groups = by_set(stores)
    verdicts: dict[str, SetVerdict] = {}
    known = None
    if DEFAULT_SET in groups:
        first = best(groups[DEFAULT_SET], record)
        verdicts[DEFAULT_SET] = SetVerdict(first, None, _chosen(first, groups[DEFAULT_SET]))
        known = map_records(groups[DEFAULT_SET], first)
    names = {*groups, *(known.records if known is not None and has_all else ())} - {DEFAULT_SET}
    for name in in_order(names):
        verdicts[name] = _of_set(name, groups.get(name, []), known)
    return verdicts


def map_records(stores: Sequence[StoreFacts], verdict: Verdict) -> MapRecords | None:
    """The records of sets in the store of `default` whose log counts; None: it tells of no other set."""
    chosen = _chosen(verdict, stores)
    if chosen is None or not chosen.set_records:
        return None
    records = {record.name: record for record in chosen.set_records}
    return MapRecords(records, not isinstance(verdict, Admin))


def _chosen(verdict: Verdict | Nothing, stores: Sequence[StoreFacts]) -> StoreFacts | None:
    match verdict:
        case Winner():
            return verdict.store
        case Equal():
            return next((store for store in verdict.stores if not store.is_empty), None)
        case Admin() if verdict.doubt is not Doubt.CLUSTERS:
            filled = [store for store in stores if not store.is_empty]
            return leading(filled) if filled else None
    return None


def _of_set(name: str, stores: Sequence[StoreFacts], known: MapRecords | None) -> SetVerdict:
    record = known.records.get(name) if known is not None else None
    if known is None or (record is None and not known.is_newest):
        verdict = best(stores)
        return SetVerdict(verdict, None, _chosen(verdict, stores))
    if record is None:
        text = "The cluster map has no such set: it was deleted, and no broker looks for its stores."
        return SetVerdict(Nothing(text, _strangers(stores, "is of a set that was deleted")), None, None)
    of_set, others = _by_cluster(stores, record) if known.is_newest else (list(stores), [])
    reasons = _strangers(others, "is of an earlier set of this name: its broker sets it aside")
    filled = [store for store in of_set if not store.is_empty]
    if not filled:
        empty = tuple(Reason(store.label, store.where, Standing.EMPTY, "holds nothing") for store in of_set)
        return SetVerdict(_nobody(name, record, (*empty, *reasons)), record, None)
    may_be_old = not known.is_newest and any(store.generation > record.generation for store in filled)
    verdict = best(of_set, None if may_be_old else ClusterRecord(*record[1:]))
    return SetVerdict(replace(verdict, reasons=(*verdict.reasons, *reasons)), record, _chosen(verdict, filled))


def _by_cluster(stores: Sequence[StoreFacts], record: SetRecorded) -> tuple[list[StoreFacts], list[StoreFacts]]:
    """The stores that may be of the set with that record, and the stores of another one that had its name."""
    of_set = [store for store in stores if not store.cluster or not record.cluster or store.cluster == record.cluster]
    return of_set, [store for store in stores if store not in of_set]


def _strangers(stores: Sequence[StoreFacts], text: str) -> tuple[Reason, ...]:
    return tuple(Reason(store.label, store.where, Standing.STRANGER, text) for store in stores)


def _nobody(name: str, record: SetRecorded, reasons: tuple[Reason, ...]) -> Admin | Nothing:
    """The map has the set, and of what it held nothing is here."""
    if not record.generation:
        return Nothing("By its record in the cluster map it was never led: nothing was ever confirmed.", reasons)
    members = ", ".join(record.members)
    question = (
        f"No store of this set is here that holds anything. By its record in the cluster map {members} were in sync"
        f" (generation {record.generation}, epoch {record.epoch}). Can a store of one of those be had?"
    )
    absent = tuple(
        Reason(member, "", Standing.MISSING, "is in the recorded in-sync set, and its store is not here")
        for member in record.members
        if member not in {reason.broker for reason in reasons}
    )
    wanted = " ".join(f"{member}:DATA-DIR" for member in record.members)
    wait = Option(f"Wait for {members}: bring a store here, and ask again", (f"qpid-ha store best {wanted}",))
    lost = Option(
        "Give the set and its queues up, once `default` has a primary", (f"qpid-ha set delete --lost {name}",)
    )
    return Admin(Doubt.NO_STORES, question, (*reasons, *absent), (wait, lost), record.members)
