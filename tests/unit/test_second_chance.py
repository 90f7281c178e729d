"""When a refused promotion is worth another attempt."""

from __future__ import annotations

import pytest

from qpid_ha_agent.pacemaker.second_chance import JUST_NOW_S, SecondChance


class Story:
    """A broker that looks around; `tried` counts the attempts."""

    def __init__(self) -> None:
        self.answering = {"n1"}
        self.is_refused = False
        self.tried = 0
        self._chance = SecondChance(lambda: self.answering, lambda: self.is_refused, self._try_again)

    def _try_again(self) -> None:
        self.tried += 1
        self.is_refused = False

    def look(self, now_s: float, has_primary: bool = False) -> int:
        self._chance.look(has_primary, now_s)
        return self.tried


@pytest.fixture
def story() -> Story:
    return Story()


def test_who_was_there_from_the_beginning_is_no_reason(story: Story) -> None:
    story.is_refused = True
    assert [story.look(now_s) for now_s in (0, 1, 2)] == [0, 0, 0]


def test_each_that_comes_is_one_reason(story: Story) -> None:
    story.is_refused = True
    story.look(0)
    story.answering = {"n1", "n2"}
    assert [story.look(now_s) for now_s in (1, 2)] == [1, 1]
    story.is_refused = True  # it was not enough
    assert [story.look(now_s) for now_s in (3, 4)] == [1, 1]
    story.answering = {"n1", "n2", "n3"}
    assert story.look(5) == 2


def test_one_that_comes_and_goes_and_comes_is_a_reason_each_time(story: Story) -> None:
    story.look(0)
    for now_s in (1, 3):
        story.is_refused, story.answering = True, {"n1", "n2"}
        story.look(now_s)
        story.answering = {"n1"}
        story.look(now_s + 1)
    assert story.tried == 2


def test_one_that_came_while_the_promotion_was_under_way_may_not_have_been_asked(story: Story) -> None:
    story.look(0)
    story.answering = {"n1", "n2"}
    story.look(1)
    story.is_refused = True
    assert story.look(1 + JUST_NOW_S / 2) == 1


def test_one_that_came_long_before_was_asked(story: Story) -> None:
    story.look(0)
    story.answering = {"n1", "n2"}
    story.look(1)
    story.look(1 + JUST_NOW_S * 1.5)
    story.is_refused = True
    assert story.look(1 + JUST_NOW_S * 2) == 0


def test_while_there_is_a_primary_nobody_is_asked(story: Story) -> None:
    story.is_refused = True
    story.look(0)
    story.answering = {"n1", "n2"}
    assert story.look(1, has_primary=True) == 0
    assert story.look(2) == 0, "it was there when the primary went"
