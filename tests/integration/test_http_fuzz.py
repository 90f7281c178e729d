"""Whatever comes to the HTTP port, the broker goes on, and tells nobody what he has no role for.

`./dev fuzz` tries more.
"""

from __future__ import annotations

import os
import random
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from fuzz.http_cases import Case, CaseMaker
from fuzz.http_target import HttpTarget, http_target
from fuzz.http_verdicts import STATUSES, problem_with
from qpid_ha_config.tokens import TokenRole

pytestmark = pytest.mark.direct_only("the HTTP port is about the broker that is asked")

SEED = int(os.environ.get("QPID_HA_HTTP_SEED", "0")) or random.SystemRandom().randrange(1 << 32)
CASES = 500
MONITORING = Path(__file__).resolve().parents[2] / "docs" / "monitoring.md"


@pytest.fixture(scope="module")
def target() -> Iterator[HttpTarget]:
    with http_target() as target:
        yield target


def test_whatever_comes_nobody_is_told_more_than_he_may_know_and_the_broker_goes_on(target: HttpTarget) -> None:
    """From a seed that a failure prints: QPID_HA_HTTP_SEED repeats it."""
    print(f"QPID_HA_HTTP_SEED={SEED}")
    maker = CaseMaker(SEED, target.requests, target.port.tokens)
    assert target.try_cases(maker, range(CASES)) == []
    target.serve_a_client()
    assert {"whole 200", "whole 400", "whole 401", "whole 403", "whole 404", "bytes 400"} <= set(target.answers)


def test_each_request_of_the_broker_is_known_with_its_parameters(target: HttpTarget) -> None:
    known = {(each.method, each.action): set(each.parameters) for each in target.requests}
    assert known["queues", "peek"] == {"name", "after", "count", "bytes", "body_bytes", "id"}
    assert known["rebalance", ""] == {"plan", "begin", "left", "cause"}
    assert known["check-acl", ""] == {"user", "action", "node", "local"}
    assert len(known) >= 60


@pytest.mark.parametrize(
    ("method", "params"),
    [
        ("rebalance", {"plan": 1}),
        ("rebalance", {"left": "true"}),
        ("rebalance", {"begin": [True]}),
        ("shutdown", {"cluster": True, "x": 1}),
    ],
)
def test_what_has_a_slip_is_refused_before_anything_is_done(
    target: HttpTarget, method: str, params: dict[str, object]
) -> None:
    assert target.port.rpc(method, TokenRole.ADMIN, **params)["error"]["code"] == -32602
    assert all(row["state"] == "ok" for row in target.port.rpc("sets", TokenRole.ADMIN)["result"])


def test_the_statuses_that_may_come_are_those_of_the_documentation() -> None:
    listed = re.findall(r"^\| (\d{3}) \|", MONITORING.read_text(encoding="utf-8"), re.MULTILINE)
    assert {int(status) for status in listed} == STATUSES


@pytest.mark.parametrize(
    ("case", "answer", "problem"),
    [
        (Case("x", b"", is_whole=True), b"HTTP/1.1 500 Internal Server Error\r\n\r\n", "not documented: [500]"),
        (Case("x", b"", is_whole=True), b"", "0 answers"),
        (Case("x", b""), b'HTTP/1.1 200 OK\r\n\r\n{"name": "only-for-those-with-a-role"}', "what takes a role"),
        (Case("x", b"", path="/queues", is_whole=True), b"HTTP/1.1 200 OK\r\n\r\n{}", "/queues was answered to None"),
        (Case("x", b"", path="/live", is_whole=True), b"HTTP/1.1 401 Unauthorized\r\n\r\n", "takes no role"),
        (
            Case("x", b"", TokenRole.VIEWER, "/rpc", "queues", {"action": "purge"}, is_whole=True),
            b'HTTP/1.1 200 OK\r\n\r\n{"result": {}}', "done for a viewer",
        ),
        (
            Case("x", b"", TokenRole.ADMIN, "/rpc", "demote", {"x": 1}, must_fail=True, is_whole=True),
            b'HTTP/1.1 200 OK\r\n\r\n{"result": {}}', "carried out with parameters that are wrong",
        ),
        (
            Case("x", b"", TokenRole.ADMIN, "/rpc", "ping", is_whole=True),
            b'HTTP/1.1 200 OK\r\n\r\n{"error": {"code": -32603}}', "(a bug)",
        ),
        (Case("x", b"", TokenRole.ADMIN, "/rpc", "ping", is_whole=True), b'HTTP/1.1 200 OK\r\n\r\n{"result": 1}', ""),
    ],
)  # fmt: skip
def test_a_broken_promise_is_seen(case: Case, answer: bytes, problem: str) -> None:
    found = problem_with(case, answer)
    assert problem in found
    assert bool(found) is bool(problem)
