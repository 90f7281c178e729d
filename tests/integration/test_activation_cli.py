"""`qpid-ha activation` as an operator types it, with brokers down and up, on real stores and the file coordinator."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
import yaml
from proton import Delivery, Message

from blocking_client import BlockingClient
from qpid_ha_agent.control import RequestRefused
from qpid_ha_broker.coordination.changes import HISTORY_NOTE, read_changes
from qpid_ha_broker.coordination.file import FileCoordinator
from qpid_ha_broker.ha.effects import ClusterRecord
from qpid_ha_broker.store.files import LocalDisk
from running_cluster import RunningCluster
from store_writing import CLUSTER, StoreWriter, message, opening

Run = Callable[..., subprocess.CompletedProcess[str]]
MEMBERS = ("node1", "node2", "node3")
RECORDED = ClusterRecord(CLUSTER, 1, "node1", 1, MEMBERS)
# Runs the command here, as if this were that host; a host called `away` does not answer.
SSH = """#!/bin/sh
while [ "$1" != -- ]; do shift; done
[ "$2" = away ] && { echo "ssh: connect to host away port 22: No route to host" >&2; exit 255; }
shift 2 && exec sh -c "$*"
"""
QPID_HA = '#!/bin/sh\nexec "$PYTHON" -m qpid_ha_agent.cli.admin "$@"\n'


class Site:
    """A shared directory, three stores that were not closed, and the configuration of node1's machine."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.shared, programs = directory / "shared", directory / "bin"
        for path in (self.shared, programs):
            path.mkdir()
        for name, text in (("ssh", SSH), ("qpid-ha", QPID_HA)):
            (programs / name).write_text(text)
            (programs / name).chmod(0o700)
        self.coordinator = FileCoordinator(self.shared)
        self.stores = [self.make_store(name, count) for name, count in zip(MEMBERS, (5, 7, 6), strict=True)]
        self.config = directory / "qpid-ha.yaml"
        self.configure({"data-dir": str(self.stores[0]), "control-socket": str(directory / "none.sock")})
        self.environment = {
            **os.environ, "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}", "PYTHON": sys.executable, "TZ": "UTC",
            "QPID_HA_CONFIG": str(self.config), "SUDO_USER": "ann",
        }  # fmt: skip

    def configure(self, settings: dict[str, object], coordinator: str = "") -> None:
        ha = {"coordinator": coordinator or f"file:{self.shared}"}
        self.config.write_text(yaml.safe_dump({**settings, "ha": ha}))

    def make_store(self, name: str, messages: int, members: Sequence[str] = MEMBERS, set_name: str = "default") -> Path:
        store = self.directory / name / set_name
        store.mkdir(parents=True)
        writer = StoreWriter(LocalDisk(store), name, set_name=set_name).write(opening("node1", members))
        for _ in range(messages):
            writer.write([message()])
        writer.kill()
        return store.parent

    def record(self, record: ClusterRecord) -> None:
        assert self.coordinator.compare_and_set(self.coordinator.read(), record)[0]

    def run(self, *words: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "qpid_ha_agent.cli.admin", "activation", *map(str, words)]
        return subprocess.run(command, capture_output=True, text=True, env=self.environment, timeout=60, check=False)

    def listed(self, *words: object) -> tuple[int, dict[str, object]]:
        result = self.run("list", *words, "--format", "json")
        return result.returncode, json.loads(result.stdout)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    site = Site(tmp_path)
    site.record(RECORDED)
    return site


def test_it_shows_the_coordinator_and_every_store_side_by_side_within_eighty_columns(site: Site) -> None:
    result = site.run("list", *site.stores)

    assert (result.returncode, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert "generation 1, epoch 1, committed; led by node1; in sync node1, node2" in " ".join(result.stdout.split())
    heading = lines.index(next(line for line in lines if line.startswith("broker")))
    assert [line.split() for line in lines[heading : heading + 4]] == [
        ["broker", "state", "generation", "epoch", "claimed", "recorded", "may-lead"],
        ["node1", "dirty", "1", "1", "-", "yes", "no"],
        ["node2", "dirty", "1", "1", "-", "yes", "yes"],
        ["node3", "dirty", "1", "1", "-", "yes", "no"],
    ]
    assert "node1 may not lead: the store of node2 goes further" in result.stdout
    assert [line for line in lines if len(line) > 80 and str(site.directory) not in line] == []


def test_stores_of_other_sets_are_none_of_its_business(site: Site) -> None:
    before = site.run("list", *site.stores)
    for name in MEMBERS:
        site.make_store(name, 90, set_name="orders")
    after = site.run("list", *site.stores)
    assert (after.returncode, after.stdout, after.stderr) == (before.returncode, before.stdout, before.stderr)


def test_without_a_source_it_is_the_store_of_this_machine_and_the_others_are_missing(site: Site) -> None:
    code, found = site.listed()

    assert (code, found["may_lead"], found["missing"]) == (1, [], ["node2", "node3"])
    shown = site.run("list").stdout
    assert "systemctl start qpidd   # on node2" in shown
    assert f"qpid-ha activation set --from-store {site.stores[0]}/default --force" in shown


def test_hosts_are_asked_through_ssh_and_one_that_is_away_is_missing(site: Site) -> None:
    hosts = [f"{path.name}:{path}" for path in site.stores]
    assert site.listed(*hosts)[1]["may_lead"] == ["node2"]
    result = site.run("list", hosts[0], f"away:{site.stores[1]}", hosts[2], "--format", "yaml")

    assert result.returncode == 1
    assert "No route to host" in result.stderr
    assert yaml.safe_load(result.stdout)["missing"] == ["node2"]


def test_a_claim_that_never_began_stops_nobody_while_its_store_is_here(site: Site) -> None:
    (site.directory / "node3" / "default").rename(site.directory / "node3" / "before")
    store = site.directory / "node3" / "default"
    store.mkdir()
    StoreWriter(LocalDisk(store), "node3").write(opening("node1", MEMBERS)).status(
        role="connecting", promised=2, promised_to="node3"
    ).kill()
    site.record(ClusterRecord(CLUSTER, 2, "node3", 2, MEMBERS, claimed=True))

    code, found = site.listed(*site.stores)
    assert (code, found["may_lead"]) == (0, ["node2"])
    assert "claimed, not begun" in site.run("list", *site.stores).stdout
    assert "2 node3" in site.run("list", *site.stores).stdout
    assert site.listed(*site.stores[:2])[1]["may_lead"] == []


def test_a_record_that_was_emptied_is_set_from_the_stores_and_the_change_is_remembered(site: Site) -> None:
    site.record(ClusterRecord())
    code, found = site.listed(*site.stores)
    assert (code, found["may_lead"]) == (1, [])
    tried = site.run("set", "--from-store", site.stores[1], *site.stores, "--dry-run")
    assert tried.returncode == 0
    assert "it would be: generation 1, epoch 1, committed; led by node1" in " ".join(tried.stdout.split())
    assert site.coordinator.read() == ClusterRecord()

    done = site.run("set", "--from-store", site.stores[1], *site.stores, "--reason", "the mount was emptied")

    assert (done.returncode, done.stderr) == (0, "")
    assert site.coordinator.read() == RECORDED
    assert "qpid-ha promote   # on node2" in done.stdout
    (change,) = read_changes(site.coordinator.read_note(HISTORY_NOTE))
    assert (change.before, change.after, change.is_forced) == (ClusterRecord(), RECORDED, False)
    assert change.operator.startswith("ann on ")
    shown = site.run("list", *site.stores)
    assert shown.returncode == 0
    assert "the mount was emptied" in shown.stdout


@pytest.mark.parametrize("is_put_back", [False, True])
def test_what_may_lose_something_confirmed_takes_force(site: Site, is_put_back: bool) -> None:
    """Two stores are here, and a record that only the third one may know; or that was put back, and is older."""
    newer = RECORDED._replace(generation=4, epoch=9, members=("node3",), primary="node3")
    site.record(ClusterRecord() if is_put_back else newer)
    words = ["set", "--from-store", site.stores[0], site.stores[1]]
    refused = site.run(*words)

    assert refused.returncode == 1
    assert "nothing was changed: --force sets it all the same" in refused.stderr
    wrong = "these stores alone do not show" if is_put_back else "generation 4, epoch 9: what was confirmed since"
    assert wrong in " ".join(refused.stdout.split())
    assert site.coordinator.read() == (ClusterRecord() if is_put_back else newer)

    forced = site.run(*words, "--force")

    assert (forced.returncode, forced.stderr) == (0, "")
    assert site.coordinator.read() == RECORDED._replace(members=("node1",))
    assert site.listed(*site.stores[:2])[1]["may_lead"] == ["node1"]
    assert read_changes(site.coordinator.read_note(HISTORY_NOTE))[0].is_forced


def test_it_can_be_said_in_numbers(site: Site) -> None:
    site.record(ClusterRecord())
    words = ["--generation", "1", "--epoch", "1", "--primary", "node1", "--members", "node1,node2,node3"]

    done = site.run("set", *words, *site.stores, "--format", "json")

    assert done.returncode == 0
    assert json.loads(done.stdout)["may_lead"] == ["node2"]
    assert site.coordinator.read() == RECORDED


def test_a_record_that_says_so_already_is_left_alone(site: Site) -> None:
    done = site.run("set", "--from-store", site.stores[1], *site.stores)

    assert done.returncode == 0
    assert "says so already" in done.stdout
    assert site.coordinator.read_note(HISTORY_NOTE) == ""


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (["set"], 2, "give either --from-store, or"),
        (["set", "--generation", "1"], 2, "belong together"),
        (["set", "--from-store", "/nowhere"], 3, "there is no such directory"),
        (["list", "/nowhere"], 3, "no store could be looked at"),
    ],
)
def test_what_cannot_be_meant_says_what_would_be(site: Site, words: list[str], code: int, text: str) -> None:
    result = site.run(*words)

    assert result.returncode == code
    assert text in result.stderr


def test_a_coordinator_that_is_away_or_damaged_or_none_is_said(site: Site) -> None:
    site.coordinator.path.write_text("{")
    code, found = site.listed(*site.stores)
    assert (code, found["may_lead"]) == (1, [])
    assert "damaged" in site.run("list", *site.stores).stderr
    assert site.run("set", "--from-store", site.stores[1], *site.stores).returncode == 3
    site.configure({"data-dir": str(site.stores[0])}, coordinator="none")
    assert site.listed(*site.stores)[1]["may_lead"] == ["node2"]
    assert "qpid-ha promote --force" in site.run("set", "--from-store", site.stores[1]).stderr


# --- with brokers


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[RunningCluster]:
    """Three brokers with stores, the third one primary; a queue."""
    (tmp_path / "shared").mkdir()
    settings = {"ha": {"coordinator": f"file:{tmp_path / 'shared'}", "backup-timeout": "2s"}}
    with RunningCluster(tmp_path, settings=settings, stores=tmp_path / "stores") as cluster:
        cluster.form(2)
        cluster.broker(2).ask("queues", action="create", name="orders")
        yield cluster


def publish(cluster: RunningCluster, text: str) -> None:
    client = BlockingClient(cluster.urls[cluster.brokers.index(cluster.the_primary())])
    assert client.offer(client.sender("orders"), Message(text, durable=True)).state == Delivery.ACCEPTED
    client.connection.close()


def activation(cluster: RunningCluster, *words: object) -> subprocess.CompletedProcess[str]:
    """Typed on the first broker's machine."""
    command = [sys.executable, "-m", "qpid_ha_agent.cli.admin", "activation", *map(str, words)]
    environment = {**os.environ, "QPID_HA_CONFIG": str(cluster.broker(0).config)}
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=60, check=False)


def test_the_newest_one_stays_away_and_nobody_starts_until_somebody_decides(
    cluster: RunningCluster, tmp_path: Path
) -> None:
    stores = [tmp_path / "stores" / broker.name for broker in cluster.brokers]
    record = FileCoordinator(tmp_path / "shared").read
    publish(cluster, "held by all")
    running = activation(cluster, "list", "--format", "json")
    assert running.returncode == 0
    assert set(json.loads(running.stdout)["may_lead"]) == {"broker1", "broker2", "broker3"}
    older = ["--generation", 1, "--epoch", 1, "--primary", "broker3", "--members", "broker1"]
    refused = activation(cluster, "set", *older, *stores)
    assert refused.returncode == 1
    assert "broker3 leads generation 1: it keeps the record itself" in " ".join(refused.stdout.split())

    cluster.crash(0, 1)
    for number in range(3):
        publish(cluster, f"{number}, held by the third one alone")
    cluster.wait_until(lambda: record().members == ("broker3",), "the others' departure is recorded")
    cluster.crash(2)
    for which in (0, 1):
        cluster.restart(which)
    for which in (0, 1):
        with pytest.raises(RequestRefused, match="qpid-ha activation list"):
            cluster.promote(which)
    cluster.wait_until(lambda: bool(cluster.status(0).get("problem")), "the first one says why")
    assert "knows a newer in-sync set without this broker" in str(cluster.status(0)["problem"])

    listed = activation(cluster, "list", *stores[:2])

    assert listed.returncode == 1
    shown = " ".join(listed.stdout.split())
    assert "Nobody may lead. broker3 may hold what nobody here does." in shown
    assert "systemctl start qpidd # on broker3" in shown
    assert "broker1 may not lead: the coordinator knows a newer in-sync set without this broker" in shown
    assert activation(cluster, "list", *stores).returncode == 0, "the third store is what is missing"
    # As it says: of the two that are left, one may have heard of the other's departure.
    step = json.loads(activation(cluster, "list", *stores[:2], "--format", "json").stdout)["next"]
    set_it, promote_it = (shlex.split(command) for command in step["instead"])
    chosen, other = (0, 1) if promote_it[-1] == "broker1" else (1, 0)
    assert set_it[:4] == ["qpid-ha", "activation", "set", "--from-store"]
    unforced = [word for word in set_it[2:] if word != "--force"]
    assert activation(cluster, *unforced).returncode == 1
    assert record().members == ("broker3",)

    forced = activation(cluster, *set_it[2:], "--reason", "its disk burnt")

    assert forced.returncode == 0, forced.stderr
    assert record().members == (cluster.broker(chosen).name,)
    assert f"with that may lead: {cluster.broker(chosen).name}" in forced.stdout
    cluster.promote(chosen)
    cluster.wait_state(other, "ready")
    publish(cluster, "after that")
    assert "its disk burnt" in activation(cluster, "list").stdout
    history = cluster.broker(chosen).ask("history")["answer"]
    assert not history[-1]["forced"], "the record was set, and the promotion is one like any other"
    cluster.restart(2)  # found again: what it alone has is kept where it can be found
    cluster.wait_whole()
    assert cluster.broker(2).ask("query")["discarded"] in (2, 3), (
        "of the last its own store may not know that it counts"
    )
    assert list((stores[2] / "discarded").iterdir())
