"""The control socket's methods about a broker's part in its cluster: who is what, and who shall be primary.

They add to those of `administration`. A refusal carries the core's own sentence. A standalone broker is a cluster of
one: it has all of them, and refuses those that need another broker.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence

from qpid_ha_broker.access.operations import ALL, OPERATIONS, ParameterKind
from qpid_ha_broker.amqp.wire.conditions import UNAUTHORIZED_ACCESS
from qpid_ha_broker.ha import effects as fx
from qpid_ha_broker.ha.frames import Answer, Topic
from qpid_ha_broker.ha.history import PROMOTED_BY
from qpid_ha_broker.ha.known_in_sync import InSyncWord, KnownInSync, known_in_sync
from qpid_ha_broker.ha.roles import STANDALONE_REFUSAL
from qpid_ha_broker.ha.states import LEADING, State
from qpid_ha_broker.server.control.administration import Params, check_known, check_parameters
from qpid_ha_broker.server.control.control import INVALID_PARAMS, REFUSED, ControlError, Method, Stream
from qpid_ha_broker.server.control.event_methods import EventMethods
from qpid_ha_broker.server.controller.cluster_facts import FROM_STREAM
from qpid_ha_broker.server.peers.peer_asker import Unanswered
from qpid_ha_broker.server.sets.forwarded_commands import CommandPlace, ForwardedCommands, is_passed_on
from qpid_ha_broker.server.sets.membership import Membership
from qpid_ha_broker.server.sets.pause_control import PauseControl

REQUEST_LIMIT_S = 25.0
"""After so long nobody waits for a promotion any more."""
SENTENCE_LENGTH = 200
UNREACHABLE = "unreachable"


Facts = Callable[[], Awaitable[dict[str, object]]]
"""Of this broker, as `query` shows them."""
End = Callable[[str], None]
"""Ends this broker; with the UUID under which its store is whole, or without one."""


def cluster_methods(
    facts: Facts,
    end: End,
    membership: Membership,
    broker_events: EventMethods,
    others: Mapping[str, Method],
    passing_on: ForwardedCommands,
) -> dict[str, Method]:
    """All methods; `others` are those of `administration`."""
    control = ClusterControl(facts, end, membership, broker_events, passing_on)
    return {
        **others,
        "status": control.status,
        "query": control.query,
        "promote": control.promote,
        "demote": control.demote,
        "switchover": control.switchover,
        "drop": control.drop,
        "shutdown": control.shutdown,
        "backups": control.backups,
        "history": control.history,
        "events": control.events,
        "pause": PauseControl(membership).pause,
        **{
            name: control.on_primary(name, method) for name, method in others.items() if OPERATIONS.has_of_primary(name)
        },
    }


class ClusterControl:
    """Each public method but `on_primary` is a method of the control socket."""

    def __init__(
        self,
        facts: Facts,
        end: End,
        membership: Membership,
        broker_events: EventMethods,
        passing_on: ForwardedCommands,
    ) -> None:
        self._passing_on = passing_on
        self._facts = facts
        self._broker_events = broker_events
        self._end = end
        self._membership = membership

    # --- looking

    async def status(self, params: Params) -> object:
        """This broker, or with `all` a list with a row for each broker of the cluster. `agent`: its agent asks."""
        flags = read_flags("status", params)
        if flags["agent"]:
            self._membership.agent_polls.asked()
        if not flags["all"]:
            return self._summary()
        answers, unreachable = await self._ask_all(Topic.STATUS)
        own = {**self._summary(), "address": self._membership.member.settings.own_address or None}
        rows = [own, *[{**_status_row(answer), "address": address} for address, answer in answers]]
        known = await self._known_in_sync([answer for _, answer in answers])
        for row in [*rows, *unreachable]:
            in_sync = known.of(str(row["name"] or row["last_name"] or ""))
            if in_sync is InSyncWord.NO and not row["name"] and not row["last_name"]:
                in_sync = InSyncWord.UNKNOWN  # it may be any of those who were in sync
            row |= {"in_sync": in_sync is InSyncWord.YES, "in_sync_known": in_sync.value, "in_sync_by": known.source}
        return _sorted(rows) + unreachable

    async def _known_in_sync(self, others: Sequence[Answer]) -> KnownInSync:
        """By what they all answer and, while nobody leads, the record."""
        member = self._membership.member
        brokers = [member.answer(), *others]
        record = None
        if not any(broker.state in LEADING for broker in brokers):
            record = await self._membership.records.read_within(member.settings.ask_limit_s)
        return known_in_sync(brokers, record, has_coordinator=member.settings.has_coordinator)

    def _summary(self) -> dict[str, object]:
        silent_s = self._membership.agent_polls.silent_s()
        of_agent = {} if silent_s is None else {"agent_silent_s": round(silent_s, 1)}
        return {**self._membership.summary(), **of_agent}

    async def query(self, params: Params) -> object:
        """Facts and figures of this broker, or with `all` of each broker of the cluster."""
        if not read_flags("query", params)["all"]:
            return await self._facts()
        answers, unreachable = await self._ask_all(Topic.QUERY)
        rows = [await self._facts(), *[{**_query_row(answer), "address": address} for address, answer in answers]]
        return _sorted(rows) + unreachable

    def backups(self, params: Params) -> object | Awaitable[object]:
        """Of the primary: each backup, how far it is, and its lag."""
        check_parameters("backups", params)
        self._check_in_cluster()
        if self._membership.member.status.state is not State.PRIMARY:
            return self._pass_on("backups", params, "has no backups")
        return self._membership.member.backups()

    def history(self, params: Params) -> object:
        """The generations that this broker knows of."""
        check_known(params, ())
        self._check_in_cluster()
        return self._membership.member.history()

    def events(self, params: Params) -> object:
        """The status now, and from then on a notification `event` for each change; with parameters those events that
        any broker has: see `EventMethods`."""
        check_parameters("events", params)
        if params:
            return self._broker_events.events(params)
        self._check_in_cluster()
        subscription = self._membership.events.subscribe()
        return Stream(self._membership.summary(), "event", subscription, subscription.close)

    async def _ask_all(self, topic: Topic) -> tuple[list[tuple[str, Answer]], list[dict[str, object]]]:
        """The answers of the others with their addresses, and a row for each address that gave none.

        `refused`: a broker is there, and said that this one is not let in."""
        settings = self._membership.member.settings
        found = await self._membership.questions.ask_others(topic)
        others = {
            answer.instance: (address, answer)
            for address, answer in found.items()
            if isinstance(answer, Answer) and answer.instance != settings.instance
        }
        rows: list[dict[str, object]] = [
            {
                "name": None, "address": address, "state": UNREACHABLE, "why": answer.why,
                "last_name": self._membership.questions.names.get(address),
                "refused": answer.why.startswith(UNAUTHORIZED_ACCESS),
            }
            for address, answer in found.items()
            if isinstance(answer, Unanswered)
        ]  # fmt: skip
        return list(others.values()), rows

    # --- doing

    async def promote(self, params: Params) -> object:
        """Become primary: `force` against the verdict, `failover` if there is no primary, `cause` for the history."""
        flags = read_flags("promote", params)
        force, failover = flags["force"], flags["failover"]
        if force and failover:
            raise ControlError(INVALID_PARAMS, "force overrides what failover demands: give one of them")
        cause = _sentence(params, "cause", f"{PROMOTED_BY}an operator")
        if self._membership.member.settings.has_coordinator:
            await self._membership.records.looked()
        return await self._request(lambda number: fx.PromoteAsked(number, force, cause, failover))

    async def demote(self, params: Params) -> object:
        """Be primary no more; `cause`: who wants it, for the log."""
        check_parameters("demote", params)
        cause = _sentence(params, "cause", "demoted by an operator")
        return await self._request(lambda number: fx.DemoteAsked(number, cause))

    async def switchover(self, params: Params) -> object:
        """Hand over to the backup `to`, or to the best; `cause`: who wants it, for the log. After `within_s` it is
        void: a coordinator that hangs may keep a backup waiting until nobody wants it any more."""
        check_parameters("switchover", params)
        cause = _sentence(params, "cause", "a switchover by an operator")
        to = params.get("to") or ""
        if not isinstance(to, str):
            raise ControlError(INVALID_PARAMS, "to is the name of a backup; left out: the best")
        within_s = params.get("within_s")
        if not isinstance(within_s, int | float | None) or (within_s is not None and within_s <= 0):
            raise ControlError(INVALID_PARAMS, "within_s is a number of seconds over 0; left out: 5")
        return await self._request(lambda number: fx.SwitchoverAsked(number, to, cause, within_s))

    async def drop(self, params: Params) -> object:
        """Let this primary not wait for `backup` any more, which is known to be gone: `reason` says from where."""
        check_parameters("drop", params)
        backup, reason = params.get("backup"), _sentence(params, "reason", "dropped by an operator")
        if not isinstance(backup, str) or not backup:
            raise ControlError(INVALID_PARAMS, "backup is the name of a backup: see `qpid-ha backups`")
        return await self._request(lambda number: fx.DropAsked(number, backup, reason))

    async def shutdown(self, params: Params) -> object:
        """End this broker, or with `cluster` all of them: level, and their stores marked with one UUID."""
        if not read_flags("shutdown", params)["cluster"]:
            self._end("")
            return {**self._membership.summary(), "text": f"{self._membership.member.settings.name} ends"}
        if self._membership.is_standalone:
            raise ControlError(INVALID_PARAMS, "this broker is in no cluster: leave --cluster out")
        return await self._request(lambda number: fx.ShutdownAsked(number, uuid.uuid4().hex))

    async def _request(self, make: Callable[[int], fx.Input]) -> object:
        try:
            async with asyncio.timeout(REQUEST_LIMIT_S):
                answered = await self._membership.default.requests.carry_out(make)
        except TimeoutError:
            text = f"no outcome within {REQUEST_LIMIT_S:g} s: look at the status and at the broker's log"
            raise ControlError(REFUSED, text, {"reason": "timeout"}) from None
        summary = self._membership.summary()
        if not answered.done:
            raise ControlError(REFUSED, answered.text, {"reason": "refused", **summary})
        return {**summary, "text": answered.text}

    def _check_in_cluster(self) -> None:
        if self._membership.is_standalone:
            raise ControlError(REFUSED, STANDALONE_REFUSAL, {"reason": "refused", **self._membership.summary()})

    def on_primary(self, name: str, method: Method) -> Method:
        """`method`, but what is for a primary alone is passed on to it by a broker that is none."""

        def guarded(params: Params) -> object | Awaitable[object]:
            row = OPERATIONS.find(name, params)
            if row is None and not self._membership.clients.is_serving:
                raise self._not_primary("changes nothing")
            if row is not None and row.is_for_primary and not self._membership.clients.is_serving:
                return self._pass_on(name, params, "changes nothing")
            return method(params)

        return guarded

    def _pass_on(self, name: str, params: Params, problem: str) -> Awaitable[object]:
        """To the primary. Raises ControlError where there is none, or who asks is a broker that passes it on itself."""
        place = self._primary_place()
        if place is None or is_passed_on():
            raise self._not_primary(problem)
        return self._passing_on.pass_on(name, params, place)

    def _primary_place(self) -> CommandPlace | None:
        summary = self._membership.summary()
        primary, address = summary["primary"], summary["primary_address"]
        return CommandPlace(str(primary or ""), str(address)) if address and primary != summary["name"] else None

    def _not_primary(self, problem: str) -> ControlError:
        """`problem`: what this broker lacks because of that."""
        summary = self._membership.summary()
        primary, address = summary["primary"], summary["primary_address"]
        where = f"ask {primary} at {address}, the primary" if address else "there is no primary: promote a broker"
        text = f"{summary['name']} is {summary['state']} and {problem}: {where}"
        return ControlError(REFUSED, text, {"reason": "not-primary", "primary": primary, "primary_address": address})


def read_flags(method: str, params: Params) -> dict[str, bool]:
    """The parameters of `method` that are true or false, false where they are left out. Raises ControlError."""
    check_parameters(method, params)
    row = OPERATIONS.by_method[method][ALL]
    flags: dict[str, bool] = {}
    for name in (name for name, kind in row.parameters.items() if kind is ParameterKind.FLAG):
        value = params.get(name, False)
        if not isinstance(value, bool):
            raise ControlError(INVALID_PARAMS, f"{name} is true or false")
        flags[name] = value
    return flags


def _sentence(params: Params, name: str, default: str) -> str:
    sentence = params.get(name, default)
    if not isinstance(sentence, str) or not 0 < len(sentence) <= SENTENCE_LENGTH:
        raise ControlError(INVALID_PARAMS, f"{name} is a sentence of at most {SENTENCE_LENGTH} characters")
    return sentence


def _status_row(answer: Answer) -> dict[str, object]:
    return {
        "name": answer.name,
        "instance": answer.instance,
        "cluster": answer.cluster or None,
        "state": answer.state,
        "generation": answer.generation,
        "lsn": answer.lsn,
        "epoch": answer.epoch,
        "members": list(answer.members),
        "restored": None if answer.store in FROM_STREAM else answer.store.value,
    }


def _query_row(answer: Answer) -> dict[str, object]:
    try:
        facts = json.loads(answer.text)
    except ValueError:
        facts = None
    return facts if isinstance(facts, dict) else {"name": answer.name, "state": answer.state}


def _sorted(rows: list[dict[str, object]]) -> list[dict[str, object]]:
    return sorted(rows, key=lambda row: str(row["name"]))
