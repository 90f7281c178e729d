"""What a store says of itself: what `inspection` finds out, `best` judges, and one machine tells another as JSON."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import Any

from qpid_ha_broker.events.types import SetRecorded
from qpid_ha_broker.ha.frames import GenerationEntry, LogPosition
from qpid_ha_broker.model.logs.log import DEFAULT_SET


class Integrity(StrEnum):
    """Whether a broker could load it."""

    OK = "ok"
    TORN = "torn tail"
    """The last write was cut off: what it held was never confirmed. A broker drops it, and goes on."""
    DAMAGED = "damaged"
    """Bytes that were once on disk are not what was written: a broker refuses."""
    NEWER = "newer format"
    """Written by a newer release than this one."""


class FactsError(Exception):
    """Not the facts of a store; the text says what is wrong."""


@dataclass(frozen=True, slots=True)
class StoreFacts:
    """One store, as it was found. Of a damaged one: what can still be read, which may be less than it once held."""

    where: str
    """A directory, or `host:/directory`."""
    broker: str = ""
    cluster: str = ""
    set: str = ""
    history: tuple[GenerationEntry, ...] = ()
    """Empty: it never belonged to a cluster with a primary."""
    epoch: int = 0
    members: tuple[str, ...] = ()
    """The newest in-sync set in it."""
    epoch_lsn: int = 0
    """Of the event that formed that set; 0 when only STATUS tells of it."""
    members_before: tuple[str, ...] = ()
    """Of earlier sets that may have been in force still: the newest is not known to have been agreed on."""
    last_lsn: int = 0
    committed_lsn: int = 0
    """The last LSN of which its journal says that every member held it: a lower bound."""
    role: str = ""
    """The state of the broker when it last wrote STATUS."""
    clean: str = ""
    """UUID of the shutdown; empty: dirty."""
    integrity: Integrity = Integrity.OK
    detail: str = ""
    """Of what is not ok: file, offset, and what was found there."""
    messages: int = 0
    bytes: int = 0
    """Of files on disk."""
    transient: int = 0
    """Copies in queues of messages that were not durable: no recovery brings them back."""
    promised: int = 0
    """The newest generation that the broker has promised to a candidate."""
    promised_to: str = ""
    claims: tuple[int, ...] = ()
    """The generations that the broker wanted for itself."""
    is_chosen: bool = False
    """`store recover` has marked it, as it is now, as the one to begin with."""
    set_records: tuple[SetRecorded, ...] = ()
    """Of the store of `default`: the records of the other sets of the cluster map in it."""
    modified_ms: int = 0
    """When it was last written, by its machine's clock."""
    is_running: bool = False
    """A broker works on it now: the facts are of a moment ago."""

    @property
    def generation(self) -> int:
        """The newest one in it."""
        return self.history[-1].generation if self.history else 0

    @property
    def position(self) -> LogPosition:
        """Where its log ends."""
        return LogPosition(self.generation, self.last_lsn)

    @property
    def confirmed_lsn(self) -> int:
        """Up to here its own log was confirmed, at least. Who is catching up hears of more than it holds."""
        return min(self.committed_lsn, self.last_lsn)

    @property
    def is_set_confirmed(self) -> bool:
        """Its newest set is the one of its generation, and every member is known to have acknowledged it."""
        began = self.history[-1].first_lsn if self.history else 0
        return 0 < self.epoch_lsn <= self.confirmed_lsn and self.epoch_lsn >= began

    @property
    def is_readable(self) -> bool:
        """A broker can load it."""
        return self.integrity in (Integrity.OK, Integrity.TORN)

    @property
    def is_empty(self) -> bool:
        """Nobody ever wrote into it; of a damaged store that cannot be said."""
        return self.is_readable and not (self.history or self.last_lsn or self.messages)

    @property
    def label(self) -> str:
        """How to speak of it."""
        return self.broker or self.where

    def seen_from(self, host: str) -> StoreFacts:
        """These facts, with the place as another machine names it."""
        return replace(self, where=f"{host}:{self.where}")

    def to_json(self) -> dict[str, Any]:
        """The shape that `from_json` takes."""
        facts = {field.name: getattr(self, field.name) for field in fields(self)}
        return {**facts, "integrity": str(self.integrity), "history": [list(entry) for entry in self.history],
                "members": list(self.members), "members_before": list(self.members_before),
                "claims": list(self.claims), "set_records": [list(record) for record in self.set_records]}  # fmt: skip

    @classmethod
    def from_json(cls, document: object) -> StoreFacts:
        """Facts that another machine found. Unknown names are left out. Raises FactsError."""
        if not isinstance(document, Mapping) or not isinstance(document.get("where"), str):
            raise FactsError("expected an object with the facts of a store")
        known = {field.name for field in fields(cls)}
        given = {name: value for name, value in document.items() if name in known}
        try:
            history = tuple(GenerationEntry(int(g), str(p), int(lsn)) for g, p, lsn in given.pop("history", ()))
            members = tuple(str(member) for member in given.pop("members", ()))
            before = tuple(str(member) for member in given.pop("members_before", ()))
            claims = tuple(int(generation) for generation in given.pop("claims", ()))
            records = tuple(_record_of(*record) for record in given.pop("set_records", ()))
            integrity = Integrity(given.pop("integrity", Integrity.OK))
        except (ValueError, TypeError) as error:
            raise FactsError(f"these are no facts of a store: {error}") from None
        for name, value in given.items():
            if type(value) is not type(_DEFAULTS[name]):
                raise FactsError(f"{name}: expected {type(_DEFAULTS[name]).__name__}, found {value!r}")
        return cls(
            **given, history=history, members=members, members_before=before, claims=claims, set_records=records,
            integrity=integrity,
        )  # fmt: skip


_DEFAULTS = {field.name: ("" if field.name == "where" else field.default) for field in fields(StoreFacts)}


def _record_of(
    name: str, cluster: str, generation: int, primary: str, epoch: int, members: Sequence[str], claimed: bool
) -> SetRecorded:
    return SetRecorded(
        str(name), str(cluster), int(generation), str(primary), int(epoch), tuple(map(str, members)), bool(claimed)
    )


def set_of(store: StoreFacts) -> str:
    """The resource set whose store it is; `default` where nothing was written yet that says so."""
    return store.set or DEFAULT_SET


def by_set(stores: Sequence[StoreFacts]) -> dict[str, list[StoreFacts]]:
    """The stores of each set: `default` first, the others by name, those with numbers in their order."""
    stores_by_set: dict[str, list[StoreFacts]] = {name: [] for name in in_order({set_of(store) for store in stores})}
    for store in stores:
        stores_by_set[set_of(store)].append(store)
    return stores_by_set


def in_order(names: Iterable[str]) -> list[str]:
    """Of sets: `default` first, the others by name, those with numbers in their order."""
    return sorted(names, key=lambda name: (name != DEFAULT_SET, _natural(name)))


def _natural(name: str) -> list[tuple[int, str]]:
    """For sorting: shard-2 before shard-10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"([0-9]+)", name)]
