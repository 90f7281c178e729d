"""The text of a configuration file as settings by dotted key, with their lines. Who imports this waits for PyYAML."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import yaml

from qpid_ha_config.errors import ConfigError
from qpid_ha_config.settings import SECRETS, TABLE, canonical_key
from qpid_ha_config.strict_yaml import StrictLoader, read_yaml

_SECTIONS = frozenset(key.rpartition(".")[0] for key in TABLE) - {""}


def settings_in(path: Path, text: str) -> list[tuple[str, object, int]]:
    """Dotted key as it is written, value, and line. Raises ConfigError."""

    def settings(loader: StrictLoader, root: yaml.Node | None) -> list[tuple[str, object, int]]:
        if root is None or root.tag.endswith(":null"):
            return []
        if not isinstance(root, yaml.MappingNode):
            raise ConfigError(path, "", "expected keys and values such as `name: node1`")
        return list(_flatten(loader, root, ""))

    return read_yaml(path, text, settings)


def _flatten(loader: StrictLoader, section: yaml.MappingNode, prefix: str) -> Iterator[tuple[str, object, int]]:
    """An empty section is none: all its lines may be commented out."""
    for name, node in section.value:
        if not isinstance(name, yaml.ScalarNode):
            raise yaml.constructor.ConstructorError(None, None, "a key is text", name.start_mark)
        key = f"{prefix}{name.value}"
        if isinstance(node, yaml.MappingNode) and canonical_key(key) not in TABLE and node.value:
            yield from _flatten(loader, node, f"{key}.")
            continue
        try:
            value = loader.construct_object(node, deep=True)
        except ValueError as error:  # 2026-99-99 looks like a date to YAML
            problem = f"it looks like a date or a number but is none ({error})"
            raise ConfigError(f"{loader.name}:{node.start_mark.line + 1}", key, problem) from None
        except yaml.MarkedYAMLError:
            if canonical_key(key) not in SECRETS:
                raise
            problem = "it is not text: put it in quotes"  # the library's error would show a part of it
            raise ConfigError(f"{loader.name}:{node.start_mark.line + 1}", key, problem) from None
        if key not in _SECTIONS or value not in (None, {}):
            yield key, value, name.start_mark.line + 1
