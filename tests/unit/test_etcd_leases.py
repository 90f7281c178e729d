"""Leases of etcd that are given back while it does not answer."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from limits import LIMIT_S
from qpid_ha_broker.coordination import etcd
from qpid_ha_broker.coordination.coordinator import CoordinatorError
from qpid_ha_broker.coordination.deadline import Deadline
from qpid_ha_broker.coordination.etcd import EtcdCoordinator
from qpid_ha_broker.coordination.etcd_gateway import Change, EtcdGateway, KeyValue, PrefixRead, TxnOutcome, WatchStream
from qpid_ha_config.coordinator import CoordinatorUrl
from qpid_ha_config.settings import CoordinatorSettings


class FakeGateway(EtcdGateway):
    """One server's leases and keys; while `is_away` is set, nobody answers."""

    def __init__(self, settings: CoordinatorSettings) -> None:
        super().__init__(settings)
        self.is_away = threading.Event()
        self.keys: dict[str, KeyValue] = {}
        self.asked = threading.Semaphore(0)
        """Once for each attempt to revoke."""
        self.revoked = threading.Event()

    def _answer(self) -> None:
        if self.is_away.is_set():
            raise CoordinatorError("etcd does not answer")

    def read(self, key: str, deadline: Deadline) -> KeyValue | None:
        self._answer()
        return self.keys.get(key)

    def read_prefix(self, prefix: str, deadline: Deadline) -> PrefixRead:
        raise CoordinatorError("nobody watches here")

    def open_watch(self, server: object, prefix: str, revision: int) -> WatchStream:
        raise CoordinatorError("nobody watches here")

    def grant(self, lease: int, ttl_s: int, deadline: Deadline) -> int:
        self._answer()
        return ttl_s

    def commit(self, change: Change, deadline: Deadline) -> TxnOutcome:
        self._answer()
        found = self.keys.get(change.key)
        if found is None and change.value is not None:
            self.keys[change.key] = KeyValue(change.key, change.value, 1, change.lease)
        return TxnOutcome(found is None, found, 1, may_be_second=False)

    def revoke(self, lease: int, deadline: Deadline) -> None:
        self.asked.release()
        self._answer()
        self.keys = {key: entry for key, entry in self.keys.items() if entry.lease != lease}
        self.revoked.set()


@pytest.fixture
def gateway(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeGateway:
    made = FakeGateway(CoordinatorSettings(CoordinatorUrl.parse("etcd://127.0.0.1:1/c1")))
    monkeypatch.setattr(etcd, "EtcdGateway", lambda settings: made)
    monkeypatch.setattr(etcd, "RELEASE_AGAIN_S", 0.001)
    return made


@pytest.fixture
def coordinator(gateway: FakeGateway) -> EtcdCoordinator:
    return EtcdCoordinator(CoordinatorSettings(CoordinatorUrl.parse("etcd://127.0.0.1:1/c1")))


def test_a_lease_that_could_not_be_given_back_is_given_back_as_soon_as_etcd_answers(
    gateway: FakeGateway, coordinator: EtcdCoordinator
) -> None:
    """Its leader and the primary may have died together: a lease that waits for its own end is in everybody's way."""
    lease = coordinator.lease("a")
    assert lease.try_lock()
    gateway.is_away.set()
    lease.release()  # and does not wait for that
    for _ in range(3):
        assert gateway.asked.acquire(timeout=LIMIT_S)
    gateway.is_away.clear()
    assert gateway.revoked.wait(LIMIT_S)
    assert coordinator.lease("b").try_lock()


def test_a_lease_of_which_nobody_knows_whether_it_was_given_is_given_back(
    gateway: FakeGateway, coordinator: EtcdCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = gateway.commit

    def lose_the_answer(change: Change, deadline: Deadline) -> TxnOutcome:
        commit(change, deadline)
        raise CoordinatorError("etcd does not answer")

    monkeypatch.setattr(gateway, "commit", lose_the_answer)
    with pytest.raises(CoordinatorError):
        coordinator.lease("a").try_lock()
    assert gateway.revoked.wait(LIMIT_S)
    monkeypatch.undo()
    assert coordinator.lease("b").try_lock()


def test_at_its_end_a_program_waits_for_leases_no_longer_than_it_must(
    gateway: FakeGateway, coordinator: EtcdCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(etcd, "RELEASE_LIMIT_S", 0.0)
    assert coordinator.lease("a").try_lock()
    gateway.is_away.set()
    coordinator.close()
    assert gateway.asked.acquire(timeout=LIMIT_S)
