"""Brokers whose web page is looked at in a real Chromium, and whoever looks: by the keyboard, and by addresses."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Final, NamedTuple

from chromium import Chromium
from qpid_ha_config.tokens import TokenRole
from qpid_ha_demo.cluster import LocalBroker
from running_cluster import RunningCluster

SHOTS: Final = Path(
    os.environ.get("QPID_HA_SCREENSHOTS", Path(__file__).resolve().parents[2] / "build" / "screenshots")
)
"""Where what the page looked like is kept."""
VIEWER, OPERATOR, ADMIN = TokenRole.VIEWER, TokenRole.OPERATOR, TokenRole.ADMIN
NO_SCROLLING: Final = "document.documentElement.scrollWidth <= window.innerWidth"


class Site(NamedTuple):
    """What the tests share."""

    cluster: RunningCluster
    tokens: dict[TokenRole, str]
    page: Chromium

    def url(self, broker: LocalBroker) -> str:
        """Where its page is: what it said last."""
        self.cluster.wait_until(lambda: "monitoring are answered on" in broker.log(), "the HTTP port is open")
        found: list[str] = re.findall(r"monitoring are answered on (\S+)", broker.log())
        return f"{found[-1].rstrip(',')}/"

    def log_in(self, broker: LocalBroker, role: TokenRole, rows: int = 3) -> None:
        """As somebody who uses the keyboard alone, on a page that was never seen before; `rows`: brokers, and sets."""
        page = self.page
        page.open(self.url(broker))
        if page.evaluate("sessionStorage.length"):
            page.evaluate("sessionStorage.clear()")
            page.open(self.url(broker))
        page.wait("document.activeElement.id === 'token'")
        page.type(self.tokens[role])
        page.press("Enter")
        page.wait_text(f"{role} ({role})")
        page.wait(f"document.querySelectorAll('main table tbody tr').length === {rows}")

    def have_a_set(self) -> None:
        """`audit`, at all brokers."""
        primary = self.cluster.the_primary()
        if not primary.ask("sets", action="list")["answer"]:
            primary.ask("sets", action="create", name="audit", replicas=[each.name for each in self.cluster.brokers])

    def close_done(self, text: str) -> None:
        """What was confirmed is done, and the dialog that says so is closed."""
        page = self.page
        page.wait("document.querySelector('dialog h2').textContent === 'Done'")
        assert text in page.evaluate("document.querySelector('dialog p').textContent")
        page.press("Enter")
        page.wait("!document.querySelector('dialog').open")

    def go(self, view: str) -> None:
        """By the address, as a bookmark does."""
        self.page.evaluate(f"location.hash = {json.dumps('#/' + view)}")
