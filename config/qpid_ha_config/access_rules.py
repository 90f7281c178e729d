"""The text of an access control list, read line by line:

    group operators alice bob             # names, or @GROUP of one above
    allow @operators all,administer       # what an application does, on all nodes; and administer the broker
    allow-log carol purge orders.*        # what it allows is logged
    deny all publish orders.internal
    allow authenticated publish,consume,create ${user}.*
    allow all browse 'regex:log\\.[0-9]+'
    limit @operators connections=unlimited
    limit all connections=10 links=100 queues=50 message-size=1MiB rate=500/s

A line is `allow`, `allow-log` or `deny`, whom, actions, and a node (left out: every one); or `limit`, whom, and what is
limited. Quotes as in a shell.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple

from qpid_ha_broker.access.rules import (
    APPLICATION,
    EVERY_NODE,
    USER_VARIABLE,
    AccessRule,
    NodePattern,
    PatternKind,
    Permission,
    Who,
)
from qpid_ha_broker.access.user_limits import LimitKind, LimitRule
from qpid_ha_config.errors import ConfigError, UnreadableConfig, nearest
from qpid_ha_config.scalars import parse_count, parse_size_bytes

REGEX: Final = "regex:"
MOST_BYTES: Final = 1024 * 1024
MOST_RULES: Final = 10_000
_OF_NODES: Final = ("allow", "allow-log", "deny")
_VERBS: Final = (*_OF_NODES, "group", "limit")
_KEYWORDS: Final = {who.value: who for who in Who}
_ALL: Final = "all"
UNLIMITED: Final = "unlimited"
_LIMITS: Final = {kind.value: kind for kind in LimitKind}
_RATE: Final = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,6})?)(?:/(s|min|h))?", re.ASCII)
_RATE_UNITS_S: Final = {"s": 1, "min": 60, "h": 3600}
Line = tuple[str, str]
"""Where it stands, and its text."""


class AccessLine(NamedTuple):
    """A line that says something, of whatever kind."""

    number: int
    """From 1; comments and empty lines count, too."""
    place: str
    text: str
    """As it was written."""
    words: tuple[str, ...]
    """Of it, without quotes and comments; one at least."""

    @property
    def parts(self) -> dict[str, str]:
        """Whom it is about, what it says, and of which nodes (empty: of all, or of none)."""
        kind, whom, *rest = (*self.words, "", "")
        if kind in _OF_NODES:
            return {"kind": kind, "whom": whom, "what": rest[0], "node": rest[1]}
        return {"kind": kind, "whom": whom, "what": " ".join(rest).rstrip(), "node": ""}


class AccessList(NamedTuple):
    """What a list says, each in its order."""

    rules: tuple[AccessRule, ...]
    limits: tuple[LimitRule, ...]
    lines: tuple[AccessLine, ...]
    """All of them, as people read them."""


def parse_lines(lines: Iterable[Line]) -> AccessList:
    """The list. Raises ConfigError that says where, and what to write instead."""
    groups: dict[str, frozenset[str]] = {}
    rules: list[AccessRule] = []
    limits: list[LimitRule] = []
    read: list[AccessLine] = []
    for number, (place, text) in enumerate(lines, 1):
        try:
            words = _split(text)
            if not words:
                continue
            if words[0] == "group":
                _read_group(words, groups)
            elif words[0] == "limit":
                limits.append(_read_limit(words, groups, place, text.strip()))
            else:
                rules.append(_read_rule(words, groups, place, text.strip()))
            read.append(AccessLine(number, place, text.strip(), tuple(words)))
            if len(rules) + len(limits) > MOST_RULES:
                raise ValueError(f"there are more than {MOST_RULES} rules; use groups and patterns")
        except ValueError as error:
            raise ConfigError(place, "", str(error)) from None
    return AccessList(tuple(rules), tuple(limits), tuple(read))


def parse_entries(entries: Iterable[str]) -> AccessList:
    """As `parse_lines`, of the setting acl.rules."""
    return parse_lines((f"acl.rules, entry {number}", text) for number, text in enumerate(entries, 1))


def read_file(path: Path) -> AccessList:
    """As `parse_lines`, of a file. Raises ConfigError, too, for one that cannot be read."""
    try:
        with path.open("rb") as opened:
            content = opened.read(MOST_BYTES + 1)
    except OSError as error:
        raise UnreadableConfig(path, "", f"cannot read it: {error.strerror}") from None
    if len(content) > MOST_BYTES:
        raise ConfigError(path, "", "it is over 1 MiB; use groups and patterns")
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path}:{line}", "", "it is not UTF-8 text") from None
    return parse_lines((f"{path}:{number}", line) for number, line in enumerate(text.split("\n"), 1))


def _split(text: str) -> list[str]:
    if any(not char.isprintable() and char not in "\t\r" for char in text):
        raise ValueError("there is a character in it that does not print")
    try:
        return shlex.split(text, comments=True)
    except ValueError:
        raise ValueError("a quote is not closed") from None


def _read_group(words: list[str], groups: dict[str, frozenset[str]]) -> None:
    if len(words) < 3:
        raise ValueError("a group is `group NAME USER...`")
    name, members = words[1], words[2:]
    if not re.fullmatch(r"[A-Za-z0-9._-]+", name):
        raise ValueError(f"{name!r:.80} is no name for a group: use letters, digits and . _ -")
    if name in groups:
        raise ValueError(f"the group {name} is there twice; write all members in one line")
    users: set[str] = set()
    for member in members:
        users |= _group(member, groups) if member.startswith("@") else {_user(member)}
    groups[name] = frozenset(users)


def _group(word: str, groups: Mapping[str, frozenset[str]]) -> frozenset[str]:
    users = groups.get(word[1:])
    if users is None:
        hint = nearest(word[1:], groups) if groups else "write `group NAME USER...` above"
        raise ValueError(f"there is no group {word!r:.80} above this line; {hint}")
    return users


def _user(word: str) -> str:
    if not word:
        raise ValueError("a user's name is empty; who has not logged in is `anonymous`")
    if word in _KEYWORDS:
        raise ValueError(f"{word} is no user; it stands alone, in place of a user")
    if "*" in word:
        raise ValueError(f"{word!r:.80}: patterns are for nodes; users are named, one by one or in a group")
    return word


def _read_rule(words: list[str], groups: Mapping[str, frozenset[str]], place: str, text: str) -> AccessRule:
    verb = words[0]
    if verb not in _VERBS:
        raise ValueError(f"{verb!r:.80}: {nearest(verb, _VERBS)}")
    if not 3 <= len(words) <= 4:
        raise ValueError(f"a rule is `{verb} USER|@GROUP|all|authenticated|anonymous ACTION[,ACTION...] [NODE]`")
    users = _whom(words[1], groups)
    node = _pattern(words[3]) if len(words) == 4 else EVERY_NODE
    return AccessRule(
        verb != "deny", verb == "allow-log", users, _actions(words[2], allows=verb != "deny"), node, text, place
    )


def _whom(word: str, groups: Mapping[str, frozenset[str]]) -> frozenset[str] | Who:
    if word.startswith("@"):
        return _group(word, groups)
    return _KEYWORDS[word] if word in _KEYWORDS else frozenset((_user(word),))


def _read_limit(words: list[str], groups: Mapping[str, frozenset[str]], place: str, text: str) -> LimitRule:
    if len(words) < 3:
        raise ValueError("a limit is `limit USER|@GROUP|all|authenticated|anonymous KIND=VALUE...`")
    values: dict[LimitKind, float | None] = {}
    for word in words[2:]:
        name, _, value = word.partition("=")
        if name not in _LIMITS:
            raise ValueError(f"there is no limit {name!r:.80}; {nearest(name, _LIMITS)}")
        if _LIMITS[name] in values:
            raise ValueError(f"{name} is there twice")
        values[_LIMITS[name]] = _limit(_LIMITS[name], value)
    return LimitRule(_whom(words[1], groups), values, text, place)


def _limit(kind: LimitKind, text: str) -> float | None:
    """The value of one; None: there is no limit."""
    if text == UNLIMITED:
        return None
    wanted, parse = _VALUES.get(kind, ("a whole number", parse_count))
    with suppress(ValueError):
        value = parse(text)
        if value > 0:
            return value
    raise ValueError(f"{kind.value}={text:.80}: give {wanted}, more than 0, or {UNLIMITED}")


def _rate(text: str) -> float:
    """Messages a second. Raises ValueError."""
    match = _RATE.fullmatch(text)
    if match is None:
        raise ValueError
    return float(match[1]) / _RATE_UNITS_S[match[2] or "s"]


_VALUES: Final[Mapping[LimitKind, tuple[str, Callable[[str], float]]]] = {
    LimitKind.RATE: ("messages such as 500/s, 30/min or 10/h", _rate),
    LimitKind.MESSAGE_SIZE: ("a size such as 1MiB", parse_size_bytes),
}


def _actions(word: str, *, allows: bool) -> frozenset[Permission]:
    """`all` allows what an application does with its nodes, and denies everything."""
    names, actions = [action.value for action in Permission], set[Permission]()
    for name in word.split(","):
        if name == _ALL:
            actions |= APPLICATION if allows else set(Permission)
        elif name in names:
            actions.add(Permission(name))
        else:
            raise ValueError(f"there is no action {name!r:.80}; {nearest(name, [*names, _ALL])}")
    return frozenset(actions)


def _pattern(word: str) -> NodePattern:
    if not word:
        raise ValueError("the node is empty; leave it out for every node")
    if "${" in word.replace(USER_VARIABLE, ""):
        raise ValueError(f"{word!r:.80}: the one variable is {USER_VARIABLE}")
    if word.startswith(REGEX):
        expression = word.removeprefix(REGEX)
        try:
            re.compile(expression.replace(USER_VARIABLE, "user"))
        except (re.error, OverflowError, RecursionError) as error:
            raise ValueError(f"{expression!r:.80} is no regular expression: {error}") from None
        return _separated(NodePattern(PatternKind.REGEX, expression))
    prefix = word.removesuffix("*")
    if "*" in prefix:
        raise ValueError(f"{word!r:.80}: a * stands at the end alone; for more, write {REGEX}EXPRESSION")
    return _separated(NodePattern(PatternKind.EXACT if prefix == word else PatternKind.PREFIX, prefix))


def _separated(pattern: NodePattern) -> NodePattern:
    """Raises ValueError for one that would give a user what is another one's whose name begins alike."""
    if USER_VARIABLE in pattern.text:
        _ = pattern.separators
    return pattern
