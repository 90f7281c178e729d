"""Runbooks work as they are typed, on three machines of which something is broken before."""

from __future__ import annotations

from pathlib import Path

import pytest

from page_stage import follow_there, why_not_here

WHY_NOT_HERE = why_not_here()
pytestmark = pytest.mark.skipif(bool(WHY_NOT_HERE), reason=WHY_NOT_HERE)
KILL = "kill -9 $(pgrep -f 'qpidd --config /etc/qpid-ha/qpid-ha.yaml --control-socket /run/qpid-ha/node1.sock')"
EACH = "for node in node1 node2 node3; do ssh $node {}; done"
STOP_ALL = "for node in node1 node3 node2; do ssh $node systemctl stop qpid-ha; done"
"""node2 is in sync to the last."""
WITHOUT_AGENTS = "\n".join(
    [
        STOP_ALL,
        EACH.format("'setsid qpidd --config /etc/qpid-ha/qpid-ha.yaml >>/var/log/qpidd.log 2>&1 </dev/null &'"),
        EACH.format("qpid-ha status --expect connecting --wait 2m"),
    ]
)
DAMAGE = "\n".join(
    [
        "systemctl stop qpid-ha",
        "file=$(ls /var/lib/qpid-ha/default/journal/*.log | head -n 1)",
        "printf damage | dd of=$file bs=1 seek=100 conv=notrunc status=none",
        "systemctl start qpid-ha",
    ]
)
SERVED = EACH.format("qpid-ha status --expect primary --expect ready --wait 2m")
START_ALL = EACH.format("systemctl start qpid-ha")
FOLLOWED: list[tuple[str, str, str, tuple[str, ...]]] = [
    ("planned-switchover", "", "", ()),
    ("maintenance", "", "", ()),
    ("support-bundle", "", "", ()),
    ("coordinator-out-of-reach", "", "", ()),
    ("failover", KILL, "", ("qpid-ha -b amqp://node2:5672 backups",)),
    ("broker-is-away", "qpid-ha switchover node2", "", ("qpid-ha backups",)),
    ("publishers-hang", "", "", ("qpid-ha diagnose",)),
    ("lost-disk", DAMAGE, "", ("qpid-ha store check", "qpid-ha backups")),
    ("nobody-is-primary", WITHOUT_AGENTS, "", ("qpid-ha diagnose",)),
    ("total-crash", f"{KILL}\n{STOP_ALL}", f"{START_ALL}\n{SERVED}", ()),
]
"""A page, what is broken before, what it says in a sentence before Check, and commands of the page that say no because
of what is broken: a backup has no backups."""


@pytest.mark.parametrize(("page", "before", "then", "may_fail"), FOLLOWED, ids=[page for page, *_ in FOLLOWED])
def test_whoever_follows_a_runbook_comes_to_its_end(
    tmp_path: Path, page: str, before: str, then: str, may_fail: tuple[str, ...]
) -> None:
    words = before, then, *may_fail
    code, transcript = follow_there(f"runbooks/{page}.md", tmp_path, 600.0, "three_machines", *words)
    assert code == 0, transcript
