"""Limits of users at brokers that run, through a proxy: each kind, new ones read, and queues after a failover."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import proton
import pytest
from proton import Delivery, Message
from proton.utils import ConnectionClosed, LinkDetached

from blocking_client import BlockingClient, Management
from running_cluster import RunningCluster
from sets_cluster import create_set

PASSWORD = "correct horse"
SASLPASSWD = shutil.which("saslpasswd2") or shutil.which("saslpasswd2", path="/usr/sbin:/sbin") or "saslpasswd2"
LIMITS = "limit alice connections=2 links=4 queues=3 message-size=2000B rate=1/h"
RULES = "allow all all\nlimit bob rate=20/s\n{}\n"

pytestmark = [
    pytest.mark.direct_only("the cluster has proxies of its own"),
    pytest.mark.skipif(not proton.SASL.extended(), reason="this Proton was built without Cyrus SASL: no passwords"),
]


@pytest.fixture
def rules(tmp_path: Path) -> Path:
    rules = tmp_path / "rules"
    rules.write_text(RULES.format(LIMITS))
    return rules


@pytest.fixture
def cluster(tmp_path: Path, rules: Path) -> Iterator[RunningCluster]:
    """Two brokers that relay; the first one leads."""
    for user in ("alice", "bob"):
        command = [SASLPASSWD, "-p", "-c", "-f", str(tmp_path / "users"), user]
        subprocess.run(command, input=PASSWORD, text=True, check=True, capture_output=True, timeout=30)
    settings = {"ha": {"clients": "proxy"}, "sasl": {"users-db": str(tmp_path / "users")}, "acl": {"file": str(rules)}}
    with RunningCluster(tmp_path, 2, settings=settings) as cluster:
        cluster.form()
        yield cluster


def client_of(cluster: RunningCluster, which: int, user: str = "alice") -> BlockingClient:
    return BlockingClient(cluster.urls[which], user=user, password=PASSWORD, allowed_mechs="SCRAM-SHA-256")


def limits_of(cluster: RunningCluster, which: int, user: str = "alice") -> dict[str, tuple[Any, Any]]:
    rows: Any = cluster.broker(which).ask("user-limits", user=user)["answer"]
    return {row["kind"]: (row["limit"], row["used"]) for row in rows}


def links_of(cluster: RunningCluster, which: int, user: str) -> list[dict[str, Any]]:
    rows: Any = cluster.broker(which).ask("connections")["answer"]
    return [link for row in rows if row["user"] == user for link in row["links"]]


def test_a_user_is_limited_where_it_is_connected_and_so_are_its_queues_wherever_they_are(
    cluster: RunningCluster, rules: Path
) -> None:
    proxy, primary = 1, 0
    create_set(cluster, "s")
    alice, other, bob = (client_of(cluster, proxy, user) for user in ("alice", "alice", "bob"))
    with alice, other, bob:
        with pytest.raises(ConnectionClosed, match=r"alice: connections limit: 2 .*rules:3: limit alice") as refused:
            client_of(cluster, proxy)
        assert refused.value.condition == "amqp:resource-limit-exceeded"
        # Two links, and a queue for its replies.
        body = {"arguments": {"qpid.resource-set": "s"}}
        assert Management(alice).ask("CREATE", type="queue", name="one", body=body).status == 201
        assert cluster.broker(primary).ask("queues", action="read", name="one")["set"] == "s"
        sender = other.sender("two")
        with pytest.raises(LinkDetached, match="alice: queues limit: 3 queues are made"):
            other.sender("three")
        assert bob.send("three", "x")[0].state == Delivery.ACCEPTED
        assert limits_of(cluster, primary)["queues"] == (3, 3)
        waiting = other.sender("one")
        with pytest.raises(LinkDetached, match="alice: links limit: 4 links are attached"):
            other.sender("one")

        assert sender.link.remote_max_message_size == 2000
        assert other.offer(sender, "x").state == Delivery.ACCEPTED
        held = [link for link in links_of(cluster, proxy, "alice") if link["waits_for"] == "rate limit"]
        assert len(held) == 2  # of both publishers: this hour's message was sent
        assert {outcome.state for outcome in bob.send("one", *"x" * 60)} == {Delivery.ACCEPTED}
        delivery = waiting.link.send(Message("late"))
        rules.write_text(RULES.format(LIMITS.replace("rate=1/h", "rate=1000/s")))
        assert cluster.broker(proxy).ask("reload-acl")["limits"] == 2
        other.wait(lambda: delivery.settled)
        with pytest.raises(LinkDetached, match=r"a message of 3[0-9]+ bytes or more; max-message-size is 2000"):
            other.offer(sender, "x" * 3000)
        assert limits_of(cluster, proxy) == {
            "connections": (2, 2),
            "links": (4, 3),
            "queues": (3, 3),
            "sessions": (None, 0),
            "message-size": (2000, None),
            "rate": (1000, None),
        }
        assert limits_of(cluster, primary)["links"] == (4, 0)

    cluster.wait_until(lambda: limits_of(cluster, primary)["queues"] == (3, 2), "the queue for replies is gone")
    cluster.demote(primary)
    cluster.promote(proxy)
    with client_of(cluster, proxy) as alice:
        management = Management(alice)
        with pytest.raises(LinkDetached, match="alice: queues limit"):
            alice.sender("four")
        assert management.ask("DELETE", type="queue", name="one").status == 204
        alice.sender("four").close()
    facts = cluster.broker(proxy).ask("query")
    assert (facts["acl_limits"], facts["limits_refused"]) == (2, 4)
