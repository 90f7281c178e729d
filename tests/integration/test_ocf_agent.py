"""The resource agent as Pacemaker calls it: for each situation one code, and one sentence, what matters first in it.

The broker is a scripted process, Pacemaker's tools are scripted programs; the agent is the real one.
"""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import fake_qpidd
from ocf_resource import IN_SYNC, LOST, PRIMARY, Outcome, Resource, says_first
from qpid_ha_agent import actions
from qpid_ha_agent.ocf.agent import LAST_CHANCE_S, OcfAgent
from qpid_ha_agent.ocf.codes import OcfCode
from qpid_ha_agent.ocf.memory import DIRECTORY_VARIABLE, Memory, MemoryFile
from qpid_ha_agent.ocf.parameters import read_parameters
from qpid_ha_agent.pacemaker import attributes
from qpid_ha_agent.pacemaker.companions import watch_of
from qpid_ha_agent.sight import Sight, look
from scripted_pacemaker import NODE

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="the agent wants to be root, as Pacemaker's agents are")


# --- the ordinary life


def test_a_backup_is_started_watched_stopped_and_each_can_be_repeated(resource: Resource) -> None:
    assert resource.do("monitor").code is OcfCode.NOT_RUNNING
    resource.broker.says(**IN_SYNC)
    for _ in range(2):
        assert resource.do("start").code is OcfCode.SUCCESS
    assert resource.pacemaker.score() == "500"
    resource.pacemaker.forget_calls()
    assert resource.do("monitor") == Outcome(OcfCode.SUCCESS, "", "")
    assert resource.pacemaker.calls("crm_attribute") == []
    resource.do("monitor", interval="0")  # a probe: whoever asks for one may have forgotten the score
    assert len(resource.pacemaker.calls("crm_attribute")) == 1

    for _ in range(2):
        assert resource.do("stop").code is OcfCode.SUCCESS
        assert resource.pacemaker.score() == ""
    assert resource.do("monitor").code is OcfCode.NOT_RUNNING


def test_a_primary_is_promoted_and_demoted_and_says_where_it_handed_over(resource: Resource) -> None:
    resource.up(**LOST)
    resource.broker.says(**PRIMARY)  # it is so by the time it is asked
    assert resource.promote().code is OcfCode.SUCCESS
    assert resource.do("monitor").code is OcfCode.RUNNING_PROMOTED
    assert resource.pacemaker.score() == "1000"

    resource.broker.says(**IN_SYNC)
    assert resource.do("demote").code is OcfCode.SUCCESS
    assert resource.do("notify", notify_type="pre", notify_operation="promote").code is OcfCode.SUCCESS
    assert resource.pacemaker.position() == "3:7:100:ready:in-sync 3:100"

    resource.broker.says(**PRIMARY)
    assert resource.promote().code is OcfCode.SUCCESS
    assert resource.memory.read().handed_over == ""


def test_a_status_that_a_person_asks_for_tells_pacemaker_nothing(resource: Resource) -> None:
    resource.up(**IN_SYNC)
    resource.broker.says(**LOST)  # worth another score
    del resource.environment["OCF_RESOURCE_INSTANCE"]
    assert resource.do("status").code is OcfCode.SUCCESS
    assert resource.pacemaker.calls("crm_attribute") == []


def test_who_is_primary_no_more_against_pacemakers_will_says_so_at_once(resource: Resource) -> None:
    resource.up(**PRIMARY)
    assert resource.pacemaker.score() == "1000"
    resource.broker.says(**IN_SYNC)
    assert resource.do("monitor").code is OcfCode.SUCCESS
    assert resource.pacemaker.score() == "1000", "in a planned move the next one is being promoted now"
    resource.do("monitor", role="Promoted")
    assert resource.pacemaker.score() == "500"


def test_after_a_stop_or_fencing_elsewhere_the_primary_does_not_wait_for_that_backup(resource: Resource) -> None:
    resource.up(**PRIMARY)
    after = {"notify_type": "post", "notify_operation": "stop"}
    resource.do("notify", **after, notify_stop_uname="n3", notify_key_operation="stonith")
    resource.do("notify", **after, notify_stop_uname="n2 n3 n1", notify_start_uname="n2")
    resource.do("notify", **after, notify_stop_uname=" ")
    fenced, stopped = "Pacemaker has fenced its node", "Pacemaker has stopped it"
    assert resource.broker.asked("drop") == [
        {"backup": "n3", "reason": fenced}, {"backup": "n3", "reason": stopped}
    ]  # fmt: skip


def test_nobody_but_the_primary_is_told_and_one_that_cannot_be_told_is_no_failure(resource: Resource) -> None:
    after = {"notify_type": "post", "notify_operation": "stop", "notify_stop_uname": "n3"}
    resource.up(**IN_SYNC)
    assert resource.do("notify", **after).code is OcfCode.SUCCESS
    assert resource.broker.asked("drop") == []
    resource.broker.says(**PRIMARY | {"no_such_method": "drop"})
    found = resource.do("notify", **after)
    assert (found.code, "was not told that n3 is gone: no such method" in found.log) == (OcfCode.SUCCESS, True)


# --- a cluster of many resource sets

MANY = {"sets": 2, "draining": False, "left": 0, "brokers": [NODE, "n2", "n3"]}
STAND_BY = {"notify_type": "pre", "notify_stop_uname": NODE, "notify_active_uname": f"{NODE} n2"}


def asked_of_the_controller(resource: Resource) -> list[str]:
    return [str(each["action"]) for each in resource.broker.asked("brokers")]


def test_the_controller_hears_of_nodes_that_were_fenced_and_a_new_one_does_too(resource: Resource) -> None:
    resource.up(**PRIMARY | MANY)
    resource.do("notify", notify_type="post", notify_operation="stop", notify_stop_uname=f"n3 {NODE}")
    resource.promote(NODE, notify_all_uname=f"{NODE} n2 n3 arbiter", notify_start_uname="n2")
    told = [each["name"] for each in resource.broker.asked("brokers") if each["action"] == "fail"]
    assert told == ["n3"] * 2
    resource.do("notify", **STAND_BY, notify_operation="demote", notify_demote_uname=NODE)
    assert asked_of_the_controller(resource)[-1] == "leave"


def test_a_node_that_goes_to_standby_is_drained_and_undrained_when_it_is_back(resource: Resource) -> None:
    resource.pacemaker.standby("on")
    resource.up(**IN_SYNC | MANY)
    resource.do("notify", **STAND_BY, notify_operation="stop")
    assert asked_of_the_controller(resource) == ["drain", "leave"]
    assert resource.pacemaker.drained() == "true"

    resource.broker.says(**IN_SYNC | MANY | {"draining": True})
    resource.do("monitor")  # it is about to be stopped
    assert resource.pacemaker.drained() == "true"
    resource.pacemaker.standby("off")
    resource.do("monitor")
    assert asked_of_the_controller(resource) == ["drain", "leave", "undrain"]
    assert resource.pacemaker.drained() == ""


def test_what_an_operator_has_drained_stays_drained(resource: Resource) -> None:
    resource.pacemaker.standby("on")
    resource.up(**IN_SYNC | MANY | {"draining": True})
    resource.do("notify", **STAND_BY, notify_operation="stop")
    resource.pacemaker.standby("off")
    resource.do("monitor")
    assert asked_of_the_controller(resource) == ["leave"]


def test_what_an_operator_drains_stays_drained_though_an_earlier_standby_drained_it_too(resource: Resource) -> None:
    """The operator was faster to undrain it when it was back, and drains it for another reason a while later."""
    resource.pacemaker.standby("on")
    resource.up(**IN_SYNC | MANY)
    resource.do("notify", **STAND_BY, notify_operation="stop")
    resource.do("monitor")  # not seen as drained yet, and in standby
    assert resource.pacemaker.drained() == "true"
    resource.pacemaker.standby("off")
    resource.do("monitor")
    assert resource.pacemaker.drained() == ""
    resource.broker.says(**IN_SYNC | MANY | {"draining": True})
    resource.do("monitor")
    assert asked_of_the_controller(resource) == ["drain", "leave"]


def test_whether_there_is_a_note_of_a_drain_is_asked_once(resource: Resource) -> None:
    resource.up(**IN_SYNC | MANY)
    for _ in range(2):
        resource.pacemaker.forget_calls()
        resource.do("monitor")
    assert [call for call in resource.pacemaker.calls("crm_attribute") if "drained" in call] == []


def test_in_a_cluster_of_one_set_nobody_is_told_and_no_tool_is_asked(resource: Resource) -> None:
    resource.pacemaker.standby("on")
    resource.up(**PRIMARY)
    resource.do("notify", **STAND_BY, notify_operation="stop")
    resource.do("notify", notify_type="post", notify_operation="stop", notify_stop_uname="n3")
    assert asked_of_the_controller(resource) == []
    assert resource.pacemaker.calls("crm_attribute") == []


def test_only_what_precedes_a_promotion_is_published(resource: Resource) -> None:
    resource.up(**IN_SYNC)
    for when in ("pre", "post"):
        for what in ("start", "stop", "promote", "demote"):
            if (when, what) != ("pre", "promote"):
                assert resource.do("notify", notify_type=when, notify_operation=what).code is OcfCode.SUCCESS
    assert resource.pacemaker.calls("attrd_updater") == []

    assert resource.do("notify", notify_type="pre", notify_operation="promote").code is OcfCode.SUCCESS
    assert resource.pacemaker.position().split() == ["3:7:100:ready:in-sync"]

    resource.broker.send(signal.SIGKILL)
    assert resource.do("notify", notify_type="pre", notify_operation="promote").code is OcfCode.SUCCESS
    assert resource.pacemaker.position() == ""


# --- a monitor tells the truth


@pytest.mark.parametrize(("role", "code"), [("Promoted", 9), ("Master", 9), ("Unpromoted", 1), ("", 1)])
def test_a_frozen_broker_has_failed_in_the_role_that_it_had(resource: Resource, role: str, code: int) -> None:
    resource.up(**PRIMARY)
    resource.set(hang_timeout="300ms")
    resource.broker.send(signal.SIGSTOP)
    found = resource.do("monitor", role=role)
    assert (found.code, says_first(found, "silent", "within 0.3 s")) == (code, True)


def test_a_primary_with_too_few_replicas_is_degraded_and_must_not_be_restarted_for_it(resource: Resource) -> None:
    resource.up(**IN_SYNC)
    resource.broker.says(**PRIMARY | {"members": [NODE], "min_in_sync": 2})
    found = resource.do("monitor")
    assert (found.code, says_first(found, "1 of ha.min-in-sync=2")) == (OcfCode.DEGRADED_PROMOTED, True)


def test_a_primary_whose_disk_is_full_is_degraded_and_worth_less_than_who_is_in_sync(resource: Resource) -> None:
    resource.up(**IN_SYNC)
    resource.broker.says(**PRIMARY | {"members": [NODE, "b"], "store_problem": "No space left", "unwritable_s": 2.0})
    for _ in range(2):  # that it is worth less is told when it lasts, or with the next look
        found = resource.do("monitor", role="Promoted")
    assert (found.code, says_first(found, "No space left", "another broker")) == (OcfCode.DEGRADED_PROMOTED, True)
    assert resource.pacemaker.score() == "5"


def test_a_broker_that_is_gone_is_a_failure_with_its_last_words_only_where_one_was_started(resource: Resource) -> None:
    resource.up(**IN_SYNC)
    resource.broker.send(signal.SIGKILL)
    resource.broker.await_end()
    found = resource.do("monitor")
    assert (found.code, found.reason) == (OcfCode.NOT_RUNNING, "the broker's process is gone")
    with resource.broker.log_file.open("a", encoding="utf-8") as log:
        log.write("qpidd: the store in /d cannot be loaded: it is damaged\n")
    assert says_first(resource.do("monitor"), "is gone: the store in /d cannot be loaded: it is damaged")
    with resource.memory.changed() as memory:
        memory.failure = "its process 7 ended"
    assert resource.do("monitor").reason == "its process 7 ended"

    assert resource.do("stop").code is OcfCode.SUCCESS
    found = resource.do("monitor")
    assert (found.code, found.reason) == (OcfCode.NOT_RUNNING, "")


@pytest.mark.parametrize("trouble", ["fail", "hang"])
def test_a_cluster_that_cannot_be_told_does_not_change_what_a_monitor_says(
    resource: Resource, monkeypatch: pytest.MonkeyPatch, trouble: str
) -> None:
    monkeypatch.setattr(attributes, "TOOL_TIMEOUT_S", 0.2)
    resource.up(**IN_SYNC)
    getattr(resource.pacemaker, trouble)()
    resource.broker.says(**PRIMARY)  # there is something to tell
    found = resource.do("monitor")
    assert found.code is OcfCode.RUNNING_PROMOTED
    assert "crm_attribute" in found.log
    assert resource.do("monitor").code is OcfCode.RUNNING_PROMOTED
    assert resource.do("stop").code is OcfCode.SUCCESS
    assert resource.do("monitor").code is OcfCode.NOT_RUNNING


def test_a_state_directory_that_cannot_be_written_does_not_change_it_either(resource: Resource) -> None:
    resource.up(**IN_SYNC)
    resource.environment[DIRECTORY_VARIABLE] = "/proc/no-such-place"
    resource.set(watch="true")
    assert resource.do("monitor").code is OcfCode.SUCCESS
    assert resource.do("stop").code is OcfCode.SUCCESS
    assert not resource.broker.pid


def test_at_level_10_it_also_knocks_at_the_amqp_port(resource: Resource) -> None:
    """The scripted broker does not tell where it listens."""
    resource.up(**IN_SYNC)
    assert resource.do("monitor", CHECK_LEVEL="0").code is OcfCode.SUCCESS
    found = resource.do("monitor", CHECK_LEVEL="10")
    assert (found.code, bool(found.reason)) == (OcfCode.ERR_GENERIC, True)
    resource.broker.says(**PRIMARY)
    assert resource.do("monitor", CHECK_LEVEL="20").code is OcfCode.FAILED_PROMOTED


# --- bad input


@pytest.mark.parametrize(
    ("parameters", "code", "words"),
    [
        ({"max_lag": "many"}, OcfCode.ERR_CONFIGURED, ["max_lag", "'many'"]),
        ({"start_timeout": "soon"}, OcfCode.ERR_CONFIGURED, ["start_timeout", "'soon'"]),
        ({"hang_timeout": "soon"}, OcfCode.ERR_CONFIGURED, ["hang_timeout", "'soon'"]),
        ({"watch": "perhaps"}, OcfCode.ERR_CONFIGURED, ["watch", "'perhaps'"]),
        ({"config": "x.yaml"}, OcfCode.ERR_CONFIGURED, ["config", "absolute"]),
        ({"virtual_ip": "10.0.0.300/24"}, OcfCode.ERR_CONFIGURED, ["virtual_ip", "10.0.0.300"]),
        ({"virtual_ip_nic": "eth0"}, OcfCode.ERR_CONFIGURED, ["virtual_ip_nic"]),
        ({"config": "/no/such.yaml"}, OcfCode.ERR_ARGS, ["config", "/no/such.yaml"]),
        ({"config": "/proc/self"}, OcfCode.ERR_ARGS, ["config", "/proc/self"]),
        ({"config": "/etc/passwd"}, OcfCode.ERR_ARGS, ["config", "/etc/passwd"]),
        ({"user": "no-such-user"}, OcfCode.ERR_ARGS, ["user", "no-such-user"]),
        ({"binary": "/no/such/qpidd"}, OcfCode.ERR_INSTALLED, ["binary", "/no/such/qpidd"]),
    ],
)  # fmt: skip
def test_a_wrong_parameter_fails_a_start_and_never_a_stop(
    resource: Resource, parameters: dict[str, str], code: OcfCode, words: list[str]
) -> None:
    """A stop that fails is a reason to fence the machine; and what was never started does not run."""
    resource.set(**parameters)
    for action in ("start", "validate-all"):
        found = resource.do(action, CHECK_LEVEL="10")
        assert (found.code, says_first(found, *words)) == (code, True), found
    assert resource.do("monitor").code is OcfCode.NOT_RUNNING
    assert resource.do("demote").code is OcfCode.SUCCESS
    assert resource.do("stop").code is OcfCode.SUCCESS


@pytest.mark.parametrize("parameters", [{"config": "/no/such.yaml"}, {"max_lag": "many"}, {"virtual_ip": "x"}])
def test_a_broker_that_runs_is_seen_and_stopped_whatever_is_set_by_now(
    resource: Resource, parameters: dict[str, str]
) -> None:
    resource.up(**IN_SYNC)
    resource.set(**parameters)
    assert resource.do("monitor").code is OcfCode.SUCCESS
    assert resource.do("demote").code is OcfCode.SUCCESS
    assert resource.do("stop").code is OcfCode.SUCCESS
    assert not resource.broker.pid


def test_at_level_0_only_what_is_wrong_everywhere_is_found(resource: Resource) -> None:
    resource.set(config="/no/such.yaml", user="no-such-user")
    assert resource.do("validate-all").code is OcfCode.SUCCESS
    assert resource.do("validate-all", CHECK_LEVEL="10").code is OcfCode.ERR_ARGS


def test_at_level_10_the_broker_is_asked_whether_it_would_start(resource: Resource) -> None:
    refuses = resource.broker.script("refuses", 'echo "qpidd: $2: lisen: no such key"; test "$5" != --check')
    resource.set(binary=refuses)
    found = resource.do("validate-all", CHECK_LEVEL="10")
    assert (found.code, "lisen: no such key" in found.reason) == (OcfCode.ERR_ARGS, True)
    assert resource.do("validate-all").code is OcfCode.SUCCESS


def test_a_node_without_pacemakers_tools_is_told_what_to_install(
    resource: Resource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(resource.broker.directory))
    found = resource.do("validate-all", CHECK_LEVEL="10")
    assert (found.code, says_first(found, "crm_attribute", "install")) == (OcfCode.ERR_INSTALLED, True)


def test_an_action_with_too_little_time_says_so_before_it_is_killed(resource: Resource) -> None:
    found = resource.do("start", timeout="1000")
    assert (found.code, says_first(found, "1000 ms", "too short")) == (OcfCode.ERR_GENERIC, True)

    resource.broker.script("qpidd", f'exec {sys.executable} -c "import time; time.sleep(600)" "$@"')
    began_s = time.monotonic()
    found = resource.do("start", timeout="1500")
    assert found.code is OcfCode.ERR_GENERIC
    assert says_first(found, "did not answer within 0.5 s")
    assert time.monotonic() - began_s < 10, "not start_timeout, which is a minute"


# --- a broker that takes long to listen, or to load its store

LISTENS_AFTER_S = 1.5
LOADING = {"name": NODE, "state": "loading", "loaded_bytes": 360_000_000, "store_bytes": 900_000_000, "lsn": 0}


def listening_late(resource: Resource) -> None:
    """The broker listens, and answers, after `LISTENS_AFTER_S`."""
    fake = f'exec {sys.executable} {fake_qpidd.__file__} "$@"'
    resource.broker.script("qpidd", f"sleep {LISTENS_AFTER_S:g}; {fake}")
    resource.broker.says(**LOST)


def test_a_start_does_not_wait_for_a_store_that_takes_long_to_load(resource: Resource) -> None:
    resource.broker.says(**LOADING)

    assert resource.do("start").code is OcfCode.SUCCESS

    assert resource.pacemaker.score() == "-INFINITY", "nobody waits for it, and nobody promotes it"
    found = resource.do("monitor")
    assert (found.code, found.reason) == (OcfCode.SUCCESS, "")
    assert "is loading its store: 40% of 900 MB" in found.log
    assert resource.do("monitor", CHECK_LEVEL="20").code is not OcfCode.NOT_RUNNING


def test_a_start_that_ends_with_the_load_tells_the_score_at_once(
    resource: Resource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actions, "LOAD_S", 20.0)
    resource.broker.says(**LOADING)
    loaded = threading.Timer(0.2, resource.broker.says, kwargs=LOST)
    loaded.start()
    assert resource.do("start").code is OcfCode.SUCCESS
    assert resource.pacemaker.score() == "200"


def test_a_store_that_cannot_be_loaded_is_a_failed_start_when_that_shows_soon(
    resource: Resource, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(actions, "LOAD_S", 20.0)
    resource.broker.says(**LOADING)
    words = "the store in /d cannot be loaded: journal/1: 5 bytes at 100 are damaged"
    resource.broker.script(
        "qpidd", f'{sys.executable} {fake_qpidd.__file__} "$@" & sleep 1; kill $!; echo "qpidd: {words}" >&2; exit 1'
    )
    found = resource.do("start")
    assert (found.code, found.reason) == (OcfCode.ERR_GENERIC, f"broker ended: {words}")


@pytest.mark.parametrize("told", [{}, {"chosen": True}], ids=["", "chosen of all stores"])
def test_a_loading_broker_is_out_of_the_question_and_says_so(resource: Resource, told: dict[str, object]) -> None:
    resource.up(**LOADING, **told)
    with resource.memory.changed() as memory:
        memory.is_forced = True

    found = resource.promote(NODE)

    assert found.code is OcfCode.ERR_GENERIC
    assert says_first(found, "still loading its store: 40% of 900 MB")
    assert resource.pacemaker.score() == "-INFINITY"
    assert resource.do("notify", notify_type="pre", notify_operation="promote").code is OcfCode.SUCCESS
    assert resource.pacemaker.position() == "", "with nothing to compare, it is nobody's rival"
    assert resource.do("demote").code is OcfCode.SUCCESS


def test_the_broker_that_has_loaded_is_worth_something_as_soon_as_the_watch_sees_it(resource: Resource) -> None:
    resource.up(**LOADING)
    agent = OcfAgent(read_parameters(resource.environment), resource.environment)
    resource.broker.says(**LOST)
    agent.status_changed(look(resource.broker.control_socket, 5.0))
    assert resource.pacemaker.score() == "200"


def test_a_broker_that_does_not_listen_yet_is_no_failure_to_a_probe_and_one_that_never_does_is(
    resource: Resource,
) -> None:
    listening_late(resource)
    starting = threading.Thread(target=actions.start, args=(resource.broker.service, 20.0))
    starting.start()
    while not resource.broker.pid:
        time.sleep(0.01)
    assert resource.do("monitor", interval="0").code is OcfCode.SUCCESS
    assert resource.do("monitor", interval="0", role="Promoted").code is OcfCode.FAILED_PROMOTED
    assert resource.promote(NODE).code is OcfCode.ERR_GENERIC
    assert resource.pacemaker.score() == "", "nobody knows what it is worth"
    resource.set(start_timeout="10ms")
    assert resource.do("monitor", interval="0").code is OcfCode.ERR_GENERIC
    starting.join()
    assert resource.do("monitor", interval="0").code is OcfCode.SUCCESS
    assert resource.do("stop").code is OcfCode.SUCCESS
    assert resource.broker.pid == 0


# --- memory


def test_an_action_that_was_done_has_not_failed_because_nothing_can_be_noted(
    resource: Resource, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full /run: a demotion that counts as failed has the machine fenced."""

    def is_full(memory_file: MemoryFile, memory: Memory) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    resource.up(**IN_SYNC)
    monkeypatch.setattr(MemoryFile, "write", is_full)
    promoted = resource.promote(NODE)
    assert (promoted.code, "No space left" in promoted.log) == (OcfCode.SUCCESS, True)
    assert resource.do("demote").code is OcfCode.SUCCESS
    assert resource.do("monitor").code in (OcfCode.SUCCESS, OcfCode.RUNNING_PROMOTED)
    assert resource.do("stop").code is OcfCode.SUCCESS
    assert resource.do("start").code is OcfCode.SUCCESS


def test_a_promotion_is_not_forced_where_it_cannot_be_noted_that_it_was(
    resource: Resource, monkeypatch: pytest.MonkeyPatch
) -> None:
    resource.up(**IN_SYNC)
    with resource.memory.changed() as memory:
        memory.is_forced = True
    monkeypatch.setattr(MemoryFile, "note", lambda _file, **_fields: "cannot note it")
    assert resource.promote(NODE).reason == "cannot note it"
    assert resource.broker.asked("promote") == []


def test_what_an_action_left_for_the_next_may_be_damaged(resource: Resource) -> None:
    resource.up(**IN_SYNC)
    path = resource.memory.directory / "broker.json"
    for damaged in ("", "[]", "{", '{"score": 5, "stops": "x", "control_socket": null}'):
        path.write_text(damaged, encoding="utf-8")
        assert resource.memory.read() == Memory()
        assert resource.do("monitor").code is OcfCode.SUCCESS
    assert resource.do("stop").code is OcfCode.SUCCESS


def test_of_two_that_change_the_memory_neither_undoes_the_other(tmp_path: Path) -> None:
    memory = MemoryFile("broker", tmp_path / "state")

    def count() -> None:
        with memory.changed() as second:
            second.stops += 1

    other = threading.Thread(target=count)
    with memory.changed() as first:
        other.start()
        other.join(0.05)  # long enough for one that does not wait to be undone
        first.score = "500"
    other.join()
    assert (memory.read().stops, memory.read().score) == (1, "500")


# --- patience


def test_a_reload_with_a_wrong_parameter_says_so_and_restarts_nothing(resource: Resource) -> None:
    assert resource.do("reload-agent").code is OcfCode.SUCCESS
    resource.set(hang_timeout="soon")
    found = resource.do("reload-agent")
    assert (found.code, says_first(found, "hang_timeout", "soon")) == (OcfCode.SUCCESS, True)


def test_what_the_watcher_waited_for_in_vain_is_not_waited_for_again(
    resource: Resource, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited_s: list[float] = []

    def noted(control_socket: Path, timeout_s: float) -> Sight:
        waited_s.append(timeout_s)
        return look(control_socket, timeout_s)

    resource.up(**IN_SYNC)
    monkeypatch.setattr(actions, "look", noted)
    with resource.memory.changed() as memory:
        memory.is_hanging = True
    resource.broker.send(signal.SIGSTOP)
    assert resource.do("demote").code is OcfCode.SUCCESS
    assert waited_s == [LAST_CHANCE_S]
    assert resource.do("monitor").code is OcfCode.NOT_RUNNING


def test_a_stop_in_no_time_kills_rather_than_fail(resource: Resource) -> None:
    resource.up(**IN_SYNC)
    assert resource.do("stop", timeout="900").code is OcfCode.SUCCESS
    assert resource.do("monitor").code is OcfCode.NOT_RUNNING


def test_a_monitor_imports_little(resource: Resource) -> None:
    """It runs every few seconds on every node: 60 ms of CPU are allowed, and half of that is Python itself."""
    resource.up(**IN_SYNC)
    resource.set(watch="true")
    holder = watch_of(resource.memory).be_it()  # as a watcher does that runs already
    program = (
        "import sys; from qpid_ha_agent.ocf.main import run_action; run_action('monitor');"
        " print(*{'asyncio', 'click', 'concurrent', 'logging', 'psutil', 'shutil', 'yaml'} & set(sys.modules))"
    )
    environment = resource.environment | {"PATH": os.environ["PATH"], "PYTHONPATH": os.pathsep.join(sys.path)}
    found = subprocess.run(
        [sys.executable, "-S", "-c", program], env=environment, capture_output=True, text=True, timeout=20, check=True
    )
    assert holder is not None
    os.close(holder)
    assert (found.stdout.strip(), found.stderr) == ("", "")
