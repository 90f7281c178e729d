"""What settings are in force in this broker: its own, and above them those of the cluster.

| layer | who says it | how long |
| --- | --- | --- |
| default | this release | |
| own | the configuration file, and `config set --here` above it | until a restart, as far as it was set at run time |
| cluster | `config set` at any broker: the map in `default` has it | until `config unset` |

The upper one counts. A value of the cluster that does not go together with this broker's own (`max-message-size` above
its `memory-limit`), or that a newer release has written, is left out, and `problems` says why.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import NamedTuple

from qpid_ha_broker.server.control.placements import load_placement
from qpid_ha_config.errors import SettingsError
from qpid_ha_config.kinds import ChangeScope
from qpid_ha_config.settings import TABLE, BrokerSettings, find


class LayeredSetting(NamedTuple):
    """A setting that some layer above the defaults has, each value as JSON can carry it."""

    key: str
    default: object
    own: object
    cluster: object
    """None: the cluster says nothing."""
    in_force: object
    problem: str
    """Why it is not that of the cluster; empty: it is, or there is none."""


class SettingLayers:
    """The promise: what is in force is made of the layers alone, whatever happened in which order."""

    def __init__(self, own: BrokerSettings) -> None:
        self.own = self.current = own
        """`current`: all layers."""
        self.shared: Mapping[str, str] = {}
        """Of the cluster, as JSON. In force with the next `change`."""
        self.problems: dict[str, str] = {}
        """Why a value of the cluster is not in force here, by key."""

    def change(self, own: BrokerSettings) -> BrokerSettings:
        """This broker's own are others; what is in force then."""
        self.own, self.current = own, self._in_force(own)
        return self.current

    def _in_force(self, own: BrokerSettings) -> BrokerSettings:
        values, self.problems = {}, {}
        for key, text in sorted(self.shared.items()):
            try:
                values[key] = _read(key, text)
            except SettingsError as error:
                self.problems[key] = str(error)
        try:
            return _changed(own, values)
        except SettingsError:  # of those that do not go together, as many as can be had
            settings = own
        for key, value in values.items():
            try:
                settings = _changed(settings, {key: value})
            except SettingsError as error:
                self.problems[key] = str(error)
        return settings

    def check(self, key: str, value: object) -> None:
        """Whether this broker can put that in force for the cluster. Raises SettingsError."""
        check_of_cluster(key)
        others = {name: _read(name, text) for name, text in self.shared.items() if name not in (key, *self.problems)}
        _changed(self.own, {**others, key: value})

    def check_unset(self, key: str) -> None:
        """Whether this broker can do without what the cluster says. Raises SettingsError."""
        others = {name: _read(name, text) for name, text in self.shared.items() if name not in (key, *self.problems)}
        _changed(self.own, others)

    def rows(self) -> list[LayeredSetting]:
        """Settings for which the file, an operator or the cluster says something else than the default, by key."""
        rows: list[LayeredSetting] = []
        for key, row in TABLE.items():
            default = row.setting.show(row.default() if callable(row.default) else row.default)
            own, text = self.own.get(key), self.shared.get(key, "")
            if text or own != default:
                problem = self.problems.get(key, "")
                rows.append(LayeredSetting(key, default, own, shown_text(text), self.current.get(key), problem))
        for key in self.shared.keys() - TABLE.keys():
            rows.append(LayeredSetting(key, None, None, shown_text(self.shared[key]), None, self.problems[key]))
        return sorted(rows)


def check_of_cluster(key: str) -> None:
    """Raises SettingsError where each broker has a value of its own."""
    setting = find(key).setting
    if setting.change is ChangeScope.RESTART:
        raise SettingsError(key, "cannot change while brokers run: change the configuration files and restart them")
    if setting.change is ChangeScope.HERE:
        raise SettingsError(key, "each broker has its own: `qpid-ha config set --here` changes it in this one")


def shown_value(key: str, value: object) -> str:
    """The text under which the cluster keeps it. Raises SettingsError."""
    setting = find(key).setting
    return json.dumps(setting.show(setting.read(value)), sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def shown_text(text: str) -> object:
    """What the cluster keeps under `text`, as people are shown it; None: nothing."""
    try:
        return json.loads(text) if text else None
    except ValueError:
        return text


def _read(key: str, text: str) -> object:
    check_of_cluster(key)
    try:
        value: object = json.loads(text)
    except ValueError as error:
        raise SettingsError(key, f"what the cluster has is no JSON: {error}") from None
    return value


def _changed(settings: BrokerSettings, values: Mapping[str, object]) -> BrokerSettings:
    changed = settings.with_changes(values)
    if changed.replicas.placement != settings.replicas.placement:
        load_placement(changed.replicas.placement)
    return changed
