"""What the log says of many sets at once."""

from __future__ import annotations

import logging

import pytest

from qpid_ha_broker.server.sets.set_lines import SetLines

TEXT = "the in-sync set cannot be recorded, confirmations wait: no controller"


def test_the_same_reason_of_hundreds_of_sets_is_two_lines(caplog: pytest.LogCaptureFixture) -> None:
    now_s = [0.0]
    lines = SetLines(logging.getLogger("cluster"), lambda: now_s[0])
    with caplog.at_level(logging.INFO):
        for number in range(300):
            lines.log(logging.WARNING, f"s{number}", TEXT)
        lines.log(logging.WARNING, "s7", "another reason")
        lines.log(logging.INFO, "s1", "promoted")
        lines.log(logging.INFO, "s2", "promoted")
        now_s[0] = 2.0
        lines.flush()
        lines.flush()
        lines.log(logging.WARNING, "s8", TEXT)
    assert [record.getMessage() for record in caplog.records] == [
        f"set s0: {TEXT}",
        "set s7: another reason",
        "set s1: promoted",
        "set s2: promoted",
        f"299 other sets (s1, s2, s3, s4, s5, ...): {TEXT}",
        f"set s8: {TEXT}",
    ]


def test_of_two_sets_both_are_named(caplog: pytest.LogCaptureFixture) -> None:
    now_s = [0.0]
    lines = SetLines(logging.getLogger("cluster"), lambda: now_s[0])
    with caplog.at_level(logging.INFO):
        lines.log(logging.WARNING, "a", TEXT)
        lines.log(logging.WARNING, "b", TEXT)
        now_s[0] = 1.0
        lines.flush()
    assert [record.getMessage() for record in caplog.records] == [f"set a: {TEXT}", f"set b: {TEXT}"]
