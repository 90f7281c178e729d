"""How much of each object backups keep: which level it gets when it is made, and in which log what is said of it goes.

There are two resource sets: `default`, which all brokers of a cluster share, and `local`, a broker's own. A queue of
level `configuration` is in the first, with its messages in the second.
"""

from __future__ import annotations

from collections.abc import Sequence
from fnmatch import fnmatchcase

from qpid_ha_broker.cluster_map import PlacedQueue
from qpid_ha_broker.events.types import Arguments
from qpid_ha_broker.model.exchanges.exchange import Exchange, ExchangeKind
from qpid_ha_broker.model.exchanges.notices import NOTICE_EXCHANGE
from qpid_ha_broker.model.queues.queue import Queue
from qpid_ha_broker.model.queues.queue_arguments import QueueArguments, Replicate, replication_argument

Rules = Sequence[tuple[str, Replicate]]
"""Patterns of names as a shell knows them, and the level of what they match; the first one counts."""

STANDARD_EXCHANGES = {
    "amq.direct": ExchangeKind.DIRECT,
    "amq.topic": ExchangeKind.TOPIC,
    "amq.fanout": ExchangeKind.FANOUT,
    "amq.match": ExchangeKind.HEADERS,
    NOTICE_EXCHANGE: ExchangeKind.DIRECT,
}
"""There from the first start, as users of Qpid expect; they cannot be deleted, and are always replicated."""


def is_local(thing: Queue | Exchange) -> bool:
    """Whether no other broker knows of it."""
    return thing.replication is Replicate.NONE


def has_replicated_messages(queue: Queue) -> bool:
    """Whether its messages are in the log that others follow."""
    return queue.replication is Replicate.MESSAGES


def is_local_binding(exchange: Exchange, queue: Queue | PlacedQueue, arguments: Arguments) -> bool:
    """Whether a binding is this broker's alone. Raises InvalidArgument for a level that is none."""
    level = replication_argument(arguments)
    return is_local(exchange) or (isinstance(queue, Queue) and is_local(queue)) or level is Replicate.NONE


def level_by_rule(name: str, rules: Rules, default: Replicate) -> Replicate:
    """The level of what does not ask for one itself."""
    return next((level for pattern, level in rules if fnmatchcase(name, pattern)), default)


def queue_level(arguments: QueueArguments, by_rule: Replicate) -> Replicate:
    """What was asked for, else nothing for what goes with its only user, else what the rules say."""
    if arguments.replicate is not None:
        return arguments.replicate
    return Replicate.NONE if arguments.transient else by_rule


def exchange_level(name: str, arguments: Arguments, by_rule: Replicate) -> Replicate:
    """Raises InvalidArgument for a level that is none."""
    level = replication_argument(arguments)
    if name in STANDARD_EXCHANGES:
        return Replicate.MESSAGES
    return by_rule if level is None else level
