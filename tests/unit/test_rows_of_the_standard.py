"""The tables of what is there of AMQP 1.0 and JMS, and of what shows it: what they name is there, and what they call
refused or not there is so, and does no harm."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import proton
import pytest

from paired_proxy import paired_broker
from raw_frames import WIDE, RawClient
from raw_peer import (
    ACCEPTED,
    ATTACH,
    CLOSE,
    DETACH,
    FLOW,
    RECEIVER,
    SENDER,
    SOURCE,
    TARGET,
    TRANSFER,
    described,
    frame,
)

ROOT = Path(__file__).resolve().parents[2]


def rows_below(page: str, heading: str) -> list[list[str]]:
    """Cells of the rows of all tables of a section, without those that head them."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8").partition(f"\n{heading}\n")[2]
    section = re.split(r"^#+ ", text, maxsplit=1, flags=re.MULTILINE)[0]
    lines = section.splitlines()
    heads = {index - 1 for index, line in enumerate(lines) if line.startswith("| ---")}
    return [
        [cell.strip() for cell in line.strip("|").split("|")]
        for index, line in enumerate(lines)
        if line.startswith("| ") and not line.startswith("| ---") and index not in heads
    ]


# --- the tables


def test_each_row_names_a_section_and_says_whether_it_is_there() -> None:
    rows = rows_below("protocol.md", "### What is there of AMQP 1.0 and JMS")
    assert len(rows) > 60
    for what, section, answer in rows:
        assert re.fullmatch(r"\d+(\.\d+)*((, | to )\d+(\.\d+)+)*|[A-Z][\w ]+ 1\.0( \(draft\))?", section), what
        assert re.search(r"\b(there|refused|as asked for|taken|not checked|passed on|in part|of a)\b", answer), what


def test_each_row_of_what_clients_count_on_is_shown_by_tests_that_are_there() -> None:
    rows = rows_below("testing.md", "## What clients count on")
    assert len(rows) > 25
    for what, *columns in rows:
        assert len(columns) == 4, what
        for column in columns:
            named = re.findall(r"`([\w/]+)`", column)
            assert named, f"{what} is not shown everywhere"
            for name in named:
                folder, _, module = name.rpartition("/")
                assert (ROOT / "tests" / (folder or "unit") / f"test_{module}.py").is_file(), (what, name)


# --- what is refused, or not there


@pytest.fixture(params=["direct", "proxied"])
def client(request: pytest.FixtureRequest) -> RawClient:
    """At a broker with a queue `q`."""
    broker = paired_broker(request.param)
    broker.container.default.configuration.declare_queue("q", {})
    return RawClient(broker)


def attach_with_unsettled(client: RawClient, handle: int, role: bool) -> None:
    """As who resumes a link on which deliveries were unsettled."""
    unsettled = {b"\x00\x00\x00\x01": described(ACCEPTED, [])}
    modes = proton.ubyte(0), proton.ubyte(0)
    ends = described(SOURCE, ["q"]), described(TARGET, ["q"])
    begin = [proton.uint(0)] if role is SENDER else []
    fields = [f"link-{handle}", proton.uint(handle), role, *modes, *ends, unsettled, True, *begin]
    client.say(frame(ATTACH, fields))


@pytest.mark.parametrize("role", [SENDER, RECEIVER])
def test_who_resumes_a_link_is_told_that_nothing_is_left_of_it_and_has_a_new_one(client: RawClient, role: bool) -> None:
    attach_with_unsettled(client, 0, role)
    (answer,) = client.got(ATTACH)
    assert answer[7:9] == [None, None]
    if role is SENDER:
        fields: list[Any] = [proton.uint(0), proton.uint(0), b"\x00\x00\x00\x01", proton.uint(0), False, False]
        client.say(frame(TRANSFER, [*fields, None, None, True], b"\x00Sw\xa1\x01m"))
    else:
        client.other().publish("q", "m")
        client.flow(0, 1)
        assert len(client.got(TRANSFER)) == 1
    assert client.broker.queue("q").messages.count == 1
    assert not client.got(CLOSE) + client.got(DETACH)


def test_an_echo_that_is_asked_for_ends_nothing_and_a_drain_is_always_answered(client: RawClient) -> None:
    client.attach("in", 0, RECEIVER, "q")
    windows = [proton.uint(number) for number in (0, WIDE, 0, WIDE)]
    client.say(frame(FLOW, [*windows, None, None, None, None, False, True]))
    client.say(frame(FLOW, [*windows, *map(proton.uint, (0, 0, 3)), None, False, True]))
    assert not client.got(CLOSE) + client.got(DETACH)
    client.flow(0, 3, drain=True)
    *_, answered = [fields for fields in client.got(FLOW) if len(fields) > 6]
    assert (answered[5], answered[6]) == (3, 0)
