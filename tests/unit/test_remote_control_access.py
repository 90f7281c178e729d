"""What an administrator who asks through AMQP may do with what is in queues: the rules say it of each queue."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from access_support import controlled
from qpid_ha_broker.access.operations import OPERATIONS
from qpid_ha_broker.amqp.nodes.identity import PeerIdentity
from qpid_ha_broker.amqp.nodes.management_messages import UNAUTHORIZED, ManagementAnswer
from qpid_ha_broker.server.control.control import ControlServer
from qpid_ha_broker.server.control.remote_control import RemoteControl
from qpid_ha_config.settings import BrokerSettings

OLGA = PeerIdentity("10.0.0.1:5", "olga", is_admin=True)
OF_MESSAGES = [
    action for action, row in OPERATIONS.by_method["queues"].items() if row.control is not None and row.control.nodes
]
ALL = {"browse", "consume", "publish", "purge"}
NEEDED = {
    "peek": {"browse"},
    "payload": {"browse"},
    "publish": {"publish"},
    "move": {"consume", "publish"},
    "copy": {"browse", "publish"},
    "retry": {"consume", "publish"},
    "redirect": {"consume", "publish"},
    "purge": {"purge"},
}


def is_refused(rules: list[str], method: str, **params: object) -> bool:
    """Before it reaches a control method, of which there are none here: whoever may, hears that."""
    answers: list[ManagementAnswer] = []

    async def story() -> None:
        settings, told = BrokerSettings.from_values({}), asyncio.Event()
        server = ControlServer(Path("/nonexistent/socket"), {})
        control = RemoteControl(lambda: settings, controlled(*rules), told.set, lambda: server)
        control(
            OLGA,
            json.dumps({"jsonrpc": "2.0", "id": 1, "method": method, "params": params}),
            answers.append,
            lambda: False,
        )
        if not answers:
            await told.wait()

    asyncio.run(story())
    (answer,) = answers
    return answer.status == UNAUTHORIZED


@pytest.mark.parametrize(("has_gone", "carried_out"), [(False, ["set"]), (True, [])])
def test_what_an_administrator_has_given_up_is_not_begun(has_gone: bool, carried_out: list[str]) -> None:
    done: list[str] = []
    answers: list[ManagementAnswer] = []

    async def story() -> None:
        settings, told = BrokerSettings.from_values({}), asyncio.Event()
        server = ControlServer(Path("/nonexistent/socket"), {"set": lambda params: done.append("set")})
        control = RemoteControl(lambda: settings, controlled("allow olga administer"), told.set, lambda: server)
        body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "set", "params": {}})
        control(OLGA, body, answers.append, lambda: has_gone)
        await told.wait()

    asyncio.run(story())
    (answer,) = answers
    assert done == carried_out
    assert ("caller-gone" in str(answer.body)) is has_gone


def test_each_action_on_messages_says_which_permissions_it_needs() -> None:
    """One that reads or writes what is in queues, and names none, would be open to whoever may administer."""
    assert set(OF_MESSAGES) == set(NEEDED)


@pytest.mark.parametrize("action", OF_MESSAGES)
def test_each_action_on_messages_needs_its_permission_on_the_queue_besides(action: str) -> None:
    params: dict[str, object] = {"action": action, "name": "q", "to": "other", "exchange": "other"}
    for left_out in sorted(ALL):
        rules = ["allow olga administer", f"allow olga {','.join(sorted(ALL - {left_out}))}"]
        assert is_refused(rules, "queues", **params) is (left_out in NEEDED[action]), left_out
    assert is_refused([f"allow olga {','.join(sorted(ALL))}"], "queues", **params)


def test_it_is_asked_of_the_queue_that_is_meant() -> None:
    rules = ["allow olga administer", "allow olga consume q", "allow olga publish,browse other"]
    assert not is_refused(rules, "queues", action="move", name="q", to="other")
    assert is_refused(rules, "queues", action="move", name="other", to="q")
    assert is_refused(rules, "queues", action="peek", name="q")
    assert not is_refused(rules, "queues", action="list")
    assert not is_refused(rules, "queues", action="retry", name="q", to="other")
    assert is_refused(rules, "queues", action="retry", name="q")
    assert not is_refused([*rules, "allow olga publish *"], "queues", action="retry", name="q")
    assert not is_refused(rules, "connections", action="close", id=1)


def test_who_may_publish_some_topics_alone_has_to_say_the_key_of_what_is_redirected() -> None:
    rules = ["allow olga administer", "allow olga consume q", "allow olga publish amq.topic/news.*"]
    redirect: dict[str, object] = {"action": "redirect", "name": "q", "exchange": "amq.topic"}
    assert not is_refused(rules, "queues", **redirect, key="news.today")
    assert is_refused(rules, "queues", **redirect, key="weather")
    assert is_refused(rules, "queues", **redirect)
    assert is_refused(rules, "queues", **redirect, key=None)


def test_a_topic_that_is_denied_is_so_for_what_is_redirected() -> None:
    rules = ["allow olga administer", "allow olga consume q", "deny olga publish amq.topic/secret.*"]
    rules.append("allow olga publish amq.topic")
    redirect: dict[str, object] = {"action": "redirect", "name": "q", "exchange": "amq.topic"}
    assert is_refused(rules, "queues", **redirect, key="secret.plan")
    assert is_refused(rules, "queues", **redirect)
    assert is_refused(rules, "queues", **redirect, key=None)
    assert not is_refused(rules, "queues", **redirect, key="news")
