"""Figures for Prometheus: each has a row, each row a figure, and any name of a queue comes back as it was."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client.parser import text_string_to_metric_families

from model_support import TextReader, message
from qpid_ha_broker.metrics.confirm_latency import ConfirmLatency
from qpid_ha_broker.metrics.exposition import check_kind, column_pieces, family_text, label_text
from qpid_ha_broker.metrics.families import QUEUES, Family, FamilyKind, all_families
from qpid_ha_broker.metrics.histogram import Histogram
from qpid_ha_broker.metrics.queue_figures import QueueChoice, QueueCounters, oldest_age_s, queue_pieces
from qpid_ha_broker.model.commands.configuration import Configuration
from qpid_ha_broker.model.queues.queue_sums import STEP, QueueSums, sum_queues
from qpid_ha_broker.model.sets.resources import Resources
from qpid_ha_broker.server.runtime import slices
from qpid_ha_broker.server.runtime.slices import in_slices

DOC = Path(__file__).resolve().parents[2] / "docs" / "monitoring.md"
GAUGE = Family("depth", FamilyKind.GAUGE, "How deep.", ("queue",))


def text_of(pieces: object) -> str:
    return "".join(str(piece) for piece in pieces)  # type: ignore[attr-defined]


# --- the tables


def test_names_follow_the_conventions() -> None:
    for family in all_families():
        assert re.fullmatch(r"(qpid_ha|process)_[a-z0-9_]+", family.name)
        assert family.name.endswith("_total") is (family.kind is FamilyKind.COUNTER), family.name
        assert not family.name.endswith(("_ms", "_milliseconds", "_kib", "_count", "_sum", "_bucket")), family.name
        assert family.help.endswith("."), family.name


def test_the_page_for_operators_names_each_figure_and_no_other() -> None:
    named = set(re.findall(r"^\| `((?:qpid_ha|process)_[a-z0-9_]+)", DOC.read_text(encoding="utf-8"), re.MULTILINE))
    assert named == {family.name for family in all_families()}


# --- the text


@given(st.text(st.characters(exclude_categories=()), max_size=40))
def test_any_name_of_a_queue_comes_back_as_it_was(name: str) -> None:
    text = family_text(GAUGE, {(name,): 3})
    text.encode()
    (family,) = text_string_to_metric_families(text)
    told = name.encode("utf-8", "replace").decode()
    assert [(sample.labels, sample.value) for sample in family.samples] == [({"queue": told}, 3)]


def test_a_histogram_counts_up_to_each_bound() -> None:
    histogram = Histogram((0.1, 1.0))
    for value, times in ((0.1, 1), (0.5, 3), (7.0, 1)):
        histogram.observe(value, times)
    text = family_text(Family("wait_seconds", FamilyKind.HISTOGRAM, "Waiting."), {(): histogram})
    (family,) = text_string_to_metric_families(text)
    assert {sample.labels.get("le", sample.name): sample.value for sample in family.samples} == {
        "0.1": 1, "1.0": 4, "+Inf": 5, "wait_seconds_count": 5, "wait_seconds_sum": pytest.approx(8.6),
    }  # fmt: skip


def test_a_family_without_samples_is_left_out() -> None:
    assert family_text(GAUGE, {}) == text_of(column_pieces(GAUGE, [], [])) == ""


def test_a_column_comes_in_small_pieces() -> None:
    labels = [label_text(("queue",), (str(number),)) for number in range(1000)]
    pieces = list(column_pieces(GAUGE, labels, range(1000)))
    assert len(pieces) > 4
    (family,) = text_string_to_metric_families("".join(pieces))
    assert [sample.value for sample in family.samples] == list(range(1000))


def test_a_value_of_another_kind_is_a_bug() -> None:
    with pytest.raises(TypeError, match="depth"):
        check_kind(GAUGE, Histogram())


# --- how long publishers wait


def test_an_event_waits_from_its_turn_to_the_one_in_which_it_is_committed() -> None:
    latency = ConfirmLatency(10, Histogram((1.0, 5.0)))
    latency.turn_ended(13, 10, 0.0)
    latency.turn_ended(14, 10, 2.0)
    latency.turn_ended(14, 13, 3.0)
    assert latency.histogram.counts == [0, 3, 0]
    latency.turn_ended(14, 14, 10.0)
    assert latency.histogram.counts == [0, 3, 1]
    assert latency.histogram.sum == 3 * 3.0 + 8.0


def test_what_the_log_lost_never_counts() -> None:
    latency = ConfirmLatency(0, Histogram())
    latency.turn_ended(5, 0, 0.0)
    latency.turn_ended(2, 2, 1.0)
    latency.turn_ended(6, 6, 2.0)
    assert latency.histogram.count == 4


def test_a_publisher_that_waits_for_ever_costs_no_memory_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qpid_ha_broker.metrics.confirm_latency.NOTES_MAX", 3)
    latency = ConfirmLatency(0, Histogram())
    for lsn in range(1, 101):
        latency.turn_ended(lsn, 0, float(lsn))
    assert len(latency._notes) == 3
    latency.turn_ended(100, 100, 200.0)
    assert latency.histogram.count == 100


# --- queues


@pytest.fixture
def resources() -> Resources:
    resources = Resources(TextReader())
    configuration = Configuration(resources)
    for name in ("orders.eu", "orders.us", "audit"):
        configuration.declare_queue(name, {})
    return resources


def told(
    resources: Resources, choice: QueueChoice, counters: QueueCounters | None = None
) -> dict[str, dict[str, float]]:
    queues = [("default", queue) for queue in resources.catalog.queues.values()]
    text = text_of(queue_pieces(queues, choice, counters or QueueCounters(), 0))
    return {
        sample.name: {s.labels.get("queue", ""): s.value for s in family.samples}
        for family in text_string_to_metric_families(text)
        for sample in family.samples[:1]
    }


def test_only_queues_that_a_pattern_names_are_told_of_and_the_others_are_counted(resources: Resources) -> None:
    found = told(resources, QueueChoice(("orders.*",), 10))
    assert set(found["qpid_ha_queue_messages"]) == {"orders.eu", "orders.us"}
    assert found["qpid_ha_queues_left_out"] == {"": 1}


def test_there_are_never_more_labels_than_the_limit(resources: Resources) -> None:
    found = told(resources, QueueChoice(("*",), 2))
    assert set(found["qpid_ha_queue_messages"]) == {"orders.eu", "orders.us"}
    assert found["qpid_ha_queues_left_out"] == {"": 1}


def test_without_patterns_there_are_sums_alone(resources: Resources) -> None:
    assert told(resources, QueueChoice((), 10)) == {"qpid_ha_queues_shown": {"": 0}, "qpid_ha_queues_left_out": {"": 3}}


def test_what_is_told_of_a_queue_is_what_it_holds(resources: Resources) -> None:
    queue = resources.catalog.queues["audit"]
    for _ in range(3):
        resources.publish(queue, message("12345"), 0)
    found = told(resources, QueueChoice(("*",), 10))
    assert {name: found[name]["audit"] for name in QUEUES} == {
        "qpid_ha_queue_messages": 3,
        "qpid_ha_queue_message_bytes": queue.messages.size,
        "qpid_ha_queue_acquired_messages": 0,
        "qpid_ha_queue_scheduled_messages": 0,
        "qpid_ha_queue_consumers": 0,
        "qpid_ha_queue_oldest_message_age_seconds": 0,
        "qpid_ha_queue_enqueued_messages_total": 3,
        "qpid_ha_queue_dequeued_messages_total": 0,
    }


def test_the_age_is_that_of_the_oldest_message(resources: Resources) -> None:
    queue = resources.catalog.queues["audit"]
    assert oldest_age_s(queue, 5_000) == 0
    resources.publish(queue, message("a"), 0)
    resources.replicated.log.note_time(1_000)
    resources.publish(queue, message("b"), 0)
    resources.replicated.log.note_time(4_000)
    assert oldest_age_s(queue, 5_000) == 4.0


def test_a_counter_does_not_go_back_when_a_queue_is_filled_anew(resources: Resources) -> None:
    queue, counters = resources.catalog.queues["audit"], QueueCounters()
    for _ in range(5):
        resources.publish(queue, message("a"), 0)
    everything = QueueChoice(("*",), 10)
    assert told(resources, everything, counters)["qpid_ha_queue_enqueued_messages_total"]["audit"] == 5
    resources.catalog.emptied(queue)
    assert told(resources, everything, counters)["qpid_ha_queue_enqueued_messages_total"]["audit"] == 5


def test_sums_pause_where_there_are_many_queues_and_have_what_all_hold(
    resources: Resources, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slices, "SLICE_S", 0.0)
    configuration = Configuration(resources)
    for number in range(3 * STEP):
        configuration.declare_queue(f"many-{number}", {})
    queues = list(resources.catalog.queues.values())
    for queue in queues[::7]:
        resources.publish(queue, message("12345"), 0)
    turns = 0

    async def summed() -> QueueSums:
        nonlocal turns
        adding = asyncio.create_task(in_slices(sum_queues(queues)))
        while not adding.done():
            turns += 1
            await asyncio.sleep(0)
        return adding.result()

    sums = asyncio.run(summed())
    held = [queue.messages for queue in queues]
    assert sums == QueueSums(
        len(queues),
        sum(each.count for each in held),
        sum(each.size for each in held),
        sum(each.enqueued_total for each in held),
        sum(each.dequeued_total for each in held),
    )
    assert sums.messages > 0
    assert turns > 3


def test_totals_keep_what_came_into_queues_that_are_deleted(resources: Resources) -> None:
    queue = resources.catalog.queues["audit"]
    resources.publish(queue, message("a"), 0)
    resources.catalog.forget_queue(queue)
    assert (resources.catalog.enqueued_gone, resources.catalog.dequeued_gone) == (1, 1)
