"""A real etcd as coordinator: what leases and watches do when servers are slow, dead or empty, and who may use it.

What every coordinator has to do, its conformance suite shows; a cluster that goes on with etcd, test_coordinator_cli.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from certificate_authority import Authority
from coordinator_calls import CALL_LIMIT_S, NEXT, RECORD, Open, Watch, complaint
from etcd_ensemble import EtcdEnsemble, ServerTls
from limits import LIMIT_S
from qpid_ha_broker.coordination.conformance.watcher import Watcher
from qpid_ha_broker.coordination.coordinator import Coordinator, CoordinatorError
from qpid_ha_broker.coordination.etcd_gateway import Change, EtcdGateway, KeyValue
from qpid_ha_broker.ha.cluster_record import ClusterRecord
from qpid_ha_config.coordinator import CoordinatorUrl
from running_agent import wait_until

SESSION_S = 2.0


@pytest.fixture
def url(etcd: EtcdEnsemble, namespace: str) -> str:
    return etcd.url(namespace)


def wait_called(watcher: Watcher, times: int) -> None:
    """Until it was told so often of a change."""
    wait_until(lambda: watcher.calls >= times, lambda: f"{watcher.calls} calls, not {times}")


# --- the record


def test_a_record_that_is_none_is_an_error_that_says_what_to_do(etcd: EtcdEnsemble, url: str, opened: Open) -> None:
    coordinator = opened(url)
    key = f"{CoordinatorUrl.parse(url).namespace}/record"
    etcd.etcdctl("put", key, "{")
    assert f"`etcdctl del {key}`" in complaint(coordinator.read)
    assert "is damaged" in complaint(lambda: coordinator.compare_and_set(ClusterRecord(), RECORD))
    etcd.etcdctl("del", key)
    assert coordinator.compare_and_set(ClusterRecord(), RECORD) == (True, RECORD)


def test_a_change_goes_by_the_revision_and_by_what_was_there() -> None:
    """Revisions begin anew when all servers lost their data: the number alone does not tell which record it was."""
    change = Change("c1/record", KeyValue("c1/record", b"old", 7, 0), b"new").as_json()
    assert change["compare"] == [
        {"target": "MOD", "key": "YzEvcmVjb3Jk", "result": "EQUAL", "mod_revision": "7"},
        {"target": "VALUE", "key": "YzEvcmVjb3Jk", "result": "EQUAL", "value": "b2xk"},
    ]


# --- the lease


def test_a_lease_that_nobody_renews_is_lost_before_another_one_can_have_it(url: str, opened: Open) -> None:
    mine, other = opened(url, session_timeout_s=SESSION_S).lease("one"), opened(url).lease("two")
    assert mine.try_lock()
    assert other.acquire(threading.Event())
    assert not mine.is_held()


def test_an_operator_who_deletes_the_key_takes_the_lease_away(
    etcd: EtcdEnsemble, url: str, namespace: str, opened: Open
) -> None:
    lease = opened(url).lease("one")
    assert lease.try_lock()
    assert lease.holder().startswith(f"one (pid {os.getpid()}, since ")
    etcd.etcdctl("del", f"{namespace}/leases/primary")
    wait_until(lambda: not lease.is_held(), lambda: "it is still held")


# --- the watch


def test_a_watch_tells_of_changes_by_others_and_not_of_leases(url: str, opened: Open, watching: Watch) -> None:
    watcher, writer = watching(opened(url)), opened(url)
    wait_called(watcher, 1)
    writer.compare_and_set(ClusterRecord(), RECORD)
    wait_called(watcher, 2)
    assert writer.lease("one").try_lock()
    writer.replace_note("pause", "", "{}")
    wait_called(watcher, 3)
    assert watcher.calls == 3


def test_a_stream_that_asks_for_what_was_compacted_away_begins_anew(
    etcd: EtcdEnsemble, url: str, opened: Open, watching: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the read and the stream that follows from there, somebody compacts."""
    coordinator, writer = opened(url), opened(url)
    open_watch = EtcdGateway.open_watch
    late: list[int] = []

    def open_late(gateway: EtcdGateway, server: Any, prefix: str, revision: int) -> Any:
        if not late:
            late.append(revision)
            writer.compare_and_set(ClusterRecord(), RECORD)
            writer.compare_and_set(RECORD, NEXT)
            etcd.etcdctl("compaction", str(etcd.revision()))
        return open_watch(gateway, server, prefix, revision)

    monkeypatch.setattr(EtcdGateway, "open_watch", open_late)
    watcher = watching(coordinator)
    wait_called(watcher, 2)  # the read before, then what was missed
    writer.compare_and_set(NEXT, RECORD)
    assert watcher.sees(RECORD, LIMIT_S)


# --- servers that are slow, dead, or empty


@pytest.fixture
def opened_at(
    etcd: EtcdEnsemble, url: str, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> Callable[[int], Coordinator]:
    """Opens one that asks this server first; else that is drawn."""

    def open_at(member: int) -> Coordinator:
        port = etcd.members[member].port
        with monkeypatch.context() as patched:
            patched.setattr("random.shuffle", lambda servers: servers.sort(key=lambda server: server.port != port))
            return opened(url)

    return open_at


@pytest.mark.alone("most calls cost nothing that one would notice")
def test_a_server_that_hangs_costs_one_call_and_a_watch_leaves_it_for_another_one(
    etcd: EtcdEnsemble, opened_at: Callable[[int], Coordinator], watching: Watch
) -> None:
    leader = etcd.leader()
    slow = (leader + 1) % 3
    coordinator, writer = opened_at(slow), opened_at(leader)
    coordinator.compare_and_set(ClusterRecord(), RECORD)
    watcher = watching(coordinator)
    assert watcher.sees(RECORD, LIMIT_S)
    etcd.pause(slow)
    try:
        times_s = []
        for _ in range(20):
            began_s = time.monotonic()
            assert coordinator.read() == RECORD
            times_s.append(time.monotonic() - began_s)
        assert writer.compare_and_set(RECORD, NEXT) == (True, NEXT)
        assert watcher.sees(NEXT, LIMIT_S)
    finally:
        etcd.resume(slow)
    assert max(times_s) < CALL_LIMIT_S
    assert median(times_s) < 0.5


def test_a_watch_goes_on_at_another_server_when_its_own_one_dies(
    etcd: EtcdEnsemble, opened_at: Callable[[int], Coordinator], watching: Watch
) -> None:
    leader = etcd.leader()
    watcher, writer = watching(opened_at(leader)), opened_at((leader + 1) % 3)
    wait_called(watcher, 1)
    etcd.kill(leader)
    try:
        wait_until(lambda: has_written(writer), lambda: "nobody is elected")
        assert watcher.sees(RECORD, LIMIT_S)
    finally:
        etcd.restart(leader)
        etcd.wait_healthy()


def has_written(writer: Coordinator) -> bool:
    """Whether the record is there; while another server is elected, nobody knows."""
    try:
        return writer.compare_and_set(ClusterRecord(), RECORD)[0] or writer.read() == RECORD
    except CoordinatorError:
        return False


def test_a_leader_that_hangs_loses_nobody_a_lease(etcd: EtcdEnsemble, url: str, opened: Open) -> None:
    lease = opened(url).lease("one")
    assert lease.try_lock()
    hanging = etcd.leader()
    etcd.pause(hanging)
    try:
        end_s = time.monotonic() + 5.0
        while time.monotonic() < end_s:
            with suppress(CoordinatorError):  # another server is elected; the next attempt is soon enough
                lease.renew()
            assert lease.is_held()
            time.sleep(0.2)
    finally:
        etcd.resume(hanging)
        etcd.wait_healthy()


def test_servers_that_are_down_at_first_are_waited_for_and_when_they_forget_all_the_lease_is_lost(
    opened: Open, watching: Watch
) -> None:
    ensemble = EtcdEnsemble(1)
    try:
        coordinator = opened(ensemble.url("c1"), session_timeout_s=SESSION_S)
        watcher = watching(coordinator)
        text = complaint(coordinator.read)
        assert ensemble.addresses[0] in text
        assert "start its servers" in text
        ensemble.start()
        wait_called(watcher, 1)
        assert coordinator.compare_and_set(ClusterRecord(), RECORD) == (True, RECORD)

        lease = coordinator.lease("one")
        assert lease.try_lock()
        before = watcher.calls
        ensemble.wipe()
        ensemble.start()
        wait_called(watcher, before + 1)
        wait_until(lambda: not lease.is_held(), lambda: "it is still held", SESSION_S)
        assert coordinator.compare_and_set(RECORD, NEXT) == (False, ClusterRecord())
        assert coordinator.compare_and_set(ClusterRecord(), NEXT) == (True, NEXT)
        assert coordinator.lease("one").try_lock()
    finally:
        ensemble.stop()


# --- users and certificates


@pytest.fixture(scope="module")
def guarded() -> Iterator[EtcdEnsemble]:
    """One server that knows `me`, who may use what is below `mine/`."""
    with EtcdEnsemble(1) as ensemble:
        ensemble.enable_users({"me": ("s3cret", "mine/")})
        yield ensemble


@pytest.fixture
def password_file(tmp_path: Path) -> Path:
    path = tmp_path / "password"
    path.write_text("s3cret\n", encoding="utf-8")
    return path


def test_who_has_a_user_may_use_what_is_his(
    guarded: EtcdEnsemble, password_file: Path, opened: Open, watching: Watch
) -> None:
    coordinator = opened(guarded.url("mine/c1"), username="me", password_file=password_file)
    watcher = watching(coordinator)
    wait_called(watcher, 1)
    assert coordinator.compare_and_set(ClusterRecord(), RECORD) == (True, RECORD)
    assert watcher.sees(RECORD, LIMIT_S)
    assert coordinator.lease("one").try_lock()


def test_who_gets_another_password_logs_in_again(guarded: EtcdEnsemble, password_file: Path, opened: Open) -> None:
    """etcd forgets the tokens of a user whose password changes, as of one whose token is old."""
    coordinator = opened(guarded.url("mine/c2"), username="me", password_file=password_file)
    coordinator.read()
    guarded.etcdctl("user", "passwd", "me", "--interactive=false", text="an0ther\n")
    try:
        assert "authentication failed" in complaint(coordinator.read)
        password_file.write_text("an0ther\n", encoding="utf-8")
        assert coordinator.compare_and_set(ClusterRecord(), RECORD) == (True, RECORD)
    finally:
        guarded.etcdctl("user", "passwd", "me", "--interactive=false", text="s3cret\n")


def test_what_etcd_refuses_says_which_setting_or_role_is_missing(
    guarded: EtcdEnsemble, url: str, password_file: Path, opened: Open
) -> None:
    login = {"username": "me", "password_file": password_file}
    theirs = opened(guarded.url("theirs/c1"), **login)
    for call in (theirs.read, lambda: theirs.compare_and_set(ClusterRecord(), RECORD)):
        text = complaint(call)
        assert "permission denied" in text
        assert "etcdctl role grant-permission ROLE --prefix=true readwrite theirs/c1/" in text
    nobody = complaint(opened(guarded.url("mine/c1")).read)
    assert "ha.coordinator-username and ha.coordinator-password-file" in nobody
    assert "`etcdctl auth enable`" in complaint(opened(url, **login).read)

    password_file.write_text("wrong-one\n", encoding="utf-8")
    coordinator = opened(guarded.url("mine/c1"), **login)
    text = complaint(coordinator.read)
    assert "authentication failed" in text
    assert "ha.coordinator-username" in text
    assert "wrong-one" not in text
    password_file.write_text("s3cret\n", encoding="utf-8")  # it is read again
    coordinator.read()
    password_file.unlink()
    assert f"cannot read {password_file}" in complaint(opened(url, **login).read)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture(scope="module")
def secure(authority: Authority) -> Iterator[EtcdEnsemble]:
    """One server that wants certificates. It shows its own one to itself, as a client, too."""
    certificate, key = authority.issue("")
    with EtcdEnsemble(
        1, tls=ServerTls(authority.certificate, certificate, key, client_ca=authority.certificate)
    ) as ensemble:
        yield ensemble


def test_with_tls_both_sides_show_certificates_or_say_what_to_correct(
    secure: EtcdEnsemble, authority: Authority, url: str, tmp_path: Path, opened: Open, watching: Watch
) -> None:
    where, ca = secure.url("c1"), authority.certificate
    certificate, key = authority.issue("client")
    coordinator = opened(where, tls=True, ca=ca, certificate=certificate, key=key)
    watcher = watching(coordinator)
    wait_called(watcher, 1)
    assert coordinator.compare_and_set(ClusterRecord(), RECORD) == (True, RECORD)
    assert watcher.sees(RECORD, LIMIT_S)

    (tmp_path / "other").mkdir()
    stranger = Authority(tmp_path / "other")
    expired, expired_key = authority.issue("late", days=-1)
    assert "ha.coordinator-ca" in complaint(opened(where, tls=True, ca=stranger.certificate).read)
    assert "ha.coordinator-ca" in complaint(opened(where, tls=True).read)  # the system's authorities
    assert "ha.coordinator-certificate" in complaint(opened(where, tls=True, ca=ca).read)
    late = opened(where, tls=True, ca=ca, certificate=expired, key=expired_key)
    assert "ha.coordinator-certificate" in complaint(late.read)
    assert "set ha.coordinator-tls" in complaint(opened(where).read)
    assert "ha.coordinator-tls" in complaint(opened(url, tls=True, ca=ca).read)
    assert "none.pem" in complaint(opened(where, tls=True, ca=tmp_path / "none.pem").read)


def test_a_server_with_an_expired_certificate_is_not_believed(authority: Authority, opened: Open) -> None:
    certificate, key = authority.issue("old", days=-1)
    ensemble = EtcdEnsemble(1, tls=ServerTls(authority.certificate, certificate, key))
    coordinator = opened(ensemble.url("c1"), tls=True, ca=authority.certificate)
    try:
        ensemble.restart()
        wait_until(lambda: "refused" not in complaint(coordinator.read), lambda: "it does not start")
        assert "certificate has expired" in complaint(coordinator.read)
    finally:
        ensemble.stop()
