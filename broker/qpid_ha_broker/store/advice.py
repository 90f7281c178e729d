"""The exact next command after a verdict over stores: to be copied at three in the morning, and not to be made up."""

from __future__ import annotations

from collections.abc import Sequence
from shlex import quote
from typing import NamedTuple

from qpid_ha_broker.model.logs.log import DEFAULT_SET
from qpid_ha_broker.store.facts import StoreFacts, set_of


class Option(NamedTuple):
    """What an operator may choose, and how to do it."""

    text: str
    commands: tuple[str, ...]


def host_of(where: str) -> tuple[str, str]:
    """("", directory) of a store here, (host, directory) of one at `host:/directory`."""
    host, separator, path = where.partition(":")
    return (host, path) if separator and host and "/" not in host else ("", where)


def on(store: StoreFacts, command: str) -> str:
    """`command` with the store's directory, on the machine that has it."""
    host, directory = host_of(store.where)
    text = f"qpid-ha store {command.replace('DIR', quote(directory), 1)}"
    return f"ssh {quote(host)} {text}" if host else text


def start_commands(stores: Sequence[StoreFacts], chosen: StoreFacts, *, force: bool = False) -> tuple[str, ...]:
    """Start all brokers, and let the chosen one be primary. Where a resource manager starts them, it does both.

    `force`: others, or the record, know of a newer in-sync set, and would have it refused. The primary of another set
    than `default` is chosen by the controller, where nobody has to be forced.
    """
    remote = dict.fromkeys(host for host in (host_of(store.where)[0] for store in stores) if host)
    local = [store.label for store in stores if not host_of(store.where)[0]]
    starts = [f"ssh {quote(host)} systemctl start qpid-ha" for host in remote]
    if local:
        starts.append(f"systemctl start qpid-ha   # on each node: {', '.join(local)}")
    host = host_of(chosen.where)[0]
    name = set_of(chosen)
    if name != DEFAULT_SET:
        forced = f"qpid-ha set promote {name} {quote(chosen.label)} --force   # once `default` has a primary"
        return (*starts, forced) if force else tuple(starts)
    promote = "qpid-ha promote --force" if force else "qpid-ha promote"
    here = f"{promote} -b {quote(chosen.label)}   # on {chosen.label}"
    return (*starts, f"{promote} -b amqp://{host}:5672" if host else here)


def refused_advice(directory: str, *, is_alone: bool) -> str:
    """What to do with a damaged store that its broker refuses. `is_alone`: no other broker holds the same."""
    path = quote(directory)
    check = f"`qpid-ha store check {path}` lists all that is wrong"
    if is_alone:
        return f"{check}; keep the directory, and restore a copy (docs/runbooks/restore-from-a-copy.md)"
    return (
        f"{check}; while another broker of the cluster is primary: `qpid-ha store set-aside {path}`, start this broker"
        " again, and it rejoins from the others (docs/runbooks/lost-disk.md)"
    )


def refused_set_advice(directory: str, set_name: str, broker: str) -> str:
    """The same of another resource set than `default`: its broker goes on with the others."""
    again = (
        f"`qpid-ha set remove-replica {set_name} {broker} --force`, then `qpid-ha set add-replica {set_name} {broker}`"
    )
    return (
        f"`qpid-ha store check {quote(directory)}` lists all that is wrong; while another broker leads the set: {again}"
        " sets it aside and fills a new one (docs/cluster.md, Moving, and watching it)"
    )


def choose_commands(stores: Sequence[StoreFacts], chosen: StoreFacts) -> tuple[str, ...]:
    """Mark the store that a safe verdict found. Its position is the proof that it is still the one that was seen."""
    position = f"{chosen.generation}:{chosen.last_lsn}"
    mark = on(chosen, f"recover DIR --winner {quote(chosen.broker)} --position {position}")
    return (mark, *start_commands(stores, chosen))


def forced_option(stores: Sequence[StoreFacts], chosen: StoreFacts, loss: str, *, is_member: bool) -> Option:
    """Go on with that one, whatever it costs. `is_member`: of the last in-sync set, so that no broker objects."""
    mark = on(chosen, f"recover DIR --winner {quote(chosen.broker)} --force")
    return Option(f"Go on with {chosen.label}: {loss}", (mark, *start_commands(stores, chosen, force=not is_member)))
