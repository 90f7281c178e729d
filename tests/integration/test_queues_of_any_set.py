"""Queues of all resource sets, made and deleted through `$management` of any broker, also when brokers die."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from proton import Message

from blocking_client import Answer, BlockingClient
from qpid_ha_agent.control import RequestRefused
from qpid_ha_demo.cluster import ClusterFailed
from running_cluster import RunningCluster
from sets_cluster import change, create_set, sets_of, wait_whole

SETTINGS = {
    "ha": {"failure-timeout": "1s"},
    "resource-sets": "ruled.*=audit",
    "resource-sets.spread": 2,
}
OK, BAD, CREATED, ACCEPTED, DELETED, NO_SUCH, TAKEN, IN_USE = 200, 400, 201, 202, 204, 404, 409, 412
ATTEMPTS = 5
ORDERS: dict[str, object] = {"qpid.resource-set": "orders"}


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[RunningCluster]:
    with RunningCluster(tmp_path, settings=SETTINGS, stores=tmp_path / "stores") as cluster:
        cluster.form()
        yield cluster


class Desk:
    """A client of one broker's `$management`, who gets the replies on a link to it."""

    def __init__(self, cluster: RunningCluster, by: int) -> None:
        self.client = BlockingClient(cluster.urls[by])
        self._requests: Any = self.client.sender("$management")
        self._replies: Any = self.client.receiver("$management", 1000)
        self._numbers = itertools.count(1)

    def begin(self, operation: str, name: str, body: Any = None, **properties: object) -> int:
        """Send a request about a queue; its number."""
        number = next(self._numbers)
        message: Any = Message(body=body, reply_to="$management", correlation_id=number)
        message.properties = {"operation": operation, "type": "queue", "name": name, **properties}
        self._requests.link.send(message).settle()
        return number

    def next_answer(self) -> tuple[int, Answer]:
        """The next reply, whichever request's it is."""
        (reply,) = self.client.fetch(self._replies, 1)
        status, text = reply.properties.pop("statusCode"), reply.properties.pop("statusDescription")
        return int(reply.correlation_id), Answer(status, text, reply.body, reply.properties)

    def ask(self, operation: str, name: str, body: Any = None, **properties: object) -> Answer:
        """One request and its answer."""
        number = self.begin(operation, name, body, **properties)
        answered, answer = self.next_answer()
        assert answered == number
        return answer

    def create(self, name: str, arguments: dict[str, object]) -> Answer:
        """One queue; where that is pending on a busy machine, once more."""
        answers = (self.ask("CREATE", name, {"arguments": arguments}) for _ in range(ATTEMPTS))
        return next(answer for answer in answers if answer.status != ACCEPTED)


def in_directory(cluster: RunningCluster, by: int) -> dict[str, str]:
    """Queues and their sets, as that broker's map has them."""
    return {row["queue"]: row["set"] for row in cluster.broker(by).ask("map")["queues"]}


def in_sets(cluster: RunningCluster, by: int) -> dict[str, str]:
    """Queues of all sets but `default`, as the primaries have them; `by`: who knows those."""
    names, found = {broker.name: broker for broker in cluster.brokers}, dict[str, str]()
    for set_name, facts in sets_of(cluster.broker(by)).items():
        rows = names[str(facts["primary"])].ask("queues")["answer"]
        found |= {row["name"]: set_name for row in rows if row["set"] == set_name and "messages" in row}
    return found


def wait_no_orphans(cluster: RunningCluster, by: int) -> dict[str, str]:
    """Until every queue of the directory is in its set, and the other way round; which they are."""

    def is_same() -> bool:
        with suppress(KeyError, ClusterFailed, RequestRefused):  # a set may have no primary just now
            return in_directory(cluster, by) == in_sets(cluster, by)
        return False

    cluster.wait_until(is_same, "the directory and the sets have the same queues")
    return in_directory(cluster, by)


def test_a_queue_is_made_and_deleted_through_any_broker_whatever_set_it_belongs_to(cluster: RunningCluster) -> None:
    names = [broker.name for broker in cluster.brokers]
    create_set(cluster, "orders", preferred=names[1])
    create_set(cluster, "audit", preferred=names[2])
    wait_whole(cluster, 0, "orders", "audit")
    desks = [Desk(cluster, by) for by in range(3)]
    wanted: dict[str, tuple[int, dict[str, object], str]] = {}
    for by in range(3):
        wanted[f"named-{by}"] = by, ORDERS, "orders"
        wanted[f"ruled.{by}"] = by, {"own": by}, "audit"
        wanted[f"plain-{by}"] = by, {"qpid.resource-set": "default"}, "default"
        wanted[f"spread-{by}"] = by, {}, ""

    for name, (by, arguments, set_name) in wanted.items():
        answer = desks[by].create(name, arguments)
        assert answer.status == CREATED, answer
        assert answer.body["set"] == set_name or answer.body["set"] in ("shard-1", "shard-2")
        assert answer.body["arguments"] == arguments
        assert name in in_sets(cluster, 0) or set_name == "default", "its primary has it when that is answered"

    for by, desk in enumerate(desks):
        rows = desk.ask("QUERY", "", {"attributeNames": ["name", "set"]}, entityType="queue").body["results"]
        assert {name for name, _ in rows} == set(wanted), by
    for name, (by, arguments, _) in wanted.items():
        other = desks[(by + 1) % 3]
        assert other.create(name, arguments).status == CREATED
        assert other.create(name, {**arguments, "qpid.max_count": 7}).status == TAKEN
        refused = other.ask("DELETE", name, if_unused=7)
        assert refused.status == 400, refused
    publisher = BlockingClient(cluster.urls[1])
    publisher.send("named-0", "one")
    assert desks[2].ask("DELETE", "named-0", if_empty=True).status == IN_USE
    for name, (by, _, _) in wanted.items():
        other = desks[(by + 2) % 3]
        assert other.ask("DELETE", name, if_unused=True).status == DELETED
        assert name not in in_sets(cluster, 0), "it is gone when that is answered"
        assert other.ask("DELETE", name).status == NO_SUCH
    assert change(cluster, 2, "queues", "create", name="by-hand", arguments=ORDERS)["created"]
    assert not change(cluster, 1, "queues", "create", name="by-hand", arguments=ORDERS)["created"]
    change(cluster, 1, "queues", "delete", name="by-hand")
    assert wait_no_orphans(cluster, 0) == {}


def test_a_queue_is_read_and_changed_through_any_proxy_also_after_its_primary_has_died(tmp_path: Path) -> None:
    with RunningCluster(tmp_path, settings={"ha": {"failure-timeout": "1s", "clients": "proxy"}}) as cluster:
        cluster.form()
        create_set(cluster, "orders", preferred=cluster.broker(1).name)
        wait_whole(cluster, 0, "orders")
        desks = [Desk(cluster, by) for by in range(3)]  # at the controller, at the primary of the set, and at neither
        assert desks[0].create("invoices", ORDERS).status == CREATED
        desks[2].client.send("invoices", "a", "b", "c")

        for by, desk in enumerate(desks):
            assert desk.ask("READ", "invoices").body["messages"] == 3, by
            done = desk.ask("UPDATE", "invoices", {"arguments": {"qpid.max_count": 100 + by}})
            assert (done.status, done.body["arguments"]["qpid.max_count"]) == (OK, 100 + by)
            assert desk.ask("UPDATE", "invoices", {"arguments": {"qpid.max_count": "many"}}).status == BAD, by
        assert desks[2].ask("PURGE", "invoices").body == {"purged": 3}

        cluster.kill(1)
        others = [cluster.broker(by).name for by in (0, 2)]
        cluster.wait_until(lambda: sets_of(cluster.broker(0))["orders"]["primary"] in others, "another one leads it")
        for by in (0, 2):
            facts = desks[by].ask("READ", "invoices")
            assert (facts.status, facts.body["messages"], facts.body["arguments"]["qpid.max_count"]) == (OK, 0, 102)
