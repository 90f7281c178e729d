"""The phases of a failover, from lines as Pacemaker and the broker write them."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import pytest

from bench.failover_phases import Logs, PhaseMissing, phases, time_of

DAY = f"{datetime.now(UTC).year}-11-21"


def at(clock: str) -> float:
    """Local time, as Pacemaker takes it."""
    return datetime.strptime(f"{DAY} {clock}", "%Y-%m-%d %H:%M:%S.%f").astimezone().timestamp()


def broker_line(clock: str, text: str) -> str:
    return f"{datetime.fromtimestamp(at(clock), UTC):%Y-%m-%dT%H:%M:%S.%f}"[:-3] + f"Z info cluster {text}"


RULED_OUT = "pacemaker-attrd [41] (update_attr_on_host) notice: Setting master-broker[n3]: 1000 -> -INFINITY"
PROMOTE = "pacemaker-controld [42] (execute_rsc_action) notice: Initiating promote operation broker_promote_0"
N1 = f"Nov 21 06:07:11.450 n1 {RULED_OUT} | from n3 with no write delay"
N2 = f"""Nov 21 06:07:01.000 n2 {PROMOTE} on n2 | action 1
Nov 21 06:07:11.452 n2 {RULED_OUT} | from n3 with no write delay
Nov 21 06:07:12.100 n2 {PROMOTE} locally on n2 | action 9
"""


def test_each_phase_ends_where_the_next_one_begins() -> None:
    log = broker_line("06:05:00.000", "Promoted to primary: generation 1") + "\n"
    log += broker_line("06:07:12.500", "Promoted to primary: generation 2 from LSN 7")

    found = phases("process", "n3", "n2", Logs({"n1": N1, "n2": N2}, log), at("06:07:11.200"), at("06:07:12.600"))

    assert [round(seconds, 3) for seconds in found] == [0.25, 0.65, 0.4, 0.1]


def test_a_log_that_does_not_say_what_it_should_is_an_error_and_no_figure() -> None:
    with pytest.raises(PhaseMissing, match="state is now lost"):
        phases("node", "n3", "n2", Logs({"n1": N1, "n2": N2}, ""), at("06:07:11.200"), at("06:07:12.600"))


def test_lines_without_a_time_have_none() -> None:
    assert time_of("Traceback (most recent call last):") is None
    assert time_of(broker_line("06:07:12.500", "x")) == pytest.approx(at("06:07:12.500"))
    assert time.localtime(time_of(N1)).tm_min == 7
