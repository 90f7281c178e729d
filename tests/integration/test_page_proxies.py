"""Brokers that relay, on the page, in a real Chromium: a client of one, and the page of each of the others."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from proton import ProtonException

from accessibility import accessibility_problems
from blocking_client import BlockingClient, bodies
from chromium import Chromium
from http_port import write_tokens
from page_site import NO_SCROLLING, OPERATOR, SHOTS, VIEWER, Site
from running_cluster import RunningCluster
from sets_cluster import create_queue, create_set, wait_whole

pytestmark = pytest.mark.direct_only("it has proxies of its own")
TABLE = "[...document.querySelectorAll('table')].find((one) => one.caption.textContent === {name})"
CELLS = f"[...({TABLE})?.querySelectorAll('tbody tr') ?? []].map((row) => [...row.cells].map((one) => one.textContent))"


def cells(name: str) -> str:
    """What a table has in its cells, row by row, as an expression."""
    return CELLS.replace("{name}", json.dumps(name))


def compact(rows: list[list[str]]) -> str:
    """As JSON.stringify writes it, as an expression."""
    return json.dumps(json.dumps(rows, separators=(",", ":")))


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    tokens = write_tokens(tmp_path / "tokens")
    settings = {
        "admin": {"listen": "http://127.0.0.1:0", "tokens": str(tmp_path / "tokens")},
        "ha": {"failure-timeout": "1s", "clients": "proxy"},
    }
    with RunningCluster(tmp_path, settings=settings) as cluster, Chromium() as page:
        cluster.form()
        page.resize(1280, 860)
        yield Site(cluster, tokens, page)
        assert page.problems == []


def test_a_client_of_a_proxy_is_shown_at_it_and_where_its_links_are_served(site: Site) -> None:
    page, cluster = site.page, site.cluster
    primary, proxy, other = cluster.brokers
    create_set(cluster, "orders", replicas=[primary.name, proxy.name], min_replicas=2)
    wait_whole(cluster, 0, "orders")
    create_queue(cluster, 0, "bills", "orders")
    primary.ask("queues", action="create", name="quiet")
    with BlockingClient(cluster.urls[1]) as client, BlockingClient(cluster.urls[2]) as other_client:
        other_client.receiver("quiet", 0)
        client.receiver("quiet", 1)
        client.send("bills", "one", "two")
        receiver = client.receiver("bills", 1)
        assert bodies(client.fetch(receiver, 1)) == ["one"]
        site.log_in(primary, VIEWER, rows=4)
        site.go("connections")
        page.wait_text("Brokers whose clients are served by others")
        relayed = [[proxy.name, primary.name, "1", "2", "1"], [other.name, primary.name, "1", "1", "1"]]
        page.wait(f"JSON.stringify({cells('Proxies')}) === {compact(relayed)}")
        shown = page.evaluate(cells("Links"))
        assert {(row[1], row[6], row[7]) for row in shown} == {
            (proxy.name, "quiet", f"to {primary.name}"), (proxy.name, "bills", f"to {primary.name}"),
            (other.name, "quiet", f"to {primary.name}"),
        }  # fmt: skip
        for scheme, width in (("light", 1280), ("dark", 400)):
            page.resize(width, 860, scheme)
            assert page.evaluate(NO_SCROLLING)
            assert accessibility_problems(page) == []
            page.screenshot(SHOTS / f"proxies-{width}-{scheme}.png")
        page.evaluate("""(() => { const kind = [...document.querySelectorAll('select')].at(-1); kind.value = 'proxy';
            kind.dispatchEvent(new Event('change')); })()""")
        page.wait(
            f"{cells('Links')}.length === 3 && {cells('Links')}.every((row) => row[1] === {json.dumps(primary.name)})"
        )
        assert sorted(row[7].rpartition(" by way of ")[2] for row in page.evaluate(cells("Links"))) == sorted(
            [proxy.name, proxy.name, other.name]
        )
        page.resize(1280, 860)
        site.go("queue/quiet")
        page.wait_text("2 links of consumers")
        assert sorted(row[1] for row in page.evaluate(cells("Consumers"))) == [
            f"{broker.name}, relayed to {primary.name}" for broker in (proxy, other)
        ]
        site.log_in(other, OPERATOR, rows=4)
        site.go("set/orders")
        page.wait_text("1 queue, as ")
        page.wait(f"{cells('Queues')}.length === 1 && {cells('Queues')}[0][5] === {json.dumps(primary.name)}")
        site.go("connections")
        page.wait(f"JSON.stringify({cells('Proxies')}) === {compact(relayed)}")
        page.click("button.close")  # of the one whose only link waits for credit
        page.click("dialog button[type=submit]")
        site.close_done("was closed.")
        page.wait(f"JSON.stringify({cells('Proxies')}) === {compact(relayed[:1])}")
        with suppress(ProtonException):  # it was closed
            other_client.connection.close()
