"""Groups as clients have them: three brokers, one Corosync, and what breaks all of them at once."""

from __future__ import annotations

import os
import signal
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
from proton import Message

from limits import LIMIT_S
from one_corosync import corosync
from qpid_ha_client import Guarantee, SessionClient
from qpid_ha_demo.cluster import LocalCluster
from qpid_ha_demo.corosync_daemon import CorosyncDaemon, what_is_missing
from qpid_ha_demo.groups import BROKERS, SET, GroupDemo
from qpid_ha_demo.stage import Stage

pytestmark = pytest.mark.skipif(bool(what_is_missing()), reason=what_is_missing())
DAEMON_AWAY_S = 1.0
STOPPED_S = 4.0
"""Longer than others wait for an acknowledgement."""


def kill_all(cluster: LocalCluster, _: CorosyncDaemon) -> None:
    for broker in cluster.brokers:
        broker.kill()


def restart_corosync(_: LocalCluster, daemon: CorosyncDaemon) -> None:
    daemon.kill()
    time.sleep(DAEMON_AWAY_S)
    daemon.start()


def stop_one(cluster: LocalCluster, _: CorosyncDaemon) -> None:
    # Not who leads `default`: its agent ends a primary that hangs, and starts another process.
    pid = next(broker.pid for broker in cluster.brokers if broker.status().get("state") == "ready")
    os.kill(pid, signal.SIGSTOP)
    time.sleep(STOPPED_S)
    os.kill(pid, signal.SIGCONT)


def test_nothing_is_lost_when_all_members_die_corosync_is_restarted_or_one_is_stopped() -> None:
    faults: tuple[Callable[[LocalCluster, CorosyncDaemon], None], ...] = (kill_all, restart_corosync, stop_one)
    with ExitStack() as stack:
        # Shorter than tmp_path: sockets lie in it.
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="group-")))
        daemon = stack.enter_context(corosync(directory))
        settings = {"ha": {"failure-timeout": "1s", "backup-timeout": "2s"}}
        cluster = LocalCluster(directory, BROKERS, settings=settings, stores=directory / "stores")
        demo = GroupDemo(Stage(), stack.enter_context(cluster))
        stack.callback(demo.stop)
        demo.start()
        for fault in faults:
            fault(cluster, daemon)
            demo.wait_whole()
        assert demo.settle()


def test_a_session_goes_on_at_another_member_after_kill_9_with_what_it_held() -> None:
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="group-")))
        stack.enter_context(corosync(directory))
        settings = {"ha": {"failure-timeout": "1s", "backup-timeout": "2s", "clients": "proxy"}}
        cluster = stack.enter_context(LocalCluster(directory, BROKERS, settings=settings, stores=directory / "stores"))
        demo = GroupDemo(Stage(), cluster)
        stack.callback(demo.stop)
        demo.start()
        primary = cluster.primary()
        assert primary is not None
        primary.ask("queues", action="create", name="held", arguments={"qpid.resource-set": SET})
        client = stack.enter_context(SessionClient(cluster.urls[1:], require_session=True))
        sender = client.sender("held", "out")
        for number in range(4):
            sender.send(Message(number), LIMIT_S)
        receiver = client.receiver("held", "in", prefetch=3)
        first, *others = [receiver.receive(LIMIT_S) for _ in range(3)]
        first.accept(wait=True, timeout_s=LIMIT_S)
        before = client.broker
        cluster.brokers[cluster.urls.index(before)].kill()
        sender.send(Message(4), LIMIT_S)
        assert client.guarantee is Guarantee.EXACTLY_ONCE
        assert client.broker != before
        for received in others:
            received.accept(wait=True, timeout_s=LIMIT_S)
        rest = [receiver.receive(LIMIT_S) for _ in range(2)]
        for received in rest:
            received.accept(wait=True, timeout_s=LIMIT_S)
        assert [received.body for received in (first, *others, *rest)] == [0, 1, 2, 3, 4]
