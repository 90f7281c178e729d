"""A user who was added at one broker is one at all of them, whatever becomes of the first, and none once removed."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import proton
import pytest

from admin_tool import qpid_ha
from blocking_client import BlockingClient, bodies
from running_cluster import RunningCluster

PASSWORD = "not committed anywhere else"

pytestmark = pytest.mark.skipif(not proton.SASL.extended(), reason="a client needs Cyrus SASL in Proton for SCRAM")


def admin(cluster: RunningCluster, which: int, *words: str, given: str = "") -> None:
    done = qpid_ha(*words, "-b", cluster.broker(which).control_socket, answer=given)
    assert done.exit_code == 0, done.output


def tried(cluster: RunningCluster, which: int, password: str, mechanism: str = "SCRAM-SHA-256") -> str:
    """What comes of sending and receiving through a broker with that password."""
    try:
        with BlockingClient(
            cluster.urls[which], user="olga", password=password, allowed_mechs=mechanism, allow_insecure_mechs=True
        ) as client:
            client.send("orders", "x")
            return "works" if bodies(client.consume("orders")) == ["x"] else "lost"
    except proton.ProtonException as refused:
        return str(refused)


def works(cluster: RunningCluster, which: int, password: str, mechanism: str = "SCRAM-SHA-256") -> bool:
    return tried(cluster, which, password, mechanism) == "works"


def is_refused(cluster: RunningCluster, which: int, password: str) -> bool:
    return "amqp:unauthorized-access" in tried(cluster, which, password)


def test_a_user_added_at_a_backup_outlives_its_primary_and_a_crash_of_all_and_is_gone_when_removed(
    tmp_path: Path,
) -> None:
    settings = {"ha": {"clients": "proxy"}, "acl": {"rules": ["allow olga all"]}}
    with RunningCluster(tmp_path, 3, settings=settings, stores=tmp_path / "stores") as cluster:
        cluster.form()
        assert is_refused(cluster, 2, PASSWORD)
        admin(cluster, 1, "user", "add", "olga", given=f"{PASSWORD}\n")
        assert works(cluster, 0, PASSWORD)
        why = "through a proxy, whose user is checked again by the primary"
        cluster.wait_until(partial(works, cluster, 2, PASSWORD, "PLAIN"), why)
        assert is_refused(cluster, 2, "wrong")

        cluster.kill(0)
        cluster.promote(1)
        cluster.wait_until(partial(works, cluster, 2, PASSWORD), "olga works through another broker")
        cluster.broker(0).start()
        cluster.wait_whole()
        cluster.wait_until(partial(works, cluster, 0, PASSWORD), "olga works through who was killed")

        cluster.crash()
        for broker in cluster.brokers:
            broker.start()
        cluster.wait_started()
        cluster.promote(1)  # which led: the others may lack the last thing that it wrote
        cluster.wait_whole()
        cluster.wait_until(partial(works, cluster, 2, PASSWORD), "olga works through a proxy")
        admin(cluster, 0, "user", "remove", "olga")
        for which in range(3):
            cluster.wait_until(partial(is_refused, cluster, which, PASSWORD), "olga is nobody")
        for broker in cluster.brokers:
            assert PASSWORD not in broker.log()
            assert "SCRAM-SHA-512$" not in broker.log()
