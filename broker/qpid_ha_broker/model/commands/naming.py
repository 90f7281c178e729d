"""Which resource set a new queue belongs to: what it asks for itself, else a rule, else the set `default`.

What was asked for                          the set
------------------------------------------  --------------------------------------------------------------------------
1. `qpid.resource-set`                      that one, which is there
2. `qpid.cluster.primary`                   the first whose preferred primary that broker is, else one that is made
3. `qpid.min-replicas`                      `default` if that has so many, else the one with the fewest queues that has
4. nothing, and its name fits a rule        that of the first rule (setting `resource-sets`), which is there
5. nothing, and `resource-sets.spread` is N  `shard-1` to `shard-N`, by the CRC-32 of the name; made when missing
6. nothing                                  `default`

What stands for a node of another broker (`qpid.cluster.proxy`) is in `default`, whatever the rules say.

All that a queue asks for has to be true of the set. Queues of other sets than `default` are replicated with their
messages, and have no alternate exchange: dead letters would go from one set to another, in two logs of which either may
be lost after the other was written.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from typing import Final, NamedTuple
from zlib import crc32

from qpid_ha_broker.cluster_map import ClusterMap, SetEntry
from qpid_ha_broker.events.counted import counted
from qpid_ha_broker.events.set_names import set_name_problem
from qpid_ha_broker.model.errors import InvalidArgument
from qpid_ha_broker.model.logs.log import DEFAULT_SET
from qpid_ha_broker.model.queues.queue_arguments import QueueArguments, Replicate

SET_NAME_LENGTH: Final = 64


class NamingRules(NamedTuple):
    """What the settings say."""

    sets: tuple[tuple[str, str], ...] = ()
    """Patterns of names as a shell knows them, and the set of what they match; the first one counts."""
    spread: int = 0
    """So many sets share what no rule matches; 0: that is in `default`."""
    replicas: int = 1
    """Which a set wants that neither says so itself nor matches a policy, and `default`."""


class Naming(NamedTuple):
    """Where a new queue belongs."""

    set: str
    why: str
    missing: bool = False
    """The set has to be made first."""
    preferred: str = ""
    """The preferred primary of a set that is missing; empty: whichever broker has the fewest."""


class NewQueue(NamedTuple):
    """What is to be declared. `level`: with what the rules of replication say of it."""

    name: str
    arguments: QueueArguments
    level: Replicate


def choose_set(queue: NewQueue, rules: NamingRules, there: ClusterMap) -> Naming:
    """Raises InvalidArgument for what contradicts itself, the rules or the map."""
    arguments = queue.arguments
    if arguments.cluster_proxy:
        return Naming(DEFAULT_SET, "it stands for a node of another broker")
    if arguments.resource_set:
        naming = _named(arguments, rules, there)
    elif arguments.cluster_primary:
        naming = _of_primary(arguments, rules, there)
    elif arguments.min_replicas:
        naming = _with_replicas(arguments.min_replicas, rules, there)
    else:
        return _by_rule(queue, rules, there)
    obstacle = _obstacle(queue)
    if naming.set != DEFAULT_SET and obstacle:
        raise InvalidArgument(f"queue {queue.name} cannot be in resource set {naming.set} ({naming.why}): {obstacle}")
    return naming


def wanted_replicas(entry: SetEntry, rules: NamingRules, there: ClusterMap) -> int:
    """How many replicas a set is to have: its own number, else the first policy's that matches, else the settings'."""
    if entry.min_replicas:
        return entry.min_replicas
    return next((count for pattern, count in there.policies if fnmatchcase(entry.name, pattern)), rules.replicas)


def _named(arguments: QueueArguments, rules: NamingRules, there: ClusterMap) -> Naming:
    name, primary, replicas = arguments.resource_set, arguments.cluster_primary, arguments.min_replicas
    entry = _existing(name, f"qpid.resource-set={name}", there)
    preferred = "" if entry is None else entry.preferred
    if primary and primary != preferred:
        raise InvalidArgument(
            f"qpid.resource-set={name} and qpid.cluster.primary={primary} name different sets: the preferred primary of"
            f" {name} is {preferred or 'nobody in particular'}; leave one of them out"
        )
    there_are = rules.replicas if entry is None else wanted_replicas(entry, rules, there)
    if replicas > there_are:
        raise InvalidArgument(
            f"qpid.min-replicas={replicas}, and resource set {name} has {there_are}: leave it out, or ask for another"
        )
    return Naming(name, "qpid.resource-set names it")


def _existing(name: str, who: str, there: ClusterMap) -> SetEntry | None:
    """The set of that name; None is `default`. Raises InvalidArgument."""
    if name == DEFAULT_SET:
        return None
    if name not in there.sets:
        known = ", ".join([DEFAULT_SET, *sorted(there.sets)][:10])
        raise InvalidArgument(f"{who}: there is no such resource set; create it, or name one of {known}")
    return there.sets[name]


def _of_primary(arguments: QueueArguments, rules: NamingRules, there: ClusterMap) -> Naming:
    broker, replicas = arguments.cluster_primary, arguments.min_replicas
    if broker not in there.brokers:
        known = ", ".join(sorted(there.brokers)[:10]) or "none with a name so far"
        raise InvalidArgument(f"qpid.cluster.primary={broker}: there is no such broker; the cluster has {known}")
    own = [entry for entry in there.sets.values() if entry.preferred == broker]
    fitting = sorted(entry.name for entry in own if wanted_replicas(entry, rules, there) >= replicas)
    if fitting:
        return Naming(fitting[0], f"{broker} is its preferred primary")
    if replicas > rules.replicas:
        raise InvalidArgument(
            f"qpid.cluster.primary={broker}, and none of that broker's sets has the {counted(replicas, 'replica')} that"
            " qpid.min-replicas asks for: create a set that has, or ask for fewer"
        )
    return Naming(_new_name(broker, there), f"{broker} is its preferred primary", missing=True, preferred=broker)


def _new_name(broker: str, there: ClusterMap) -> str:
    base = f"primary-{broker.lower()}"
    name, number = base[:SET_NAME_LENGTH], 1
    while name in there.sets or set_name_problem(name):
        number += 1
        name = f"{base[: SET_NAME_LENGTH - len(str(number)) - 1]}-{number}"
    return name


def _with_replicas(replicas: int, rules: NamingRules, there: ClusterMap) -> Naming:
    if rules.replicas >= replicas:
        return Naming(DEFAULT_SET, f"it has {counted(rules.replicas, 'replica')}")
    fitting = [
        (len(there.queues_of(name)), name)
        for name, entry in there.sets.items()
        if wanted_replicas(entry, rules, there) >= replicas
    ]
    if not fitting:
        raise InvalidArgument(
            f"qpid.min-replicas={replicas}, and no resource set has so many: create one that has, or ask for fewer"
        )
    return Naming(min(fitting)[1], f"it has {counted(replicas, 'replica')} or more")


def _by_rule(queue: NewQueue, rules: NamingRules, there: ClusterMap) -> Naming:
    asks_otherwise = queue.arguments.replicate not in (None, Replicate.MESSAGES) or queue.arguments.transient
    if asks_otherwise:
        return Naming(DEFAULT_SET, "it is not replicated with its messages")
    obstacle = _obstacle(queue)
    for pattern, name in rules.sets:
        if fnmatchcase(queue.name, pattern):
            why = f"the rule {pattern}={name} of resource-sets"
            _existing(name, why, there)
            if obstacle and name != DEFAULT_SET:
                raise InvalidArgument(f"queue {queue.name} cannot be in resource set {name} ({why}): {obstacle}")
            return Naming(name, why)
    if not rules.spread or obstacle:
        return Naming(DEFAULT_SET, obstacle or "nothing names another one")
    name = f"shard-{crc32(queue.name.encode()) % rules.spread + 1}"
    return Naming(name, f"resource-sets.spread is {rules.spread}", missing=name not in there.sets)


def _obstacle(queue: NewQueue) -> str:
    """Why it can be in no set but `default`; empty: it can."""
    if queue.level is not Replicate.MESSAGES:
        return (
            f"its level is {queue.level}, and queues of other sets than {DEFAULT_SET} are replicated with their"
            " messages; leave qpid.replicate out, or correct replication-rules"
        )
    if queue.arguments.alternate_exchange:
        return (
            f"dead letters cannot go from one resource set to another: leave qpid.alternate_exchange out, or let the"
            f" queue be in {DEFAULT_SET}"
        )
    return ""
