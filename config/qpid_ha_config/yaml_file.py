"""The text of a configuration file as settings by dotted key, with their lines. Who imports this waits for PyYAML."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from qpid_ha_config.errors import ConfigError
from qpid_ha_config.settings import SECRETS, TABLE, canonical_key

_SECTIONS = frozenset(key.rpartition(".")[0] for key in TABLE) - {""}


class _StrictLoader(yaml.SafeLoader):
    """YAML without what surprises in a configuration: keys that are there twice, and references.

    A few lines of references can stand for gigabytes.
    """

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.AliasEvent):
            raise yaml.constructor.ConstructorError(
                None, None, "references (*name) are not allowed here", self.get_mark()
            )
        return super().compose_node(parent, index)

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        seen: set[str] = set()
        for key, _value in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    problem = f"the key {key.value!r} is there twice; take one out"
                    raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
                seen.add(key.value)
        return node


def settings_in(path: Path, text: str) -> list[tuple[str, object, int]]:
    """Dotted key as it is written, value, and line. Raises ConfigError."""
    try:
        loader = _StrictLoader(text)
        loader.name = str(path)
        root = loader.get_single_node()
        if root is None or root.tag.endswith(":null"):
            return []
        if not isinstance(root, yaml.MappingNode):
            raise ConfigError(path, "", "expected keys and values such as `name: node1`")
        return list(_flatten(loader, root, ""))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = f"{path}:{mark.line + 1}:{mark.column + 1}" if mark is not None else str(path)
        is_constructor_error = isinstance(error, yaml.constructor.ConstructorError)
        problem = error.problem or error.context or "it cannot be parsed"
        raise ConfigError(place, "", problem if is_constructor_error else f"it is not YAML: {problem}") from None
    except yaml.reader.ReaderError as error:
        line, column = text.count("\n", 0, error.position) + 1, error.position - text.rfind("\n", 0, error.position)
        problem = f"the character U+{ord(text[error.position]):04X} is not allowed"
        raise ConfigError(f"{path}:{line}:{column}", "", problem) from None
    except RecursionError:
        raise ConfigError(path, "", "it is nested too deeply") from None


def _flatten(loader: _StrictLoader, section: yaml.MappingNode, prefix: str) -> Iterator[tuple[str, object, int]]:
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
