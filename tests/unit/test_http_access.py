"""Who may do what over HTTP: tokens, roles, and what a wrong token costs."""

from __future__ import annotations

import asyncio
import os
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qpid_ha_broker.access.operations import OPERATIONS
from qpid_ha_broker.server.http import http_tokens
from qpid_ha_broker.server.http.http_roles import needed_role
from qpid_ha_broker.server.http.http_tokens import TokenFile, WrongTokens
from qpid_ha_config.errors import ConfigError, SettingsError
from qpid_ha_config.settings import BrokerSettings
from qpid_ha_config.tokens import TokenEntry, TokenRole, find_entry, make_token, read_tokens

READING = [
    ("ping", {}), ("status", {"all": True}), ("query", {}), ("get", {}), ("backups", {}), ("history", {}),
    ("events", {}), ("map", {}), ("queues", {}), ("queues", {"action": "read", "name": "q"}), ("exchanges", {}),
    ("sessions", {}), ("sets", {}), ("sets", {"action": "show"}), ("brokers", {}), ("replicas", {}),
    ("replicas", {"action": "list-policies"}), ("rebalance", {"plan": True}), ("rebalance", {"left": True}),
    ("replicate", {}), ("remote-nodes", {}), ("connections", {}), ("pause", {}), ("pause", {"action": "show"}),
    ("settings", {}), ("settings", {"action": "history"}),
]  # fmt: skip
OPERATING = [
    ("queues", {"action": "purge"}), ("queues", {"action": "delete"}), ("queues", {"action": "create"}),
    ("queues", {"action": "update"}), ("exchanges", {"action": "bind"}), ("exchanges", {"action": "delete"}),
    ("sessions", {"action": "end"}), ("switchover", {}), ("promote", {}), ("promote", {"force": False}), ("demote", {}),
    ("sets", {"action": "transfer"}), ("brokers", {"action": "drain"}), ("replicas", {"action": "trim"}),
    ("rebalance", {}), ("rebalance", {"plan": 1}), ("replicate", {"queue": "q"}), ("replicate", {"stop": True}),
    ("reload-tls", {}), ("queues", {"action": "peek"}), ("queues", {"action": "payload"}),
    ("queues", {"action": "move"}), ("connections", {"action": "close"}),
    ("pause", {"action": "begin"}), ("pause", {"action": "end"}), ("users", {}), ("tokens", {"action": "list"}),
    ("list-acl", {}),
]  # fmt: skip
ADMINISTERING = [
    ("settings", {"action": "set"}), ("settings", {"action": "unset"}),
    ("users", {"action": "set"}), ("users", {"action": "remove"}), ("users", {"action": "export"}),
    ("tokens", {"action": "set"}), ("tokens", {"action": "remove"}), ("tokens", {"action": "export"}),
    ("set", {}), ("shutdown", {}), ("drop", {}), ("promote", {"force": True}), ("promote", {"force": 1}),
    ("sets", {"action": "delete"}), ("sets", {"action": "promote"}), ("brokers", {"action": "fail"}),
    ("brokers", {"action": "drain", "force": True}), ("brokers", {"action": "forget"}), ("no-such-method", {}),
    ("queues", {"action": "no-such-action"}), ("queues", {"action": ["list"]}), ("queues", {"action": None}),
]  # fmt: skip


@pytest.mark.parametrize(
    ("role", "method", "params"),
    [
        (role, *request)
        for role, requests in (
            (TokenRole.VIEWER, READING),
            (TokenRole.OPERATOR, OPERATING),
            (TokenRole.ADMIN, ADMINISTERING),
        )
        for request in requests
    ],
)
def test_each_request_needs_the_least_role_that_fits(role: TokenRole, method: str, params: dict[str, object]) -> None:
    assert needed_role(method, params) is role


def test_all_that_the_table_lets_somebody_do_is_tried_above() -> None:
    tried = {method for method, _ in (*READING, *OPERATING, *ADMINISTERING)}
    assert tried >= {
        method
        for method, actions in OPERATIONS.by_method.items()
        if any(row.control is not None and row.control.role is not TokenRole.ADMIN for row in actions.values())
    }


def test_each_role_may_do_what_those_before_it_may() -> None:
    roles = list(TokenRole)
    assert [[role.includes(other) for other in roles] for role in roles] == [
        [other <= role for other in range(4)] for role in range(4)
    ]


# --- the file


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_a_token_is_found_by_what_was_printed_and_the_file_does_not_have_it(tmp_path: Path) -> None:
    text, entry = make_token("grafana", TokenRole.METRICS)
    entries = read_tokens(write(tmp_path / "tokens", f"# one\n{entry}\n\n"))
    assert find_entry(entries, text) == entry
    assert find_entry(entries, text[:-1]) is None
    assert text not in (tmp_path / "tokens").read_text()


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("grafana metrics", "2 words"),
        ("grafana operater " + "0" * 64, "did you mean operator"),
        ("grafana metrics 0123", "64 lower-case"),
        ("-x metrics " + "0" * 64, "the name has"),
        (f"a metrics {'0' * 64}\na admin {'0' * 64}", "twice"),
    ],
)
def test_a_slip_in_the_file_is_told_with_its_line(tmp_path: Path, line: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem) as refused:
        read_tokens(write(tmp_path / "tokens", f"# tokens\n{line}\n"))
    assert f"tokens:{2 + line.count(chr(10))}" in str(refused.value)


def test_tokens_of_the_cluster_are_asked_for_each_time_and_count_above_those_of_the_file(tmp_path: Path) -> None:
    of_file, entry = make_token("grafana", TokenRole.METRICS)
    of_cluster, above = make_token("grafana", TokenRole.VIEWER)
    tokens: dict[str, TokenEntry] = {}
    there = TokenFile(write(tmp_path / "tokens", f"{entry}\n"), lambda: 0.0, lambda: tokens)
    assert (there.find(of_file), there.find(of_cluster)) == (entry, None)
    tokens["grafana"] = above
    assert (there.find(of_file), there.find(of_cluster)) == (None, above)
    tokens.clear()
    assert (there.find(of_file), there.find(of_cluster)) == (entry, None)
    alone = TokenFile(None, lambda: 0.0, lambda: {"grafana": above})
    assert alone.find(of_cluster) == above


@given(st.binary(max_size=200))
def test_whatever_the_file_has_it_is_read_or_refused(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzzed-tokens"
    path.write_bytes(content)
    with suppress(ConfigError):
        read_tokens(path)


def test_a_file_that_changes_is_read_again_and_a_bad_one_keeps_who_was_let_in(tmp_path: Path) -> None:
    now_s = 0.0
    (first, one), (second, two) = make_token("one", TokenRole.ADMIN), make_token("two", TokenRole.VIEWER)
    path = write(tmp_path / "tokens", f"{one}\n")
    tokens = TokenFile(path, lambda: now_s)
    assert tokens.find(first) == one

    write(path, "rubbish\n")
    now_s = 2.0
    assert tokens.find(first) == one
    assert tokens.find("rubbish") is None

    write(path, f"{two}\n")
    os.utime(path, ns=(1, 1))
    now_s = 4.0
    assert tokens.find(second) == two
    assert tokens.find(first) is None


def test_without_a_file_nobody_is_let_in() -> None:
    assert TokenFile(None, lambda: 0.0).find("") is None


# --- wrong tokens


def test_an_address_waits_longer_each_time_and_is_forgiven() -> None:
    now_s = 0.0
    wrong = WrongTokens(lambda: now_s)
    waits_s = [wrong.note("10.0.0.1") for _ in range(7)]
    assert waits_s == [0.25, 0.5, 1.0, 2.0, 4.0, 4.0, 4.0]
    assert wrong.note("10.0.0.2") == 0.25
    now_s = 61.0
    assert wrong.note("10.0.0.1") == 0.25


def test_few_wait_and_few_addresses_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_tokens, "DELAYED_MAX", 2)
    monkeypatch.setattr(http_tokens, "ADDRESSES_MAX", 3)
    monkeypatch.setattr(http_tokens, "FIRST_DELAY_S", 0.01)

    async def guess() -> list[bool]:
        wrong = WrongTokens(lambda: 0.0)
        answers = await asyncio.gather(*(wrong.punish(f"10.0.0.{number}") for number in range(5)))
        assert (wrong.total, wrong.delayed, len(wrong._recent)) == (5, 0, 3)
        return answers

    assert sorted(asyncio.run(guess())) == [False, False, False, True, True]


# --- settings


def test_a_token_never_passes_a_network_in_the_clear(tmp_path: Path) -> None:
    tokens = write(tmp_path / "tokens", "")
    with pytest.raises(SettingsError, match="in the clear"):
        BrokerSettings.from_values({"admin.listen": "http://0.0.0.0", "admin.tokens": str(tokens)})
    for fine in ({"admin.listen": "http://0.0.0.0"}, {"admin.listen": "http://[::1]", "admin.tokens": str(tokens)}):
        BrokerSettings.from_values(fine)


@pytest.mark.parametrize(
    ("listen", "problem"),
    [
        ("https://127.0.0.1", "tls.certificate: missing"),
        ("amqp://127.0.0.1", "neither http nor https"),
        ("http://u@127.0.0.1", "takes no user"),
        ("http://127.0.0.1:5672", "there twice"),
    ],
)
def test_a_port_that_cannot_be_is_told(listen: str, problem: str) -> None:
    with pytest.raises(SettingsError, match=problem):
        BrokerSettings.from_values({"admin.listen": listen})


def test_there_is_no_port_unless_it_is_set() -> None:
    assert BrokerSettings.from_values({}).admin.listen == ()
