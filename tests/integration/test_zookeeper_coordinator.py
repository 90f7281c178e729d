"""A real ensemble of ZooKeeper as coordinator: what it confirms when answers are lost, servers die, sleep or lose their
data, and who has a lease then; and who may use it.

What every coordinator has to do, its conformance suite shows; what a cluster does, test_coordinator_failures.
"""

from __future__ import annotations

import logging
import re
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.security import make_digest_acl

from certificate_authority import Authority
from coordinator_calls import CALL_LIMIT_S, NEXT, RECORD, Open, Watch, complaint
from coordinator_process import CoordinatorProcess
from limits import LIMIT_S
from lossy_proxy import LossyProxy
from qpid_ha_broker.coordination.coordinator import Coordinator, CoordinatorError, Lease
from qpid_ha_broker.ha.cluster_record import ClusterRecord
from qpid_ha_config.errors import SettingsError
from qpid_ha_demo.zookeeper_ensemble import ZookeeperEnsemble, ZookeeperServer
from running_agent import wait_until

OTHER = RECORD._replace(cluster="c2", primary="broker2")
SESSION_S = 1.5
LONG_SESSION_S = 60.0


@pytest.fixture
def url(zookeeper_ensemble: ZookeeperEnsemble, namespace: str) -> str:
    return zookeeper_ensemble.url(namespace)


class UpToDateClient(KazooClient):  # type: ignore[misc]  # it has no types
    """A write that was answered is seen at the writer's server; another one may be behind until it is asked to catch up
    (ZooKeeper's consistency guarantees)."""

    def get_children(self, path: str, *options: Any, **others: Any) -> Any:
        self.sync(path)
        return super().get_children(path, *options, **others)

    def get_acls(self, path: str) -> Any:
        self.sync(path)
        return super().get_acls(path)


@contextmanager
def client_of(servers: str) -> Iterator[KazooClient]:
    """ZooKeeper's own view, for what an operator would do."""
    client = UpToDateClient(servers, timeout=4.0)
    client.start()
    try:
        yield client
    finally:
        client.stop()
        client.close()


@pytest.fixture
def zkcli(zookeeper_ensemble: ZookeeperEnsemble) -> Iterator[KazooClient]:
    with client_of(zookeeper_ensemble.hosts) as client:
        yield client


def url_of(server: ZookeeperServer | LossyProxy, namespace: str) -> str:
    return f"zookeeper://{server.address}/{namespace}"


def complaints(*coordinators: Coordinator) -> list[str]:
    """Of each when it reads, all at once."""
    reading = [Doing(lambda own=one: complaint(own.read)) for one in coordinators]  # type: ignore[misc]
    return [str(one.wait()) for one in reading]


class Doing(threading.Thread):
    """A call in a thread of its own."""

    def __init__(self, call: Callable[[], object]) -> None:
        super().__init__(daemon=True)
        self._call = call
        self.result: object = None
        self.start()

    def run(self) -> None:
        self.result = self._call()

    def wait(self, timeout_s: float = LIMIT_S) -> object:
        """What it returned."""
        self.join(timeout_s)
        assert not self.is_alive(), f"it did not end within {timeout_s:g} s"
        return self.result


class Renewing:
    """Renews a lease as an agent does, until `end`."""

    def __init__(self, lease: Lease) -> None:
        self._ended = threading.Event()
        self.was_lost = False

        def renew() -> None:
            while not self._ended.wait(0.2):
                lease.renew()
                self.was_lost = self.was_lost or not lease.is_held()

        threading.Thread(target=renew, daemon=True).start()

    def end(self) -> None:
        self._ended.set()


# --- the record


def test_a_write_whose_answer_was_lost_is_found_to_be_done(
    zookeeper_ensemble: ZookeeperEnsemble, namespace: str, url: str, opened: Open
) -> None:
    server, reader = zookeeper_ensemble.servers[0], opened(url)
    with LossyProxy(server.host, server.port) as proxy:
        writer = opened(url_of(proxy, namespace))
        writer.compare_and_set(ClusterRecord(), RECORD)
        proxy.keep_back()
        writing = Doing(lambda: writer.compare_and_set(RECORD, NEXT))
        wait_until(lambda: reader.read() == NEXT, lambda: "it was not written")
        proxy.cut()
        assert writing.wait() == (True, NEXT)
        assert writer.compare_and_set(RECORD, OTHER) == (False, NEXT)


def test_a_write_whose_outcome_is_not_known_in_time_is_an_error(
    zookeeper_ensemble: ZookeeperEnsemble, namespace: str, url: str, opened: Open
) -> None:
    server = zookeeper_ensemble.servers[0]
    with LossyProxy(server.host, server.port) as proxy:
        writer = opened(url_of(proxy, namespace))
        writer.compare_and_set(ClusterRecord(), RECORD)
        proxy.keep_back()
        with zookeeper_ensemble.mended():
            writing = Doing(lambda: complaint(lambda: writer.compare_and_set(RECORD, NEXT)))
            wait_until(lambda: opened(url).read() == NEXT, lambda: "it was not written")
            server.kill()
            assert proxy.address in str(writing.wait())


def test_a_leader_that_slept_does_not_answer_with_what_was_there_before(
    zookeeper_ensemble: ZookeeperEnsemble, namespace: str, opened: Open
) -> None:
    """It wakes up before it knows that others elected another one: a `sync` there proves nothing."""
    with zookeeper_ensemble.mended():
        leader = zookeeper_ensemble.leader
        others = [server for server in zookeeper_ensemble.servers if server is not leader]
        reader = opened(url_of(leader, namespace))
        reader.compare_and_set(ClusterRecord(), RECORD)
        leader.stop()
        zookeeper_ensemble.wait(2)
        writer = opened(f"zookeeper://{','.join(server.address for server in others)}/{namespace}")
        assert writer.compare_and_set(RECORD, NEXT) == (True, NEXT)
        reading = [Doing(lambda: outcome(reader.read)) for _ in range(4)]
        leader.resume()
        answers = [one.wait() for one in reading]
        assert RECORD not in answers, answers


def outcome(call: Callable[[], object]) -> object:
    """What it returned, or what it complained about."""
    try:
        return call()
    except CoordinatorError as error:
        return str(error)


def test_without_a_majority_nothing_is_read_or_written_and_with_one_it_goes_on(
    zookeeper_ensemble: ZookeeperEnsemble, url: str, opened: Open, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    coordinator = opened(url)
    coordinator.compare_and_set(ClusterRecord(), RECORD)
    assert coordinator.read() == RECORD  # it knows that now, and must not answer with it
    with zookeeper_ensemble.mended():
        for server in zookeeper_ensemble.followers:
            server.kill()
        text = complaint(coordinator.read)
        assert all(server.address in text for server in zookeeper_ensemble.servers)
        assert "see that a majority of its servers runs" in text
        complaint(lambda: coordinator.compare_and_set(RECORD, NEXT))
    wait_until(lambda: outcome(lambda: coordinator.compare_and_set(RECORD, NEXT)) == (True, NEXT), lambda: caplog.text)
    lines = [record.getMessage() for record in caplog.records if record.name == "coordinator"]
    assert any("the connection is lost" in line for line in lines)
    assert any("answers again" in line for line in lines)
    assert not any(record.exc_info for record in caplog.records)


@pytest.mark.alone("most calls cost nothing that one would notice")
def test_one_server_that_hangs_costs_one_call_a_second_and_the_others_nothing(
    zookeeper_ensemble: ZookeeperEnsemble, url: str, opened: Open
) -> None:
    coordinators = [opened(url) for _ in range(4)]
    for coordinator in coordinators:
        assert coordinator.read() == ClusterRecord()
    with zookeeper_ensemble.mended():
        zookeeper_ensemble.followers[0].stop()
        for coordinator in coordinators:
            took_s = []
            for _ in range(5):
                began_s = time.monotonic()
                assert coordinator.read() == ClusterRecord()
                took_s.append(time.monotonic() - began_s)
            assert max(took_s) < CALL_LIMIT_S
            assert median(took_s) < 0.8


def test_a_record_that_was_made_anew_under_the_same_version_is_not_replaced(
    zkcli: KazooClient, namespace: str, url: str, opened: Open
) -> None:
    """Versions begin anew with the node: the number alone does not tell which record it was."""
    coordinator = opened(url)
    coordinator.compare_and_set(ClusterRecord(), RECORD)
    assert coordinator.read() == RECORD
    zkcli.delete(f"/{namespace}/record")
    opened(url).compare_and_set(ClusterRecord(), OTHER)

    assert coordinator.compare_and_set(RECORD, NEXT) == (False, OTHER)
    assert coordinator.read() == OTHER


def test_a_record_or_a_note_that_is_none_is_an_error_that_says_what_to_do(
    zkcli: KazooClient, namespace: str, url: str, opened: Open
) -> None:
    coordinator, path = opened(url), f"/{namespace}/record"
    for garbage in (b"", b"{", b"[1]", b'{"format": 2}', b"\xff\xfe", b"[" * 100_000):
        zkcli.ensure_path(path)
        zkcli.set(path, garbage)
        assert f"`zkCli.sh delete {path}`" in complaint(coordinator.read)
        assert "is damaged" in complaint(lambda: coordinator.compare_and_set(ClusterRecord(), RECORD))
        assert zkcli.get(path)[0] == garbage
    zkcli.delete(path)
    assert coordinator.compare_and_set(ClusterRecord(), RECORD) == (True, RECORD)
    note = f"/{namespace}/notes/pause"
    zkcli.create(note, b"\xff\xfe", makepath=True)
    assert f"`zkCli.sh delete {note}`" in complaint(lambda: coordinator.read_note("pause"))
    complaint(lambda: coordinator.replace_note("pause", "", "x"))


# --- the lease


def test_a_lease_passes_on_at_once_and_leaves_nothing(
    zkcli: KazooClient, namespace: str, url: str, opened: Open
) -> None:
    first, second = (opened(url, session_timeout_s=LONG_SESSION_S).lease(name) for name in ("one", "two"))
    assert first.try_lock()
    assert re.fullmatch(r"one \(pid \d+, since [0-9T:+-]+\)", first.holder())
    acquired_s: list[float] = []

    def acquire() -> bool:
        is_ours = second.acquire(threading.Event())
        acquired_s.append(time.monotonic())
        return is_ours

    waiting = Doing(acquire)
    wait_until(lambda: len(zkcli.get_children(f"/{namespace}/leases/primary")) == 2, lambda: "nobody waits")
    released_s = time.monotonic()
    first.release()
    assert waiting.wait(LONG_SESSION_S) is True
    assert acquired_s[0] - released_s < LONG_SESSION_S / 4, "and not when a session has run out"
    assert (first.is_held(), second.is_held()) == (False, True)
    second.release()
    assert zkcli.get_children(f"/{namespace}/leases/primary") == []


def test_who_does_not_want_a_lease_any_more_leaves_the_queue(
    zkcli: KazooClient, namespace: str, url: str, opened: Open
) -> None:
    first, second, cancel = opened(url).lease("one"), opened(url).lease("two"), threading.Event()
    assert first.try_lock()
    waiting = Doing(lambda: second.acquire(cancel))
    wait_until(lambda: len(zkcli.get_children(f"/{namespace}/leases/primary")) == 2, lambda: "nobody waits")
    cancel.set()
    assert waiting.wait() is False
    assert len(zkcli.get_children(f"/{namespace}/leases/primary")) == 1


def test_a_node_whose_making_was_not_confirmed_is_found_and_not_left_behind(
    zookeeper_ensemble: ZookeeperEnsemble, zkcli: KazooClient, namespace: str, opened: Open
) -> None:
    server, path, cancel = zookeeper_ensemble.servers[0], f"/{namespace}/leases/primary", threading.Event()
    zkcli.ensure_path(path)
    with LossyProxy(server.host, server.port) as proxy:
        coordinator = opened(url_of(proxy, namespace))
        lease = coordinator.lease("one")
        proxy.keep_back_after(f"{path}/".encode())
        waiting = Doing(lambda: lease.acquire(cancel))
        wait_until(lambda: len(zkcli.get_children(path)) == 1, lambda: "no node was made")
        proxy.cut()
        assert waiting.wait() is True
        assert len(zkcli.get_children(path)) == 1
        proxy.keep_back()
        lease.release()
        assert not lease.is_held()
        proxy.cut()
        wait_until(lambda: zkcli.get_children(path) == [], lambda: "its node stays")


def test_a_lease_that_nobody_renews_is_lost_before_another_one_has_it(url: str, opened: Open) -> None:
    """The process lives, and so does its session: but whoever should use the lease does nothing any more."""
    mine, other = opened(url, session_timeout_s=SESSION_S).lease("one"), opened(url).lease("two")
    assert mine.try_lock()
    began_s = time.monotonic()
    assert other.acquire(threading.Event())
    assert not mine.is_held()
    assert SESSION_S - 0.5 < time.monotonic() - began_s < SESSION_S + LIMIT_S


def test_whoever_is_cut_off_knows_it_before_another_one_has_the_lease(
    zookeeper_ensemble: ZookeeperEnsemble, namespace: str, url: str, opened: Open
) -> None:
    server = zookeeper_ensemble.followers[0]
    with LossyProxy(server.host, server.port) as proxy:
        mine = opened(url_of(proxy, namespace), session_timeout_s=2.0).lease("one")
        assert mine.try_lock()
        renewing = Renewing(mine)
        other = opened(url).lease("two")
        waiting = Doing(lambda: (other.acquire(threading.Event()), mine.is_held()))
        proxy.__exit__(None, None, None)
        assert waiting.wait() == (True, False)
        renewing.end()


def test_a_lease_stays_when_the_leader_dies_and_when_a_server_hangs(
    zookeeper_ensemble: ZookeeperEnsemble, url: str, opened: Open
) -> None:
    leases = [opened(url).lease("one", name) for name in ("a", "b", "c")]
    assert all(lease.try_lock() for lease in leases)
    renewing = [Renewing(lease) for lease in leases]
    with zookeeper_ensemble.mended():
        zookeeper_ensemble.leader.kill()
        zookeeper_ensemble.wait(2)
        time.sleep(1.5)  # that they get over it
        zookeeper_ensemble.start()
        zookeeper_ensemble.followers[0].stop()
        time.sleep(2.5)
    assert [one.was_lost for one in renewing] == [False] * 3
    assert all(lease.is_held() for lease in leases)
    for one in renewing:
        one.end()


def test_an_operator_who_deletes_the_node_takes_the_lease_away(
    zkcli: KazooClient, namespace: str, url: str, opened: Open
) -> None:
    lease, path = opened(url).lease("one"), f"/{namespace}/leases/primary"
    assert lease.try_lock()
    (node,) = zkcli.get_children(path)
    zkcli.delete(f"{path}/{node}")
    wait_until(lambda: not lease.is_held(), lambda: "it is still held")
    assert lease.try_lock()


# --- the watch


def test_a_watch_misses_nothing_when_its_server_dies(
    zookeeper_ensemble: ZookeeperEnsemble, url: str, opened: Open, watching: Watch
) -> None:
    writer = opened(url)
    watchers, record = [watching(opened(url)) for _ in range(3)], ClusterRecord()
    for server in zookeeper_ensemble.servers:
        assert all(watcher.sees(record, LIMIT_S) for watcher in watchers)
        with zookeeper_ensemble.mended():
            server.kill()
            zookeeper_ensemble.wait(2)
            wanted = RECORD._replace(epoch=10 + server.number)
            wait_until(lambda wanted=wanted, found=record: has_written(writer, found, wanted), lambda: "no answer")  # type: ignore[misc]
            record = wanted
            assert all(watcher.sees(record, LIMIT_S) for watcher in watchers)


def has_written(writer: Coordinator, expected: ClusterRecord, wanted: ClusterRecord) -> bool:
    """Whether it is there now; servers that elect one of them do not answer at first."""
    return outcome(lambda: writer.compare_and_set(expected, wanted)) == (True, wanted) or writer.read() == wanted


def test_a_watch_tells_of_notes_and_not_of_leases(url: str, opened: Open, watching: Watch) -> None:
    writer, watcher = opened(url), watching(opened(url))
    assert watcher.sees(ClusterRecord(), LIMIT_S)
    calls = watcher.calls
    assert writer.lease("one").try_lock()
    assert writer.replace_note("other", "", "x")
    wait_until(lambda: watcher.calls > calls, lambda: "no call")
    assert watcher.calls <= calls + 2


# --- an ensemble that is gone, or has forgotten everything


def test_an_ensemble_that_is_down_at_first_is_waited_for(
    zookeeper_ensemble: ZookeeperEnsemble, url: str, opened: Open, watching: Watch
) -> None:
    with zookeeper_ensemble.mended():
        zookeeper_ensemble.kill()
        coordinator = opened(url)
        watcher, lease = watching(coordinator), coordinator.lease("one")
        waiting = Doing(lambda: lease.acquire(threading.Event()))
        assert "Connection refused" in complaint(coordinator.read)
    assert watcher.sees(ClusterRecord(), LIMIT_S)
    assert waiting.wait() is True
    assert coordinator.compare_and_set(ClusterRecord(), RECORD) == (True, RECORD)


def test_when_all_data_is_lost_leases_are_lost_and_nothing_old_is_believed(
    zookeeper_ensemble: ZookeeperEnsemble, url: str, opened: Open, watching: Watch
) -> None:
    coordinator = opened(url)
    coordinator.compare_and_set(ClusterRecord(), RECORD)
    lease, watcher = coordinator.lease("one"), watching(coordinator)
    assert lease.try_lock()
    renewing = Renewing(lease)
    assert watcher.sees(RECORD, LIMIT_S)
    with zookeeper_ensemble.mended():
        zookeeper_ensemble.wipe()
    assert watcher.sees(ClusterRecord(), LIMIT_S)
    wait_until(lambda: not lease.is_held(), lambda: "it is still held")
    renewing.end()
    assert coordinator.compare_and_set(RECORD, NEXT) == (False, ClusterRecord())
    assert opened(url).compare_and_set(ClusterRecord(), OTHER) == (True, OTHER)
    assert coordinator.compare_and_set(RECORD, NEXT) == (False, OTHER)
    assert watcher.sees(OTHER, LIMIT_S)
    # The session of leases may still be the one that these servers never take, for as long as its patience lasts.
    assert Doing(lambda: coordinator.lease("one").acquire(threading.Event())).wait()


def test_who_wakes_up_without_its_session_is_not_in_its_own_way(
    zkcli: KazooClient, namespace: str, url: str, opened: Open
) -> None:
    """What it makes before it knows that it has another session belongs to that one."""
    mine, path = opened(url).lease("heir"), f"/{namespace}/leases/primary"
    with CoordinatorProcess(url, "first", SESSION_S) as first:
        assert first.line() == "held"
        for _ in range(3):
            first.process.send_signal(signal.SIGSTOP)
            assert mine.acquire(threading.Event())
            first.process.send_signal(signal.SIGCONT)
            wait_until(lambda: len(zkcli.get_children(path)) > 1, lambda: "it does not wait")
            mine.release()
            assert Doing(first.line).wait() == "held"
            wait_until(lambda: len(zkcli.get_children(path)) == 1, lambda: str(zkcli.get_children(path)))


# --- users and certificates


@pytest.fixture
def password_file(tmp_path: Path) -> Path:
    path = tmp_path / "password"
    path.write_text("s3cret\n", encoding="utf-8")
    return path


def test_with_a_user_nobody_else_may_do_anything(
    zkcli: KazooClient, namespace: str, url: str, password_file: Path, opened: Open, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    logging.getLogger("kazoo.client").setLevel(logging.WARNING)  # this test's own client shows it
    mine = opened(url, username="me", password_file=password_file)
    assert mine.compare_and_set(ClusterRecord(), RECORD) == (True, RECORD)
    assert mine.replace_note("pause", "", "x")
    assert mine.lease("one").try_lock()
    for call in (
        opened(url).read,
        lambda: opened(url).compare_and_set(RECORD, NEXT),
        lambda: opened(url).read_note("pause"),
        opened(url).lease("two").try_lock,
    ):
        assert "does not let users without a name use the namespace" in complaint(call)
    zkcli.add_auth("digest", "me:s3cret")
    (node,) = zkcli.get_children(f"/{namespace}/leases/primary")
    for path in ("", "/record", "/notes", "/notes/pause", "/leases", "/leases/primary", f"/leases/primary/{node}"):
        (acl,) = zkcli.get_acls(f"/{namespace}{path}")[0]
        assert (acl.id.scheme, acl.id.id.partition(":")[0], acl.perms) == ("digest", "me", 31), path
    assert "s3cret" not in caplog.text


def test_a_wrong_password_is_said_and_not_shown_and_is_read_again(
    url: str, password_file: Path, opened: Open, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    opened(url, username="me", password_file=password_file).compare_and_set(ClusterRecord(), RECORD)
    password_file.write_text("wr0ng\n", encoding="utf-8")
    coordinator = opened(url, username="me", password_file=password_file)
    text = complaint(coordinator.read)
    assert "does not let the user me use the namespace" in text
    assert "ha.coordinator-username" in text
    assert "wr0ng" not in text + caplog.text
    password_file.write_text("s3cret\n", encoding="utf-8")
    wait_until(lambda: outcome(coordinator.read) == RECORD, lambda: str(outcome(coordinator.read)))


def test_a_namespace_where_nothing_may_be_made_is_an_error(
    zkcli: KazooClient, namespace: str, zookeeper_ensemble: ZookeeperEnsemble, password_file: Path, opened: Open
) -> None:
    zkcli.create(f"/{namespace}", b"", acl=[make_digest_acl("admin", "x", all=True)], makepath=True)
    coordinator = opened(zookeeper_ensemble.url(f"{namespace}/c1"), username="me", password_file=password_file)
    assert coordinator.read() == ClusterRecord()
    for call in (lambda: coordinator.compare_and_set(ClusterRecord(), RECORD), coordinator.lease("one").try_lock):
        assert "does not let the user me use the namespace" in complaint(call)


def test_a_password_file_that_is_not_there_is_named(url: str, tmp_path: Path, opened: Open) -> None:
    for settings in ({"password_file": tmp_path / "none"}, {}):
        with pytest.raises(SettingsError, match=r"ha\.coordinator-password-file"):
            opened(url, username="me", **settings)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@contextmanager
def secured(directory: Path, authority: Authority, days: int, *, wants_certificate: bool) -> Iterator[str]:
    """One server with a certificate of the authority; its URL."""
    directory.mkdir()
    certificate, key = authority.issue(f"server{days}", days)
    tls = (authority.certificate, certificate, key)
    with ZookeeperEnsemble(directory, 1, tls=tls, wants_clients_certificate=wants_certificate) as ensemble:
        yield ensemble.url("c1", tls=True)


def test_with_tls_both_sides_show_certificates_or_say_what_is_wrong(
    authority: Authority, tmp_path: Path, url: str, opened: Open
) -> None:
    ca, (certificate, key) = authority.certificate, authority.issue("client")
    (tmp_path / "other").mkdir()
    stranger = Authority(tmp_path / "other").certificate
    with secured(tmp_path / "secured", authority, 1, wants_certificate=True) as where:
        coordinator = opened(where, tls=True, ca=ca, certificate=certificate, key=key)
        assert coordinator.compare_and_set(ClusterRecord(), RECORD) == (True, RECORD)
        lease = coordinator.lease("one")
        assert lease.try_lock()
        shown = {"certificate": certificate, "key": key}
        said = complaints(
            opened(where, tls=True, ca=stranger, **shown),
            opened(where, tls=True, **shown),  # the system's authorities
            opened(where, tls=True, ca=ca),
            opened(where),
            opened(url, tls=True, ca=ca),
        )
    assert all("signed by an authority of ha.coordinator-ca" in text for text in said[:2])
    assert "ha.coordinator-certificate" in said[2]
    assert "ha.coordinator-tls" in said[4]
    for broken in ({"ca": tmp_path / "none.pem"}, {"ca": ca, "certificate": certificate, "key": ca}):
        with pytest.raises(SettingsError, match="cannot use"):
            opened(where, tls=True, **broken)


def test_a_server_whose_certificate_has_expired_is_not_believed(
    authority: Authority, tmp_path: Path, opened: Open
) -> None:
    with secured(tmp_path / "expired", authority, -1, wants_certificate=False) as where:
        text = complaint(opened(where, tls=True, ca=authority.certificate).read)
        assert "certificate has expired" in text
        assert "see that its certificate is valid" in text
