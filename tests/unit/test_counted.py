"""One of a thing is one, everywhere that people read."""

from __future__ import annotations

import re
from pathlib import Path

from qpid_ha_broker.events.counted import counted

ROOT = Path(__file__).resolve().parents[2]
PRINTED = (
    "agent/qpid_ha_agent",
    *(f"broker/qpid_ha_broker/{room}" for room in ("diagnosis", "cluster", "server", "ha")),
)
THINGS = (
    "messages|brokers|queues|sets|replicas|primaries|files|rules|limits|users|entries|clients|links|events|bindings"
)
"""Such as these are counted where a command, the log or the page prints it."""
BOUNDS = re.compile(r"at most|_MOST|MOST_|_MAX\b|MAX_| of \{|\} of (the|these) | none of the|needed|wanted|limits\.")
"""Of a limit, or of so many of others: there are several."""
SEVERAL = (
    "len(facts.primaries)", "len(where)", "len(recent)", "if most else", "file descriptors", "least_beside_rival",
    "there should be",
)  # fmt: skip
"""Said only of more than one, or with a form for one beside it."""
COUNTED = re.compile(rf"\{{(?!counted)[^{{}}]*\}} (more )?({THINGS})\b|%d ({THINGS})\b")


def test_one_is_one_and_others_are_several() -> None:
    assert [counted(number, "message") for number in (0, 1, 2)] == ["0 messages", "1 message", "2 messages"]
    assert [counted(number, "set is", "sets are") for number in (1, 3)] == ["1 set is", "3 sets are"]
    assert counted(1, "primary", "primaries") == "1 primary"
    assert counted(None, "message") == "None messages"


def test_what_commands_and_findings_print_of_a_number_of_things_is_counted() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for room in PRINTED
        for path in sorted((ROOT / room).rglob("*.py"))
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if COUNTED.search(line) and not BOUNDS.search(line) and not any(each in line for each in SEVERAL)
    ]
    assert wrong == []
