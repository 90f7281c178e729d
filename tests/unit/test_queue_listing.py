"""What the web page is told of queues: parts of a long list, trends, and news that never pile up."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from typing import Any

import pytest

from model_support import TextReader, message
from qpid_ha_broker.metrics.queue_listing import CHUNK, ListingError, QueueListing, list_queues
from qpid_ha_broker.metrics.queue_trends import SAMPLES_MAX, QueueTrends
from qpid_ha_broker.model.commands.configuration import Configuration
from qpid_ha_broker.model.sets.resources import Resources
from qpid_ha_broker.server.http.state_news import NewsListener

MANY = 3 * CHUNK + 7


@pytest.fixture(scope="module")
def many() -> Resources:
    """Queues q0000, q0001, ...; some have messages."""
    resources = Resources(TextReader())
    configuration = Configuration(resources)
    for number in range(MANY):
        configuration.declare_queue(f"q{number:04}", {})
    for name, count in (("q0003", 2), ("q1000", 5), ("q0700", 2)):
        for _ in range(count):
            resources.publish(resources.catalog.queues[name], message("x"), 0)
    return resources


def finish(steps: Generator[None, None, Any]) -> Any:
    try:
        while True:
            next(steps)
    except StopIteration as end:
        return end.value


def listed(resources: Resources, **given: str) -> dict[str, Any]:
    queues = [("default", queue) for queue in resources.catalog.queues.values()]
    told: dict[str, Any] = finish(list_queues(queues, QueueListing.read(given), QueueTrends(), 0))
    return told


def names(told: dict[str, Any]) -> list[str]:
    return [row["name"] for row in told["rows"]]


def test_pages_one_after_the_other_have_each_queue_once(many: Resources) -> None:
    for descending in ("false", "true"):
        found: list[str] = []
        for offset in range(0, MANY, 100):
            found += names(listed(many, offset=str(offset), count="100", descending=descending))
        assert found == sorted(many.catalog.queues, reverse=descending == "true")
    assert listed(many, offset=str(MANY), count="100")["rows"] == []


def test_the_fullest_come_first_and_those_that_are_equal_by_name(many: Resources) -> None:
    told = listed(many, sort="messages", descending="true", count="5")
    assert names(told) == ["q1000", "q0003", "q0700", "q0000", "q0001"]
    assert (told["total"], told["matching"]) == (MANY, MANY)


def test_a_filter_is_a_part_of_a_name_or_a_pattern_for_all_of_it(many: Resources) -> None:
    assert listed(many, filter="Q100")["matching"] == 10
    assert listed(many, filter="*00")["matching"] == MANY // 100 + 1
    assert listed(many, filter="[")["matching"] == 0
    assert names(listed(many, name="q1000")) == ["q1000"]
    assert names(listed(many, only="no-consumers")) == ["q0003", "q0700", "q1000"]


def test_queues_of_one_set_are_listed_by_themselves(many: Resources) -> None:
    first, *others = many.catalog.queues.values()
    queues = [("orders", first), *(("default", queue) for queue in others)]
    given = {"set": "orders", "sort": "messages"}
    told = finish(list_queues(queues, QueueListing.read(given), QueueTrends(), 0))
    assert (names(told), told["matching"], told["total"]) == ([first.name], 1, MANY)
    told = finish(list_queues(queues, QueueListing.read({"set": "order"}), QueueTrends(), 0))
    assert told["matching"] == 0


def test_a_list_is_made_in_many_steps(many: Resources) -> None:
    queues = [("default", queue) for queue in many.catalog.queues.values()]
    steps = list_queues(queues, QueueListing.read({"offset": "1400", "count": "100"}), QueueTrends(), 0)
    assert sum(1 for _ in steps) > MANY // 50


def test_an_unknown_key_to_sort_by_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(ListingError, match="sort is one of name, set, messages"):
        QueueListing.read({"sort": "colour"})


# --- trends


def test_a_trend_has_the_last_depths_and_rates_that_are_never_negative() -> None:
    resources = Resources(TextReader())
    queue = Configuration(resources).declare_queue("q", {})
    trends = QueueTrends()
    assert trends.of(queue) is None
    for look in range(SAMPLES_MAX + 5):
        finish(trends.look([queue], float(5 * look)))
        resources.publish(queue, message("x"), 0)
    trend = trends.of(queue)
    assert trend is not None
    assert trend.depths.tolist() == list(range(5, SAMPLES_MAX + 5))
    assert (trend.in_rate, trend.out_rate) == (0.2, 0.0)
    resources.catalog.emptied(queue)
    finish(trends.look([queue], 1000.0))
    assert trend.in_rate >= 0
    assert trend.out_rate >= 0
    finish(trends.look([], 1005.0))
    assert trends.of(queue) is None


# --- news


def test_a_page_that_reads_slowly_is_sent_the_last_of_each_kind_of_news() -> None:
    async def read() -> list[bytes]:
        listener = NewsListener()
        for number in range(1000):
            listener.put("state", {"number": number})
        listener.put("phase", {"text": "a\n\nevent: forged"})
        texts = listener.texts()
        found = [await anext(texts), await anext(texts)]
        listener.end()
        return found + [text async for text in texts]

    told = asyncio.run(read())
    assert told[0] == b'event: state\ndata: {"number": 999}\n\n'
    assert told[1].count(b"\n\n") == 1
    assert len(told) == 2
