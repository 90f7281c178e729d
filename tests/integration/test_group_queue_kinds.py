"""Queues of groups that are more than plain, between real brokers in one process: rings, and what deletes itself."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from cluster_in_process import eventually
from group_bus import GroupBus, installed
from groups_in_process import BROKERS, Groups, story_of_three
from model_support import message
from qpid_ha_broker.ha.settings import MemberSettings
from qpid_ha_broker.model.commands.moving import PORTION_MESSAGES, begin_move


@pytest.fixture(autouse=True)
def bus() -> Iterator[GroupBus]:
    """What the brokers of a test multicast goes through the test."""
    with installed() as bus:
        yield bus


def test_a_ring_is_kept_to_its_limits_by_whoever_is_the_first_member(tmp_path: Path) -> None:
    async def story(groups: Groups) -> None:
        groups.host(*BROKERS)
        await groups.serve(*BROKERS)
        await groups.declare("b", "ring", policy_type="ring", max_count=2)
        await groups.publish("b", "ring", "1", "2", "3")
        await eventually(lambda: all(groups.bodies(name, "ring") == ["2", "3"] for name in BROKERS))
        groups.unhost("a")
        await groups.serve("b", "c")
        await groups.publish("c", "ring", "4")
        await eventually(lambda: groups.bodies("b", "ring") == groups.bodies("c", "ring") == ["3", "4"])

    story_of_three(tmp_path, story)


def test_a_queue_that_an_exchange_has_filled_is_deleted_at_all_members(tmp_path: Path) -> None:
    async def story(groups: Groups) -> None:
        groups.host(*BROKERS)
        await groups.serve(*BROKERS)
        await groups.declare("b", "q", policy_type="self-destruct", max_count=1)
        await groups.publish("c", "q", "one")
        hosted = groups.hosted("b")
        queue = hosted.resources.catalog.queues["q"]
        for _ in range(2):
            hosted.resources.carry_out(hosted.resources.plan((queue,), message("more"), 0, routed=True), [])
            hosted.turn()
        assert queue.messages.count == 1
        groups.cluster.brokers["b"].schedule_turn()
        await eventually(lambda: not any("q" in groups.hosted(name).resources.catalog.queues for name in BROKERS))
        assert hosted.overrun_queues_total == 1

    story_of_three(tmp_path, story)


def test_a_queue_deletes_itself_when_its_last_user_at_any_member_has_gone_with_its_member(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(MemberSettings, "comeback_s", 0.1)

    async def story(groups: Groups) -> None:
        groups.host(*BROKERS)
        await groups.serve(*BROKERS)
        await groups.declare("b", "q", auto_delete=True)
        users = {name: groups.attach(name, "q") for name in ("b", "c")}
        await eventually(lambda: groups.users("a", "q") == {"b", "c"})
        resources = groups.hosted("b").resources
        resources.unsubscribe(resources.catalog.queues["q"], users["b"], resources.catalog.now_ms)
        groups.cluster.brokers["b"].schedule_turn()
        await eventually(lambda: groups.users("a", "q") == {"c"})
        groups.hosted("a").tick()
        assert "q" in groups.hosted("a").resources.catalog.queues
        groups.unhost("c")
        await groups.serve("a", "b")
        await eventually(lambda: not any("q" in groups.hosted(name).resources.catalog.queues for name in ("a", "b")))

    story_of_three(tmp_path, story)


def test_messages_are_moved_at_a_member_after_another_one_has_ended_that_had_their_queue(tmp_path: Path) -> None:
    async def story(groups: Groups) -> None:
        groups.host(*BROKERS)
        await groups.serve(*BROKERS)
        for queue in ("q", "other"):
            await groups.declare("b", queue)
        resources = groups.hosted("b").resources
        there, other = resources.catalog.queues["q"], resources.catalog.queues["other"]
        texts = [str(number) for number in range(2 * PORTION_MESSAGES + 1)]
        await groups.commit("b", [resources.publish(there, message(text), 0) for text in texts][-1])
        groups.attach("c", "q", credit=1)
        await eventually(lambda: groups.users("b", "q") == {"c"})
        move = begin_move(resources, there, other)
        groups.hosted("b").touch()
        groups.unhost("c")
        await groups.serve("a", "b")
        await eventually(lambda: move.written is not None and move.written.is_committed)
        assert (move.count, move.held, move.failure) == (len(texts), 0, None)
        await eventually(lambda: groups.bodies("a", "other") == texts and groups.bodies("a", "q") == [])

    story_of_three(tmp_path, story)
