"""The parameters of the resource: one table, from which metadata, defaults and checks come."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeVar

from qpid_ha_config.defaults import CONFIG_FILE
from qpid_ha_config.scalars import parse_boolean, parse_count, parse_timeout_s

PREFIX = "OCF_RESKEY_"
Value = TypeVar("Value")


class ParameterError(Exception):
    """A parameter is wrong on every node; the text names it and says what it should be."""

    def __init__(self, parameter: str, text: str) -> None:
        super().__init__(f"{parameter}: {text}")
        self.parameter = parameter


class Parameter(NamedTuple):
    """One row. `kind` is the content type that the metadata shows; durations are text with a unit."""

    name: str
    kind: str
    default: str
    short: str
    long: str
    reloadable: bool = False
    unique_group: str = ""


TABLE = (
    Parameter(
        "config", "string", str(CONFIG_FILE), "The broker's configuration file",
        "The configuration file (YAML) of the broker, on each node. It needs ha.cluster: true, ha.brokers-url, and"
        " ha.coordinator: pacemaker.", unique_group="config",
    ),
    Parameter(
        "binary", "string", "", "The broker's program",
        "The program that is started. Empty: the qpidd of the installation that this agent belongs to.",
    ),
    Parameter(
        "user", "string", "qpid-ha", "The user that the broker runs as",
        "The broker runs as this user with all its groups; it has to be in the group haclient, so that it may record"
        " generations and in-sync sets in the cluster's CIB.",
    ),
    Parameter(
        "data_dir", "string", "", "The broker's data directory",
        "A directory of this broker alone. Empty: data-dir of the configuration file.",
    ),
    Parameter(
        "control_socket", "string", "", "The broker's control socket",
        "Where the agent talks with the broker. Empty: control-socket of the configuration file, or"
        " /run/qpid-ha/NAME.sock.",
    ),
    Parameter(
        "log_file", "string", "", "Where the broker's output goes",
        "Where what the broker prints is appended. Empty: /var/log/qpid-ha/NAME.log.",
    ),
    Parameter(
        "virtual_ip", "string", "", "The address that moves with the primary",
        "An IPv4 or IPv6 address with its prefix length, such as 192.0.2.10/24, which is up where the primary is."
        " Empty: none, or one that another resource manages (ocf:heartbeat:IPaddr2).",
    ),
    Parameter(
        "virtual_ip_nic", "string", "", "The network interface of the virtual IP",
        "Empty: the interface whose network the address belongs to.",
    ),
    Parameter(
        "start_timeout", "string", "60s", "How long a start may take",
        "How long the broker may take from its start to its first answer, which comes before it loads its store. An"
        " action's own timeout beats it when that is shorter.", reloadable=True,
    ),
    Parameter(
        "stop_timeout", "string", "30s", "How long a stop may take",
        "How long the broker may take to end, and to close its store, before it is killed. What was confirmed is on"
        " disk in any case.", reloadable=True,
    ),
    Parameter(
        "promote_timeout", "string", "20s", "How long a promotion may take",
        "How long the broker may take to become primary, or to say why not.", reloadable=True,
    ),
    Parameter(
        "hang_timeout", "string", "3s", "How long a broker may be silent",
        "A broker that gives no answer for so long counts as failed. One that may be primary is killed before another"
        " one is promoted.", reloadable=True,
    ),
    Parameter(
        "max_lag", "integer", "10000", "How far behind the furthest a new primary may be, in messages",
        "After an unplanned loss of the primary, a candidate that holds everything confirmed, and is behind the"
        " furthest one by no more than so many unconfirmed messages, goes on, because another election costs time."
        " 0: only the furthest is promoted.", reloadable=True,
    ),
    Parameter(
        "watch", "boolean", "true", "Report a dead broker at once",
        "A small process watches the broker and tells Pacemaker at once when it dies or hangs, so that failover does"
        " not wait for the next monitor.", reloadable=True,
    ),
    Parameter(
        "action_server", "boolean", "true", "Keep the agent loaded",
        "A process that has loaded the agent carries out monitor, notify, promote and demote, so that a failover does"
        " not wait for Python to start. Where it does not answer, the action is carried out without it.",
        reloadable=True,
    ),
)  # fmt: skip


class Parameters(NamedTuple):
    """The values, read and checked as far as they can be without looking at the machine."""

    config: str
    binary: str
    user: str
    data_dir: str
    control_socket: str
    log_file: str
    virtual_ip: str
    virtual_ip_nic: str
    start_timeout_s: float
    stop_timeout_s: float
    promote_timeout_s: float
    hang_timeout_s: float
    max_lag: int
    watch: bool
    action_server: bool


def read_parameters(environment: Mapping[str, str] = os.environ) -> Parameters:
    """From the environment that Pacemaker makes. Raises ParameterError."""
    texts = {row.name: environment.get(PREFIX + row.name) or row.default for row in TABLE}
    for name in ("config", "data_dir", "control_socket", "log_file"):
        if texts[name] and not texts[name].startswith("/"):
            raise ParameterError(name, f"{texts[name]!r} is not an absolute path")
    return Parameters(
        config=texts["config"],
        binary=texts["binary"],
        user=texts["user"],
        data_dir=texts["data_dir"],
        control_socket=texts["control_socket"],
        log_file=texts["log_file"],
        virtual_ip=texts["virtual_ip"],
        virtual_ip_nic=texts["virtual_ip_nic"],
        start_timeout_s=_duration(texts, "start_timeout"),
        stop_timeout_s=_duration(texts, "stop_timeout"),
        promote_timeout_s=_duration(texts, "promote_timeout"),
        hang_timeout_s=_duration(texts, "hang_timeout"),
        max_lag=_read(texts, "max_lag", parse_count, "a number of messages, 0 or more"),
        watch=_read(texts, "watch", parse_boolean, "true or false"),
        action_server=_read(texts, "action_server", parse_boolean, "true or false"),
    )


def without_wrong_ones(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment as if the parameters that are wrong had not been set."""
    kept = dict(environment)
    while True:
        try:
            read_parameters(kept)
        except ParameterError as error:
            del kept[PREFIX + error.parameter]
        else:
            return kept


def _duration(texts: Mapping[str, str], name: str) -> float:
    return _read(texts, name, parse_timeout_s, "a time above 0, such as 20s or 500ms")


def _read(texts: Mapping[str, str], name: str, read: Callable[[str], Value], expected: str) -> Value:
    try:
        return read(texts[name])
    except ValueError:
        raise ParameterError(name, f"{texts[name]!r} is not {expected}") from None
