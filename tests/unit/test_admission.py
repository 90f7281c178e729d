"""Which sockets stay and which go, by counts and ages: without a socket."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from qpid_ha_broker.server.clients.admission import (
    SILENT_S,
    TALKING_MAX_S,
    TALKING_S,
    Admission,
    AdmissionLimits,
    AdmissionRefusal,
)
from qpid_ha_broker.server.runtime.descriptors import Descriptors

LIMITS = AdmissionLimits(clients=3, clients_per_address=2, unopened=4, marked=1, brokers=1)


@pytest.fixture
def admission() -> Admission[str]:
    return Admission(LIMITS)


def arrive(admission: Admission[str], address: str, *keys: str, now_s: float = 0.0) -> None:
    for key in keys:
        admission.accepted(key, address, now_s)


def test_an_attacker_makes_way_for_itself_and_for_nobody_of_another_address(admission: Admission[str]) -> None:
    arrive(admission, "10.0.0.2", "honest")
    arrive(admission, "10.0.0.9", "a", "b", "c", now_s=1)
    assert admission.is_full
    assert admission.next_to_go(2) == "a"


def test_one_that_has_sent_nothing_goes_before_one_that_talks(admission: Admission[str]) -> None:
    arrive(admission, "127.0.0.1", "honest", "silent", "later")
    admission.spoke("honest", 0)
    assert admission.next_to_go(100) == "silent"
    admission.gone("silent")
    admission.gone("later")
    assert admission.next_to_go(100) == "honest"


def test_nobody_goes_before_a_client_had_time_to_get_on(admission: Admission[str]) -> None:
    arrive(admission, "127.0.0.1", "client")
    assert admission.next_to_go(SILENT_S * 0.9) is None
    assert admission.next_to_go(SILENT_S * 1.1) == "client"
    admission.spoke("client", SILENT_S)
    assert admission.next_to_go(SILENT_S + TALKING_S * 0.9) is None
    assert admission.next_to_go(SILENT_S + TALKING_S * 1.1) == "client"


def test_bytes_that_come_one_by_one_win_no_more_than_a_second(admission: Admission[str]) -> None:
    arrive(admission, "127.0.0.1", "slow")
    for number in range(100):
        admission.spoke("slow", number * 0.1)
    assert admission.next_to_go(TALKING_MAX_S) is None
    assert admission.next_to_go(TALKING_MAX_S + TALKING_S * 1.1) == "slow"


def test_one_that_is_served_never_goes_for_another(admission: Admission[str]) -> None:
    arrive(admission, "127.0.0.1", "client")
    assert admission.opened("client", is_marked=False) is None
    assert admission.next_to_go(100) is None


def test_one_that_has_ended_and_stays_is_the_next_to_go(admission: Admission[str]) -> None:
    arrive(admission, "127.0.0.1", "client")
    admission.opened("client", is_marked=False)
    admission.ended("client", 5)
    assert admission.unopened == ["client"]
    assert admission.next_to_go(5 + TALKING_S * 1.1) == "client"


def test_clients_are_limited_in_all_and_by_address_and_brokers_apart_from_them(admission: Admission[str]) -> None:
    admission.limits = replace(LIMITS, unopened=7)
    arrive(admission, "10.0.0.1", "a1", "a2", "a3", "broker", "other broker", "admin", "other admin")
    arrive(admission, "10.0.0.2", "b1", "b2")
    said = {key: admission.opened(key, is_marked=False) for key in ("a1", "a2", "a3", "b1", "b2")}
    assert said == {"a1": None, "a2": None, "a3": AdmissionRefusal.ADDRESS, "b1": None, "b2": AdmissionRefusal.CLIENTS}
    assert admission.opened("admin", is_marked=True) is None
    assert admission.opened("other admin", is_marked=True) is AdmissionRefusal.MARKED
    assert admission.opened("broker", is_marked=True, is_broker=True) is None  # whose place no administrator takes
    assert admission.opened("other broker", is_marked=True, is_broker=True) is AdmissionRefusal.BROKERS
    admission.gone("a1")
    assert admission.opened("a3", is_marked=False) is None


@pytest.mark.parametrize("limit", [16, 64, 256, 1024, 20_000, 1 << 20])
def test_clients_newcomers_and_brokers_fit_into_the_descriptors_beside_those_of_the_store(limit: int) -> None:
    descriptors = Descriptors.of(limit)
    limits = AdmissionLimits.within(descriptors.for_clients, clients=5000, clients_per_address=2500, unopened=1000)
    assert limits.clients + limits.unopened + limits.marked + limits.brokers <= descriptors.for_clients < limit
    assert min(limits.clients, limits.unopened, limits.marked, limits.brokers) >= 1
    if limit >= 20_000:
        assert (limits.clients, limits.unopened) == (5000, 1000)


@pytest.mark.parametrize("seed", range(30))
def test_the_counts_hold_whatever_happens(seed: int) -> None:
    chance = random.Random(seed)
    admission = Admission[int](LIMITS)
    keys: list[int] = []
    for number in range(400):
        now_s = number * 0.05
        step = chance.randrange(6)
        if step <= 1:
            if admission.is_full:
                leaver = admission.next_to_go(now_s)
                if leaver is None:
                    continue
                admission.gone(leaver)
            admission.accepted(number, f"10.0.0.{chance.randrange(3)}", now_s)
            keys.append(number)
        elif keys:
            key = chance.choice(keys)
            if step == 2:
                admission.spoke(key, now_s)
            elif step == 3:
                admission.opened(key, is_marked=chance.random() < 0.2, is_broker=chance.random() < 0.1)
            elif step == 4:
                admission.ended(key, now_s)
            else:
                admission.gone(key)
        problems: list[str] = []
        admission.check_invariants(problems.append)
        assert problems == [], f"seed {seed}, step {number}"
