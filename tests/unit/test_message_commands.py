"""What `qpid-ha send`, `receive` and `perf` make of words and of times, without a broker."""

from __future__ import annotations

import math
import re
import threading
from collections.abc import Iterator
from typing import Any

import proton
import pytest
from hypothesis import given
from hypothesis import strategies as st

from admin_tool import qpid_ha
from qpid_ha_agent.control import Forbidden
from qpid_ha_agent.login import Login
from qpid_ha_agent.messaging import exchange
from qpid_ha_agent.messaging.exchange import MessageLine, _patiently
from qpid_ha_agent.messaging.latency import Latencies
from qpid_ha_agent.messaging.making import (
    MakingError,
    MessageOptions,
    body_text,
    lines_of,
    make_message,
    message_facts,
    read_pairs,
)
from qpid_ha_agent.messaging.perf import MarkedMessage, sent_us
from qpid_ha_config.addresses import Address

times = st.integers(0, 10**12)


@given(st.lists(times, min_size=1, max_size=200), st.sampled_from([0.0, 0.5, 0.9, 0.99, 0.999, 1.0]))
def test_a_quantile_is_what_so_many_did_not_exceed_to_a_32nd(taken: list[int], part: float) -> None:
    latencies = Latencies()
    for time_us in taken:
        latencies.add(time_us)
    exact = sorted(taken)[max(math.ceil(part * len(taken)) - 1, 0)]
    assert exact <= latencies.quantile_us(part) <= max(exact * 33 // 32 + 1, exact)
    assert latencies.quantile_us(1.0) == latencies.most_us == max(taken)


@given(st.lists(times, max_size=100))
def test_a_histogram_has_all_of_them_each_below_its_end(taken: list[int]) -> None:
    latencies = Latencies()
    for time_us in taken:
        latencies.add(time_us)
    rows = latencies.histogram()
    assert sum(count for _, count in rows) == len(taken)
    if rows:
        assert rows[-2][0] * 1000 <= max(taken) < rows[-1][0] * 1000 if len(rows) > 1 else True
        assert [end for end, _ in rows] == sorted({end for end, _ in rows})


def test_times_of_two_measurements_are_joined_and_one_below_0_counts_as_0() -> None:
    first, second = Latencies(), Latencies()
    first.add(-5)
    second.add(1000)
    first.join(second)
    assert (first.count, first.most_us, first.quantile_us(0.5), Latencies().quantile_us(0.5)) == (2, 1000, 0, 0)
    assert first.summary_ms()["max"] == 1.0


def test_values_are_what_they_look_like_and_in_quotes_they_are_text() -> None:
    given_ = ["a=1", "b=-2.5", "c=true", 'd="1"', "e=x=y", "f=", "g=null", "h=[1]", f"i={2**63}", "j=1e3"]
    assert read_pairs(given_, "properties") == {
        "a": 1, "b": -2.5, "c": True, "d": "1", "e": "x=y", "f": "", "g": "null", "h": "[1]", "i": str(2**63), "j": 1e3,
    }  # fmt: skip


@pytest.mark.parametrize("wrong", ["", "name", "=value"])
def test_what_is_no_pair_is_said(wrong: str) -> None:
    with pytest.raises(MakingError, match="is not NAME=VALUE"):
        read_pairs([wrong], "properties")


def test_a_message_has_what_was_asked_for_and_is_shown_with_all_of_it() -> None:
    options = MessageOptions(
        durable=True, priority=7, ttl_s=1.5, subject="s", reply_to="r", correlation_id="c", content_type="text/plain",
        group_id="g", properties={"n": 1}, annotations={"x-opt-a": True},
    )  # fmt: skip
    facts: Any = message_facts(make_message("body", options))
    assert (facts["durable"], facts["priority"], facts["ttl_ms"]) == (True, 7, 1500)
    assert facts["properties"] == {
        "subject": "s", "reply_to": "r", "correlation_id": "c", "content_type": "text/plain", "group_id": "g",
        "group_sequence": 0,
    }  # fmt: skip
    assert (facts["application_properties"], facts["annotations"]) == ({"n": 1}, {"x-opt-a": True})
    assert facts["body"]["content"] == "body"
    plain: Any = message_facts(make_message(b"\xff", MessageOptions()))
    assert (plain["durable"], plain["priority"], plain["ttl_ms"]) == (False, 4, None)
    assert plain["body"]["encoding"] == "base64"


@pytest.mark.parametrize(
    ("body", "text"),
    [("a", "a"), (b"b", "b"), (b"\xff", "\\xff"), (5, "5"), ({"a": [1]}, '{"a": [1]}'), (None, "null"), ("", "")],
)
def test_a_body_is_shown_as_text_where_it_is_one(body: Any, text: str) -> None:
    message: Any = proton.Message()
    message.decode(bytes(proton.Message(body=body).encode()))
    assert body_text(message) == text


def test_a_line_is_a_body_without_its_end() -> None:
    assert list(lines_of(["a\n", "b\r\n", "\n", "c"])) == ["a", "b", "", "c"]


@given(st.integers(0, 2**63), st.integers(0, 3000))
def test_a_marked_message_says_when_it_was_sent_and_is_of_its_size(time_us: int, size: int) -> None:
    payload = MarkedMessage(size, durable=True).at(time_us)
    assert sent_us(payload) == time_us
    message: Any = proton.Message()
    message.decode(payload)
    assert (len(message.body), message.durable) == (size, True)
    assert sent_us(bytes(proton.Message("other").encode())) is None


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (("send",), "ADDRESS"),
        (("send", "q", "a", "--lines"), "one of the three"),
        (("send", "q", "--file", "x", "a"), "one of the three"),
        (("send", "q", "a", "-p", "bad"), "NAME=VALUE"),
        (("send", "q", "--priority", "10"), "priority"),
        (("receive", "q", "--count", "0"), "count"),
        (("perf", "q", "--producers", "0", "--consumers", "0"), "nothing to measure"),
        (("-b", "https://127.0.0.1:1", "send", "q", "a"), "through AMQP"),
        (("-b", "amqp://u@127.0.0.1:1", "--password-file", "/nowhere", "send", "q", "a"), "password"),
        (("send", "q", "a", "--ca", "/nowhere"), "ca"),
    ],
)
def test_what_cannot_be_done_is_said_before_anything_is(words: tuple[str, ...], problem: str) -> None:
    result = qpid_ha(*words)
    assert (result.exit_code, problem in result.stderr) == (2, True), result.stderr


def test_who_reads_slowly_is_waited_for_and_what_goes_wrong_there_is_raised() -> None:
    waits: list[float] = []

    def lines() -> Iterator[str]:
        yield "a"
        released.wait()
        yield "b"
        raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "no text")

    def breathe(seconds: float) -> None:
        waits.append(seconds)
        released.set()

    released, came = threading.Event(), list[str]()
    with pytest.raises(UnicodeDecodeError):
        came.extend(_patiently(lines(), breathe))
    assert came == ["a", "b"]
    assert waits


@pytest.mark.parametrize(
    ("user", "said"),
    [
        ("", "does not let anybody without a login (give -b amqp://USER@node1:5672) in: "),
        ("app", "does not let us in: "),
    ],
)
def test_who_is_not_let_in_without_a_user_is_told_how_to_name_one(
    monkeypatch: pytest.MonkeyPatch, user: str, said: str
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise proton.ProtonException("amqp:unauthorized-access: Authentication failed [mech=none]")

    monkeypatch.setattr(exchange, "open_connection", refuse)
    with pytest.raises(Forbidden, match=re.escape(said)):
        MessageLine(Address("amqp", "node1", 5672), Login(user, "secret" if user else None), 1.0)
