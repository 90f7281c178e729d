"""rhea, the AMQP client for Node: not the implementation that is inside the broker. The stories are node/client.js."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from blocking_client import BlockingClient, Management, bodies
from proxied_broker import Served

NODE_DIRECTORY = Path(__file__).parent / "node"
Play = Callable[[str], dict[str, Any]]

pytestmark = pytest.mark.skipif(
    shutil.which("node") is None or not (NODE_DIRECTORY / "node_modules" / "rhea").exists(),
    reason="Node or rhea is missing: ./dev setup installs them",
)


@pytest.fixture
def play(broker: Served, address: str) -> Play:
    """Plays a story at the test's address; what rhea saw."""

    def run(story: str) -> dict[str, Any]:
        command = ["node", str(NODE_DIRECTORY / "client.js"), str(broker.port), story, address]
        result = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert (result.returncode, result.stderr) == (0, "")
        found: dict[str, Any] = json.loads(result.stdout)
        return found

    return run


def test_it_sends_and_receives_in_order(play: Play) -> None:
    seen = play("send-and-receive")
    assert seen == {"bodies": list(range(100)), "outcomes": ["accepted"] * 100}


def test_it_sends_at_most_once(play: Play) -> None:
    assert play("at-most-once") == {"bodies": ["a", "b", "c"], "settled": True}


def test_it_selects(play: Play, client: BlockingClient, address: str) -> None:
    assert play("selector")["bodies"] == ["red-0", "red-2"]
    assert bodies(client.consume(address)) == ["blue-1"]


def test_a_selector_that_is_none_is_refused(play: Play) -> None:
    assert play("malformed-selector")["condition"] == "amqp:invalid-field"


def test_its_drain_without_credit_is_answered(play: Play) -> None:
    assert play("drain-without-credit")["credit"] == 0


def test_it_unsubscribes_as_jms_does(play: Play, management: Management) -> None:
    seen = play("unsubscribe")
    assert (seen["address"], seen["condition"]) == ("amq.topic/news", "amqp:not-found")
    assert management.queue("subscription:reader:paper") is None


def test_a_mark_of_a_second_delivery_is_passed_on(play: Play) -> None:
    assert play("first-acquirer")["marks"] == [False, True]


def test_it_browses(play: Play, client: BlockingClient, address: str) -> None:
    assert play("browse")["bodies"] == ["a", "b"]
    assert bodies(client.consume(address)) == ["a", "b"]


def test_it_gets_as_much_as_it_has_credit_for_and_can_drain(play: Play) -> None:
    seen = play("credit-and-drain")
    assert (seen["first"], seen["bodies"], seen["credit"]) == (["a", "b"], ["a", "b", "c", "d"], 0)


def test_credit_of_2_to_the_31_and_more_is_what_it_says(play: Play) -> None:
    assert play("credit-beyond-31-bits")["bodies"] == ["a", "b", "c"]


def test_the_format_of_a_message_is_kept(play: Play) -> None:
    assert play("message-format") == {"bodies": [True, "plain"], "formats": [0x80013700, 0]}


def test_a_name_that_is_attached_again_in_a_session_ends_the_older_link_alone(play: Play) -> None:
    seen = play("stolen")
    assert (seen["condition"], seen["bodies"]) == ("amqp:link:stolen", ["a"])


def test_a_mebibyte_comes_through_in_small_frames(play: Play) -> None:
    assert play("large")["same"]


def test_requests_are_answered_over_a_dynamic_queue(play: Play) -> None:
    assert play("request-and-reply") == {"bodies": ["HELLO"], "correlation_id": "one", "dynamic": True}


def test_it_releases_modifies_rejects_and_accepts(play: Play, management: Management, address: str) -> None:
    seen = play("answers")
    assert seen["bodies"] == ["a", "a", "a", "b"]
    assert seen["counts"] == [[0, True], [0, False], [1, False], [0, True]]
    assert management.messages(address) == 0


def test_a_full_queue_tells_it_why(play: Play, management: Management, address: str) -> None:
    management.create_queue(address, {"qpid.max_count": 1})
    assert play("full")["outcomes"] == ["accepted", "rejected: amqp:resource-limit-exceeded"]


def test_it_manages(play: Play, management: Management, address: str) -> None:
    assert play("management") == {"bodies": [], "status": 201, "arguments": {"qpid.max_count": 7}}
    assert management.messages(address) == 0
