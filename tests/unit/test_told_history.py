"""What a broker knows of generations that it was told of, because it compared what it had with a primary."""

from __future__ import annotations

import pytest

from ha_stories import Story

FORCED = """
cluster a b c store
start a b c
promote a
declare a q
publish a q "1"
kill a b
publish c q "2"
promote c force
publish c q "3"
start a b
tick 10s
expect c is primary
expect a is ready
expect b is ready
"""


def told(lines: str) -> Story:
    story = Story()
    for line in filter(None, lines.splitlines()):
        story.do(line)
    return story


@pytest.mark.parametrize("name", ["a", "b"])
def test_who_compared_knows_which_generations_were_forced_when_they_began_and_why(name: str) -> None:
    cluster = told(FORCED)._cluster
    leader, follower = (cluster.nodes[each].member for each in ("c", name))
    assert follower.history() == leader.history()
    assert [line["forced"] for line in follower.history()] == [False, True]
    assert all(line["started_at_ms"] and line["cause"] for line in follower.history())
