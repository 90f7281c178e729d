"""The demo: what somebody sees who runs the project for the first time, and whether it would notice a loss."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from qpid_ha_agent.demo_load import ProducerAndConsumer, Tally, run
from running_broker import RunningBroker


def play_demo(*words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "qpid_ha_agent.demo", *words]
    return subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, **environment}, timeout=60, check=False
    )


def test_it_tells_its_story_into_a_pipe_and_ends_well() -> None:
    shown = play_demo("--messages", "3000")
    assert (shown.returncode, shown.stderr) == (0, "")
    for part in ("sent and received 3,000 messages", "enqueued 5,000, dequeued 5,000, left 0", "exit code 0"):
        assert part in shown.stdout
    assert "Nothing was lost" in shown.stdout
    assert "\x1b[" not in shown.stdout


def test_it_works_where_there_are_no_fancy_characters() -> None:
    shown = play_demo("--messages", "100", PYTHONIOENCODING="ascii")
    assert (shown.returncode, shown.stderr) == (0, "")


@pytest.mark.parametrize(
    ("tally", "lost"),
    [
        (Tally(sent=3, confirmed=3, received=3), 0),
        (Tally(sent=3, confirmed=3, received=2), 1),
        (Tally(sent=3, confirmed=3, received=3, duplicated=1), 1),
        (Tally(sent=3, confirmed=2, received=3), 0),
    ],
)
def test_lost_is_what_was_confirmed_and_never_came(tally: Tally, lost: int) -> None:
    assert tally.lost == lost
    assert tally.is_flawless == (tally == Tally(sent=3, confirmed=3, received=3))


@pytest.mark.parametrize(("policy", "figure"), [("ring", "lost"), ("reject", "refused")])
def test_it_would_notice_a_queue_that_drops_or_refuses(policy: str, figure: str) -> None:
    limits = f"auto-create-arguments: {{qpid.max_count: 10, qpid.policy_type: {policy}}}"
    with RunningBroker(config=limits) as narrow:
        tally = run(ProducerAndConsumer(narrow.url, "q", 5_000, 100, stall_s=0.5))
    assert getattr(tally, figure) > 0
    assert not tally.is_flawless
