"""What the benchmark says: figures beside their targets, the table, the file, and what went wrong.

No figure is compared with a time: how fast a machine is, is no property of the program.
"""

from __future__ import annotations

import io
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from bench.figures import Measurement, collected, show_table, write_json
from bench.latency import percentile
from bench.load_client import BenchError
from bench.scenario import Scenario
from bench.store import check_kept
from bench.usage import processor_s


def measured(key: str, *values: float) -> list[list[Measurement]]:
    """One run for each value."""
    return [[Measurement(key, f"the {key}", value, "B")] for value in values]


@pytest.mark.parametrize(
    ("key", "value", "verdict"),
    [
        ("enqueue_100", 100_000, "met"),
        ("enqueue_100", 99_999, "missed"),
        ("memory_overhead", 400, "met"),
        ("memory_overhead", 400.1, "missed"),
        ("both_100", 1, ""),
    ],
)
def test_a_figure_is_held_against_its_target_in_the_right_direction(key: str, value: float, verdict: str) -> None:
    assert collected(measured(key, value))[0].verdict == verdict


def test_one_lucky_run_does_not_meet_a_target() -> None:
    figure = collected(measured("enqueue_100", 150_000, 90_000, 80_000))[0]
    assert (figure.median, figure.verdict) == (90_000, "missed")


def test_the_note_is_of_the_run_that_is_quoted() -> None:
    runs = [[Measurement("both_100", "both", value, "/s", f"note of {value}")] for value in (9, 1, 5)]
    assert collected(runs)[0].typical.note == "note of 5"


def test_the_table_shows_median_spread_target_and_verdict() -> None:
    screen = io.StringIO()
    show_table(Console(file=screen, width=160), collected(measured("memory_overhead", 300, 500, 450)))
    for part in ("the memory_overhead", "450", "300 .. 500", "<= 400", "missed"):
        assert part in screen.getvalue()


def test_the_file_holds_every_value_and_every_failure(tmp_path: Path) -> None:
    write_json(tmp_path / "r.json", {"cores": 2}, collected(measured("start", 0.2, 0.9, 0.3)), ["queues failed"])
    content = json.loads((tmp_path / "r.json").read_text(encoding="utf-8"))
    assert (content["machine"], content["failures"]) == ({"cores": 2}, ["queues failed"])
    (figure,) = content["figures"]
    assert (figure["values"], figure["median"], figure["verdict"]) == ([0.2, 0.9, 0.3], 0.3, "met")


def test_a_percentile_is_a_value_that_was_measured() -> None:
    values = [float(value) for value in range(1000, 0, -1)]
    assert [percentile(values, share) for share in (0.5, 0.99, 0.999, 1.0)] == [500, 990, 999, 1000]
    assert percentile([7.0], 0.5) == 7.0


def test_the_processor_time_of_a_process_is_what_that_process_has_used() -> None:
    before_s = time.process_time()
    counted_s = processor_s(os.getpid())
    assert before_s <= counted_s <= time.process_time()


def test_a_measurement_that_fails_is_told_and_does_not_cost_the_others() -> None:
    from bench.__main__ import measure_all  # with all that is measured: it takes a second

    def fails(scenario: Scenario) -> Iterator[Measurement]:
        yield Measurement("before", "before", 1.0, "s")
        raise BenchError("the broker refused")

    def works(scenario: Scenario) -> Iterator[Measurement]:
        yield Measurement("after", "after", 2.0, "s")

    screen, failures = Console(file=io.StringIO()), list[str]()
    found = list(measure_all(screen, Scenario.quick(), {"first": fails, "second": works}, failures))
    assert [measurement.key for measurement in found] == ["before", "after"]
    assert failures == ["first failed: the broker refused"]


def test_a_broker_that_keeps_nothing_is_not_measured_as_durable(tmp_path: Path) -> None:
    with pytest.raises(BenchError, match="should have at least 1 events"):
        check_kept(tmp_path, 1)
