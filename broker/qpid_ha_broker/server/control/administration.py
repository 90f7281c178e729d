"""The control socket's methods: what `qpid-ha` can ask a broker for, and have it do.

Each takes the params of a request, refuses names it does not know (a typing error must not pass for a default), and
answers only when what it did is as safe as a client's own command would have to be.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from heapq import nsmallest
from inspect import isawaitable
from typing import Any, Final, Protocol

from qpid_ha_broker.access.operations import (
    ALL,
    OPERATIONS,
    Listing,
    ManagedObjects,
    Operation,
    ParameterKind,
)
from qpid_ha_broker.amqp.nodes.queue_messages import QueueLook, managed_objects
from qpid_ha_broker.model.budget import Budget
from qpid_ha_broker.model.commands.administration import Administration, Done, Outcome, Pending
from qpid_ha_broker.model.errors import InvalidArgument, ModelError, reason_of
from qpid_ha_broker.model.queues.paged import BodyRef, read_bodies
from qpid_ha_broker.server.control.control import INVALID_PARAMS, REFUSED, ControlError, Method
from qpid_ha_broker.server.control.placements import load_placement
from qpid_ha_broker.server.control.setting_layers import SettingLayers
from qpid_ha_broker.server.runtime.slices import SLICE_S
from qpid_ha_config.errors import SettingsError, nearest
from qpid_ha_config.settings import BrokerSettings

PAGE_ROWS_MAX: Final = 1000
SORTED_AT_ONCE: Final = 5000
"""Names among which those of a page are looked for while everybody else waits."""

Params = dict[str, object]
WaitDone = Callable[[Outcome[Any]], Awaitable[object]]
"""The result of a command, once all of it is done and committed. Raises the ModelError for which it was given up."""


class SettingsHolder(Protocol):
    """Whoever has the settings that are in force: this broker's own, and those of the cluster above them."""

    @property
    def layers(self) -> SettingLayers:
        """What they are made of."""

    def current(self) -> BrokerSettings:
        """As they are in force."""

    def replace(self, settings: BrokerSettings) -> list[str]:
        """Have these as its own; what that came to, in an operator's words."""


def control_methods(
    name: str,
    administration: Administration,
    settings: SettingsHolder,
    wait_done: WaitDone,
) -> dict[str, Method]:
    """The methods that are about this broker alone, whatever it is to others.

    A command that changed something answers when `wait_done` has come back.
    """
    managed = managed_objects(administration)

    def method_of(actions: Mapping[str, Operation]) -> Method:
        async def method(params: Params) -> object:
            return await _carry_out(actions, managed, params, wait_done)

        return method

    return {
        "ping": lambda params: _ping(name, params),
        "get": lambda params: _get(settings, params),
        "set": lambda params: _set(settings, params),
        **{
            method: method_of(actions)
            for method, actions in OPERATIONS.by_method.items()
            if any(row.call is not None for row in actions.values())
        },
    }


def _ping(name: str, params: Params) -> object:
    check_parameters("ping", params)
    return {"pong": True, "name": name}


def _get(settings: SettingsHolder, params: Params) -> object:
    check_parameters("get", params)
    if "key" not in params:
        return settings.current().as_mapping()
    key = _key(params)
    try:
        return {key: settings.current().get(key)}
    except SettingsError as error:
        raise _setting_refused(error) from None


def _set(settings: SettingsHolder, params: Params) -> object:
    check_parameters("set", params)
    key = _key(params)
    if "value" not in params:
        raise ControlError(INVALID_PARAMS, f"set {key} to what? Give a value")
    before = settings.layers.own
    try:
        after = before.with_changes({key: params["value"]})
        if after.replicas.placement != before.replicas.placement:
            load_placement(after.replicas.placement)
    except SettingsError as error:
        raise _setting_refused(error) from None
    notes = settings.replace(after)
    if (in_force := settings.current().get(key)) != after.get(key):
        notes.append(f"the cluster's value counts, {in_force}: `qpid-ha config unset {key}` takes it away")
    change: dict[str, object] = {"key": key, "old": before.get(key), "new": after.get(key)}
    return {**change, "notes": notes} if notes else change


def _key(params: Params) -> str:
    key = params.get("key")
    if not isinstance(key, str) or len(key) > 200:
        raise ControlError(INVALID_PARAMS, "key is the name of a setting, such as max-connections")
    return key


def _setting_refused(error: SettingsError) -> ControlError:
    return ControlError(INVALID_PARAMS, str(error), {"key": error.key})


def _pages(listing: Listing) -> Callable[..., object]:
    """A list, or with `limit` a page of it, by names: those behind `after`, and in `next` where to go on."""

    def rows(page: Sequence[str]) -> Iterator[object]:
        for name in page:
            with suppress(ModelError):  # it is gone since, or on its way to another broker
                yield listing.facts_of(name)

    async def page(limit: int, after: str) -> object:
        there = listing.names()
        if len(there) > SORTED_AT_ONCE:
            first = await asyncio.to_thread(_first_names, there, after, limit + 1)
        else:
            first = _first_names(there, after, limit + 1)
        return {"rows": rows(first[:limit]), "next": first[limit - 1] if len(first) > limit else None}

    def listed(limit: object = None, after: object = "") -> object:
        if limit is None and after == "":
            return listing.rows()
        if not isinstance(limit, int) or isinstance(limit, bool) or not 1 <= limit <= PAGE_ROWS_MAX:
            raise ControlError(INVALID_PARAMS, f"limit is how many rows to list, from 1 to {PAGE_ROWS_MAX}")
        if not isinstance(after, str):
            raise ControlError(INVALID_PARAMS, "after is the name behind which to go on: `next` of the last page")
        return page(limit, after)

    return listed


def _first_names(names: Iterable[str], after: str, count: int) -> list[str]:
    return nsmallest(count, (name for name in names if name > after))


async def _seen(look: QueueLook) -> object:
    """All that it shows. Others have their turns meanwhile, and while the disk is read."""
    rows, budget = [], Budget(time.perf_counter, SLICE_S)
    while (entry := look.next_entry()) is not None:
        if isinstance(entry.body, BodyRef):
            (read,) = await asyncio.to_thread(read_bodies, [entry.body])
            rows.append(look.row(entry, read))
        elif entry.body is not None:
            rows.append(look.row(entry, entry.body))
        if budget.is_spent:
            await asyncio.sleep(0)
            budget = Budget(time.perf_counter, SLICE_S)
    return {**look.answer(rows), "messages": iter(rows)}


async def _carry_out(
    actions: Mapping[str, Operation], managed: ManagedObjects, params: Params, wait_done: WaitDone
) -> object:
    wanted = params.get("action", next(iter(actions)))
    row = actions.get(ALL, actions.get(wanted) if isinstance(wanted, str) else None)
    if row is None or row.call is None:
        raise ControlError(INVALID_PARAMS, f"no action {wanted!r:.80}; {nearest(f'{wanted!s:.80}', actions)}")
    check_known(params, row.known)
    given = {
        name: params.get(name)
        for name, kind in row.parameters.items()
        if name in params or kind is ParameterKind.NAME  # without a default: the administration says what is missing
    }
    try:
        call = row.call(managed)
        outcome = row.carry_out(managed.administration, _pages(call) if isinstance(call, Listing) else call, given)
        if isinstance(outcome, QueueLook):
            return await _seen(outcome)
        if isawaitable(outcome):
            return await outcome
        answer = await wait_done(outcome) if isinstance(outcome, Done | Pending) else outcome
        return {"name": given["name"], **answer} if row.counts and isinstance(answer, dict) else answer
    except ModelError as error:
        raise _refused(error) from None


def _refused(error: ModelError) -> ControlError:
    if isinstance(error, InvalidArgument):
        return ControlError(INVALID_PARAMS, str(error))
    return ControlError(REFUSED, str(error), {"reason": reason_of(error)})


def check_parameters(method: str, params: Params) -> None:
    """Refuse parameters that the operation which is asked for does not have.

    Where there is no such operation, nothing: whoever carries out `method` says so.
    """
    row = OPERATIONS.find(method, params)
    if row is not None:
        check_known(params, row.known)


def check_known(params: Params, known: Iterable[str]) -> None:
    """Refuse parameters that are not among `known`."""
    for name in params:
        if name not in known:
            hint = nearest(name[:80], known) if known else "there are none"
            raise ControlError(INVALID_PARAMS, f"unknown parameter {name!r:.80}; {hint}")
