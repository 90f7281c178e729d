"""Who may do what with which node: rules, the first that matches decides, and what is said of a refusal.

0. Where the broker tells clients something nobody else publishes. Who may connect may listen to its notices
   (`model.exchanges.notices`) unless a rule denies it: each open tells the same. Its events (`broker_events`) take
   `monitor`, which no rule gives by `all`.
1. The user of the cluster's brokers (`ha.username`) may replicate. Rules for everybody are not for it: only one that
   names it gives it more.
2. Where there are rules, the first that matches the user, the action and the node decides. None: it is denied.
3. Where there are none, clients of this machine may do everything, and others nothing.

A topic is a key of a topic exchange, and a node of its own beside it: `EXCHANGE/KEY`. A rule whose pattern matches the
exchange is about all of its topics. Who asks for many (`a.*`, `a.#`; the exchange without a key is `#`) is

- allowed it by a rule for all of them: a prefix of where they begin alike, or the same text;
- denied it by a rule for one of them, as far as that can be told: a name, or a prefix, that begins alike. Of a regular
  expression only what it begins with is compared, and only where it has a `/`.

Decisions are remembered by user, action and node until the rules change: nothing is matched for each message.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Final, NamedTuple

from qpid_ha_broker.events.joined_names import percent_encoded
from qpid_ha_broker.model.errors import ModelError
from qpid_ha_broker.model.exchanges.broker_events import is_for_events
from qpid_ha_broker.model.exchanges.notices import is_for_notices
from qpid_ha_broker.model.exchanges.topic_trie import ANY_WORDS, ONE_WORD, has_wildcards

USER_VARIABLE: Final = "${user}"
"""In the pattern of a node: who asks, as `user_in_nodes` writes it."""
ANONYMOUS_LOGIN: Final = "anonymous"
_ANYBODY: Final = "\0"
"""A user whom no rule can name."""
MOST_REMEMBERED: Final = 10_000
"""Decisions; then all are forgotten, so that nobody fills the memory with names."""
MOST_CHARACTERS: Final = 200
"""Of a node whose decision is remembered, and as much of its name is shown."""
MOST_REASONS: Final = 1000
"""Lines about access that are counted apart until they are logged."""
LOG_INTERVAL_MS: Final = 1000
"""Between two lines of the log that say the same."""


class Permission(Enum):
    """What a rule can allow; the value is its name there."""

    PUBLISH = "publish"
    CONSUME = "consume"
    BROWSE = "browse"
    CREATE = "create"
    DELETE = "delete"
    PURGE = "purge"
    BIND = "bind"
    MANAGE = "manage"
    MONITOR = "monitor"
    REPLICATE = "replicate"
    ADMINISTER = "administer"


APPLICATION: Final = frozenset(Permission) - {Permission.MONITOR, Permission.REPLICATE, Permission.ADMINISTER}
"""What a rule allows by `all`: what applications do with nodes. To be a broker, to administer this one, or to read what
happens at it (`broker_events`), which tells of other users' connections and queues, is named."""


class Subject(NamedTuple):
    """Who asks."""

    user: str
    """Who it has proved to be; empty: nobody."""
    is_local: bool
    """It has connected from this machine; or another broker of the cluster vouches for it, and has looked itself."""

    @classmethod
    def logged_in(cls, user: str, *, is_local: bool) -> Subject:
        """Of the user of a login: that of SASL's ANONYMOUS, which proves nothing, is called `anonymous`."""
        return cls("" if user == ANONYMOUS_LOGIN else user, is_local)


class Access(NamedTuple):
    """A question: may `subject` do that with the node?"""

    subject: Subject
    action: Permission
    node: str
    """Empty: it is about no node, but about the broker."""
    topic: str | None = None
    """Where the node is a topic exchange: which of its topics, a key or a pattern of keys; None: it is none."""


class Who(Enum):
    """Whom a rule is for that names nobody."""

    ALL = "all"
    AUTHENTICATED = "authenticated"
    """Who has logged in."""
    ANONYMOUS = "anonymous"
    """Who has not."""


def is_for(users: frozenset[str] | Who, user: str) -> bool:
    """Whether a line for `users` is for `user`; empty: who has not logged in."""
    match users:
        case Who.ALL:
            return True
        case Who.AUTHENTICATED:
            return bool(user)
        case Who.ANONYMOUS:
            return not user
        case names:
            return user in names


class PatternKind(Enum):
    """How the text of a pattern is meant."""

    EXACT = "exact"
    PREFIX = "prefix"
    REGEX = "regex"


def user_in_nodes(user: str, separators: frozenset[str]) -> str:
    """What `USER_VARIABLE` stands for. In the user's name `separators`, and `%`, are written as in a URL: so where
    `${user}.*` is a rule, what is `a.b`'s is called `a%2Eb.x`, and no name is both its own and one of user `a`."""
    escaped = separators | {"%"} if separators else separators
    return "".join([percent_encoded(character) if character in escaped else character for character in user])


_VARIABLES: Final = f"(?:{re.escape(USER_VARIABLE)})+"
_SEPARATED: Final = re.compile(
    _VARIABLES + r"(?:\((?:\?:)?)*(?:\[(?P<one>[^]^\\])\]|\\(?P<escaped>\W)|(?P<plain>[^\\.^$*+?{}\[\]|()]))(?![?*{])"
)
"""Of a regular expression: the user's name, and behind it one character that is always there, however it is written."""


class NodePattern(NamedTuple):
    """Names of nodes. `USER_VARIABLE` in `text` stands for the user's name; for nobody it matches nothing."""

    kind: PatternKind
    text: str
    """Without the final * of a prefix."""

    @property
    def separators(self) -> frozenset[str]:
        """The characters that end a user's name in it. Raises ValueError where something follows the name, and no
        character ends it: `${user}*` for `a` would be all of `ab`'s, too."""
        if self.kind is PatternKind.REGEX:
            endings = [match.group("one", "escaped", "plain") for match in _SEPARATED.finditer(self.text)]
            last = self.text.rstrip(")").endswith(USER_VARIABLE)
            groups = len(re.findall(_VARIABLES, self.text))
            separators = [one or escaped or plain for one, escaped, plain in endings]
        else:
            followed = re.split(_VARIABLES, self.text)[1:]
            separators = [text[0] for text in followed if text]
            last = self.kind is PatternKind.EXACT and self.text.endswith(USER_VARIABLE)
            groups = len(followed)
        if groups > len(separators) + last:
            raise ValueError(f"behind {USER_VARIABLE} a character has to end the name, as in {USER_VARIABLE}.*")
        return frozenset(separators)

    def matches(self, node: str, user: str) -> bool:
        """Whether `node` is one of them for `user`, as `user_in_nodes` writes it."""
        text = self.text
        if USER_VARIABLE in text:
            if not user:
                return False
            text = text.replace(USER_VARIABLE, re.escape(user) if self.kind is PatternKind.REGEX else user)
        match self.kind:
            case PatternKind.EXACT:
                return node == text
            case PatternKind.PREFIX:
                return node.startswith(text)
            case PatternKind.REGEX:
                return re.fullmatch(text, node) is not None

    def matches_topics(self, exchange: str, topic: str, user: str, *, allows: bool) -> bool:
        """Whether it matches the topic, as a node; of a pattern of topics all of them, or, unless it `allows`, some."""
        is_named = self.matches(f"{exchange}/{topic}", user)
        if not has_wildcards(topic):
            return is_named
        alike = f"{exchange}/{_literal(topic)}"
        if allows:
            return is_named and (self.kind is not PatternKind.PREFIX or self.matches(alike, user))
        return is_named or self._may_match(alike, user)

    def _may_match(self, alike: str, user: str) -> bool:
        """Whether it matches, as far as can be told, a name that begins with `alike`."""
        text = self.text
        if USER_VARIABLE in text and not user:
            return False
        if self.kind is PatternKind.REGEX:
            if "/" not in text:
                return False
            begin = _REGEX_BEGINNING.match(text)
            text = "" if begin is None else begin[0]
        text = text.replace(USER_VARIABLE, user)
        return text.startswith(alike) or (self.kind is not PatternKind.EXACT and alike.startswith(text))


_REGEX_BEGINNING: Final = re.compile(r"[^\\.^$*+?{}\[\]|()]*(?![*?{])(?!.*[|])")
"""Characters that stand for themselves, if what matches has to begin with them."""


def _literal(topic: str) -> str:
    """How all topics begin that a pattern stands for: `a.` of `a.*.b`, `a` of `a.#`, of which `a` is one, too."""
    words = topic.split(".")
    first = next(at for at, word in enumerate(words) if word in (ONE_WORD, ANY_WORDS))
    before = ".".join(words[:first])
    return f"{before}." if first and words[first] == ONE_WORD else before


def permissions_of_arguments(arguments: Mapping[str, object]) -> list[tuple[Permission, str]]:
    """What who gives a queue these arguments has to be allowed beside: with the nodes to which, or from which, it moves
    messages by itself. A node of another broker is called by its URL, as it is written."""
    needed: list[tuple[Permission, str]] = []
    for name, actions in _MOVING.items():
        node = arguments.get(name)
        if isinstance(node, str) and node:
            needed += [(action, node) for action in actions]
    return needed


_MOVING: Final[Mapping[str, tuple[Permission, ...]]] = {
    "qpid.alternate_exchange": (Permission.PUBLISH,),
    "qpid.cluster.source": (Permission.CONSUME,),
    "qpid.cluster.proxy": (Permission.PUBLISH, Permission.CONSUME),
}
EVERY_NODE: Final = NodePattern(PatternKind.PREFIX, "")


class AccessRule(NamedTuple):
    """One line of an access control list."""

    allows: bool
    logs: bool
    """What it allows is logged; what it denies is in any case."""
    users: frozenset[str] | Who
    actions: frozenset[Permission]
    node: NodePattern
    text: str
    """As it is written."""
    place: str
    """Where: a file with the line, or a setting with the number of the entry."""

    def matches(self, access: Access, in_nodes: str, *, by_name: bool) -> bool:
        """Whether the rule decides. `in_nodes`: see `user_in_nodes`. `by_name`: only if it names the user."""
        subject, action, node, topic = access
        if by_name and isinstance(self.users, Who):
            return False
        if action not in self.actions or not is_for(self.users, subject.user):
            return False
        if self.node.matches(node, in_nodes):
            return True
        return topic is not None and self.node.matches_topics(node, topic, in_nodes, allows=self.allows)


class AccessDecision(NamedTuple):
    """Whether an action is allowed, and what decides."""

    is_allowed: bool
    reason: str
    logs: bool = False
    """To be logged although it is allowed."""
    is_final: bool = False
    """No rule could change it."""


class Denied(ModelError):
    """Access is refused; the text names user, action and node, and how to allow it."""


class AccessLog:
    """Gives a line for each text at once, then once a second with the number of those that were left out."""

    def __init__(self) -> None:
        self._logged_ms: dict[str, int] = {}
        """By text: when its last line was."""
        self._left_out: Counter[str] = Counter()
        """By text: how often it came since then."""

    def add(self, text: str, now_ms: int) -> str | None:
        """The line to log now, if one is due."""
        if text not in self._logged_ms and len(self._logged_ms) >= MOST_REASONS:
            text = "there is more to say about access than is counted apart"
        last_ms = self._logged_ms.get(text)
        if last_ms is not None and now_ms < last_ms + LOG_INTERVAL_MS:
            self._left_out[text] += 1
            return None
        self._logged_ms[text] = now_ms
        count = self._left_out.pop(text, 0)
        return f"{text} (and {count} times more since the last line)" if count else text

    def due(self, now_ms: int) -> list[str]:
        """Lines about what was left out for a second; what has not come up since is forgotten."""
        lines = []
        for text, last_ms in list(self._logged_ms.items()):
            if now_ms < last_ms + LOG_INTERVAL_MS:
                continue
            count = self._left_out.pop(text, 0)
            if count:
                self._logged_ms[text] = now_ms
                lines.append(f"{text} ({count} times more since the last line)")
            else:
                del self._logged_ms[text]
        return lines


class AccessControl:
    """The promise: whoever is not allowed something by the first rule that matches is refused it.

    `log`: takes a level and a line for the operator. `now_ms`: tells the time, milliseconds since the epoch.
    """

    def __init__(self, log: Callable[[str, str], None], now_ms: Callable[[], int]) -> None:
        self.rules: tuple[AccessRule, ...] | None = None
        """None: there is no access control list."""
        self.cluster_user = ""
        """Who the brokers of the cluster are to each other; empty: nobody in particular."""
        self.denied: Counter[str] = Counter()
        """How often access was refused since the start, by the action's name."""
        self._log = log
        self._lines = {"info": AccessLog(), "warning": AccessLog()}
        self._now_ms = now_ms
        self._separators = frozenset[str]()
        """Characters that end a user's name in the rules."""
        self._remembered: dict[Access, AccessDecision] = {}

    def change(self, rules: tuple[AccessRule, ...] | None, cluster_user: str) -> None:
        """Put other rules in force."""
        self.rules, self.cluster_user = rules, cluster_user
        self._separators = frozenset[str]().union(*(rule.node.separators for rule in rules or ()))
        self._remembered.clear()

    def decide(self, subject: Subject, action: Permission, node: str, topic: str | None = None) -> AccessDecision:
        """What the rules say, without a word in the log. `topic`: see `Access`."""
        access = Access(subject, action, node, topic)
        decision = self._remembered.get(access)
        if decision is None:
            decision = self._decide(access)
            if len(self._remembered) >= MOST_REMEMBERED:
                self._remembered.clear()
            if len(node) + len(topic or "") <= MOST_CHARACTERS:
                self._remembered[access] = decision
        return decision

    def _decide(self, access: Access) -> AccessDecision:
        subject, action, node, _ = access
        if action is Permission.PUBLISH and (is_for_notices(node) or is_for_events(node)):
            return AccessDecision(False, "the broker alone publishes there, and its clients believe it", is_final=True)
        is_broker = bool(self.cluster_user) and subject.user == self.cluster_user
        if is_broker and action is Permission.REPLICATE:
            return AccessDecision(True, "the brokers of the cluster (ha.username) may replicate")
        if self.rules is None:
            return _without_rules(subject, action, is_broker)
        in_nodes = user_in_nodes(subject.user, self._separators)
        for rule in self.rules:
            if rule.matches(access, in_nodes, by_name=is_broker):
                return AccessDecision(rule.allows, f"{rule.place}: {rule.text}", rule.logs)
        if action is Permission.CONSUME and is_for_notices(node):
            return AccessDecision(True, "no rule denies it, and each open tells what is told there")
        if is_broker:
            return AccessDecision(False, "no rule names the user of the cluster's brokers (ha.username)")
        where = f", in which {USER_VARIABLE} is {in_nodes}" if in_nodes != subject.user else ""
        return AccessDecision(False, f"no rule matches{where}")

    def check(self, subject: Subject, action: Permission, node: str, topic: str | None = None) -> None:
        """Raises Denied where it is not allowed, which is counted and logged. `topic`: see `Access`."""
        decision = self.decide(subject, action, node, topic)
        if decision.is_allowed and not decision.logs:
            return
        name = node if topic in (None, ANY_WORDS) else f"{node}/{topic}"
        if decision.is_allowed:
            self._say("info", f"{described(subject, action, name)}: allowed by {decision.reason}")
            return
        self.denied[action.value] += 1
        text = refusal_text(subject, action, name, decision)
        self._say("warning", text)
        raise Denied(text)

    def _say(self, level: str, text: str) -> None:
        line = self._lines[level].add(text, self._now_ms())
        if line is not None:
            self._log(level, line)

    def tick(self) -> None:
        """Log what is due."""
        for level, lines in self._lines.items():
            for line in lines.due(self._now_ms()):
                self._log(level, line)

    def for_everybody(self, action: Permission) -> str:
        """The rule by which anybody may do that with the broker itself, from wherever; empty: there is none."""
        for user in ("", _ANYBODY):
            decision = self._decide(Access(Subject(user, False), action, ""))
            if decision.is_allowed:
                return decision.reason
        return ""

    def facts(self) -> Mapping[str, object]:
        """For an operator: how many rules there are, and what was denied."""
        rules = "none" if self.rules is None else len(self.rules)
        everybody = self.for_everybody(Permission.ADMINISTER)
        everybody_may = {"everybody_administers": everybody} if everybody else {}
        return {"acl_rules": rules, "access_denied": self.denied.total(), **everybody_may}


def _without_rules(subject: Subject, action: Permission, is_broker: bool) -> AccessDecision:
    if subject.is_local:
        return AccessDecision(True, "there is no acl, and clients of this machine may do everything then")
    if is_broker and action is Permission.ADMINISTER:
        return AccessDecision(True, "there is no acl, and ha.username may administer then")
    return AccessDecision(False, "there is no acl, and only clients of this machine may do anything then")


def described(subject: Subject, action: Permission, node: str) -> str:
    """The question, in words."""
    return f"{subject.user or 'anonymous'}: {action.value} {node[:MOST_CHARACTERS] or 'the broker'}"


def refusal_text(subject: Subject, action: Permission, node: str, decision: AccessDecision) -> str:
    """Who may not do what, why, and the line that would allow it."""
    if len(node) > MOST_CHARACTERS:
        node = f"{node[:MOST_CHARACTERS]}..."
    who = _quoted(subject.user) if subject.user else Who.ANONYMOUS.value
    name = subject.user or "who has not logged in"
    may_not = f"{name} may not {action.value} {node or 'here'}: {decision.reason}"
    if decision.is_final:
        return may_not
    of_node = f" {_quoted(node)}" if node else ""
    line = f"allow {who} {action.value}{of_node}"
    where = "before it" if decision.reason.partition(": ")[2] else "to acl.file, or to acl.rules"
    return f"{may_not}; to allow it, add `{line}` {where}"


def _quoted(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9._/:@+-]+", name) else "'" + name.replace("'", "'\"'\"'") + "'"
