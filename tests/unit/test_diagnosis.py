"""What a diagnosis finds: each finding for its facts, none for healthy ones, and what it says to do is a command."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from qpid_ha_agent.cli.admin import admin
from qpid_ha_agent.cli.diagnose import WIDTH, diagnosis_document, diagnosis_text
from qpid_ha_agent.cli.invocation import Invocation
from qpid_ha_agent.diagnosis.gathering import Gathered
from qpid_ha_broker.coordination.pause import Pause
from qpid_ha_broker.diagnosis.activation import Assessment, NextStep, Standpoint
from qpid_ha_broker.diagnosis.checks import diagnose
from qpid_ha_broker.diagnosis.commands import Reader, complete, complete_text
from qpid_ha_broker.diagnosis.facts import (
    OUTSIDE,
    WITHHELD,
    AwaitedQueue,
    BackupLag,
    BrokenLink,
    BrokerFigures,
    BrokerState,
    CertificateEnd,
    CoordinatorState,
    DiagnosisFacts,
    GroupTrouble,
    LocalProcess,
    MachineState,
    QueueState,
    RefusedLogin,
    SetStanding,
    SilentBroker,
    Supervisor,
)
from qpid_ha_broker.diagnosis.findings import KINDS, Severity, table_in_markdown
from qpid_ha_broker.group.effects import GroupRole
from qpid_ha_broker.ha.cluster_record import ClusterRecord
from qpid_ha_broker.store.facts import Integrity, StoreFacts
from typed_commands import parse

ROOT = Path(__file__).parents[2]
NOW_S = 1_800_000_000.0
DAY_S = 86_400.0
NAMES = ("node1", "node2", "node3")
FIGURES = BrokerFigures(
    "1.0", "ok", acl_rules="12", listening=("amqps://10.0.0.1:5671",), memory_bytes=10, memory_limit_bytes=1000
)
NEEDS_A_TIME = {"QpidHaAuditLinesLost", "QpidHaConfirmsSlowly", "QpidHaLoopIsLate", "QpidHaWrongTokens"}

Change = Callable[[DiagnosisFacts], DiagnosisFacts]


def broker(number: int, **changes: Any) -> BrokerState:
    name = NAMES[number - 1]
    state = BrokerState(
        name, f"amqp://10.0.0.{number}:5672", "primary" if number == 1 else "ready", 4, 9, 100, NAMES, 2,
        is_local=number == 1, figures=FIGURES,
    )  # fmt: skip
    return state._replace(**changes)


HEALTHY = DiagnosisFacts(
    brokers=(broker(1), broker(2), broker(3)),
    backups=(BackupLag("node2", "ready", True, 3, 900, 0.1), BackupLag("node3", "ready", True)),
    sets=(
        SetStanding("orders", "node1", NAMES, 3, 2),
        SetStanding("bills", "node2", NAMES[1:], 3, 2, moving_to="node3"),
    ),
    queues=(
        QueueState("busy", 10, 100, 1, 11, 1000, grown=5),
        QueueState("idle", 10, 100, 0),
        QueueState("ring", 10, 100, 1, 10, refuses=False),
    ),
    failovers_ms=tuple(int((NOW_S - ago_s) * 1000) for ago_s in (9000, 8000, 7000, 6000, 100)),
    coordinator=CoordinatorState("file:/shared", record=ClusterRecord("c", 4, "node1", 9, NAMES)),
    machine=MachineState(
        "node1", "/etc/qpid-ha/qpid-ha.yaml", data_dir="/var/lib/qpid-ha", free_bytes=50 << 30, total_bytes=100 << 30,
        certificates=(CertificateEnd("/etc/node1.pem", NOW_S + 31 * DAY_S),), process=LocalProcess.ANSWERS,
        supervisor=Supervisor.AGENT,
    ),
    now_s=NOW_S,
)  # fmt: skip


def with_broker(number: int, **changes: Any) -> Change:
    def change(facts: DiagnosisFacts) -> DiagnosisFacts:
        brokers = list(facts.brokers)
        brokers[number - 1] = broker(number, **changes)
        return replace(facts, brokers=tuple(brokers))

    return change


def with_figures(**changes: Any) -> Change:
    return with_broker(2, figures=FIGURES._replace(**changes))


def with_machine(**changes: Any) -> Change:
    return lambda facts: replace(facts, machine=replace(facts.machine, **changes))


def having(**changes: Any) -> Change:
    return lambda facts: replace(facts, **changes)


def standpoint(name: str, may_lead: bool, why: str) -> Standpoint:
    return Standpoint(name, "", "connecting", 3, 7, 90, NAMES, 0, "", may_lead, may_lead, why)


REFUSED = Assessment(
    (standpoint("node2", False, "the coordinator knows a newer in-sync set"), standpoint("node1", True, "in sync")),
    ("node3",),
    None,
)
LEADERLESS = (broker(1, state="connecting"), broker(2, state="connecting"))
SILENT = SilentBroker("amqp://10.0.0.3:5672", "node3", "connection refused", ("node1", "node2"))
DAMAGED = StoreFacts("/var/lib/qpid-ha/default", integrity=Integrity.DAMAGED, detail="journal/1.log, offset 7")
LONG_SINCE = datetime(2026, 1, 1, tzinfo=UTC)

WAITS = GroupTrouble(
    "orders", "withheld", 8.0, "some whom the record names are missing", ("node3",), "no controller answers"
)

CASES: dict[str, Change] = {
    "nobody-answers": having(brokers=(), silent=(SILENT,), sets=(), backups=(), queues=()),
    "no-primary": having(brokers=LEADERLESS, silent=(SILENT,), backups=(), sets=()),
    "promotion-refused": having(brokers=LEADERLESS, assessment=REFUSED, backups=(), sets=()),
    "two-primaries": with_broker(2, state="primary", generation=3),
    "two-clusters": having(
        brokers=(broker(1, cluster="u-1"), broker(2, state="primary", generation=1, cluster="u-2"), broker(3))
    ),
    "two-coordinators": having(
        brokers=tuple(
            broker(number, coordinator="file:/shared", coordinator_identity=identity)
            for number, identity in enumerate(("a" * 32, "b" * 32, "a" * 32), 1)
        )
    ),
    "name-twice": having(twins=(("node2", ("amqp://10.0.0.2:5672", "amqp://10.0.0.3:5672")),)),
    "commits-wait": with_broker(1, uncommitted_s=8.0, uncommitted_why="that node4 left is not recorded: no quorum"),
    "too-few-in-sync": with_broker(1, members=("node1",), min_in_sync=2),
    "set-without-primary": having(sets=(SetStanding("orders", "", NAMES, 3, 2, problem="in sync were node4"),)),
    "group-withheld": with_broker(2, groups=(WAITS,)),
    "store-cannot-write": with_figures(store="full"),
    "messages-unreadable": with_figures(unreadable=4),
    "store-damaged": with_machine(stores=(DAMAGED,)),
    "data-dir-read-only": with_machine(is_read_only=True),
    "certificate-expired": with_machine(certificates=(CertificateEnd("/etc/old.pem", NOW_S - 3 * DAY_S),)),
    "login-refused": having(
        refused_logins=(
            RefusedLogin("node2", "amqp://10.0.0.3:5672", "amqp:unauthorized-access: Authentication failed"),
        )
    ),
    "broker-silent": having(brokers=HEALTHY.brokers[:2], silent=(SILENT,)),
    "broker-not-running": with_machine(process=LocalProcess.ABSENT, last_lines=("one", "the last line")),
    "broker-hangs": with_machine(process=LocalProcess.HELD, pid=4711),
    "link-broken": having(broken_links=(BrokenLink("node3", "amqp://10.0.0.3:5672", ("node2",)),)),
    "no-backup": with_broker(1, members=("node1",), min_in_sync=1),
    "backup-not-following": with_broker(3, state="connecting", login_problem="node1 refuses the password"),
    "backup-expected": having(backups=(BackupLag("node3", "expected", True),)),
    "backup-lags": having(backups=(BackupLag("node2", "ready", True, 70, 90_000, 5.5),)),
    "paused": having(pause=Pause("olga on node1", LONG_SINCE, None, "new disks")),
    "group-transport": with_broker(2, groups=(GroupTrouble("orders", "outside", 2.0, transport_problem="cpg: 2"),)),
    "group-member-outside": with_broker(2, groups=(GroupTrouble("orders", "outside", 90.0, "it is alone"),)),
    "group-queue-stuck": with_broker(
        2, groups=(GroupTrouble("orders", "serving", 90.0, stuck=(AwaitedQueue("q", "node3", 12.0),)),)
    ),
    "set-below-replicas": having(sets=(SetStanding("orders", "node1", NAMES[:2], 3, 2, problem="node3: disk"),)),
    "sets-not-known": having(sets=(), sets_problem="no controller answers"),
    "controller-stopped": with_broker(1, controller_problem="a bug (KeyError)"),
    "coordinator-unusable": having(coordinator=CoordinatorState("file:/shared", "/shared is not there")),
    "coordinators-differ": having(
        brokers=(broker(1, coordinator="file:/a"), broker(2, coordinator="file:/b"), broker(3))
    ),
    "addresses-differ": having(
        brokers=(broker(1, addresses=("amqp://a", "amqp://b")), broker(2, addresses=("amqp://a",)), broker(3))
    ),
    "agent-not-running": with_machine(has_agent=False),
    "agent-silent": with_broker(2, agent_silent_s=5.2),
    "fails-over-often": having(failovers_ms=tuple(int((NOW_S - ago_s) * 1000) for ago_s in (3500, 30, 20, 10))),
    "memory-near-limit": with_figures(memory_bytes=901),
    "disk-nearly-full": with_machine(free_bytes=9 << 30),
    "certificate-expires": with_machine(certificates=(CertificateEnd("/etc/node1.pem", NOW_S + 29 * DAY_S),)),
    "configuration-invalid": with_machine(config_problem="/etc/qpid-ha/qpid-ha.yaml:3: nmae: unknown key"),
    "acl-file-invalid": with_machine(acl_problem="/etc/qpid-ha/acl:7: 'alow': did you mean allow?"),
    "everybody-administers": with_figures(everybody_administers="/etc/qpid-ha/acl:1: allow all administer"),
    "acl-missing": with_figures(acl_rules="none"),
    "setting-not-in-force": with_figures(left_out=(("max-message-size", "it is over memory-limit"),)),
    "audit-lines-lost": with_figures(audit_lost=3),
    "backup-catches-up": with_broker(3, state="catchup"),
    "broker-draining": having(draining=("node3",)),
    "coordinator-moved": having(coordinator=CoordinatorState("file:/old", moved_to="etcd://e1:2379/orders")),
    "versions-differ": with_figures(version="1.1"),
    "clock-differs": with_figures(clock_ahead_s=-2.5),
    "message-clock-differs": with_figures(message_clock_ahead_s=86_400.0),
    "messages-discarded": with_figures(discarded=12),
    "queue-is-full": having(queues=(QueueState("orders", 10, 100, 1, 10),)),
    "queue-is-not-read": having(queues=(QueueState("orders; rm -rf", 10, 100, 0, grown=3),)),
}
"""What makes of healthy facts those for which each finding is."""

AS_WELL: dict[str, set[str]] = {
    "no-primary": {"broker-silent"},
    "promotion-refused": {"no-primary"},
    "too-few-in-sync": {"no-backup"},
}
"""What the same facts mean beside it."""


def test_each_finding_has_its_facts() -> None:
    assert set(CASES) == set(KINDS)


def test_a_certificate_that_is_not_valid_yet_is_no_better_than_one_that_is_no_more() -> None:
    ahead = CertificateEnd("/etc/new.pem", NOW_S + 90 * DAY_S, NOW_S + 3 * DAY_S)
    (finding,) = diagnose(with_machine(certificates=(ahead,))(HEALTHY))
    assert (finding.key, "not valid before 3 days from now" in finding.text) == ("certificate-expired", True)


def test_healthy_brokers_have_nothing_wrong() -> None:
    assert diagnose(HEALTHY) == []
    alone = broker(1, state="standalone", members=(), min_in_sync=0, generation=0)
    assert diagnose(DiagnosisFacts(brokers=(alone,), is_cluster=False, now_s=NOW_S)) == []
    assert diagnose(DiagnosisFacts()) == []


@pytest.mark.parametrize("key", KINDS)
def test_it_is_found_for_its_facts_and_nothing_else(key: str) -> None:
    found = diagnose(CASES[key](HEALTHY))
    assert {finding.key for finding in found} == {key} | AS_WELL.get(key, set())
    (finding,) = [each for each in found if each.key == key]
    assert finding.text
    assert finding.commands


@pytest.mark.parametrize("key", KINDS)
def test_each_command_of_ours_is_one(key: str) -> None:
    for finding in diagnose(CASES[key](HEALTHY)):
        for command in finding.commands:
            words = shlex.split(command, comments=True)
            if words[0] == "qpid-ha":
                with suppress(click.exceptions.Exit):
                    parse(admin, words[1:])


WITH_ADDRESS = Reader("amqps://ada@10.0.0.1:5671", "/etc/ada.password")
WITH_SOCKET = Reader("node1", config="conf/node1.yaml")


@pytest.mark.parametrize("reader", [WITH_ADDRESS, WITH_SOCKET])
@pytest.mark.parametrize("key", KINDS)
def test_each_command_says_again_by_what_its_reader_came_to_his_broker(key: str, reader: Reader) -> None:
    """Where several brokers share a machine, one that does not would go to another broker, or to none."""
    for finding in diagnose(CASES[key](HEALTHY)):
        for command in finding.commands:
            words = shlex.split(complete(command, reader), comments=True)
            if "qpid-ha" not in words[:2]:
                continue
            if "   # on " in command:
                assert words == shlex.split(command, comments=True), "what is said here is not said there"
                continue
            setting, words = words[: words.index("qpid-ha")], words[words.index("qpid-ha") + 1 :]
            assert setting == ([f"QPID_HA_CONFIG={reader.config}"] if reader.config else [])
            invocation = said_in(words)
            asks_a_broker = words[0] not in ("coordinator", "pause", "resume", "store")
            broker = invocation.broker or ""
            assert bool(broker) is asks_a_broker, command
            if asks_a_broker and reader is WITH_ADDRESS:
                assert (invocation.password_file, broker.partition("://")[2].partition("@")[0]) == (
                    reader.password_file, "ada",
                ), command  # fmt: skip
            elif asks_a_broker and "-b" not in command:
                assert broker == "node1", command


def said_in(words: list[str]) -> Invocation:
    """What all commands share, as these words have it."""
    invocation = Invocation()
    with suppress(click.exceptions.Exit):
        parse(admin, words, obj=invocation)
    return invocation


def test_an_agent_that_is_gone_is_told_of_once() -> None:
    gone = with_machine(has_agent=False)(with_broker(1, agent_silent_s=90.0)(HEALTHY))
    assert [finding.key for finding in diagnose(gone)] == ["agent-not-running"]
    (finding,) = diagnose(with_broker(1, agent_silent_s=90.0)(HEALTHY))
    assert finding.text == "the agent of node1 has not asked it for its status for 90 s"
    assert not diagnose(with_broker(1, agent_silent_s=4.9)(HEALTHY))


def test_a_command_is_completed_once_and_only_one_of_ours() -> None:
    assert complete("qpid-ha history", WITH_SOCKET) == "QPID_HA_CONFIG=conf/node1.yaml qpid-ha -b node1 history"
    assert complete("qpid-ha resume", Reader("node1")) == "qpid-ha resume", "it refuses -b"
    assert complete("qpid-ha -b amqp://10.0.0.2:5672 demote", WITH_ADDRESS) == (
        "qpid-ha --password-file /etc/ada.password -b amqp://ada@10.0.0.2:5672 demote"
    )
    for other in ("systemctl start qpid-ha", "df -h   # on node1", "qpid-ha store check '/a b   # on it", ""):
        assert complete(other, WITH_SOCKET) == other
    assert complete("qpid-ha tls reload   # once", Reader("a b")) == "qpid-ha -b 'a b' tls reload   # once"
    text = "nobody may lead: `qpid-ha activation list` shows what each one has; `ha.min-in-sync` is 2"
    once = complete_text(text, WITH_ADDRESS)
    assert "`qpid-ha -b amqps://ada@10.0.0.1:5671 --password-file /etc/ada.password activation list`" in once
    assert complete_text(once, WITH_ADDRESS) == once
    assert complete_text(complete_text(text, WITH_SOCKET), WITH_SOCKET) == complete_text(text, WITH_SOCKET)
    assert complete_text(text, Reader()) == text


def test_why_a_store_cannot_be_written_is_told_with_the_broker() -> None:
    found = diagnose(with_broker(1, store_problem="No space left on device")(HEALTHY))
    assert [finding.key for finding in found] == ["store-cannot-write"]
    assert "node1" in found[0].text
    assert "No space left on device" in found[0].text


def test_the_most_urgent_comes_first() -> None:
    facts = HEALTHY
    for key in ("queue-is-full", "paused", "store-cannot-write", "backup-lags"):
        facts = CASES[key](facts)
    found = [finding.key for finding in diagnose(facts)]
    assert found == ["store-cannot-write", "backup-lags", "paused", "queue-is-full"]
    severities = [kind.severity for kind in KINDS.values()]
    assert severities == sorted(severities, key=list(Severity).index)


def test_who_is_named_is_whom_it_is_about() -> None:
    (finding,) = diagnose(CASES["broker-silent"](HEALTHY))
    assert finding.text == (
        "node3 at amqp://10.0.0.3:5672 does not answer, seen from here, node1, node2: connection refused"
    )
    (finding,) = diagnose(CASES["broker-not-running"](HEALTHY))
    assert "its log ends with: one / the last line" in finding.text
    assert finding.commands[0] == "systemctl start qpid-ha"
    (finding,) = diagnose(CASES["two-primaries"](HEALTHY))
    assert finding.commands == ("qpid-ha status --all", "qpid-ha -b amqp://10.0.0.2:5672 demote")


def test_coordinators_are_compared_by_what_they_are_and_by_their_urls_only_where_that_is_not_told() -> None:
    (finding,) = diagnose(CASES["two-coordinators"](HEALTHY))
    assert "file:/shared (aaaaaaaa): node1, node3; file:/shared (bbbbbbbb): node2" in finding.text
    urls = ("file:/a", "file:/b", "file:/a")
    same = tuple(broker(at, coordinator=url, coordinator_identity="a" * 32) for at, url in enumerate(urls, 1))
    assert not diagnose(replace(HEALTHY, brokers=same)), "one place by two names"
    older = (*same[:1], same[1]._replace(coordinator_identity=""), *same[2:])
    assert [each.key for each in diagnose(replace(HEALTHY, brokers=older))] == ["coordinators-differ"]


def test_without_a_primary_the_next_step_is_that_of_the_activation() -> None:
    step = NextStep("node3 may hold what nobody here does.", ("systemctl start qpid-ha   # on node3",))
    facts = replace(HEALTHY, brokers=LEADERLESS, assessment=replace(REFUSED, next_step=step), backups=(), sets=())
    assert {finding.commands for finding in diagnose(facts)} == {step.commands}
    facts = replace(facts, assessment=REFUSED)
    assert diagnose(facts)[0].commands == ("qpid-ha status --all", "qpid-ha promote")
    assert diagnose(CASES["paused"](facts))[0].commands == ("qpid-ha resume",)


def test_a_group_is_told_of_as_one_and_with_what_to_do_next() -> None:
    nobody = SetStanding("orders", "", NAMES, 3, 2, problem="node1 is away", strategy="group")
    (finding,) = diagnose(replace(HEALTHY, sets=(nobody,)))
    assert finding.text == "no member of the group orders serves: node1 is away"
    moment = nobody._replace(served_by=("node2",))
    assert not diagnose(replace(HEALTHY, sets=(moment,))), "another member is about to look after its queues"
    assert diagnose(replace(HEALTHY, sets=(moment._replace(strategy="primary"),))), "level is not leading"
    (finding,) = diagnose(CASES["group-withheld"](HEALTHY))
    assert finding.text == (
        "node2 has handed out and confirmed nothing of the group orders for 8 s: some whom the record names are"
        " missing; node3 not there; its record cannot be changed: no controller answers"
    )
    assert finding.commands[0] == "systemctl start qpid-ha   # on node3"
    (finding,) = diagnose(CASES["group-transport"](HEALTHY))
    assert finding.commands[-1] == "systemctl start corosync   # on node2"
    (finding,) = diagnose(CASES["group-queue-stuck"](HEALTHY))
    assert finding.commands[0] == "qpid-ha queue show q"


def test_roles_of_members_are_called_as_the_broker_calls_them() -> None:
    assert (WITHHELD, OUTSIDE) == (GroupRole.WITHHELD, GroupRole.OUTSIDE)


def test_what_passes_in_a_moment_in_a_group_is_no_finding() -> None:
    brief = (
        WAITS._replace(for_s=2.0),
        GroupTrouble("audit", "outside", 20.0),
        GroupTrouble("b", "catching-up", 900.0),
    )
    assert not diagnose(with_broker(2, groups=brief)(HEALTHY))


def test_of_very_many_only_some_are_named() -> None:
    sets = tuple(SetStanding(f"shard-{number}", "", (), 3, 2) for number in range(500))
    queues = tuple(QueueState(f"queue-{number}", number + 1, 0, 0, 1, grown=1) for number in range(500))
    found = diagnose(replace(HEALTHY, sets=sets, queues=queues))
    assert len(found) == 33
    assert sum("490 more" in finding.text for finding in found) == 3


def test_the_sets_of_a_cluster_without_a_controller_are_known_from_the_map() -> None:
    facts = with_broker(2, sets=2, sets_without_primary=("orders",))(replace(HEALTHY, sets=()))
    assert [(finding.key, finding.about) for finding in diagnose(facts)] == [("set-without-primary", "orders")]


@pytest.mark.parametrize("name", ["audit", "a; reboot", "it's", "$(id)", "-x", "two words"])
def test_a_command_to_copy_names_what_it_is_about_and_runs_nothing_else(name: str) -> None:
    facts = replace(HEALTHY, sets=(SetStanding(name, "", (), 3, 2),))
    (command,) = [command for finding in diagnose(facts) for command in finding.commands if " set show " in command]
    assert shlex.split(command) == ["qpid-ha", "set", "show", name]


def test_what_is_read_elsewhere_says_of_which_machine_it_is() -> None:
    elsewhere = replace(HEALTHY.machine, is_elsewhere=True, is_read_only=True, free_bytes=1 << 20)
    found = {finding.key: finding for finding in diagnose(replace(HEALTHY, machine=elsewhere))}
    assert found["data-dir-read-only"].text == "node1: the file system of /var/lib/qpid-ha is read-only"
    assert found["disk-nearly-full"].commands == (
        "du -xsh /var/lib/qpid-ha/*   # on node1",
        "qpid-ha -b node1 queue list   # on node1",
    )


def test_the_page_shows_the_table() -> None:
    page = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")
    shown = page.partition("<!-- findings: begin -->\n")[2].partition("<!-- findings: end -->")[0]
    assert shown == f"{table_in_markdown()}\n"


def test_each_alert_is_a_finding_unless_it_takes_figures_over_a_time() -> None:
    (group,) = yaml.safe_load((ROOT / "contrib" / "prometheus" / "alerts.yml").read_text(encoding="utf-8"))["groups"]
    alerts = {rule["alert"]: rule for rule in group["rules"]}
    assert {kind.alert for kind in KINDS.values()} - {""} == set(alerts) - NEEDS_A_TIME
    for rule in alerts.values():
        for words in re.findall(r"(?:^|; )qpid-ha ([a-z -]+)", rule["annotations"]["action"]):
            with suppress(click.exceptions.Exit, click.MissingParameter, click.exceptions.NoArgsIsHelpError):
                parse(admin, shlex.split(words.partition(" on the ")[0]))


def test_it_is_printed_within_80_columns_and_steers_no_terminal() -> None:
    facts = HEALTHY
    for key in ("broker-silent", "paused", "backup-lags"):
        facts = CASES[key](facts)
    facts = replace(facts, pause=Pause("olga\x1b[31m", LONG_SINCE))
    gathered = Gathered(facts, not_asked={"the coordinator": "it took longer than 6 s " * 5})
    found = diagnose(facts)
    lines = diagnosis_text(gathered, found).splitlines()
    assert all(len(line) <= WIDTH for line in lines if not line.startswith("    "))
    assert "\x1b" not in "".join(lines)
    assert "3 findings; asked: node1, node2" in lines
    document = diagnosis_document(gathered, found)
    assert [entry["key"] for entry in document["findings"]] == ["broker-silent", "backup-lags", "paused"]  # type: ignore[attr-defined]
