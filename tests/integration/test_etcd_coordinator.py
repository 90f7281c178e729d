"""A real etcd of three servers as coordinator: what is confirmed, who has a lease, what a watch sees; and what each of
them does when servers are slow, dead, empty, or want to know who asks."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from certificate_authority import Authority
from coordinator_process import CoordinatorProcess
from etcd_ensemble import EtcdEnsemble, ServerTls
from limits import LIMIT_S
from qpid_ha_broker.coordination.coordinator import Coordinator, CoordinatorError
from qpid_ha_broker.coordination.etcd_gateway import EtcdGateway
from qpid_ha_broker.ha.effects import ClusterRecord
from qpid_ha_config.coordinator import CoordinatorUrl
from running_agent import wait_until
from running_cluster import RunningCluster

Open = Callable[..., Coordinator]

RECORD = ClusterRecord("c1", 3, "broker1", 5, ("broker1", "broker2"))
NEXT = RECORD._replace(epoch=6, members=("broker1",))
CALL_LIMIT_S = 15.0
"""A call ends by itself after two seconds; the rest is for a machine that is busy."""
SESSION_S = 2.0
LONG_SESSION_S = 60.0


@pytest.fixture
def namespace(request: pytest.FixtureRequest) -> str:
    """Of this test alone."""
    return f"tests/{request.node.name[:60]}"


@pytest.fixture
def url(etcd: EtcdEnsemble, namespace: str) -> str:
    return etcd.url(namespace)


class Calls:
    """What a watch said."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self.count = 0

    def __call__(self) -> None:
        with self._changed:
            self.count += 1
            self._changed.notify_all()

    def wait_after(self, count: int) -> None:
        """Until there were more than `count`."""
        with self._changed:
            assert self._changed.wait_for(lambda: self.count > count, LIMIT_S), f"no call after {count}"


def began(coordinator: Coordinator) -> Calls:
    """A watch that has said its first word."""
    calls = Calls()
    coordinator.watch(calls)
    calls.wait_after(0)
    return calls


def complaint(call: Callable[[], object]) -> str:
    began_s = time.monotonic()
    with pytest.raises(CoordinatorError) as caught:
        call()
    assert time.monotonic() - began_s < CALL_LIMIT_S
    return str(caught.value)


# --- the record


def test_what_was_confirmed_is_read_by_everybody(url: str, opened: Open) -> None:
    writer, reader = opened(url), opened(url)
    assert reader.read() == ClusterRecord()
    assert writer.compare_and_set(ClusterRecord(), RECORD) == (True, RECORD)
    assert reader.read() == RECORD
    assert writer.compare_and_set(RECORD, NEXT) == (True, NEXT)
    assert reader.read() == NEXT


def test_whoever_expects_something_else_learns_what_is_there(url: str, opened: Open) -> None:
    first, second = opened(url), opened(url)
    first.compare_and_set(ClusterRecord(), RECORD)
    assert second.compare_and_set(ClusterRecord(), NEXT) == (False, RECORD)
    second.compare_and_set(RECORD, NEXT)
    assert first.compare_and_set(RECORD, RECORD._replace(epoch=9)) == (False, NEXT)  # by a revision that is old
    assert first.read() == NEXT


def test_of_several_processes_that_write_at_once_each_write_counts_once(url: str, opened: Open) -> None:
    with ExitStack() as stack:
        counters = [stack.enter_context(CoordinatorProcess(url, "count", "40")) for _ in range(3)]
        assert [counter.line() for counter in counters] == 3 * ["ready"]
        for counter in counters:
            counter.ask()
        retries = [int(counter.line()) for counter in counters]
    assert opened(url).read().epoch == 120
    assert sum(retries) > 0, "they did not race"


def test_a_record_that_is_none_is_an_error_that_says_what_to_do(etcd: EtcdEnsemble, url: str, opened: Open) -> None:
    coordinator = opened(url)
    key = f"{CoordinatorUrl.parse(url).namespace}/record"
    etcd.etcdctl("put", key, "{")
    assert f"`etcdctl del {key}`" in complaint(coordinator.read)
    assert "is damaged" in complaint(lambda: coordinator.compare_and_set(ClusterRecord(), RECORD))
    etcd.etcdctl("del", key)
    assert coordinator.compare_and_set(ClusterRecord(), RECORD) == (True, RECORD)


def test_a_record_that_came_back_under_an_old_revision_is_not_replaced(
    etcd: EtcdEnsemble, url: str, namespace: str, opened: Open
) -> None:
    """Revisions begin anew with the data: the number alone does not tell which record it was."""
    coordinator = opened(url)
    etcd.wipe()
    etcd.start()
    etcd.etcdctl("put", f"{namespace}/filler", "1")
    coordinator.compare_and_set(ClusterRecord(), RECORD)
    etcd.wipe()
    etcd.start()
    etcd.etcdctl("put", f"{namespace}/filler", "1")
    other = RECORD._replace(cluster="c2")
    opened(url).compare_and_set(ClusterRecord(), other)
    assert coordinator.compare_and_set(RECORD, NEXT) == (False, other)


def test_notes_are_kept_replaced_and_forgotten(url: str, opened: Open) -> None:
    first, second = opened(url), opened(url)
    assert first.read_note("pause") == ""
    assert first.replace_note("pause", "", "{}")
    assert second.read_note("pause") == "{}"
    assert not second.replace_note("pause", "", "other")
    assert second.replace_note("pause", "{}", "")
    assert first.read_note("pause") == ""
    assert first.replace_note("pause", "", "")
    assert first.read() == ClusterRecord()


# --- the lease


def test_a_lease_passes_on_as_soon_as_it_is_released(url: str, opened: Open) -> None:
    first, second = (opened(url, session_timeout_s=LONG_SESSION_S).lease(name) for name in ("one", "two"))
    assert first.try_lock()
    assert first.holder().startswith(f"one (pid {os.getpid()}, since ")
    assert not second.try_lock()
    acquired_s: list[float] = []

    def wait() -> None:
        second.acquire(threading.Event())
        acquired_s.append(time.monotonic())

    waiter = threading.Thread(target=wait)
    waiter.start()
    time.sleep(0.2)  # it waits by now; if it does not, it is no slower
    assert not acquired_s
    released_s = time.monotonic()
    first.release()
    waiter.join(LONG_SESSION_S)
    assert acquired_s[0] - released_s < LONG_SESSION_S / 4, "and not when a session has run out"
    assert second.is_held()
    assert not first.is_held()


def test_who_does_not_want_a_lease_any_more_stops_waiting_and_has_none(url: str, opened: Open) -> None:
    first, second = opened(url).lease("one"), opened(url).lease("two")
    first.try_lock()
    cancel, outcome = threading.Event(), []
    waiter = threading.Thread(target=lambda: outcome.append(second.acquire(cancel)))
    waiter.start()
    cancel.set()
    waiter.join(LIMIT_S)
    assert outcome == [False]
    first.release()
    assert second.holder() == ""


def test_a_holder_that_is_killed_loses_its_lease_within_the_session_timeout(url: str, opened: Open) -> None:
    mine = opened(url).lease("heir")
    with CoordinatorProcess(url, "hold", "first", session_timeout_s=SESSION_S) as first:
        assert first.line() == "held"
        first.process.kill()
        killed_s = time.monotonic()
        assert mine.acquire(threading.Event())
        assert time.monotonic() - killed_s < SESSION_S + LIMIT_S


def test_a_holder_that_slept_knows_at_once_that_it_lost_its_lease(url: str, opened: Open) -> None:
    mine = opened(url).lease("heir")
    with CoordinatorProcess(url, "hold", "first", session_timeout_s=SESSION_S) as first:
        assert first.line() == "held"
        assert first.says_held()
        first.process.send_signal(signal.SIGSTOP)
        assert mine.acquire(threading.Event())
        first.process.send_signal(signal.SIGCONT)
        assert not first.says_held()
    assert mine.is_held()


def test_a_lease_that_is_renewed_outlives_its_time(url: str, opened: Open) -> None:
    lease = opened(url, session_timeout_s=SESSION_S).lease("one")
    assert lease.try_lock()
    end_s = time.monotonic() + 2 * SESSION_S
    while time.monotonic() < end_s:
        lease.renew()
        assert lease.is_held()
        time.sleep(0.2)


def test_a_lease_that_nobody_renews_is_lost_before_another_one_can_have_it(url: str, opened: Open) -> None:
    mine, other = opened(url, session_timeout_s=SESSION_S).lease("one"), opened(url).lease("two")
    assert mine.try_lock()
    assert other.acquire(threading.Event())
    assert not mine.is_held()


def test_whoever_hears_nothing_from_any_server_knows_when_its_time_is_up(
    etcd: EtcdEnsemble, url: str, opened: Open
) -> None:
    lease = opened(url, session_timeout_s=SESSION_S).lease("one")
    assert lease.try_lock()
    taken_s = time.monotonic()
    etcd.pause(0, 1, 2)
    try:
        wait_until(lambda: not lease.is_held(), lambda: "it is still held")
        assert time.monotonic() - taken_s > SESSION_S / 2
    finally:
        etcd.resume(0, 1, 2)
        etcd.wait_healthy()


def test_an_operator_who_deletes_the_key_takes_the_lease_away(
    etcd: EtcdEnsemble, url: str, namespace: str, opened: Open
) -> None:
    lease = opened(url).lease("one")
    assert lease.try_lock()
    etcd.etcdctl("del", f"{namespace}/leases/primary")
    wait_until(lambda: not lease.is_held(), lambda: "it is still held")


def test_closing_gives_leases_back(url: str, opened: Open) -> None:
    first, second = opened(url), opened(url)
    held = first.lease("one", "other")
    assert held.try_lock()
    first.close()
    assert second.lease("two", "other").try_lock()


# --- the watch


def test_a_watch_tells_of_changes_by_others_and_not_of_leases(url: str, opened: Open) -> None:
    watcher, writer = opened(url), opened(url)
    calls = began(watcher)
    before = calls.count
    writer.compare_and_set(ClusterRecord(), RECORD)
    calls.wait_after(before)
    before = calls.count
    assert writer.lease("one").try_lock()
    writer.replace_note("pause", "", "{}")
    calls.wait_after(before)
    assert calls.count == before + 1


def test_nothing_is_missed_while_no_server_is_there_and_history_was_compacted(
    etcd: EtcdEnsemble, url: str, namespace: str, opened: Open
) -> None:
    watcher = opened(url)
    calls = began(watcher)
    etcd.kill(0, 1)
    calls.wait_after(1)  # lost: there is no majority
    before = calls.count
    etcd.restart(0, 1)
    etcd.wait_healthy()
    calls.wait_after(before)  # and back
    opened(url).compare_and_set(ClusterRecord(), RECORD)
    revision = etcd.revision()
    etcd.etcdctl("compaction", str(revision))
    before = calls.count
    opened(url).compare_and_set(RECORD, NEXT)
    calls.wait_after(before)
    assert watcher.read() == NEXT


def test_a_stream_that_asks_for_what_was_compacted_away_begins_anew(
    etcd: EtcdEnsemble, url: str, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between the read and the stream that follows from there, somebody compacts."""
    watcher, writer = opened(url), opened(url)
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
    calls = began(watcher)
    calls.wait_after(1)  # the read before, then what was missed
    before = calls.count
    writer.compare_and_set(NEXT, RECORD)
    calls.wait_after(before)


def test_a_watch_goes_on_at_another_server_when_its_own_one_dies(etcd: EtcdEnsemble, url: str, opened: Open) -> None:
    watcher, writer = opened(url), opened(url)
    calls, record = began(watcher), ClusterRecord()
    for member in range(3):
        etcd.kill(member)
        wanted = RECORD._replace(epoch=10 + member)
        before = calls.count
        while not writer_wrote(writer, record, wanted):  # it may have asked while another server was elected
            record = writer.read()
        record = wanted
        calls.wait_after(before)
        etcd.restart(member)
        etcd.wait_healthy()


def writer_wrote(writer: Coordinator, expected: ClusterRecord, wanted: ClusterRecord) -> bool:
    try:
        return writer.compare_and_set(expected, wanted)[0] or writer.read() == wanted
    except CoordinatorError:
        return writer.read() == wanted


# --- servers that are slow, dead, or empty


def test_one_server_that_hangs_costs_one_call_and_not_each(
    etcd: EtcdEnsemble, url: str, opened: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = (etcd.leader() + 1) % 3
    port = etcd.members[slow].port
    with monkeypatch.context() as patched:  # which server is asked first is drawn: this one
        patched.setattr("random.shuffle", lambda servers: servers.sort(key=lambda server: server.port != port))
        coordinator = opened(url)
    coordinator.compare_and_set(ClusterRecord(), RECORD)
    etcd.pause(slow)
    try:
        times_s = []
        for _ in range(20):
            began_s = time.monotonic()
            assert coordinator.read() == RECORD
            times_s.append(time.monotonic() - began_s)
    finally:
        etcd.resume(slow)
    assert max(times_s) < CALL_LIMIT_S
    assert median(times_s) < 0.5


def test_a_watch_leaves_a_server_that_hangs_as_soon_as_a_call_notices(
    etcd: EtcdEnsemble, url: str, opened: Open
) -> None:
    watcher, writer = opened(url), opened(url)
    calls, record = began(watcher), ClusterRecord()
    for member in range(3):
        if member == etcd.leader():
            continue
        etcd.pause(member)
        try:
            watcher.read()
            before, wanted = calls.count, RECORD._replace(epoch=10 + member)
            assert writer_wrote(writer, record, wanted)
            calls.wait_after(before)
            record = wanted
        finally:
            etcd.resume(member)


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


def test_without_a_majority_nothing_is_read_or_written_and_with_one_it_goes_on(
    etcd: EtcdEnsemble, url: str, opened: Open
) -> None:
    coordinator = opened(url)
    coordinator.compare_and_set(ClusterRecord(), RECORD)
    etcd.kill(0, 1)
    try:
        text = complaint(coordinator.read)
        assert all(address in text for address in etcd.addresses)
        complaint(lambda: coordinator.compare_and_set(RECORD, NEXT))
    finally:
        etcd.restart(0, 1)
        etcd.wait_healthy()
    assert coordinator.compare_and_set(coordinator.read(), NEXT) == (True, NEXT)


def test_an_ensemble_that_is_down_at_first_is_waited_for(etcd: EtcdEnsemble, url: str, opened: Open) -> None:
    etcd.kill()
    try:
        coordinator, calls = opened(url), Calls()
        coordinator.watch(calls)
        assert "start its servers" in complaint(coordinator.read)
    finally:
        etcd.start()
    calls.wait_after(0)
    assert coordinator.compare_and_set(ClusterRecord(), RECORD) == (True, RECORD)


def test_when_all_data_is_lost_the_lease_is_lost_and_the_record_can_be_put_back(
    etcd: EtcdEnsemble, url: str, opened: Open
) -> None:
    coordinator = opened(url, session_timeout_s=SESSION_S)
    coordinator.compare_and_set(ClusterRecord(), RECORD)
    lease, calls = coordinator.lease("one"), began(coordinator)
    assert lease.try_lock()
    etcd.wipe()
    etcd.start()
    calls.wait_after(1)
    wait_until(lambda: not lease.is_held(), lambda: "it is still held", SESSION_S)
    assert coordinator.compare_and_set(RECORD, NEXT) == (False, ClusterRecord())
    assert coordinator.compare_and_set(ClusterRecord(), NEXT) == (True, NEXT)
    assert coordinator.lease("one").try_lock()


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


def test_who_has_a_user_may_use_what_is_his(guarded: EtcdEnsemble, password_file: Path, opened: Open) -> None:
    coordinator = opened(guarded.url("mine/c1"), username="me", password_file=password_file)
    calls = began(coordinator)
    assert coordinator.compare_and_set(ClusterRecord(), RECORD) == (True, RECORD)
    calls.wait_after(1)
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


def test_nobody_elses_namespace_may_be_used(guarded: EtcdEnsemble, password_file: Path, opened: Open) -> None:
    coordinator = opened(guarded.url("theirs/c1"), username="me", password_file=password_file)
    for call in (coordinator.read, lambda: coordinator.compare_and_set(ClusterRecord(), RECORD)):
        text = complaint(call)
        assert "permission denied" in text
        assert "etcdctl role grant-permission ROLE --prefix=true readwrite theirs/c1/" in text


def test_a_wrong_password_is_said_and_not_shown(guarded: EtcdEnsemble, password_file: Path, opened: Open) -> None:
    password_file.write_text("wrong-one\n", encoding="utf-8")
    coordinator = opened(guarded.url("mine/c1"), username="me", password_file=password_file)
    text = complaint(coordinator.read)
    assert "authentication failed" in text
    assert "ha.coordinator-username" in text
    assert "wrong-one" not in text
    password_file.write_text("s3cret\n", encoding="utf-8")  # it is read again
    coordinator.read()


def test_without_a_user_it_says_which_settings_are_missing(guarded: EtcdEnsemble, opened: Open) -> None:
    text = complaint(opened(guarded.url("mine/c1")).read)
    assert "ha.coordinator-username and ha.coordinator-password-file" in text


def test_a_user_where_there_are_none_is_an_error(url: str, password_file: Path, opened: Open) -> None:
    text = complaint(opened(url, username="me", password_file=password_file).read)
    assert "`etcdctl auth enable`" in text


def test_a_password_file_that_is_not_there_is_named(url: str, tmp_path: Path, opened: Open) -> None:
    missing = tmp_path / "none"
    assert f"cannot read {missing}" in complaint(opened(url, username="me", password_file=missing).read)


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


def test_with_tls_both_sides_show_certificates(secure: EtcdEnsemble, authority: Authority, opened: Open) -> None:
    certificate, key = authority.issue("client")
    coordinator = opened(secure.url("c1"), tls=True, ca=authority.certificate, certificate=certificate, key=key)
    calls = began(coordinator)
    assert coordinator.compare_and_set(ClusterRecord(), RECORD) == (True, RECORD)
    calls.wait_after(1)
    coordinator.close()


def test_tls_that_does_not_fit_says_what_to_correct(
    secure: EtcdEnsemble, authority: Authority, etcd: EtcdEnsemble, url: str, tmp_path: Path, opened: Open
) -> None:
    where, ca = secure.url("c1"), authority.certificate
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


# --- a cluster


def test_a_cluster_on_etcd_goes_on_when_its_primary_is_killed(url: str, tmp_path: Path) -> None:
    with RunningCluster(tmp_path, agents=True, settings={"ha": {"coordinator": url}}) as cluster:
        cluster.wait_whole()
        old = cluster.the_primary()
        cluster.kill(old)
        cluster.wait_until(lambda: cluster.primary() not in (None, old), "another one is primary", 60.0)
        cluster.wait_whole()
