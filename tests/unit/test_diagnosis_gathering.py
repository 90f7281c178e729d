"""How answers become the facts of a diagnosis, with brokers that a test has answer, or not."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from qpid_ha_agent.control import NotAllowed, RequestRefused, TimedOut, Unreachable
from qpid_ha_agent.diagnosis import questions
from qpid_ha_agent.diagnosis.gathering import Gathered, gather
from qpid_ha_agent.diagnosis.machine import tail_of
from qpid_ha_agent.diagnosis.questions import in_parallel
from qpid_ha_broker.diagnosis.checks import diagnose
from qpid_ha_broker.ha.effects import PromoteAsked
from qpid_ha_config.certificates import CertificateError, validities

HOSTS = {"node1": "amqp://10.0.0.1:5672", "node2": "amqp://10.0.0.2:5672", "node3": "amqp://10.0.0.3:5672"}
HANGS = threading.Event()


class ScriptedClient:
    """Answers by method; an exception is raised, an event is waited for."""

    def __init__(self, answers: Mapping[str, Any]) -> None:
        self._answers = answers

    def call(self, method: str, **params: object) -> object:
        answer = self._answers.get(f"{method}-all" if params.get("all") else method)
        if isinstance(answer, threading.Event):
            answer.wait()
        if isinstance(answer, list) and answer and isinstance(answer[0], list):
            answer = answer.pop(0)
        if isinstance(answer, Exception):
            raise answer
        if answer is None:
            raise RequestRefused(-32601, f"no method {method}")
        return answer

    def close(self) -> None:
        pass


def row(name: str, state: str, **others: object) -> dict[str, Any]:
    members = ["node1", "node2"]
    return {"name": name, "address": HOSTS[name], "state": state, "generation": 2, "members": members, **others}


def silent(name: str) -> dict[str, Any]:
    return {"name": None, "address": HOSTS[name], "state": "unreachable"}


def answers(name: str, state: str, *rows: dict[str, Any], **others: Any) -> dict[str, Any]:
    own = row(name, state, min_in_sync=1)
    query = {"name": name, "version": "1.0", "store": "ok", "time_ms": int(time.time() * 1000)}
    return {"status": own, "status-all": [own, *rows], "query": query, "get": {"memory-limit": "1GiB"}, **others}


def gathered(brokers: Mapping[str, Mapping[str, Any]], named: str = HOSTS["node1"], timeout_s: float = 20) -> Gathered:
    """By address; who is not there refuses connections."""

    def make_client(broker: str | None, _timeout_s: float) -> ScriptedClient:
        found = brokers.get((broker or "").replace("olga@", ""))
        if found is None:
            raise Unreachable(f"cannot reach a broker at {broker}: Connection refused")
        return ScriptedClient(found)

    return gather(make_client, named, timeout_s, {})


def keys(found: Gathered) -> list[str]:
    return [finding.key for finding in diagnose(found.facts)]


def test_those_that_the_first_one_names_are_asked_too() -> None:
    first = answers(
        "node1", "primary", row("node2", "ready"), row("node3", "ready"), backups=[], history=[], brokers=[]
    )
    others = {HOSTS[name]: answers(name, "ready", row("node1", "primary")) for name in ("node2", "node3")}
    found = gathered({HOSTS["node1"]: {**first, "queues": []}, **others}, "amqp://olga@10.0.0.1:5672")
    assert [broker.name for broker in found.facts.brokers] == ["node1", "node2", "node3"]
    assert {broker.figures.memory_limit_bytes for broker in found.facts.brokers} == {1 << 30}
    assert keys(found) == []
    assert found.not_asked == {}


def test_a_broker_that_hangs_costs_no_other_answer() -> None:
    first = answers("node1", "primary", row("node2", "ready"), silent("node3"), queues=[])
    found = gathered(
        {HOSTS["node1"]: first, HOSTS["node2"]: answers("node2", "ready"), HOSTS["node3"]: {"status": HANGS}},
        timeout_s=1,
    )  # fmt: skip
    (one,) = found.facts.silent
    assert (one.address, one.seen_by) == (HOSTS["node3"], ("node1",))
    assert "within 1 s" in one.why
    assert {broker.name for broker in found.facts.brokers} == {"node1", "node2"}


def test_one_that_answers_here_and_not_another_broker_is_no_silent_one() -> None:
    first = answers("node1", "primary", row("node2", "ready"), silent("node3"), queues=[])
    found = gathered({
        HOSTS["node1"]: first,
        HOSTS["node2"]: answers("node2", "ready", row("node1", "primary"), silent("node3")),
        HOSTS["node3"]: answers("node3", "connecting", row("node1", "primary"), silent("node2")),
    })  # fmt: skip
    assert found.facts.silent == ()
    assert [(link.name, link.seen_by) for link in found.facts.broken_links] == [
        ("node2", ("node3",)),
        ("node3", ("node1", "node2")),
    ]


def test_one_that_lets_us_not_in_is_known_by_what_others_tell() -> None:
    refuses = {"status": NotAllowed("olga may not")}
    first = answers("node1", "primary", row("node2", "ready"), queues=[], backups=NotAllowed("no"))
    first["query-all"] = [{"name": "node2", "store": "full"}]
    found = gathered({HOSTS["node1"]: first, HOSTS["node2"]: refuses})
    assert keys(found) == ["store-cannot-write"]
    assert found.not_asked[HOSTS["node2"]] == "olga may not"


def test_one_that_answers_another_broker_alone_is_no_silent_one() -> None:
    first = answers("node1", "primary", row("node2", "ready"), queues=[])
    found = gathered({HOSTS["node1"]: first})
    assert keys(found) == []
    assert [broker.name for broker in found.facts.brokers] == ["node1", "node2"]
    assert "refused" in found.not_asked[HOSTS["node2"]]


def test_nobody_there_is_told_as_such() -> None:
    found = gathered({})
    assert not found.has_anything
    assert found.answers[0].silence


def test_a_queue_grows_between_two_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(questions, "GROWTH_S", 0.0)
    looks = [[{"name": name, "messages": count, "consumers": 0} for name in ("a", "b")] for count in (3, 3)]
    looks[1][0]["messages"] = 5
    found = gathered({HOSTS["node1"]: answers("node1", "standalone", queues=looks)})
    assert [(finding.key, finding.about) for finding in diagnose(found.facts)] == [("queue-is-not-read", "a")]


def test_a_clock_differs_by_more_than_the_question_took() -> None:
    first = answers("node1", "standalone", queues=[])
    first["query"]["time_ms"] += 60_000
    assert keys(gathered({HOSTS["node1"]: first})) == ["clock-differs"]


@pytest.mark.parametrize(
    ("cause", "forced", "is_failover"),
    [
        (PromoteAsked(1, False).cause, False, False),
        ("promoted by olga on node1", False, False),
        ("Pacemaker promoted broker on node1", True, False),
        ("switchover from node2", False, False),
        ("the agent of node1 got the lock", False, True),
        ("the agent of node1 saw no primary, and whoever had the lock was silent", False, True),
        ("", False, True),
    ],
)
def test_what_somebody_asked_for_is_no_failover(cause: str, forced: bool, is_failover: bool) -> None:
    """Whoever restarts three brokers one after the other, or tries promotions, is not told that it fails over often."""
    began_ms = int(time.time() * 1000) - 1000
    history = [
        {"generation": generation, "started_at_ms": began_ms, "cause": cause, "forced": forced}
        for generation in range(1, 6)
    ]
    first = answers("node1", "primary", row("node2", "ready"), backups=[], history=history, brokers=[], queues=[])
    second = answers("node2", "ready", row("node1", "primary"))
    found = gathered({HOSTS["node1"]: first, HOSTS["node2"]: second})
    assert keys(found) == (["fails-over-often"] if is_failover else [])


def test_a_standalone_broker_lacks_nothing() -> None:
    found = gathered({HOSTS["node1"]: answers("node1", "standalone", queues=[])})
    assert not found.facts.is_cluster
    assert keys(found) == []


def test_what_is_not_done_in_time_is_named_and_not_waited_for() -> None:
    done: list[str] = []
    is_over = threading.Event()

    def wait() -> None:
        is_over.wait(10)

    late = in_parallel({"quick": lambda: done.append("quick"), "slow": wait}, time.monotonic() + 0.5)
    is_over.set()
    assert (late, done) == (["slow"], ["quick"])


# --- this machine


@pytest.mark.parametrize("text", ["", "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----", "-----BEGIN"])
def test_what_is_no_certificate_is_refused(text: str) -> None:
    with pytest.raises(CertificateError):
        validities(text)


def test_the_end_of_a_log_begins_with_a_whole_line(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("the first line\nthe second line\n")
    assert tail_of(path, 1000) == "the first line\nthe second line\n"
    assert tail_of(path, 20) == "the second line\n"


def test_a_limit_of_time_is_told_as_one() -> None:
    found = gathered({HOSTS["node1"]: {"status": TimedOut("no answer within 4 s")}})
    assert found.answers[0].timed_out


def test_two_brokers_of_one_name_are_both_told_of() -> None:
    """The third one has the name of the second."""
    twin = row("node2", "connecting", instance="i-3") | {"address": HOSTS["node3"]}
    first = answers("node1", "primary", row("node2", "ready", instance="i-2"), twin, backups=[], history=[], brokers=[])
    second = answers("node2", "ready")
    second["status"]["instance"] = "i-2"
    third = answers("node2", "connecting")
    third["status"] |= {"instance": "i-3", "address": HOSTS["node3"]}
    found = gathered({HOSTS["node1"]: first, HOSTS["node2"]: second, HOSTS["node3"]: third})
    assert found.facts.twins == (("node2", (HOSTS["node2"], HOSTS["node3"])),)
    assert "name-twice" in keys(found)


def test_a_refused_login_is_no_silence_and_nobody_is_told_to_start_what_runs() -> None:
    refused = silent("node2") | {"refused": True, "why": "amqp:unauthorized-access: Authentication failed"}
    first = answers("node1", "primary", refused, backups=[], history=[], brokers=[])
    found = gathered({HOSTS["node1"]: first, HOSTS["node2"]: answers("node2", "connecting")})
    (login,) = [finding for finding in diagnose(found.facts) if finding.key == "login-refused"]
    assert HOSTS["node2"] in login.text
    assert not {"broker-silent", "link-broken"} & set(keys(found))
    assert not [command for finding in diagnose(found.facts) for command in finding.commands if "start" in command]
