"""A broker whose `ha.brokers-url` is wrong says so after a few seconds, once, and seldom again."""

from __future__ import annotations

from qpid_ha_broker.server.peers.reachability import SAY_AFTER_S, SAY_AGAIN_S, Reachability

REFUSED = "connection refused"
BOTH = frozenset({"b:5672", "c:5672"})
NOBODY = dict.fromkeys(sorted(BOTH), REFUSED)
UNREACHED = f"no broker answers at b:5672 ({REFUSED}), c:5672 ({REFUSED}): does it run, and is ha.brokers-url right?"


def look(
    reach: Reachability, silent: dict[str, str], now_s: float, *, knows_itself: bool = True, is_served: bool = False
) -> list[str]:
    return reach.look(silent, BOTH, now_s, knows_itself=knows_itself, is_served=is_served)


def test_who_does_not_answer_is_named_after_a_few_seconds_once_and_seldom_again() -> None:
    reach = Reachability()
    said = {now_s: lines for now_s in range(1300) if (lines := look(reach, NOBODY, now_s))}
    first_s = int(SAY_AFTER_S)
    assert list(said) == [first_s, first_s + int(SAY_AGAIN_S), first_s + 2 * int(SAY_AGAIN_S)]
    assert said[first_s] == [UNREACHED]


def test_who_comes_within_a_few_seconds_was_only_started_later() -> None:
    reach = Reachability()
    assert look(reach, NOBODY, 0.0) == []
    assert look(reach, {}, 1.0) == []
    assert reach.is_well
    assert look(reach, NOBODY, SAY_AFTER_S) == []


def test_a_broker_that_is_not_in_the_list_itself_says_so_though_others_answer() -> None:
    reach = Reachability()
    look(reach, {}, 0.0, knows_itself=False)
    (line,) = look(reach, {}, SAY_AFTER_S, knows_itself=False)
    assert "at none of the addresses of ha.brokers-url (b:5672, c:5672)" in line
    assert len(look(Reachability(), NOBODY, 0.0, knows_itself=False)) == 0


def test_that_one_more_does_not_answer_is_news_that_one_less_does_is_not() -> None:
    reach = Reachability()
    look(reach, {"b:5672": REFUSED}, 0.0)
    assert len(look(reach, {"b:5672": REFUSED}, 5.0)) == 1
    assert len(look(reach, NOBODY, 6.0)) == 1
    assert look(reach, {"b:5672": REFUSED}, 7.0) == []


def test_it_is_said_once_that_all_is_well() -> None:
    reach = Reachability()
    look(reach, NOBODY, 0.0)
    look(reach, NOBODY, 5.0)
    assert look(reach, {}, 6.0) == ["all brokers of ha.brokers-url answer"]
    assert look(reach, {}, 7.0) == []


def test_a_broker_that_is_served_speaks_of_those_alone_that_it_has_never_reached() -> None:
    reach = Reachability()
    look(reach, {"c:5672": REFUSED}, 0.0, is_served=True)
    (line,) = look(reach, NOBODY, 5.0, is_served=True)
    assert "c:5672" in line
    assert "b:5672" not in line
    assert len(look(reach, NOBODY, 6.0)) == 1
