"""What is wrong with a setting, said in one line: where it was read, its key, and what to do about it."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path


class SettingsError(Exception):
    """A setting that cannot be: `key` (dotted, as in the configuration file) and what to do about it."""

    def __init__(self, key: str, problem: str) -> None:
        super().__init__(f"{key}: {problem}" if key else problem)
        self.key = key
        self.problem = problem


class ConfigError(SettingsError):
    """A wrong setting with the `source` it was read from: a path, with the line if it is known, or `command line`."""

    def __init__(self, source: Path | str, key: str, problem: str) -> None:
        super().__init__(key, problem)
        self.source = source

    def __str__(self) -> str:
        return f"{self.source}: {super().__str__()}"


class UnreadableConfig(ConfigError):
    """There is no such file on this machine, or it cannot be read."""


class ForbiddenConfig(UnreadableConfig):
    """The file is there, and this user may not read it."""


def nearest(word: str, known: Iterable[str]) -> str:
    """A hint for a word that is not known: the nearest one, or all when none is near."""
    import difflib  # only who has made a mistake waits for it

    names = sorted(known)
    close = difflib.get_close_matches(word.replace("_", "-").lower(), names, n=1, cutoff=0.5)
    return f"did you mean {close[0]}?" if close else f"known: {', '.join(names)}"


def shown(value: object) -> str:
    """A value as an error quotes it, never long, and without the password of a URL or of an entry `password`."""
    import re

    text = re.sub(r"('password': )('[^']*'|\"[^\"]*\"|[^,}]*)", r"\1...", repr(value))
    text = re.sub(r"(?<=[^:/]):(?!//)[^@\s]*@", ":...@", text)
    return text if len(text) <= 80 else f"{text[:77]}..."
