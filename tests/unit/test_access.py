"""Which rule of an access control list decides, what a list may say, and what is logged of a refusal."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from access_support import controlled, open_to_all
from qpid_ha_broker.access.rules import LOG_INTERVAL_MS, MOST_REMEMBERED, AccessControl, Denied, Permission, Subject
from qpid_ha_config.access_rules import parse_entries, read_file
from qpid_ha_config.errors import ConfigError

ALICE, BOB, BROKER = Subject("alice", False), Subject("bob", False), Subject("replicator", False)
NOBODY, NEIGHBOUR = Subject("", False), Subject("", True)


def allowed(access: AccessControl, subject: Subject, action: Permission, node: str = "q") -> bool:
    return access.decide(subject, action, node).is_allowed


# --- who decides


@pytest.mark.parametrize("action", Permission)
def test_without_rules_a_client_of_this_machine_may_all_and_others_nothing(action: Permission) -> None:
    access = open_to_all()
    assert allowed(access, NEIGHBOUR, action)
    assert not allowed(access, ALICE, action)
    assert not allowed(access, NOBODY, action)


@pytest.mark.parametrize("action", Permission)
def test_with_rules_what_none_of_them_matches_is_denied_on_this_machine_too(action: Permission) -> None:
    access = controlled("allow carol all")
    assert not allowed(access, NEIGHBOUR, action)
    assert not allowed(access, ALICE, action)


@pytest.mark.parametrize("action", Permission)
def test_all_allows_what_applications_do_and_denies_everything(action: Permission) -> None:
    is_of_applications = action not in (Permission.MONITOR, Permission.REPLICATE, Permission.ADMINISTER)
    assert allowed(controlled("allow alice all"), ALICE, action) is is_of_applications
    assert allowed(controlled("allow-log alice all"), ALICE, action) is is_of_applications
    named = controlled("allow alice all,administer,monitor")
    assert allowed(named, ALICE, action) is (action is not Permission.REPLICATE)
    assert not allowed(controlled("deny alice all", "allow all monitor,replicate,administer"), ALICE, action)


@pytest.mark.parametrize(
    ("rules", "is_for_everybody"),
    [
        ((), False),
        (("allow all all",), False),
        (("allow alice administer",), False),
        (("allow all all,administer",), True),
        (("allow authenticated administer",), True),
        (("allow anonymous administer",), True),
        (("deny anonymous administer", "allow all administer"), True),
        (("deny all administer", "allow all administer"), False),
        (("allow all administer orders",), False),
    ],
)
def test_a_rule_by_which_everybody_administers_is_told(rules: tuple[str, ...], is_for_everybody: bool) -> None:
    access = controlled(*rules) if rules else open_to_all()
    assert bool(access.for_everybody(Permission.ADMINISTER)) is is_for_everybody
    assert ("everybody_administers" in access.facts()) is is_for_everybody


def test_the_first_rule_that_matches_decides() -> None:
    access = controlled("deny alice publish secret", "allow all publish", "deny all all")
    assert not allowed(access, ALICE, Permission.PUBLISH, "secret")
    assert allowed(access, BOB, Permission.PUBLISH, "secret")
    assert access.decide(BOB, Permission.CONSUME, "q").reason == "acl.rules, entry 3: deny all all"


@pytest.mark.parametrize("action", Permission)
def test_the_brokers_user_may_replicate_and_has_nothing_of_what_is_for_all(action: Permission) -> None:
    access = controlled("allow all all", "allow authenticated all", cluster_user="replicator")
    assert allowed(access, BROKER, action) is (action is Permission.REPLICATE)
    named = controlled("deny all all", "allow replicator administer", cluster_user="replicator")
    assert allowed(named, BROKER, action) is (action in (Permission.REPLICATE, Permission.ADMINISTER))


def test_without_rules_the_brokers_user_replicates_and_administers_as_before() -> None:
    access = open_to_all()
    access.change(None, "replicator")
    assert [action for action in Permission if allowed(access, BROKER, action)] == [
        Permission.REPLICATE,
        Permission.ADMINISTER,
    ]


def test_who_has_logged_in_is_told_from_who_has_not() -> None:
    access = controlled("allow authenticated publish", "allow anonymous browse", "allow all consume")
    assert [action.value for action in Permission if allowed(access, ALICE, action)] == ["publish", "consume"]
    assert [action.value for action in Permission if allowed(access, NOBODY, action)] == ["consume", "browse"]


def test_groups_hold_users_and_other_groups() -> None:
    access = controlled("group a alice", "group b @a 'CN=bob, O=us'", "allow @b purge")
    assert allowed(access, ALICE, Permission.PURGE)
    assert allowed(access, Subject("CN=bob, O=us", False), Permission.PURGE)
    assert not allowed(access, BOB, Permission.PURGE)


@pytest.mark.parametrize(
    ("pattern", "user", "matching", "others"),
    [
        ("orders", "alice", ["orders"], ["orders.1", "order", ""]),
        ("orders.*", "alice", ["orders.", "orders.1"], ["orders", "xorders.1"]),
        ("*", "alice", ["", "q"], []),
        ("${user}.*", "alice", ["alice.in"], ["bob.in", "${user}.in", "alice"]),
        ("${user}.*", "", [], [".in", "${user}.in"]),
        ("regex:log[.][0-9]+", "alice", ["log.1"], ["log.x", "log.1x", "xlog.1", "log.1\n"]),
        ("regex:${user}/.*", "a.b", ["a.b/in"], ["axb/in"]),
        ("${user}.*", "x*", ["x*.in"], ["xy.in"]),
    ],
)
def test_patterns(pattern: str, user: str, matching: list[str], others: list[str]) -> None:
    access = controlled(f"allow all publish '{pattern}'")
    assert all(allowed(access, Subject(user, False), Permission.PUBLISH, node) for node in matching)
    assert not any(allowed(access, Subject(user, False), Permission.PUBLISH, node) for node in others)


@pytest.mark.parametrize("pattern", ["${user}.*", "regex:${user}[.].*", r"regex:${user}\..*", r"regex:${user}(\..*)?"])
def test_what_is_of_one_user_is_of_no_other_whatever_they_are_called(pattern: str) -> None:
    access = controlled(f"allow authenticated all '{pattern}'", "allow authenticated all ${user}")
    owners = {
        "a": "a", "a.in": "a", "a.b": "a", "a.b.in": "a", "a..in": "a", "a%2Eb": "a.b", "a%2Eb.in": "a.b",
        "a%252Eb": "a%2Eb", "a%252Eb.in": "a%2Eb", "a%2E.in": "a.", "b.in": "b", "a@b.in": "a@b",
    }  # fmt: skip
    for node, owner in owners.items():
        users = {user for user in owners.values() if allowed(access, Subject(user, False), Permission.CONSUME, node)}
        assert users == {owner}


def test_a_name_stays_as_it_is_where_no_rule_ends_it_with_what_is_in_it() -> None:
    access = controlled("allow authenticated all ${user}/*", "allow authenticated all in.${user}")
    for node in ("a.b@example.org/in", "in.a.b@example.org"):
        assert allowed(access, Subject("a.b@example.org", False), Permission.PUBLISH, node)


def test_a_user_whose_names_are_written_otherwise_is_told_how() -> None:
    access = controlled("allow authenticated all ${user}.*")
    decision = access.decide(Subject("a.b", False), Permission.PUBLISH, "a.b.in")
    assert not decision.is_allowed
    assert "in which ${user} is a%2Eb" in decision.reason


@pytest.mark.parametrize(
    "pattern",
    ["${user}*", "x.${user}*", "regex:${user}.*", "regex:${user}/?.*", "regex:${user}[a-z]+", "regex:(${user}|x).*"],
)
def test_a_pattern_that_would_be_for_users_whose_names_begin_alike_is_refused(pattern: str) -> None:
    with pytest.raises(ConfigError, match="a character has to end the name"):
        controlled(f"allow authenticated all '{pattern}'")


# --- what is remembered


def test_other_rules_count_at_once_for_what_was_asked_before() -> None:
    access = controlled("allow alice publish")
    assert allowed(access, ALICE, Permission.PUBLISH)
    access.change(parse_entries(["deny all all"]).rules, "")
    assert not allowed(access, ALICE, Permission.PUBLISH)


def test_a_client_that_asks_for_ever_new_nodes_does_not_fill_the_memory() -> None:
    access = controlled("allow alice publish")
    for number in range(MOST_REMEMBERED + 10):
        access.decide(ALICE, Permission.PUBLISH, str(number))
    assert len(access._remembered) <= MOST_REMEMBERED


# --- what is said


def test_a_refusal_names_user_action_and_node_and_the_line_that_would_allow_it() -> None:
    access = controlled("deny all publish secret*")
    with pytest.raises(Denied) as denied:
        access.check(ALICE, Permission.PUBLISH, "secret plan")
    line = "allow alice publish 'secret plan'"
    assert f"`{line}`" in str(denied.value)
    assert "alice may not publish secret plan: acl.rules, entry 1: deny all publish secret*" in str(denied.value)
    access.change(parse_entries([line, "deny all all"]).rules, "")
    access.check(ALICE, Permission.PUBLISH, "secret plan")


def test_denials_are_counted_each_and_logged_once_a_second_for_each_reason() -> None:
    lines: list[str] = []
    now_ms = 0
    access = AccessControl(lambda level, text: lines.append(text), lambda: now_ms)
    for _ in range(100):
        for subject in (ALICE, BOB):
            with pytest.raises(Denied):
                access.check(subject, Permission.PURGE, "q")
    assert [line.split()[0] for line in lines] == ["alice", "bob"]
    assert access.denied == {"purge": 200}
    assert access.facts() == {"acl_rules": "none", "access_denied": 200}
    access.tick()
    assert len(lines) == 2
    now_ms = LOG_INTERVAL_MS
    access.tick()
    assert [line.endswith("(99 times more since the last line)") for line in lines] == [False, False, True, True]
    now_ms *= 3
    access.tick()
    assert len(lines) == 4


def test_what_an_allow_log_rule_allows_is_logged() -> None:
    lines: list[tuple[str, str]] = []
    access = AccessControl(lambda level, text: lines.append((level, text)), lambda: 0)
    access.change(parse_entries(["allow-log alice purge", "allow all all"]).rules, "")
    access.check(ALICE, Permission.PURGE, "q")
    access.check(BOB, Permission.PURGE, "q")
    assert lines == [("info", "alice: purge q: allowed by acl.rules, entry 1: allow-log alice purge")]


# --- the file


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("alow bob publish q", ["'alow'", "did you mean allow?"]),
        ("allow bob publsh q", ["'publsh'", "did you mean publish?"]),
        ("allow @opps all", ["'@opps'", "did you mean ops?"]),
        ("allow bob", ["a rule is"]),
        ("allow bob publish q r", ["a rule is"]),
        ("allow bob publish 'q", ["quote"]),
        ("allow bob publish q*r", ["'q*r'", "regex:"]),
        ("allow bob publish regex:[", ["'['", "regular expression"]),
        ("allow bob publish ${usr}", ["${user}"]),
        ("allow bo* publish q", ["'bo*'", "group"]),
        ("allow bob publish,, q", ["''"]),
        ("allow '' publish q", ["anonymous"]),
        ("group ops carol", ["ops", "twice"]),
        ("group x all", ["all is no user"]),
        ("group y", ["group NAME USER"]),
        ("allow bob publish \x07", ["does not print"]),
    ],
)
def test_a_slip_is_told_with_file_and_line_and_what_was_meant(tmp_path: Path, line: str, words: list[str]) -> None:
    file = tmp_path / "acl"
    file.write_text(f"# who may\ngroup ops alice\n\n{line}\nallow all all\n")
    with pytest.raises(ConfigError) as error:
        read_file(file)
    assert str(error.value).startswith(f"{file}:4: ")
    assert all(word in str(error.value) for word in words)


def test_lines_are_told_by_what_they_say_with_their_numbers_among_those_that_say_nothing() -> None:
    lines = [
        "# who may",
        "group ops alice 'bob b'",
        "",
        "allow @ops all,administer  # everywhere",
        "deny all publish 'regex:a b'",
        "limit all links=3 rate=5/s",
    ]
    read = parse_entries(lines)
    assert [(line.number, *line.parts.values()) for line in read.lines] == [
        (2, "group", "ops", "alice bob b", ""),
        (4, "allow", "@ops", "all,administer", ""),
        (5, "deny", "all", "publish", "regex:a b"),
        (6, "limit", "all", "links=3 rate=5/s", ""),
    ]
    assert [(rule.place, rule.text) for rule in read.rules] == [(line.place, line.text) for line in read.lines[1:3]]


def test_a_file_is_text_of_a_bounded_size(tmp_path: Path) -> None:
    file = tmp_path / "acl"
    for content, word in ((b"allow all all\n\xff", "UTF-8"), (b"#" * (1 << 20) + b"#", "1 MiB")):
        file.write_bytes(content)
        with pytest.raises(ConfigError, match=word):
            read_file(file)
    with pytest.raises(ConfigError, match="cannot read"):
        read_file(tmp_path / "none")


def test_whatever_is_in_a_file_is_rules_or_an_error_that_names_the_line(tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance, file = random.Random(seed), tmp_path / "acl"
    words = [
        "allow",
        "deny",
        "allow-log",
        "group",
        "limit",
        "links=3",
        "rate=5/s",
        "message-size=x",
        "all",
        "@ops",
        "ops",
        "alice",
        "publish",
        "publish,browse",
        "q*",
        "*",
    ]
    words += [
        "regex:(",
        "regex:a{99999999}",
        "regex:(?P<a>",
        "${user}",
        "'",
        '"',
        "\\",
        "#",
        "\x00",
        "\u2028",
        "é",
        ",",
    ]
    for _ in range(2000):
        lines = [" ".join(chance.choices(words, k=chance.randrange(6))) for _ in range(chance.randrange(1, 4))]
        content = "\n".join(lines).encode()
        if chance.random() < 0.3:
            content = bytes(chance.choice((byte, chance.randrange(256))) for byte in content)
        file.write_bytes(content)
        try:
            read = read_file(file)
        except ConfigError as error:
            places = [str(error)]
        else:
            places = [rule.place for rule in read.rules] + [limit.place for limit in read.limits]
        assert all(place.startswith(f"{file}:") for place in places)
