"""Figures over a day: what is kept of them, what a chart of them has, and which queues have one."""

from __future__ import annotations

import asyncio
import math
import os
import threading
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from model_support import TextReader, message
from qpid_ha_broker.metrics.broker_charts import ChartError, ChartRequest, MeanSince, MessageFlow
from qpid_ha_broker.metrics.figure_history import (
    COARSE_MAX,
    FINE_MAX,
    MINUTE_STEPS,
    POINTS_MAX,
    SPANS,
    STEP_S,
    Figure,
    FigureHistory,
    Ring,
    mean,
    shortened,
)
from qpid_ha_broker.metrics.histogram import Histogram
from qpid_ha_broker.metrics.queue_trends import CHARTS_MAX, STILL_S, QueueTrends
from qpid_ha_broker.model.commands.configuration import Configuration
from qpid_ha_broker.model.queues.queue import Queue
from qpid_ha_broker.model.sets.resources import Resources
from qpid_ha_broker.server.broker import Broker
from qpid_ha_broker.server.http import figure_looks
from qpid_ha_broker.server.http.figure_looks import FigureLooks, ProcessFigures, process_figures
from qpid_ha_config.settings import BrokerSettings

FIGURES = (Figure("rate", mean), Figure("depth", max), Figure("free", min))


def finish(steps: Generator[None, None, Any]) -> Any:
    try:
        while True:
            next(steps)
    except StopIteration as end:
        return end.value


def series(history: FigureHistory, span: str) -> dict[str, list[float | None]]:
    found: dict[str, list[float | None]] = finish(history.series(SPANS[span]))
    return found


def noted(steps: int, first: int = 0) -> FigureHistory:
    """Of each figure the number of the step."""
    history = FigureHistory(FIGURES)
    for step in range(first, first + steps):
        history.note(step * STEP_S, (step, step, step))
    return history


def test_a_ring_has_the_last_numbers_and_its_array_grows_no_more() -> None:
    ring = Ring("f")
    for number in range(25):
        ring.append(number, 10)
        assert ring.tolist() == list(range(max(0, number - 9), number + 1))
        assert len(ring) == min(number + 1, 10)


def test_the_last_minutes_have_a_number_for_each_look_and_the_newest_is_last() -> None:
    assert series(noted(3), "20m") == {name: [0, 1, 2] for name in ("rate", "depth", "free")}
    told = series(noted(FINE_MAX + 7), "20m")["rate"]
    assert told == list(range(FINE_MAX + 7 - 240, FINE_MAX + 7))


def test_no_peak_is_lost_and_no_rate_is_more_than_it_was_when_many_numbers_become_one() -> None:
    history = FigureHistory(FIGURES)
    for step in range(4 * MINUTE_STEPS * 6):
        peak = 1000.0 if step == 30 else 10.0
        history.note(step * STEP_S, (peak, peak, 1.0 if step == 40 else 10.0))
    told = series(history, "24h")
    assert told["depth"] == [1000, 10, 10, 10]
    assert told["free"] == [1, 10, 10, 10]
    assert told["rate"] == [shortened((1000 + 71 * 10) / 72), 10, 10, 10]


def test_a_day_is_kept_and_no_more_in_arrays_of_a_fixed_length() -> None:
    history = noted(COARSE_MAX * MINUTE_STEPS + 5000)
    for name, span in SPANS.items():
        told = series(history, name)
        assert {len(values) for values in told.values()} == {span.points}
        assert span.points <= POINTS_MAX
    lengths = [len(ring) for ring in (*history._fine, *history._coarse)]
    assert lengths == [FINE_MAX] * 3 + [COARSE_MAX] * 3
    assert SPANS["24h"].points * SPANS["24h"].step_s == 24 * 3600


def test_a_step_at_which_nobody_looked_is_a_gap_and_moves_nothing() -> None:
    history = noted(3)
    history.note(7 * STEP_S, (7.0, 7.0, math.nan))
    told = series(history, "20m")
    assert told["rate"] == [0, 1, 2, None, None, None, None, 7]
    assert told["free"][-1] is None
    history.note(10 * 24 * 3600.0, (1.0, 1.0, 1.0))
    for span in SPANS:
        *before, last = series(history, span)["depth"]
        assert (last, set(before)) == (1, {None})


@pytest.mark.parametrize("span", SPANS)
def test_a_look_while_a_chart_is_made_changes_nothing_in_it(span: str) -> None:
    history = noted(COARSE_MAX * MINUTE_STEPS + 3)
    before, steps = series(history, span), history.series(SPANS[span])
    next(steps)
    for step in range(COARSE_MAX * MINUTE_STEPS + 3, COARSE_MAX * MINUTE_STEPS + 200):
        history.note(step * STEP_S, (-1.0, 1e9, -1.0))
    assert finish(steps) == before


def test_a_second_look_in_one_step_counts_for_nothing() -> None:
    history = noted(3)
    history.note(2 * STEP_S + 1, (99.0, 99.0, 99.0))
    assert series(history, "20m")["rate"] == [0, 1, 2]


@pytest.mark.parametrize("span", SPANS)
def test_numbers_that_were_told_are_the_same_when_a_chart_is_asked_for_again(span: str) -> None:
    """But for the newest, of a step of the chart that may not be over."""
    steps = COARSE_MAX * MINUTE_STEPS + 500
    history = noted(steps, first=3)
    before, began_s = series(history, span)["rate"], history.newest_s(SPANS[span])
    for step in range(3 + steps, 3 + steps + 80):
        history.note(step * STEP_S, (step, step, step))
    after, now_s = series(history, span)["rate"], history.newest_s(SPANS[span])
    assert began_s is not None
    assert now_s is not None
    moved = round((now_s - began_s) / SPANS[span].step_s)
    assert moved >= 1
    assert after[: len(after) - moved - 1] == before[moved:-1]


def test_a_chart_with_a_slip_is_refused_with_what_would_be_right() -> None:
    assert ChartRequest.read({}) == ChartRequest(SPANS["1h"])
    with pytest.raises(ChartError, match="span is one of 20m, 1h, 24h"):
        ChartRequest.read({"span": "1w"})
    with pytest.raises(ChartError, match="there are span, queue"):
        ChartRequest.read({"colour": "red"})


# --- of a broker


def test_what_a_set_had_before_it_was_led_here_is_no_rate_and_no_rate_is_negative() -> None:
    flow = MessageFlow()
    assert all(math.isnan(rate) for rate in flow.look({"default": (1000, 900)}, 0.0))
    assert flow.look({"default": (1010, 905)}, 5.0) == (2.0, 1.0)
    assert flow.look({"default": (1010, 905), "audit": (50_000, 0)}, 5.0) == (0.0, 0.0)
    assert flow.look({"default": (10, 5), "audit": (50_010, 5)}, 5.0) == (2.0, 1.0)
    assert flow.look({"default": (1015, 910), "audit": (50_010, 5)}, 5.0) == (1.0, 1.0)
    flow.look({}, 5.0)
    assert flow.look({"default": (2000, 2000)}, 5.0) == (0.0, 0.0)


def test_the_mean_of_a_histogram_is_of_what_came_since_the_last_look() -> None:
    histogram = Histogram()
    histogram.observe(100.0)
    since = MeanSince(histogram)
    assert math.isnan(since.look())
    histogram.observe(0.25, 3)
    histogram.observe(0.75)
    assert since.look() == 0.375
    assert math.isnan(since.look())


# --- of queues


def test_a_queue_that_is_used_has_a_chart_with_its_rates_and_its_depth() -> None:
    resources, (queue, still) = with_queues(2)
    trends = QueueTrends()
    for look in range(4):
        publish(resources, queue, 10)
        finish(trends.look([queue, still], look * 5.0 + 2.5))
    chart = trends.asked_for(queue, 20.0)
    assert chart is not None
    assert series(chart, "20m") == {"in": [0, 2, 2, 2], "out": [0, 0, 0, 0], "depth": [10, 20, 30, 40]}
    assert len(trends._charts) == 1
    finish(trends.look([still], 25.0))
    assert trends.asked_for(queue, 25.0) is None
    assert not trends._charts


def test_a_queue_gets_a_chart_when_somebody_asks_for_it() -> None:
    _, (queue,) = with_queues(1)
    trends = QueueTrends()
    assert trends.asked_for(queue, 0.0) is None
    finish(trends.look([queue], 2.5))
    assert trends.asked_for(queue, 3.0) is not None
    finish(trends.look([queue], 7.5))
    chart = trends.asked_for(queue, 8.0)
    assert chart is not None
    assert series(chart, "20m")["depth"] == [0]


def test_no_more_queues_have_charts_than_fit_and_the_stillest_makes_way_but_none_that_is_used() -> None:
    resources, queues = with_queues(CHARTS_MAX + 1)
    trends, late = QueueTrends(), queues[-1]
    for queue in queues[:-1]:
        publish(resources, queue, 1)
    finish(trends.look(queues, 2.5))
    for queue in queues[1:]:
        publish(resources, queue, 1)
    finish(trends.look(queues, 7.5))
    assert (len(trends._charts), late in trends._charts) == (CHARTS_MAX, False)
    assert trends.asked_for(late, 8.0) is None
    publish(resources, late, 1)
    finish(trends.look(queues, 2.5 + STILL_S))
    assert (len(trends._charts), late in trends._charts, queues[0] in trends._charts) == (CHARTS_MAX, True, False)


def with_queues(number: int) -> tuple[Resources, list[Queue]]:
    resources = Resources(TextReader())
    configuration = Configuration(resources)
    return resources, [configuration.declare_queue(f"q{each}", {}) for each in range(number)]


def publish(resources: Resources, queue: Queue, number: int) -> None:
    for _ in range(number):
        resources.publish(queue, message("x"), 0)


# --- of the process


def test_the_system_says_how_much_room_there_is_where_the_data_are(tmp_path: Path) -> None:
    figures, room = process_figures(tmp_path), os.statvfs(tmp_path)
    assert figures.disk == room.f_blocks * room.f_frsize
    assert 0 <= figures.disk_free <= figures.disk
    assert figures.memory > 1_000_000
    assert figures.descriptors >= 3


def test_without_data_or_with_a_disk_that_is_gone_there_are_the_other_figures(tmp_path: Path) -> None:
    for data_dir in (None, tmp_path / "gone"):
        figures = process_figures(data_dir)
        assert math.isnan(figures.disk_free)
        assert figures.memory > 1_000_000


def test_a_disk_that_hangs_costs_a_look_its_own_figures_and_no_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And one thread, however many looks there are while it hangs."""

    async def story() -> tuple[list[ProcessFigures], int, ProcessFigures]:
        hangs, entered = threading.Event(), 0

        def hang(_data_dir: Path | None) -> ProcessFigures:
            nonlocal entered
            entered += 1
            hangs.wait()
            return ProcessFigures(memory=1.0)

        monkeypatch.setattr(figure_looks, "process_figures", hang)
        monkeypatch.setattr(figure_looks, "PROCESS_LIMIT_S", 0.05)
        broker = Broker(BrokerSettings.from_values({"control-socket": str(tmp_path / "socket")}))
        looks = FigureLooks(broker, Histogram())
        without = [await looks._look_at_process() for _ in range(3)]
        hangs.set()
        monkeypatch.setattr(figure_looks, "PROCESS_LIMIT_S", 30.0)
        return without, entered, await looks._look_at_process()

    without, entered, after = asyncio.run(story())
    assert all(math.isnan(figures.memory) for figures in without)
    assert (entered, after.memory) == (1, 1.0)
