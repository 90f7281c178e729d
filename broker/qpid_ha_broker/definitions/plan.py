"""What has to be done so that a cluster has what a file defines.

The promises: nothing is deleted; what is there as defined is left alone, so that a second run does nothing; and where
something is there as something else, nothing at all is done until an operator says that it is to be changed.

| there | kind | without `update` | with `update` |
| --- | --- | --- | --- |
| no | any | made | made |
| as defined | any | left alone | left alone |
| otherwise | policies, settings, users, tokens, arguments of a queue or binding | a conflict | changed |
| otherwise | a set, an exchange, the set of a queue | a conflict | a conflict: only deleting it would help |

Sets are made first, then exchanges, each after the one that it names as its alternate, then queues, then bindings; and
settings last: rules of access may be among them, which do not allow the rest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from qpid_ha_broker.definitions.document import (
    STANDARD_PREFIX,
    Arguments,
    BindingDefinition,
    Definitions,
    ExchangeDefinition,
    QueueDefinition,
    SetDefinition,
    SettingDefinition,
)

_ALTERNATE: Final = "qpid.alternate_exchange"


class ImportStep(NamedTuple):
    """A request to the broker."""

    action: str
    """`create` or `change`."""
    thing: str
    """In an operator's words, such as `queue orders`."""
    method: str
    params: Mapping[str, Any]
    details: str = ""


class ImportConflict(NamedTuple):
    """Something that is there as something else."""

    thing: str
    problem: str


@dataclass(frozen=True)
class ImportPlan:
    """`unchanged`: so many things are there as defined."""

    steps: tuple[ImportStep, ...]
    conflicts: tuple[ImportConflict, ...]
    unchanged: int


def plan_import(there: Definitions, wanted: Definitions, *, update: bool = False) -> ImportPlan:
    """See above. `update`: what may be changed, is."""
    planner = _Planner(there, update=update)
    steps: list[ImportStep] = []
    conflicts: list[ImportConflict] = []
    unchanged = 0
    for outcome in planner.outcomes(wanted):
        match outcome:
            case ImportStep():
                steps.append(outcome)
            case ImportConflict():
                conflicts.append(outcome)
            case None:
                unchanged += 1
    return ImportPlan(tuple(steps), tuple(conflicts), unchanged)


class _Planner:
    def __init__(self, there: Definitions, *, update: bool) -> None:
        self._there = there
        self._update = update

    def outcomes(self, wanted: Definitions) -> Iterator[ImportStep | ImportConflict | None]:
        sets = {definition.name: definition for definition in self._there.sets}
        exchanges = {exchange.name: exchange for exchange in self._there.exchanges}
        queues = {queue.name: queue for queue in self._there.queues}
        bindings = {binding[:3]: binding for binding in self._there.bindings}
        if wanted.policies:
            yield self._policies(wanted)
        for definition in wanted.sets:
            yield self._set(sets.get(definition.name), definition)
        for exchange in _alternates_first(wanted.exchanges):
            yield self._exchange(exchanges.get(exchange.name), exchange)
        for queue in wanted.queues:
            yield self._queue(queues.get(queue.name), queue)
        for binding in wanted.bindings:
            yield self._binding(bindings.get(binding[:3]), binding)
        yield from self._logins(wanted)
        settings = {setting.key: setting for setting in self._there.settings}
        for setting in wanted.settings:
            yield self._setting(settings.get(setting.key), setting)

    def _policies(self, wanted: Definitions) -> ImportStep | ImportConflict | None:
        thing, there = "policies of replicas", self._there.policies
        if there == wanted.policies:
            return None
        if there and not self._update:
            others = ", ".join(f"{policy.pattern}={policy.replicas}" for policy in there)
            return ImportConflict(thing, f"they are {others}; {_SAY_UPDATE}")
        params = {"action": "policies", "policies": [list(policy) for policy in wanted.policies]}
        return ImportStep("change" if there else "create", thing, "replicas", params)

    def _set(self, there: SetDefinition | None, wanted: SetDefinition) -> ImportStep | ImportConflict | None:
        thing = f"set {wanted.name}"
        if there is None:
            fields = wanted._asdict()
            given = {name: value for name, value in fields.items() if value is not None}
            return ImportStep("create", thing, "sets", {"action": "create", **given}, _shown({**given, "name": None}))
        if there == wanted:
            return None
        pairs = zip(there._asdict().items(), wanted, strict=True)
        differing = [f"{name} {is_there} instead of {other}" for (name, is_there), other in pairs if is_there != other]
        return ImportConflict(
            thing, f"it is there with {', '.join(differing)}: what a set wants is fixed when it is made"
        )

    def _exchange(
        self, there: ExchangeDefinition | None, wanted: ExchangeDefinition
    ) -> ImportStep | ImportConflict | None:
        thing = f"{wanted.kind} exchange {wanted.name}"
        if wanted.name.startswith(STANDARD_PREFIX):
            return ImportConflict(thing, f"names that begin with {STANDARD_PREFIX} are the broker's: leave it out")
        if there is None:
            params = {"action": "create", "name": wanted.name, "kind": wanted.kind, "arguments": dict(wanted.arguments)}
            return ImportStep("create", thing, "exchanges", params, _shown(wanted.arguments))
        if (there.kind, dict(there.arguments)) == (wanted.kind, dict(wanted.arguments)):
            return None
        other = f"a {there.kind} exchange of that name is there{_with(there.arguments)}"
        return ImportConflict(
            thing, f"{other}: what an exchange is cannot change; delete it first, or correct the file"
        )

    def _queue(self, there: QueueDefinition | None, wanted: QueueDefinition) -> ImportStep | ImportConflict | None:
        thing = f"queue {wanted.name}"
        if there is None:
            params = {"action": "create", "name": wanted.name, "arguments": wanted.asked}
            return ImportStep("create", thing, "queues", params, _shown(wanted.asked))
        if wanted.set and wanted.set != (there.set or "default"):
            place = f"it is in set {there.set or 'default'}"
            return ImportConflict(
                thing, f"{place}, and stays there: move its messages to a new queue, or correct the file"
            )
        changes = _changes(there.arguments, wanted.arguments)
        if not changes:
            return None
        if not self._update:
            return ImportConflict(thing, f"it is there{_with(there.arguments)}; {_SAY_UPDATE}")
        params = {"action": "update", "name": wanted.name, "arguments": changes}
        return ImportStep("change", thing, "queues", params, _shown(changes))

    def _binding(
        self, there: BindingDefinition | None, wanted: BindingDefinition
    ) -> ImportStep | ImportConflict | None:
        thing = f"binding {wanted.exchange} -> {wanted.queue} with key {wanted.key!r}"
        if there is not None and dict(there.arguments) == dict(wanted.arguments):
            return None
        if there is not None and not self._update:
            return ImportConflict(thing, f"it is there{_with(there.arguments)}; {_SAY_UPDATE}")
        params = {
            "action": "bind",
            "name": wanted.exchange,
            "queue": wanted.queue,
            "key": wanted.key,
            "arguments": dict(wanted.arguments),
        }
        return ImportStep("create" if there is None else "change", thing, "exchanges", params, _shown(wanted.arguments))

    def _logins(self, wanted: Definitions) -> Iterator[ImportStep | ImportConflict | None]:
        """Users and tokens; of what their secrets are checked by nothing is shown."""
        for method, known, asked in (
            ("users", self._there.users, wanted.users),
            ("tokens", self._there.tokens, wanted.tokens),
        ):
            by_name = {login.name: login for login in known}
            for login in asked:
                thing, there = f"{method.removesuffix('s')} {login.name}", by_name.get(login.name)
                if there == login:
                    yield None
                elif there is not None and not self._update:
                    yield ImportConflict(thing, f"it is there with another secret or role; {_SAY_UPDATE}")
                else:
                    params = {"action": "set", **login._asdict()}
                    yield ImportStep("create" if there is None else "change", thing, method, params)

    def _setting(
        self, there: SettingDefinition | None, wanted: SettingDefinition
    ) -> ImportStep | ImportConflict | None:
        thing = f"setting {wanted.key}"
        if there == wanted:
            return None
        if there is not None and not self._update:
            return ImportConflict(thing, f"it is {there.value}; {_SAY_UPDATE}")
        params = {"action": "set", **wanted._asdict()}
        return ImportStep("create" if there is None else "change", thing, "settings", params, str(wanted.value))


_SAY_UPDATE: Final = "say --update to have it as the file says"


def _alternates_first(exchanges: tuple[ExchangeDefinition, ...]) -> list[ExchangeDefinition]:
    """Each behind the one that it names, where that is among them; a circle stays as it is: the broker refuses it."""
    names = {exchange.name: exchange for exchange in exchanges}
    ordered: dict[str, ExchangeDefinition] = {}
    for exchange in exchanges:
        chain: dict[str, ExchangeDefinition] = {}
        following: ExchangeDefinition | None = exchange
        while following is not None and following.name not in ordered and following.name not in chain:
            chain[following.name] = following
            following = names.get(str(following.arguments.get(_ALTERNATE, "")))
        ordered |= dict(reversed(chain.items()))
    return list(ordered.values())


def _changes(there: Arguments, wanted: Arguments) -> dict[str, object]:
    """What an update has to say; None takes one away."""
    gone = {name: None for name in there if name not in wanted}
    return {**{name: value for name, value in wanted.items() if not _is_same(there.get(name), value)}, **gone}


def _is_same(one: object, other: object) -> bool:
    return one == other and isinstance(one, bool) is isinstance(other, bool)


def _with(arguments: Arguments) -> str:
    shown = _shown(arguments)
    return f" with {shown}" if shown else " without arguments"


def _shown(arguments: Arguments) -> str:
    return ", ".join(f"{name}={value}" for name, value in arguments.items() if value is not None)
