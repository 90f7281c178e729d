"""`qpid-ha activation` as an operator types it while all brokers are down: real stores, and the file coordinator."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result

from qpid_ha_agent import store_sources
from qpid_ha_agent.cli import activation as activation_cli
from qpid_ha_agent.cli.admin import admin
from qpid_ha_agent.cli.invocation import Invocation
from qpid_ha_agent.store_sources import SourceError, facts_of_source
from qpid_ha_broker.coordination.changes import HISTORY_NOTE, read_changes
from qpid_ha_broker.coordination.file import FileCoordinator
from qpid_ha_broker.diagnosis.activation import RunningBroker
from qpid_ha_broker.ha.cluster_record import ClusterRecord
from qpid_ha_broker.ha.frames import StoreOrigin
from qpid_ha_broker.ha.states import State
from qpid_ha_broker.store.facts import StoreFacts
from qpid_ha_broker.store.files import LocalDisk
from qpid_ha_broker.store.inspection import Progress, examine
from store_writing import CLUSTER, StoreWriter, message, opening

MEMBERS = ("node1", "node2", "node3")
RECORDED = ClusterRecord(CLUSTER, 1, "node1", 1, MEMBERS)


class Site:
    """A shared directory, three stores that were not closed, and the configuration of node1's machine."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.shared = directory / "shared"
        self.shared.mkdir()
        self.coordinator = FileCoordinator(self.shared)
        self.stores = [self.make_store(name, count) for name, count in zip(MEMBERS, (5, 7, 6), strict=True)]
        self.config = directory / "qpid-ha.yaml"
        self.configure({"data-dir": str(self.stores[0]), "control-socket": str(directory / "none.sock")})

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

    def run(self, *words: object) -> Result:
        environment = {"TZ": "UTC", "QPID_HA_CONFIG": str(self.config), "SUDO_USER": "ann"}
        return CliRunner().invoke(admin, ["activation", *map(str, words)], env=environment)

    def listed(self, *words: object) -> tuple[int, dict[str, object]]:
        result = self.run("list", *words, "--format", "json")
        return result.exit_code, json.loads(result.stdout)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    site = Site(tmp_path)
    site.record(RECORDED)
    return site


def test_it_shows_the_coordinator_and_every_store_side_by_side_within_eighty_columns(site: Site) -> None:
    result = site.run("list", *site.stores)

    assert (result.exit_code, result.stderr) == (0, "")
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


@pytest.mark.parametrize("words", [("activation", "list"), ("store", "list"), ("store", "best"), ("store", "check"),
                                   ("store", "recover"), ("store", "set-aside")])  # fmt: skip
def test_who_may_not_look_at_a_store_is_told_so_with_code_4(
    site: Site, monkeypatch: pytest.MonkeyPatch, words: tuple[str, str]
) -> None:
    """The mode of a data directory is 0700."""
    store, stat = site.stores[0], Path.stat

    def forbidden(path: Path, *, follow_symlinks: bool = True) -> os.stat_result:
        if path.is_relative_to(store):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return stat(path, follow_symlinks=follow_symlinks)

    monkeypatch.setattr(Path, "stat", forbidden)
    result = CliRunner().invoke(admin, [*words, str(store)], env={"QPID_HA_CONFIG": str(site.config)})
    assert (result.exit_code, type(result.exception)) == (4, SystemExit), result.output
    assert "we may not: do this as root, or as the broker's user" in result.stderr


def test_what_the_system_refuses_a_command_is_one_line_and_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    for error, code in ((PermissionError(errno.EACCES, "no", "/f"), 4), (OSError(errno.EIO, "it is broken", "/f"), 1)):

        def fail(_invocation: object, *_words: object, error: OSError = error, **_params: object) -> None:
            raise error

        monkeypatch.setattr(Invocation, "call", fail)
        result = CliRunner().invoke(admin, ["ping"])
        assert (result.exit_code, result.stderr.count("/f"), result.stderr.count("\n")) == (code, 1, 1)


def test_stores_of_other_sets_are_none_of_its_business(site: Site) -> None:
    before = site.run("list", *site.stores)
    for name in MEMBERS:
        site.make_store(name, 90, set_name="orders")
    after = site.run("list", *site.stores)
    assert (after.exit_code, after.stdout, after.stderr) == (before.exit_code, before.stdout, before.stderr)


def test_without_a_source_it_is_the_store_of_this_machine_and_the_others_are_missing(site: Site) -> None:
    code, found = site.listed()

    assert (code, found["may_lead"], found["missing"]) == (1, [], ["node2", "node3"])
    shown = site.run("list").stdout
    assert "systemctl start qpid-ha   # on node2" in shown
    assert f"qpid-ha activation set --from-store {site.stores[0]}/default --force" in shown


def test_hosts_are_asked_and_one_that_is_away_is_missing(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """That they are asked through ssh, `qpid-ha store` shows."""

    def ask_host(source: str, timeout_s: float, set_name: str | None = None) -> list[StoreFacts]:
        host, _colon, directory = source.partition(":")
        if host == "away":
            raise SourceError("away: No route to host")
        return facts_of_source(directory, set_name)

    monkeypatch.setattr(store_sources, "ask_host", ask_host)
    hosts = [f"{path.name}:{path}" for path in site.stores]
    assert site.listed(*hosts)[1]["may_lead"] == ["node2"]
    result = site.run("list", hosts[0], f"away:{site.stores[1]}", hosts[2], "--format", "yaml")

    assert result.exit_code == 1
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
    assert tried.exit_code == 0
    assert "it would be: generation 1, epoch 1, committed; led by node1" in " ".join(tried.stdout.split())
    assert site.coordinator.read() == ClusterRecord()

    done = site.run("set", "--from-store", site.stores[1], *site.stores, "--reason", "the mount was emptied")

    assert (done.exit_code, done.stderr) == (0, "")
    assert site.coordinator.read() == RECORDED
    assert "qpid-ha promote -b node2   # on node2" in done.stdout
    (change,) = read_changes(site.coordinator.read_note(HISTORY_NOTE))
    assert (change.before, change.after, change.is_forced) == (ClusterRecord(), RECORDED, False)
    assert change.operator.startswith("ann on ")
    shown = site.run("list", *site.stores)
    assert shown.exit_code == 0
    assert "the mount was emptied" in shown.stdout


def test_a_record_by_which_an_agent_has_promoted_its_broker_leaves_nothing_to_do(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Agents wait for the record alone, and are there before an operator has read what to type."""
    site.record(ClusterRecord())
    waiting = RunningBroker("node2", State.CONNECTING, 1, 1, 8, MEMBERS, StoreOrigin.DIRTY)
    answers = iter([[waiting], [waiting], [waiting._replace(state=State.PRIMARY)]])
    monkeypatch.setattr(activation_cli, "_ask_brokers", lambda _invocation: next(answers))
    monkeypatch.setattr(activation_cli, "_ASK_AGAIN_S", 0.0)
    done = site.run("set", "--from-store", site.stores[1], *site.stores)
    assert (done.exit_code, "node2 is primary: there is nothing left to do" in done.stdout) == (0, True)
    assert "qpid-ha promote" not in done.stdout


@pytest.mark.parametrize("is_put_back", [False, True])
def test_what_may_lose_something_confirmed_takes_force(site: Site, is_put_back: bool) -> None:
    """Two stores are here, and a record that only the third one may know; or that was put back, and is older."""
    newer = RECORDED._replace(generation=4, epoch=9, members=("node3",), primary="node3")
    site.record(ClusterRecord() if is_put_back else newer)
    words = ["set", "--from-store", site.stores[0], site.stores[1]]
    refused = site.run(*words)

    assert refused.exit_code == 1
    assert "nothing was changed: --force sets it all the same" in refused.stderr
    wrong = "these stores alone do not show" if is_put_back else "generation 4, epoch 9: what was confirmed since"
    assert wrong in " ".join(refused.stdout.split())
    assert site.coordinator.read() == (ClusterRecord() if is_put_back else newer)

    forced = site.run(*words, "--force")

    assert (forced.exit_code, forced.stderr) == (0, "")
    assert site.coordinator.read() == RECORDED._replace(members=("node1",))
    assert site.listed(*site.stores[:2])[1]["may_lead"] == ["node1"]
    assert read_changes(site.coordinator.read_note(HISTORY_NOTE))[0].is_forced


def test_it_can_be_said_in_numbers(site: Site) -> None:
    site.record(ClusterRecord())
    words = ["--generation", "1", "--epoch", "1", "--primary", "node1", "--members", "node1,node2,node3"]

    done = site.run("set", *words, *site.stores, "--format", "json")

    assert done.exit_code == 0
    assert json.loads(done.stdout)["may_lead"] == ["node2"]
    assert site.coordinator.read() == RECORDED


def test_a_record_that_says_so_already_is_left_alone(site: Site) -> None:
    done = site.run("set", "--from-store", site.stores[1], *site.stores)

    assert done.exit_code == 0
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

    assert result.exit_code == code
    assert text in result.stderr


def test_a_coordinator_that_is_away_or_damaged_or_none_is_said(site: Site) -> None:
    site.coordinator.path.write_text("{")
    code, found = site.listed(*site.stores)
    assert (code, found["may_lead"]) == (1, [])
    assert "damaged" in site.run("list", *site.stores).stderr
    assert site.run("set", "--from-store", site.stores[1], *site.stores).exit_code == 3
    site.configure({"data-dir": str(site.stores[0])}, coordinator="none")
    assert site.listed(*site.stores)[1]["may_lead"] == ["node2"]
    assert "qpid-ha promote --force" in site.run("set", "--from-store", site.stores[1]).stderr


def test_the_stores_of_other_sets_are_not_read(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """The records of those sets are in the log of `default`; a machine may have hundreds of them."""
    for number in range(3):
        site.make_store(f"node{number + 1}", 4, set_name="orders")
    read = list[str]()

    def note(disk: LocalDisk, where: str, progress: Progress, *, is_running: bool) -> StoreFacts:
        read.append(Path(where).name)
        return examine(disk, where, progress, is_running=is_running)

    monkeypatch.setattr(store_sources, "examine", note)
    site.run("list", *site.stores)
    assert read == ["default"] * 3
