"""What the page shows of brokers besides its own: asked through that one, each for itself, and nothing else of them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from pathlib import Path

import pytest

from cluster_in_process import InProcessBroker, InProcessCluster, eventually
from event_loops import in_event_loop
from qpid_ha_broker.ha.frame_codec import MAX_TEXT
from qpid_ha_broker.metrics.histogram import Histogram
from qpid_ha_broker.server.broker import Broker
from qpid_ha_broker.server.http.figure_looks import FigureLooks
from qpid_ha_broker.server.http.figure_pages import FigurePages
from qpid_ha_broker.server.http.refusals import HttpRefusal
from qpid_ha_broker.server.peers.page_questions import PageAnswer, PageRequest

TOLD_WITHIN_S = 2.0


def page_of(broker: Broker) -> FigurePages:
    """As its HTTP port would have it; others may ask for it."""
    looks = FigureLooks(broker, Histogram())
    looks.start()
    pages = FigurePages(broker, looks)
    broker.membership.default.links.page_asked = pages.asked
    return pages


async def figures(pages: FigurePages, **given: str) -> Mapping[str, object]:
    """A chart, once there was a look."""
    while (answer := await pages.answer("/charts", given))["newest_ms"] is None:  # noqa: ASYNC110
        await asyncio.sleep(0.02)  # looks tell nobody
    return answer


@in_event_loop
async def test_a_page_shows_lists_and_charts_of_another_broker_as_that_one_shows_them(tmp_path: Path) -> None:
    async with InProcessCluster(tmp_path, "a", "b") as cluster:
        await cluster.form("a")
        a, b = page_of(cluster.brokers["a"]), page_of(cluster.brokers["b"])
        await cluster.ask("a", "queues", action="create", name="orders")
        await eventually(lambda: "orders" in cluster.brokers["b"].container.default.resources.catalog.queues)
        there = {"broker": cluster.url("b")}
        told = await figures(a, span="20m", **there)
        assert told["broker"] == "b"
        assert told["figures"] == (await figures(b, span="20m"))["figures"]
        listed = await a.answer("/queues", {"filter": "ord", **there})
        own = await b.answer("/queues", {"filter": "ord"})
        assert listed["matching"] == own["matching"] == 1
        assert (await figures(a, broker=cluster.url("a")))["broker"] == "a"


@in_event_loop
async def test_one_that_is_silent_is_said_to_be_within_two_seconds_and_holds_up_no_other(tmp_path: Path) -> None:
    async with InProcessCluster(tmp_path, "a", "b", "c") as cluster:
        await cluster.form("a")
        a, _ = page_of(cluster.brokers["a"]), page_of(cluster.brokers["b"])

        async def hang(_asked: PageRequest) -> PageAnswer:
            await asyncio.Event().wait()
            raise AssertionError

        cluster.member("c").default.links.page_asked = hang
        began_s = time.monotonic()
        silent = asyncio.ensure_future(a.answer("/charts", {"broker": cluster.url("c")}))
        assert (await a.answer("/charts", {"broker": cluster.url("b")}))["broker"] == "b"
        assert not silent.done()
        with pytest.raises(HttpRefusal, match="does not answer") as refused:
            await silent
        assert refused.value.status == 504
        assert time.monotonic() - began_s < TOLD_WITHIN_S + 1  # the machine may be busy
        await cluster.stop("c")
        with pytest.raises(HttpRefusal, match="does not answer"):
            await a.answer("/charts", {"broker": cluster.url("c")})


@in_event_loop
async def test_another_broker_refuses_what_its_own_page_would_be_refused(tmp_path: Path) -> None:
    async with InProcessCluster(tmp_path, "a", "b", "c") as cluster:
        await cluster.form("a")
        a, _ = page_of(cluster.brokers["a"]), page_of(cluster.brokers["b"])
        there = {"broker": cluster.url("b")}
        for path, given, status, problem in (
            ("/charts", {"span": "1w", **there}, 400, "b: span is one of"),
            ("/queues", {"sort": "colour", **there}, 400, "b: sort is one of"),
            ("/charts", {"queue": "none", **there}, 404, "b: this broker has no replica of a queue 'none'"),
            ("/charts", {"broker": cluster.url("c")}, 404, "c: it keeps no figures: set admin.listen there"),
            (
                "/charts",
                {"broker": "amqp://192.0.2.1:5672"},
                404,
                "no broker of this cluster is at 'amqp://192.0.2.1:5672'",
            ),
            ("/queues", {"name": "q" * MAX_TEXT, **there}, 400, "at most"),
        ):
            with pytest.raises(HttpRefusal, match=problem) as refused:
                await a.answer(path, given)
            assert refused.value.status == status, problem
        asked = await cluster.member("b").default.links.page_asked(PageRequest("/rpc", {}))
        assert (asked.status, asked.body) == (404, {"error": "there are /queues, /charts"})


@in_event_loop
async def test_a_broker_by_itself_has_no_others(tmp_path: Path) -> None:
    async with InProcessBroker(tmp_path) as node:
        with pytest.raises(HttpRefusal, match="no broker of this cluster"):
            await page_of(node.broker).answer("/charts", {"broker": "127.0.0.1:5672"})


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "5", '{"key": "max-connections", "value": 5}', '{"page": 1}', '{"page": {"path": 1}}',
             '{"page": {"path": "/charts", "given": {"span": 5}}}', '{"page": {"path": "/charts", "given": []}}']
)  # fmt: skip
def test_what_is_no_request_for_a_page_is_taken_for_none(text: str) -> None:
    assert PageRequest.read(text) is None
    assert PageAnswer.read(text) is None


def test_a_request_for_a_page_and_its_answer_are_read_as_they_were_written() -> None:
    request = PageRequest("/charts", {"span": "1h"})
    assert PageRequest.read(request.text()) == request
    assert PageAnswer.read('{"page": {"status": 200, "body": {"a": 1}}}') == PageAnswer(200, {"a": 1})
