"""A primary dies together with all that it had only sent: nothing of that may have been confirmed.

`kill -9` alone does not show it, because the kernel delivers what was written to a socket. So before the primary is
killed the link between it and its backup falls silent, and what was on its way is lost.
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from pathlib import Path

from failover_load import FailoverLoad, LedgerAudit
from lossy_proxy import LossyProxy
from qpid_ha_agent.control import RequestRefused
from running_cluster import RunningCluster

CONFIRMED = 50
STALLED_S = 1.0


def push(load: FailoverLoad, messages: int) -> None:
    """Until so many more were sent, or its credit is used up."""
    wanted = load.ledger.sent + messages
    sent, moved_s = load.ledger.sent, time.monotonic()
    while load.ledger.sent < wanted and time.monotonic() < moved_s + STALLED_S:
        if load.ledger.sent != sent:
            sent, moved_s = load.ledger.sent, time.monotonic()
        time.sleep(0.01)


def promote_the_other(cluster: RunningCluster) -> None:
    """As soon as it has noticed that the primary is gone."""

    def is_promoted() -> bool:
        try:
            cluster.promote(1)
        except RequestRefused:
            return False
        return True

    cluster.wait_until(is_promoted, "broker2 is promoted")


def die_with_a_silent_link(tmp_path: Path) -> LedgerAudit:
    """Links go through addresses of the test. What the primary sends after they fell silent, it sends to nobody."""
    with ExitStack() as stack:
        proxies = [stack.enter_context(LossyProxy()) for _ in range(2)]
        settings = {"ha": {"brokers-url": [f"amqp://{proxy.address}" for proxy in proxies], "backup-timeout": "60s"}}
        cluster = RunningCluster(tmp_path, count=2, settings=settings)
        for proxy, url in zip(proxies, cluster.urls, strict=True):
            proxy.target = ("127.0.0.1", int(url.rpartition(":")[2]))
        stack.enter_context(cluster)
        cluster.form(0)
        with FailoverLoad(cluster.urls, rate=400, consume=False) as load:
            load.wait_confirmed(CONFIRMED)
            for proxy in proxies:
                proxy.fall_silent()
            push(load, 200)
            cluster.kill(0)
            for proxy in proxies:
                proxy.cut()
            promote_the_other(cluster)
            return load.finish(timeout_s=5.0)


def test_what_a_primary_had_only_sent_when_it_died_was_not_confirmed(tmp_path: Path) -> None:
    audit = die_with_a_silent_link(tmp_path)
    assert audit.confirmed >= CONFIRMED
    assert audit.is_flawless, audit
