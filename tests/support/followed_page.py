"""Follows a page as a person would, who types what it says: `python -m followed_page PAGE CLONE`.

In the order in which the blocks stand:

- commands (`sh`) are typed into a terminal, in the directory in which the one before has left it. Terminals are told
  apart by the block's title; each begins in the directory CLONE. The one without a title is waited for; what is typed
  into others runs on, as a program in another window does
- a block whose first line is a comment with a file's name (`# node1.yaml`) is saved under that name, where the terminal
  without a title is
- `text` is what the terminal of the same title shows of what was typed there last: its lines come in this order, with
  others between them perhaps. Spaces are not compared, and `...` stands for anything. With the title `example` it is
  only to be read

It ends with 1, and says what is wrong, when a command fails, or shows something else. It runs as whoever it is started
as: a page that is about /etc, about ports or about processes by their names is followed in namespaces.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import NamedTuple

from doc_blocks import Block, blocks_of
from limits import LIMIT_S
from polling import wait_until

_FILE_NAME = re.compile(r"# (?P<name>[\w.-]+\.\w+)$")
_LEFT_OUT = re.compile(r"^\.\.\..*$", re.MULTILINE)
"""Whatever somebody does there that the page does not say."""
SHELL = "sh"
OUTPUT = "text"
EXAMPLE = "example"
"""Of another cluster than the one that is there."""
FAILED = "this command has failed"


class PageFailed(Exception):
    """The page does not work as it stands."""


class Step(NamedTuple):
    """One block, and what it is for."""

    kind: str
    """`type`, `save` or `expect`."""
    where: str
    """The terminal, or the file."""
    text: str
    name: str
    """Of the block, for people."""


def steps_of(blocks: Iterable[Block]) -> Iterator[Step]:
    """What a person does with each block. Others are to be read."""
    for block in blocks:
        begin = block.text.partition("\n")[0]
        named = _FILE_NAME.match(begin)
        if block.language == SHELL:
            yield Step("type", block.title, block.text, block.name)
        elif block.language == OUTPUT and block.title != EXAMPLE:
            yield Step("expect", block.title, block.text, block.name)
        elif block.language != OUTPUT and named is not None:
            yield Step("save", named["name"], block.text, block.name)


def missing_line(shown: str, output: str) -> str:
    """The first line of what a page shows that does not come in the output, in this order; empty: all come."""
    lines = iter([" ".join(line.split()) for line in output.splitlines()])
    for line in shown.splitlines():
        wanted = " ".join(line.split())
        if not wanted.replace("...", "").strip():
            continue
        pattern = re.compile(r"\s*".join(".*" if part == "..." else re.escape(part) for part in _parts(wanted)))
        if not any(pattern.fullmatch(line) for line in lines):
            return line
    return ""


def _parts(line: str) -> list[str]:
    return [part for part in re.split(r"(\.\.\.)|\s+", line) if part]


class Terminal:
    """A shell. What is typed has no input of its own, so that nothing reads the next command instead of the shell."""

    def __init__(self, directory: Path, shell: Sequence[str] = ("bash",), may_fail: Sequence[str] = ()) -> None:
        self._may_fail = tuple(may_fail)
        self._shell = subprocess.Popen(
            list(shell), cwd=directory, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, errors="replace", bufsize=1,
        )  # fmt: skip
        self._numbers = count()
        self._lines: list[str] = []
        self._begin = 0
        self._typed = tempfile.TemporaryDirectory(prefix="qpid-ha-typed-")
        threading.Thread(target=self._read, daemon=True).start()
        self._send(f"trap 'echo {FAILED}: $BASH_COMMAND' ERR")

    def _read(self) -> None:
        if self._shell.stdout is not None:
            self._lines.extend(self._shell.stdout)

    def _send(self, line: str) -> None:
        if self._shell.stdin is None:
            raise PageFailed("the terminal has no input")
        self._shell.stdin.write(line + "\n")

    @property
    def output(self) -> str:
        """Of what was typed last."""
        return "".join(self._lines[self._begin :])

    @property
    def directory(self) -> Path:
        """Where it is."""
        return Path(f"/proc/{self._shell.pid}/cwd").resolve()

    def close(self) -> None:
        """End the shell; what runs in it ends with the namespace, or hears that nobody reads."""
        self._shell.kill()
        self._shell.wait()
        self._typed.cleanup()

    def type(self, text: str, *, waits: bool) -> None:
        """Raises PageFailed when a command fails, or does not end."""
        number = next(self._numbers)
        file = Path(self._typed.name, f"{number}.sh")
        file.write_text(_LEFT_OUT.sub("", text), encoding="utf-8")
        self._begin = len(self._lines)
        self._send(f". {file} </dev/null")
        if waits:
            end = f"end of {number} at {self._shell.pid}"
            self._send(f"echo; echo {end}")
            wait_until(lambda: f"{end}\n" in self._lines[self._begin :], lambda: f"it does not end:\n{self.output}")
            self._lines.remove(f"{end}\n")
        self.check()

    def check(self) -> None:
        """Raises PageFailed if a command has failed that may not."""
        failed = [line.removeprefix(f"{FAILED}: ") for line in self.output.splitlines() if line.startswith(FAILED)]
        if [command for command in failed if not command.startswith((". ", *self._may_fail))]:
            raise PageFailed(self.output)

    def expect(self, shown: str, limit_s: float) -> None:
        """Raises PageFailed with what is there instead."""
        try:
            wait_until(lambda: not missing_line(shown, self.output), lambda: "", limit_s)
        except TimeoutError:
            raise PageFailed(f"{missing_line(shown, self.output)!r} is not in:\n{self.output}") from None
        self.check()


def follow(
    blocks: Iterable[Block],
    clone: Path,
    limit_s: float = LIMIT_S,
    *,
    shell: Sequence[str] = ("bash",),
    may_fail: Sequence[str] = (),
) -> None:
    """Raises PageFailed, with the place on the page. `limit_s`: how long what it shows may take to come; `may_fail`:
    how commands begin that say no while something is wrong."""
    terminals: dict[str, Terminal] = {}

    def terminal(title: str) -> Terminal:
        if title not in terminals:
            terminals[title] = Terminal(clone, shell, may_fail)
        return terminals[title]

    try:
        for step in steps_of(blocks):
            try:
                _do(step, terminal(step.where if step.kind != "save" else ""), limit_s)
            except (PageFailed, TimeoutError) as failure:
                raise PageFailed(f"{step.name}: {failure}") from None
    finally:
        for each in terminals.values():
            each.close()


def _do(step: Step, terminal: Terminal, limit_s: float) -> None:
    match step.kind:
        case "type":
            print(f"--- {step.name} {step.where}\n{step.text}", end="", flush=True)
            terminal.type(step.text, waits=not step.where)
            print(terminal.output, end="", flush=True)
        case "save":
            (terminal.directory / step.where).write_text(step.text, encoding="utf-8")
        case _:
            terminal.expect(step.text, limit_s)


def main() -> None:
    """Exit code 1: the page does not work."""
    page, clone = sys.argv[1:]
    try:
        follow(blocks_of(Path(page)), Path(clone))
    except PageFailed as failure:
        print(f"THE PAGE IS WRONG: {failure}", flush=True)
        sys.exit(1)


if __name__ == "__main__":
    main()
