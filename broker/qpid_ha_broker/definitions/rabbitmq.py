"""Definitions of RabbitMQ (`rabbitmqctl export_definitions`) as ours, with a note for all that has no counterpart.

Which argument is which here is in `model.queues.foreign_arguments`. What is `durable` there is nothing here: every
queue is replicated as its set is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from qpid_ha_broker.definitions.document import (
    EXCHANGE_KINDS,
    STANDARD_PREFIX,
    BindingDefinition,
    Definitions,
    ExchangeDefinition,
    QueueDefinition,
)
from qpid_ha_broker.events.counted import counted
from qpid_ha_broker.model.queues.foreign_arguments import OF_EXCHANGES, RABBITMQ
from qpid_ha_config.errors import ConfigError, nearest

_OVERFLOW: Final = {"drop-head": "ring", "reject-publish": "reject", "reject-publish-dlx": "reject"}
_PRIORITIES_MAX: Final = 10
_LISTS: Final = ("queues", "exchanges", "bindings", "vhosts", "users", "permissions", "topic_permissions", "policies")
_ELSEWHERE: Final = {
    "users": (
        "user",
        "`qpid-ha user add` makes them; passwords cannot be taken over, their hashes are of another kind",
    ),
    "permissions": ("permission", "write rules (`acl.file`), which name each queue and exchange"),
    "topic_permissions": ("permission for topics", "write rules (`acl.file`)"),
    "policies": (
        "policy",
        "give the queues the arguments themselves, or `auto-create-arguments` and `replica-policies`",
    ),
}


def read_rabbitmq(path: Path | str, text: str, vhost: str = "/") -> tuple[Definitions, list[str]]:
    """What the file has of that virtual host, and what of it has no counterpart. Raises ConfigError."""
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ConfigError(path, "", f"it is no JSON, as `rabbitmqctl export_definitions` writes it: {error}") from None
    if not isinstance(document, dict) or not isinstance(document.get("queues"), list):
        raise ConfigError(path, "queues", "no list: expected what `rabbitmqctl export_definitions` writes")
    for name in _LISTS:
        rows = document.get(name, [])
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise ConfigError(path, name, "expected a list of objects")
    hosts = {str(row.get("name")) for row in document.get("vhosts", [])} | {
        str(row.get("vhost", "/")) for row in document["queues"]
    }
    if vhost not in hosts and hosts:
        raise ConfigError(path, "vhosts", f"there is no virtual host {vhost}; {nearest(vhost, hosts)}")
    return _Translation(path, document, vhost).translated()


class _Translation:
    def __init__(self, path: Path | str, document: Mapping[str, Any], vhost: str) -> None:
        self._path = path
        self._document = document
        self._vhost = vhost
        self._notes: list[str] = []

    def translated(self) -> tuple[Definitions, list[str]]:
        queues = tuple(queue for row in self._rows("queues") if (queue := self._queue(row)) is not None)
        exchanges = tuple(exchange for row in self._rows("exchanges") if (exchange := self._exchange(row)) is not None)
        there = {queue.name for queue in queues}
        sources = {exchange.name for exchange in exchanges}
        bindings = tuple(
            binding for row in self._rows("bindings") if (binding := self._binding(row, there, sources)) is not None
        )
        for name, (one, text) in _ELSEWHERE.items():
            if self._document.get(name):
                several = name.replace("topic_permissions", "permissions for topics")
                self._notes.append(f"{counted(len(self._document[name]), one, several)}: {text}")
        return Definitions(exchanges=exchanges, queues=queues, bindings=bindings), self._notes

    def _rows(self, name: str) -> list[dict[str, Any]]:
        return [row for row in self._document.get(name, []) if row.get("vhost", "/") == self._vhost]

    def _name(self, row: Mapping[str, Any], key: str, kind: str) -> str:
        name = row.get(key)
        if not isinstance(name, str):
            raise ConfigError(self._path, kind, f"an entry has no {key}: {str(row)[:80]}")
        return name

    def _queue(self, row: Mapping[str, Any]) -> QueueDefinition | None:
        name, given = self._name(row, "name", "queues"), _arguments(row)
        if given.get("x-queue-type") == "stream":
            self._notes.append(f"queue {name} is a stream, which there is not here: it is left out")
            return None
        if row.get("auto_delete"):
            self._notes.append(f"queue {name} goes with its last consumer: its consumer makes it, and it is left out")
            return None
        arguments: dict[str, object] = {}
        for key, value in given.items():
            counterpart = RABBITMQ.get(key)
            if key == "x-max-priority" and isinstance(value, int):
                arguments["qpid.priorities"] = min(value + 1, _PRIORITIES_MAX)
            elif key == "x-single-active-consumer":
                arguments["qpid.single_active_consumer"] = bool(value)
            elif key == "x-expires" and isinstance(value, int):
                arguments |= {"qpid.auto_delete": True, "qpid.auto_delete_delay_s": value / 1000}
            elif counterpart is not None and counterpart.own and not counterpart.how and value != "":
                arguments[counterpart.own] = value
            elif key != "x-overflow" and not (counterpart is not None and counterpart.is_needless):
                self._notes.append(f"queue {name}: {key} = {value!s:.80} has no counterpart")
        if "x-max-length" in given or "x-max-length-bytes" in given:
            arguments["qpid.policy_type"] = _OVERFLOW.get(str(given.get("x-overflow", "drop-head")), "ring")
        return QueueDefinition(name, "", arguments)

    def _exchange(self, row: Mapping[str, Any]) -> ExchangeDefinition | None:
        name, kind = self._name(row, "name", "exchanges"), str(row.get("type"))
        if not name or name.startswith(STANDARD_PREFIX):
            return None
        if kind not in EXCHANGE_KINDS:
            self._notes.append(f"exchange {name} is of the type {kind}, which there is not here: it is left out")
            return None
        given = _arguments(row)
        arguments: dict[str, object] = {}
        for key, value in given.items():
            if key in OF_EXCHANGES:
                arguments[OF_EXCHANGES[key].own] = value
            else:
                self._notes.append(f"exchange {name}: {key} = {value!s:.80} has no counterpart")
        return ExchangeDefinition(name, kind, arguments)

    def _binding(self, row: Mapping[str, Any], queues: set[str], exchanges: set[str]) -> BindingDefinition | None:
        source, target = self._name(row, "source", "bindings"), self._name(row, "destination", "bindings")
        key = str(row.get("routing_key", ""))
        if not source:
            return None  # each queue has one to the default exchange, which is its address here
        if row.get("destination_type") != "queue":
            self._notes.append(f"exchange {target} is bound to exchange {source}: bind its queues there themselves")
            return None
        if target not in queues or not (source in exchanges or source.startswith(STANDARD_PREFIX)):
            self._notes.append(f"the binding of {target} to {source} is left out with one of the two")
            return None
        name = "amq.match" if source == "amq.headers" else source
        return BindingDefinition(name, target, key, _arguments(row))


def _arguments(row: Mapping[str, Any]) -> dict[str, Any]:
    arguments = row.get("arguments")
    return dict(arguments) if isinstance(arguments, dict) else {}
