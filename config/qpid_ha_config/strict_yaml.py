"""YAML files of people as nodes with their lines, and what is wrong with one, in one line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import yaml

from qpid_ha_config.errors import ConfigError

Read = TypeVar("Read")


class StrictLoader(yaml.SafeLoader):
    """YAML without what surprises in a file that people write: keys that are there twice, and references.

    A few lines of references can stand for gigabytes.
    """

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Raises ConstructorError for a reference."""
        if self.check_event(yaml.AliasEvent):
            raise yaml.constructor.ConstructorError(
                None, None, "references (*name) are not allowed here", self.get_mark()
            )
        return super().compose_node(parent, index)

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        """Raises ConstructorError for a key that is there twice."""
        node = super().compose_mapping_node(anchor)
        seen: set[str] = set()
        for key, _value in node.value:
            if isinstance(key, yaml.ScalarNode):
                if key.value in seen:
                    problem = f"the key {key.value!r} is there twice; take one out"
                    raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
                seen.add(key.value)
        return node


def _text(loader: StrictLoader, node: yaml.ScalarNode) -> str:
    """JSON writes a character beyond U+FFFF as two halves, and YAML would leave it at that."""
    text = str(loader.construct_scalar(node))
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")


StrictLoader.add_constructor("tag:yaml.org,2002:str", _text)


def read_yaml(path: Path | str, text: str, read: Callable[[StrictLoader, yaml.Node | None], Read]) -> Read:
    """What `read` makes of the one document in `text`; None: it is empty. Raises ConfigError with file and line."""
    try:
        loader = StrictLoader(text)
        loader.name = str(path)
        return read(loader, loader.get_single_node())
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
