"""What a queue was asked to be: its arguments, checked, with a name and a unit for each."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any, Final, NamedTuple

from qpid_ha_broker.cluster_map import CREATED_BY, TOMBSTONE_OF
from qpid_ha_broker.events.types import Arguments, Scalar
from qpid_ha_broker.model.errors import InvalidArgument
from qpid_ha_broker.model.queues.foreign_arguments import FOREIGN

PREFIX = "qpid."
SUBSCRIPTION = f"{PREFIX}subscription"
"""Whose durable subscription a queue is: see `amqp.nodes.subscriptions`. Only the broker itself sets it."""
GROUPED = "$grouped"
"""The broker's own argument: a message of a group has come to the queue. It has no prefix, so that a release before
takes it for the application's."""
LONGEST_DELAY_MS: Final = 366 * 24 * 3600 * 1000
"""Between two deliveries of a message: a year."""
_DOUBLED_MOST: Final = 40
OF_EXCHANGES: Final = ("alternate_exchange", "replicate")
OF_BINDINGS: Final = ("replicate",)
"""Arguments with the prefix that those have."""
_NEARLY: Final = 0.9
"""So much of two names has to be the same, that one is taken for the other with a mistake."""
PRIORITIES: Final = "qpid.priorities"
MAX_PRIORITIES = 10
"""AMQP 1.0 section 3.2.1: priorities beyond ten levels are not told apart by clients."""


class FullPolicy(StrEnum):
    """What happens to a message that does not fit."""

    REJECT = "reject"
    RING = "ring"
    SELF_DESTRUCT = "self-destruct"
    """The queue is deleted, and its consumers are told: for readers of an exchange, who so harm nobody but themselves.

    Who publishes to the queue itself is refused.
    """


class Replicate(StrEnum):
    """How much of the object backups keep (seed 000, "Selective replication")."""

    NONE = "none"
    CONFIGURATION = "configuration"
    MESSAGES = "messages"


class StoreErrorPolicy(StrEnum):
    """What a backup does that cannot store what the primary sends (seed 000, "Inconsistent errors")."""

    ABORT = "abort"
    """End, and be started anew."""
    CONTINUE = "continue"
    """Go on with what is in memory."""


class RedeliveryDelay(NamedTuple):
    """How long a message waits whose delivery has failed: twice as long after each further time."""

    first_ms: int = 0
    """After the first; 0: it does not wait."""
    most_ms: int = 0
    """0: LONGEST_DELAY_MS."""

    def delay_ms(self, failures: int) -> int:
        """After so many."""
        delay_ms = self.first_ms << min(max(failures - 1, 0), _DOUBLED_MOST)
        return min(delay_ms, self.most_ms or LONGEST_DELAY_MS)

    def check(self) -> None:
        """Raises InvalidArgument for what does not go together."""
        if self.most_ms and not self.first_ms:
            text = "qpid.redelivery_delay_max_ms bounds qpid.redelivery_delay_ms: give that too, or leave it out"
            raise InvalidArgument(text)
        if 0 < self.most_ms < self.first_ms:
            raise InvalidArgument(
                "qpid.redelivery_delay_max_ms is less than qpid.redelivery_delay_ms: give at least as much"
            )


_AT_ONCE: Final = RedeliveryDelay()


class Sharing(NamedTuple):
    """How consumers share the messages."""

    groups: bool | None = None
    """Whether those of a group are kept together; None: as soon as a message of one has come."""
    single_active: bool = False
    """Only the first of the consumers is given any."""


_IN_TURN: Final = Sharing()


@dataclass(frozen=True, slots=True)
class QueueArguments:
    """A queue's settings. 0: "no limit" wherever a limit is counted; `given` is what was asked, as it was asked."""

    max_count: int = 0
    max_size: int = 0
    """Bytes of payload."""
    policy_type: FullPolicy = FullPolicy.REJECT
    message_ttl_ms: int = 0
    priorities: int = 1
    fairshare: int = 0
    """Messages that one priority may give in a row while lower ones wait."""
    last_value_queue_key: str = ""
    alternate_exchange: str = ""
    delivery_limit: int = 0
    """Failed deliveries after which a message is moved to the alternate exchange, or dropped."""
    redelivery: RedeliveryDelay = _AT_ONCE
    exclusive: bool = False
    auto_delete: bool = False
    auto_delete_delay_s: float = 0.0
    durable: bool = False
    sharing: Sharing = _IN_TURN
    subscription: str = ""
    replicate: Replicate | None = None
    store_error: StoreErrorPolicy | None = None
    """None: as the broker's settings say."""
    resource_set: str = ""
    cluster_primary: str = ""
    """A broker; this and the next say in which resource set the queue is to be, as the one before: see `naming`."""
    min_replicas: int = 0
    cluster_proxy: str = ""
    """The URL of a node of another broker, for which the queue stands; empty: it is a queue of its own."""
    cluster_source: str = ""
    """The URL of a node of another broker, from which the queue is filled; empty: from none."""
    created_by: str = ""
    """For whom it was made; empty: nobody in particular."""
    given: Mapping[str, Scalar] = field(default_factory=dict)

    @classmethod
    def parse(cls, arguments: Arguments) -> QueueArguments:
        """Check `arguments` (names with the prefix `qpid.`; others are the application's own and are kept as they are).

        Raises InvalidArgument with the name, the value and what would be right.
        """
        values: dict[str, Any] = {}
        for name, value in arguments.items():
            if name.startswith(PREFIX):
                short = name.removeprefix(PREFIX)
                converted = _converted(short, value)
                if short not in _LEVEL_SHARES:  # which `shares` has
                    values[_FIELDS.get(short, short)] = converted
        delays = values.pop("redelivery_delay_ms", 0), values.pop("redelivery_delay_max_ms", 0)
        sharing = Sharing(values.pop("message_groups", None), values.pop("single_active_consumer", False))
        parsed = cls(**values, redelivery=RedeliveryDelay(*delays), sharing=sharing, given=dict(arguments))
        parsed._check_relations()
        return parsed

    @property
    def transient(self) -> bool:
        """The queue is gone when its only user is: there is nothing to fail over."""
        return self.exclusive and self.auto_delete and not self.auto_delete_delay_s

    @property
    def tombstone_of(self) -> int:
        """The id of the entry of the directory for which this was the queue, which is deleted; 0: it is not."""
        entry = self.given.get(TOMBSTONE_OF, 0)
        return entry if isinstance(entry, int) else 0

    @property
    def grouped(self) -> bool:
        """A message of a group has come."""
        return self.given.get(GROUPED) is True

    @property
    def keeps_groups(self) -> bool:
        """Whether messages of a group go to one consumer at a time."""
        return self.grouped if self.sharing.groups is None else self.sharing.groups

    @property
    def detects_groups(self) -> bool:
        """Whether a message of a group that comes has groups kept together from then on."""
        return self.sharing.groups is None and not (self.grouped or any(self.shares))

    @property
    def shares(self) -> tuple[int, ...]:
        """Of each level of priority, the lowest first: what it may give in a row while lower ones wait; 0: anything."""
        given = [self.given.get(f"{PREFIX}fairshare-{level}", self.fairshare) for level in range(self.priorities)]
        return tuple(map(_count, given))

    @property
    def bridge(self) -> tuple[str, str] | None:
        """The argument by which the queue has a bridge to a node of another broker, and the URL of that; None: it has
        none."""
        urls = (("cluster.source", self.cluster_source), ("cluster.proxy", self.cluster_proxy))
        return next(((f"{PREFIX}{name}", url) for name, url in urls if url), None)

    def means_the_same_as(self, other: QueueArguments) -> bool:
        """Whether both ask for the same queue, in whatever words: `all` for `messages`, "5" for 5. Who asks is all the
        same."""
        if self == other:
            return True
        own, others = (
            {name: value for name, value in queue.given.items() if not (name.startswith(PREFIX) or name == GROUPED)}
            for queue in (self, other)
        )
        return own == others and replace(self, given={}, created_by="") == replace(other, given={}, created_by="")

    def _check_relations(self) -> None:
        if self.policy_type is not FullPolicy.REJECT and not (self.max_count or self.max_size):
            name = self.policy_type.value
            raise InvalidArgument(f"the policy {name} needs a size: give qpid.max_count or qpid.max_size too")
        self.redelivery.check()
        if any(self.shares) and self.priorities < 2:
            raise InvalidArgument("qpid.fairshare shares between priorities: give qpid.priorities of 2 or more")
        if self.last_value_queue_key and self.priorities > 1:
            raise InvalidArgument("a last-value queue has one order: leave out qpid.priorities or the key")
        names = [f"{PREFIX}{name}" for at, name in enumerate(_LEVEL_SHARES) if at >= self.priorities]
        if unknown := [name for name in names if name in self.given]:
            text = f"qpid.priorities is {self.priorities}, and levels count from 0"
            raise InvalidArgument(f"{unknown[0]} is the share of a level that is not there: {text}")
        if self.sharing.groups and any(self.shares):
            raise InvalidArgument("qpid.fairshare would part the messages of a group: leave it out, or message_groups")
        if self.auto_delete_delay_s and not self.auto_delete:
            raise InvalidArgument("qpid.auto_delete_delay_s delays qpid.auto_delete: set that to true, or leave it out")
        if self.cluster_proxy and (self.exclusive or self.auto_delete or self.resource_set or self.cluster_primary):
            other = "qpid.exclusive, qpid.auto_delete, qpid.resource-set and qpid.cluster.primary"
            raise InvalidArgument(f"qpid.cluster.proxy names a node of another broker: leave out {other}")
        if self.cluster_source and (self.cluster_proxy or self.exclusive or self.auto_delete or self.subscription):
            other = "qpid.cluster.proxy, qpid.exclusive and qpid.auto_delete"
            raise InvalidArgument(f"qpid.cluster.source fills a queue that is there for itself: leave out {other}")


def check_in_group(arguments: QueueArguments) -> None:
    """Whether a queue of a group can have these. Raises InvalidArgument for what needs one broker that does it for
    all."""
    groups, single_active = arguments.sharing
    for name, is_wanted in (("message_groups", groups), ("single_active_consumer", single_active)):
        if is_wanted:
            text = "declare the queue in a set that has a primary, which knows all of its consumers"
            raise InvalidArgument(f"{PREFIX}{name} is not for queues of a group: leave it out, or {text}")
    if arguments.bridge is None:
        return
    why = "each member would have a link of its own to that node"
    text = "leave it out, or declare the queue in a set that has a primary"
    raise InvalidArgument(f"{arguments.bridge[0]} is not for queues of a group: {why}; {text}")


def check_settable(arguments: Mapping[str, object]) -> None:
    """Whether clients, operators and settings may give these to a queue: the one check of names, at each door.

    Raises InvalidArgument for one that the broker sets, for one with its prefix that it does not know, and for one that
    is meant to have a meaning and would have none (`check_names`). Those of a None are to go away, so they may be such.
    """
    if SUBSCRIPTION in arguments:
        raise InvalidArgument(f"{SUBSCRIPTION} is for the broker to set: subscribe to an exchange, or leave it out")
    for name in (CREATED_BY, TOMBSTONE_OF, GROUPED):
        if name in arguments:
            raise InvalidArgument(f"{name} is for the broker to set: leave it out")
    check_names([name for name, value in arguments.items() if value is not None], _CONVERTERS)


def check_exchange_arguments(arguments: Mapping[str, object]) -> None:
    """As `check_settable`, for those of an exchange."""
    check_names(arguments, OF_EXCHANGES)


def check_binding_arguments(arguments: Mapping[str, object]) -> None:
    """As `check_settable`, for those of a binding to an exchange that does not take them for headers of messages."""
    check_names([name for name in arguments if name.startswith(PREFIX)], OF_BINDINGS)


def check_names(names: Iterable[str], known: Iterable[str]) -> None:
    """Raises InvalidArgument for a name that would be taken and do nothing, with the one that does what is meant:

    1. one of another broker (`foreign_arguments`);
    2. one with the prefix `qpid.` that is not `known`, without its prefix;
    3. one without it that is written like a known one (`max-count`, `maxCount`, `x-max-count`) or nearly so.

    Any other one is the application's own, and is kept.
    """
    own = {_plain(short): f"{PREFIX}{short}" for short in known}
    for name in names:
        if name.startswith(PREFIX) and name.removeprefix(PREFIX) in known:
            continue
        plain = _plain(name)
        counterpart = FOREIGN.get(name) or (None if name.startswith(PREFIX) else _FOREIGN_PLAIN.get(plain))
        if counterpart is not None:
            has_own = counterpart.own.removeprefix(PREFIX) in known
            raise InvalidArgument((counterpart if has_own else counterpart._replace(own="")).advice(name))
        if name.startswith(PREFIX):
            raise InvalidArgument(_unknown(name, known))
        import difflib  # only who gives arguments of the application's own waits for it

        if meant := difflib.get_close_matches(plain, own, n=1, cutoff=_NEARLY):
            raise InvalidArgument(f"argument {name} does nothing: did you mean {own[meant[0]]}?")


def _plain(name: str) -> str:
    """A name without what one may get wrong about it: prefix, case and separators."""
    bare = name.lower().removeprefix("x-").removeprefix("x_")
    return "".join(filter(str.isalnum, bare)).removeprefix("qpid")


_FOREIGN_PLAIN = {_plain(name): FOREIGN[name] for name in FOREIGN if "-" in name.removeprefix("x-") or "_" in name}
"""A single word may be the application's own."""


def _unknown(name: str, known: Iterable[str]) -> str:
    import difflib  # only who has made a mistake waits for it

    meant = difflib.get_close_matches(name.removeprefix(PREFIX), known, n=1, cutoff=0.0)[0]
    return f"unknown argument {name}: did you mean {PREFIX}{meant}?"


def with_creator(arguments: Arguments, created_by: str) -> dict[str, Scalar]:
    """The arguments of a queue that is made for that user; empty: nobody is to be remembered."""
    return {**arguments, CREATED_BY: created_by} if created_by else dict(arguments)


def with_levels(arguments: Arguments) -> dict[str, Scalar]:
    """The arguments of a queue in which each priority of JMS has a level.

    They come back as they are where they say how many levels there are, are wrong, or ask for what goes with none: last
    values, or a ring, which drops the oldest message and not one of the lowest priority.
    """
    given = dict(arguments)
    try:
        parsed = QueueArguments.parse(given)
    except InvalidArgument:
        return given
    if PRIORITIES in given or parsed.last_value_queue_key or parsed.policy_type is FullPolicy.RING:
        return given
    return {**given, PRIORITIES: MAX_PRIORITIES}


def without_creator(arguments: Arguments) -> tuple[dict[str, Scalar], str]:
    """What was given to `with_creator`."""
    rest = dict(arguments)
    return rest, str(rest.pop(CREATED_BY, ""))


def is_known_argument(name: str) -> bool:
    """Whether the broker has a meaning for it; others are the application's own."""
    return name.startswith(PREFIX) and name.removeprefix(PREFIX) in _CONVERTERS


def replication_argument(arguments: Arguments) -> Replicate | None:
    """The level that the arguments of an exchange or a binding ask for. Raises InvalidArgument for one unknown."""
    name = f"{PREFIX}replicate"
    if name not in arguments:
        return None
    level: Replicate = _converted("replicate", arguments[name])
    return level


def _converted(name: str, value: Scalar) -> Any:
    convert = _CONVERTERS.get(name)
    if convert is None:
        raise InvalidArgument(_unknown(f"{PREFIX}{name}", _CONVERTERS))
    try:
        return convert(value)
    except ValueError as error:
        raise InvalidArgument(f"{PREFIX}{name}={value!r}: expected {error}") from None


def _count(value: Scalar) -> int:
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 20:
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 1 << 63:
        raise ValueError("a whole number, 0 or more")
    return value


def _delay(value: Scalar) -> int:
    number = _count(value)
    if number > LONGEST_DELAY_MS:
        raise ValueError(f"milliseconds, {LONGEST_DELAY_MS} at most")
    return number


def _priorities(value: Scalar) -> int:
    number = _count(value)
    if not 1 <= number <= MAX_PRIORITIES:
        raise ValueError(f"a whole number from 1 to {MAX_PRIORITIES}")
    return number


def _seconds(value: Scalar) -> float:
    if isinstance(value, str):
        try:
            value = float(value)
        except ValueError:
            value = None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e9:
        raise ValueError("seconds, 0 or more")
    return float(value)


def _flag(value: Scalar) -> bool:
    if isinstance(value, bool):
        return value
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    raise ValueError("true or false")


_LEVEL_SHARES = tuple([f"fairshare-{level}" for level in range(MAX_PRIORITIES)])


def _text(value: Scalar) -> str:
    if not isinstance(value, str):
        raise ValueError("a text")
    return value


def _remote_url(value: Scalar) -> str:
    """Whether it can be used is for those to say who would: see `Configuration.remote`. A password is never quoted."""
    if not isinstance(value, str) or not value:
        raise ValueError("a URL such as amqp://node1,node2:5672/orders")
    if "@" in value:
        text = "the URL of a node is no place for a user or a password, which everybody would read: write the URL"
        raise InvalidArgument(f"{text} without, and the login of that broker into remote-brokers of the configuration")
    return value


def _policy(value: Scalar) -> FullPolicy:
    try:
        return FullPolicy(str(value).lower())
    except ValueError:
        raise ValueError("reject, ring or self-destruct") from None


def parse_level(value: object) -> Replicate:
    """`all` is what `messages` was called in qpid. Raises ValueError with what there is."""
    text = value.strip().lower() if isinstance(value, str) else ""
    try:
        return Replicate.MESSAGES if text == "all" else Replicate(text)
    except ValueError:
        raise ValueError("none, configuration, messages or all, which is messages") from None


def _store_error(value: Scalar) -> StoreErrorPolicy:
    try:
        return StoreErrorPolicy(str(value).lower())
    except ValueError:
        raise ValueError("abort or continue") from None


_CONVERTERS = {
    "max_count": _count,
    "max_size": _count,
    "policy_type": _policy,
    "message_ttl_ms": _count,
    "priorities": _priorities,
    "fairshare": _count,
    **dict.fromkeys(_LEVEL_SHARES, _count),
    "last_value_queue_key": _text,
    "alternate_exchange": _text,
    "delivery_limit": _count,
    "redelivery_delay_ms": _delay,
    "redelivery_delay_max_ms": _delay,
    "exclusive": _flag,
    "auto_delete": _flag,
    "auto_delete_delay_s": _seconds,
    "durable": _flag,
    "message_groups": _flag,
    "single_active_consumer": _flag,
    "subscription": _text,
    "replicate": parse_level,
    "store_error": _store_error,
    "resource-set": _text,
    "cluster.primary": _text,
    "min-replicas": _count,
    "cluster.proxy": _remote_url,
    "cluster.source": _remote_url,
    "created_by": _text,
}
_FIELDS = {
    "resource-set": "resource_set",
    "cluster.primary": "cluster_primary",
    "min-replicas": "min_replicas",
    "cluster.proxy": "cluster_proxy",
    "cluster.source": "cluster_source",
}
"""Of arguments that are spelled as settings are."""
