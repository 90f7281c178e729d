"""The commands in what people type at a shell, told apart without running any."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Sequence

_DOCUMENT = re.compile(r"^(?P<line>.*)<<'PYTHON'(?P<rest>.*)\n(?P<text>(?:.*\n)*?)PYTHON$", re.MULTILINE)
_SUBSTITUTION = re.compile(r"\$\(([^()]*)\)")
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_OPERATORS = set("();&|{}")
_WORDS_BEFORE = {"do", "then", "else", "if", "while", "until", "!", "exec", "time", "nohup", "sudo", "command"}
_ENDS = {"done", "fi", "esac"}
GAP = "..."
"""Stands for commands that a page leaves out."""


def whole_lines(script: str) -> Iterator[str]:
    """Its lines; one whose quote is open, or that ends with a backslash, goes on in the next."""
    begun = ""
    for line in script.splitlines():
        begun += line
        try:
            shlex.split(begun, comments=True)
        except ValueError:
            begun = begun.removesuffix("\\") + (" " if begun.endswith("\\") else "\n")
            continue
        if begun.strip():
            yield begun
        begun = ""
    if begun:
        raise ValueError(f"a quote is not closed: {begun}")


def commands_of(script: str) -> Iterator[list[str]]:
    """The words of each command, the inner one where a command only says where or as whom another one runs.

    A document for Python that stands in the script is as `python -c TEXT`.
    """
    for found in _DOCUMENT.finditer(script):
        yield ["python", "-c", found["text"]]
    for line in whole_lines(_DOCUMENT.sub(r"\g<line>\g<rest>", script)):
        inner: list[str] = []

        def substituted(found: re.Match[str], inner: list[str] = inner) -> str:
            inner.append(found[1])
            return "SUBSTITUTED"

        outer = _SUBSTITUTION.sub(substituted, line)
        for text in inner:
            yield from commands_of(text)
        yield from _commands_of_line(outer)


def _commands_of_line(line: str) -> Iterator[list[str]]:
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words: list[str] = []
    tokens = list(lexer)
    place = 0
    while place < len(tokens):
        token = tokens[place]
        place += 1
        if set(token) <= _OPERATORS and token != "{}":
            yield from _unwrapped(words)
            words = []
        elif set(token) <= set("<>&"):  # where it goes, and which of its outputs
            if words and words[-1] in ("1", "2"):
                words.pop()
            place += 1
        else:
            words.append(token)
    yield from _unwrapped(words)


def _unwrapped(words: Sequence[str]) -> Iterator[list[str]]:
    words = list(words)
    while words and (words[0] in _WORDS_BEFORE or _ASSIGNMENT.match(words[0])):
        words.pop(0)
    if not words or words[0] in (GAP, "for") or words[0] in _ENDS:
        return
    wrapper = _WRAPPERS.get(words[0])
    if wrapper is None:
        yield words
    else:
        yield from wrapper(words)


def _ssh(words: list[str]) -> Iterator[list[str]]:
    yield from commands_of(" ".join(words[2:]))


def _vagrant(words: list[str]) -> Iterator[list[str]]:
    yield words
    if words[1] == "ssh" and "-c" in words:
        yield from commands_of(words[words.index("-c") + 1])


def _behind_dashes(words: list[str]) -> Iterator[list[str]]:
    yield from _unwrapped(words[words.index("--") + 1 :] if "--" in words else [])


def _in_container(words: list[str]) -> Iterator[list[str]]:
    yield words
    if "exec" in words:
        yield from _unwrapped(words[words.index("exec") + 2 :])


def _kubectl(words: list[str]) -> Iterator[list[str]]:
    yield words
    yield from _behind_dashes(words)


_WRAPPERS: dict[str, Callable[[list[str]], Iterator[list[str]]]] = {
    "ssh": _ssh,
    "vagrant": _vagrant,
    "runuser": _behind_dashes,
    "podman-compose": _in_container,
    "kubectl": _kubectl,
}
"""Commands that have another one run."""
