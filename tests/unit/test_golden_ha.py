"""Stories of a cluster in tests/golden/ha, told again by the brokers' core and compared line by line.

`pytest tests/unit/test_golden_ha.py --rewrite` writes down what happens now; read the difference before you commit it.
What a story expects, and what must hold in all of them, is checked in either case (see `ha_stories`, `traced_cluster`).
"""

from __future__ import annotations

import difflib
import re
from pathlib import Path

import pytest

from ha_stories import StoryError, commands_of, tell
from qpid_ha_broker.ha import effects as fx
from traced_cluster import BrokenPromise, Published, TracedCluster

STORIES = sorted((Path(__file__).resolve().parents[1] / "golden" / "ha").glob("*.txt"))


@pytest.mark.parametrize("path", STORIES, ids=[path.stem for path in STORIES])
def test_the_brokers_do_what_the_story_says(path: Path, pytestconfig: pytest.Config) -> None:
    before = path.read_text(encoding="utf-8")
    now = tell(before)
    if pytestconfig.getoption("--rewrite"):
        path.write_text(now, encoding="utf-8")
    elif now != before:
        diff = difflib.unified_diff(before.splitlines(), now.splitlines(), "as it was", "as it is", lineterm="")
        pytest.fail("\n".join([f"{path.name} is told differently (--rewrite takes it over):", *diff]), pytrace=False)


@pytest.mark.parametrize(
    ("commands", "problem"),
    [
        pytest.param("start a\nexpect a is primary", "expected primary, found connecting", id="a state"),
        pytest.param("start a\npromote a\nexpect a refused", "expected refused, found done", id="an answer"),
        pytest.param('start a\nwhen "pigs fly": kill a', "this never happened: 'pigs fly'", id="an event"),
        pytest.param("start a\npromte a", "no such command", id="a command"),
        pytest.param("start a\nexpect a is", "no such expectation", id="an expectation"),
        pytest.param("start a\ndemote", "not understood", id="arguments"),
    ],
)
def test_what_a_story_expects_is_checked_before_anything_is_written_down(commands: str, problem: str) -> None:
    with pytest.raises(StoryError, match=problem):
        tell(f"# A story.\ncluster a\n{commands}\n")


def a_and_b() -> TracedCluster:
    """`a` is primary, `b` ready."""
    cluster = TracedCluster(("a", "b"))
    cluster.start("a")
    cluster.start("b")
    cluster.await_answers([("a", cluster.request("a", fx.PromoteAsked))])
    cluster.wait(3.0)
    return cluster


def test_no_story_can_be_told_in_which_a_confirmed_message_is_lost() -> None:
    cluster = a_and_b()
    cluster["a"].declare("q")
    cluster.promises.confirmed.append(Published("q", "nobody has this", 7))
    cluster.kill("a")
    with pytest.raises(BrokenPromise, match='b is promoted, and lacks what was confirmed: "nobody has this"'):
        cluster.await_answers([("b", cluster.request("b", fx.PromoteAsked))])


def test_nor_one_in_which_a_backup_lacks_what_is_confirmed() -> None:
    cluster = a_and_b()
    a = cluster.traced("a")
    a.declare("q")
    cluster.run()
    cluster.promises.check_held(a, a.committed)
    cluster["b"].paused = True
    cluster.publish("a", "q", ["b sleeps"])
    cluster.run()
    with pytest.raises(BrokenPromise, match="but b, which is in sync, holds"):
        cluster.promises.check_held(a, a.waiting[-1].lsn)


def test_nor_one_with_two_primaries_of_a_generation() -> None:
    cluster = a_and_b()
    cluster.promises.note_primary("b", cluster["a"].member.status.cluster, 2)
    cluster.await_answers([("a", cluster.request("a", fx.DemoteAsked))])
    with pytest.raises(BrokenPromise, match="b and a are both primary of generation 2"):
        cluster.await_answers([("a", cluster.request("a", fx.PromoteAsked))])


def test_a_story_says_what_it_shows_and_what_must_be_so() -> None:
    for path in STORIES:
        lines = commands_of(path.read_text(encoding="utf-8"))
        heading = next((number for number, line in enumerate(lines) if not line.startswith("#")), 0)
        assert 1 <= heading <= 3, path.name
        assert any(line.startswith("expect ") for line in lines), path.name


def test_no_story_has_a_name_out_of_the_code() -> None:
    for path in STORIES:
        text = path.read_text(encoding="utf-8")
        assert re.findall(r"\b[A-Z][a-z]+[A-Z]\w*|\b\w+_\w+\b|[a-z]\(", text) == [], path.name
