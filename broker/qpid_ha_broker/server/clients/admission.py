"""Which sockets a broker keeps, and which one has to go for the next: decided by counts and ages, without any I/O.

A socket passes through three states:

1. *unopened*: it has not sent an AMQP open that was let in. It costs its owner nothing, so there may be
   `unopened` of them at most, and each of them has to go when another one needs the place: first those of the address
   that has most, of them first those that have sent nothing, the oldest first. Nobody goes before an honest client
   would have had time to get on (`SILENT_S`, `TALKING_S`); until then whoever comes next waits in the kernel.
2. *served*: its open was let in. It never goes for another one. Clients are counted in all and by address; those
   marked for administration are counted apart, and so are other brokers of the cluster: nobody else takes their places.
3. *ended*: it was served or refused, and its peer has not gone yet. It counts as unopened.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Final, Generic, TypeVar

SILENT_S: Final = 0.1
"""For so long one that has sent nothing keeps its place in any case: a client speaks first, and at once."""
TALKING_S: Final = 0.3
"""For so long after its last bytes one that talks keeps its place in any case: TLS and SASL take several trips."""
TALKING_MAX_S: Final = 1.0
"""Since it was accepted: bytes that come later win it no more time."""

Key = TypeVar("Key")


@dataclass(frozen=True)
class AdmissionLimits:
    """How many there may be of each."""

    clients: int
    clients_per_address: int
    unopened: int
    marked: int
    """Connections marked for administration, but those of brokers."""
    brokers: int
    """Connections of other brokers of the cluster."""

    @classmethod
    def within(
        cls, usable_descriptors: int, *, clients: int, clients_per_address: int, unopened: int, marked: int = 256,
        brokers: int = 256,
    ) -> AdmissionLimits:  # fmt: skip
        """As asked for, as far as clients, newcomers and brokers have descriptors at the same time."""
        unopened = min(unopened, max(usable_descriptors // 4, 1))
        marked = min(marked, max(usable_descriptors // 16, 1))
        brokers = min(brokers, max(usable_descriptors // 8, 1))
        clients = min(clients, max(usable_descriptors - unopened - marked - brokers, 1))
        return cls(clients, clients_per_address, unopened, marked, brokers)


class _Kind(Enum):
    """What those are counted as that are served."""

    CLIENT = "client"
    MARKED = "marked"
    BROKER = "broker"


class AdmissionRefusal(Enum):
    """Why an open is not let in."""

    CLIENTS = "max-connections"
    ADDRESS = "max-connections-per-address"
    MARKED = "connections marked for administration"
    BROKERS = "connections of other brokers"


@dataclass(slots=True)
class _Unopened:
    address: str
    accepted_s: float
    has_spoken: bool


class Admission(Generic[Key]):
    """The promise: at most `limits.unopened` sockets are unserved, and one that is served never makes way for another.

    `Key` stands for a socket. Times are seconds by a clock that never jumps.
    """

    def __init__(self, limits: AdmissionLimits) -> None:
        self.limits = limits
        self._unopened: dict[Key, _Unopened] = {}
        self._by_address: dict[str, tuple[dict[Key, float], dict[Key, float]]] = {}
        """Of those: the silent ones and the talking ones of each address, with the time of their last progress, which
        is their order."""
        self._served: dict[Key, tuple[str, _Kind]] = {}
        """With their addresses."""
        self._clients: Counter[str] = Counter()
        """Served clients, by address."""
        self._others: Counter[_Kind] = Counter()
        """Served, and no clients."""

    @property
    def unopened(self) -> list[Key]:
        """The connections that are not served, in no certain order."""
        return list(self._unopened)

    @property
    def count(self) -> int:
        """All sockets."""
        return len(self._unopened) + len(self._served)

    @property
    def is_full(self) -> bool:
        """Whether one has to go before another one may come."""
        return len(self._unopened) >= self.limits.unopened

    def accepted(self, key: Key, address: str, now_s: float) -> None:
        """A socket from `address`."""
        self._enter(key, address, now_s, now_s, has_spoken=False)

    def spoke(self, key: Key, now_s: float) -> None:
        """Bytes came."""
        unopened = self._unopened.get(key)
        if unopened is not None and now_s - unopened.accepted_s <= TALKING_MAX_S:
            self._leave(key)
            self._enter(key, unopened.address, unopened.accepted_s, now_s, has_spoken=True)

    def opened(self, key: Key, *, is_marked: bool, is_broker: bool = False) -> AdmissionRefusal | None:
        """Its AMQP open came: serve it, unless a limit is reached. `is_broker`: which it has proved."""
        unopened = self._unopened.get(key)
        if unopened is None:
            return None
        limits = self.limits
        kind = _Kind.BROKER if is_broker else _Kind.MARKED if is_marked else _Kind.CLIENT
        match kind:
            case _Kind.BROKER if self._others[kind] >= limits.brokers:
                return AdmissionRefusal.BROKERS
            case _Kind.MARKED if self._others[kind] >= limits.marked:
                return AdmissionRefusal.MARKED
            case _Kind.CLIENT if self._clients.total() >= limits.clients:
                return AdmissionRefusal.CLIENTS
            case _Kind.CLIENT if self._clients[unopened.address] >= limits.clients_per_address:
                return AdmissionRefusal.ADDRESS
        self._leave(key)
        self._served[key] = (unopened.address, kind)
        if kind is _Kind.CLIENT:
            self._clients[unopened.address] += 1
        else:
            self._others[kind] += 1
        return None

    def ended(self, key: Key, now_s: float) -> None:
        """The connection is served no more; its socket is still there."""
        served = self._served.get(key)
        if served is not None:
            self.gone(key)
            self._enter(key, served[0], now_s, now_s, has_spoken=True)

    def gone(self, key: Key) -> None:
        """Its socket is closed."""
        if key in self._unopened:
            self._leave(key)
        served = self._served.pop(key, None)
        if served is None:
            return
        address, kind = served
        if kind is not _Kind.CLIENT:
            self._others[kind] -= 1
        elif self._clients[address] > 1:
            self._clients[address] -= 1
        else:
            del self._clients[address]

    def next_to_go(self, now_s: float) -> Key | None:
        """Who has to go for the next one; None: nobody yet."""
        if not self._by_address:
            return None
        silent, talking = max(self._by_address.values(), key=lambda groups: len(groups[0]) + len(groups[1]))
        for group, patience_s in ((silent, SILENT_S), (talking, TALKING_S)):
            oldest = next(iter(group), None)
            if oldest is not None and now_s - group[oldest] >= patience_s:
                return oldest
        return None

    def check_invariants(self, fail: Callable[[str], None]) -> None:
        """Tell `fail` of each contradiction."""
        grouped = [key for groups in self._by_address.values() for group in groups for key in group]
        if sorted(map(id, grouped)) != sorted(map(id, self._unopened)):
            fail("the groups by address do not hold the unopened")
        if any(not silent and not talking for silent, talking in self._by_address.values()):
            fail("an address has an entry and no socket")
        if self._unopened.keys() & self._served.keys():
            fail("a socket is both served and unopened")
        if self._clients.total() + self._others.total() != len(self._served):
            fail("the served are counted wrongly")
        if any(count <= 0 for count in self._clients.values()):
            fail("an address has an entry and no client")

    def _enter(self, key: Key, address: str, accepted_s: float, now_s: float, *, has_spoken: bool) -> None:
        self._unopened[key] = _Unopened(address, accepted_s, has_spoken)
        self._by_address.setdefault(address, ({}, {}))[has_spoken][key] = now_s

    def _leave(self, key: Key) -> None:
        unopened = self._unopened.pop(key)
        groups = self._by_address[unopened.address]
        del groups[unopened.has_spoken][key]
        if not groups[0] and not groups[1]:
            del self._by_address[unopened.address]
