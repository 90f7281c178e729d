"""A group on the page, in a real Chromium: three brokers on one Corosync, consumers at two, and a member that goes."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from proton import Message

from accessibility import accessibility_problems
from blocking_client import BlockingClient
from chromium import Chromium
from http_port import write_tokens
from one_corosync import corosync
from page_site import NO_SCROLLING, SHOTS, VIEWER, Site
from qpid_ha_demo.corosync_daemon import what_is_missing
from running_cluster import RunningCluster

pytestmark = pytest.mark.skipif(bool(what_is_missing()), reason=what_is_missing())
SET = "orders"
ROW = """[...document.querySelectorAll('section[aria-labelledby=%s] tbody tr')]
    .find((row) => row.cells[0].textContent === %s)?.innerText ?? ''"""


def row(part: str, name: str) -> str:
    """The text of one of a table's rows, as an expression."""
    return ROW % (part, json.dumps(name))


@pytest.fixture
def site() -> Iterator[Site]:
    with ExitStack() as stack:
        # Shorter than tmp_path: sockets lie in it.
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="group-")))
        stack.enter_context(corosync(directory))
        tokens = write_tokens(directory / "tokens")
        settings = {
            "admin": {"listen": "http://127.0.0.1:0", "tokens": str(directory / "tokens")},
            "ha": {"failure-timeout": "1s", "backup-timeout": "2s"},
        }
        cluster = stack.enter_context(
            RunningCluster(directory, agents=True, settings=settings, stores=directory / "stores")
        )
        cluster.wait_until(lambda: cluster.primary() is not None, "a primary")
        cluster.wait_whole()
        page = stack.enter_context(Chromium())
        page.resize(1280, 860)
        yield Site(cluster, tokens, page)
        assert page.problems == []


def test_a_group_is_shown_with_who_hands_out_from_which_queue_and_what_it_waits_for(site: Site) -> None:
    page, cluster = site.page, site.cluster
    primary = cluster.the_primary()
    one, other = [broker for broker in cluster.brokers if broker is not primary]
    primary.ask("sets", action="create", name=SET, strategy="group")

    def is_whole() -> bool:
        shown = primary.ask("sets", action="show", name=SET)
        return bool(shown["state"] == "ok" and len(shown["in_sync"]) == 3)

    cluster.wait_until(is_whole, "the group has its members")
    clients = []
    for queue, broker in (("bills", one), ("calls", other)):
        primary.ask("queues", action="create", name=queue, arguments={"qpid.resource-set": SET})
        clients.append(client := BlockingClient(cluster.urls[cluster.brokers.index(broker)]))
        client.send(queue, *(Message(f"{number}") for number in range(3)))
        client.fetch(client.receiver(queue, 2), 2)
    site.log_in(primary, VIEWER, rows=4)
    page.click(f"a[href='#/set/{SET}']")
    for queue, broker in (("bills", one), ("calls", other)):
        page.wait(f"({row('members-title', broker.name)}).includes({json.dumps(queue)})")
        page.wait(f"({row('queues-title', queue)}).includes({json.dumps(broker.name)})")
        page.wait(f"/serves\\s+yes/.test({row('members-title', broker.name)})")
    page.wait("document.querySelector('section[aria-labelledby=waits-title]').innerText.includes('Nothing.')")
    for scheme in ("light", "dark"):
        for width in (400, 1280):
            page.resize(width, 860, scheme)
            page.screenshot(SHOTS / f"group-{width}-{scheme}.png")
            assert page.evaluate(NO_SCROLLING), (width, scheme)
            assert accessibility_problems(page) == [], (width, scheme)
    page.click("section[aria-labelledby=queues-title] tbody a")
    page.wait_text("Handed out by")
    page.click(f"a[href='#/set/{SET}']")
    cluster.crash(other)
    page.wait(f"/away\\s+no/.test({row('members-title', other.name)})")
    page.wait(f"document.querySelector('ul.wrongs').innerText.includes({json.dumps(f'{other.name} is away.')})")
    page.wait(f"({row('queues-title', 'calls')}).includes('nobody')")
    page.screenshot(SHOTS / "group-without-one.png")
    assert accessibility_problems(page) == []
    clients[0].connection.close()
