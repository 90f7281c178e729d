"""What whoever follows a page does with its blocks, and when what it shows is there."""

from __future__ import annotations

from pathlib import Path

import pytest

from doc_blocks import DOCS, Block, blocks_of
from followed_page import missing_line, steps_of

OUTPUT = """\
queue orders created
name    messages  bytes
orders         1     27
primary of generation 4
"""


def block(language: str, text: str, title: str = "") -> Block:
    return Block(DOCS / "page.md", 1, language, title, text)


def test_commands_are_typed_files_are_saved_and_output_is_compared() -> None:
    shown = [
        block("sh", "ls\n"), block("text", "a\n"), block("yaml", "# node1.yaml\nname: node1\n"),
        block("python", "# orders.py\nimport time\n", "second"), block("python", "print()\n"),
        block("sh", "ls\n", "second"),
    ]  # fmt: skip
    steps = [(step.kind, step.where) for step in steps_of(shown)]
    assert steps == [("type", ""), ("expect", ""), ("save", "node1.yaml"), ("save", "orders.py"), ("type", "second")]


@pytest.mark.parametrize(
    "shown",
    [
        OUTPUT,
        "orders 1 27",
        "name messages bytes\norders  ...\n...\nprimary of generation ...\n",
        "queue orders created\n\nprimary of ... 4\n",
        "...generation...",
    ],
)
def test_lines_come_in_their_order_with_others_between_them(shown: str) -> None:
    assert missing_line(shown, OUTPUT) == ""


@pytest.mark.parametrize(
    ("shown", "missing"),
    [
        ("orders 2 27", "orders 2 27"),
        ("orders 1 27\nname messages bytes", "name messages bytes"),
        ("orders 1 27\norders 1 27", "orders 1 27"),
        ("primary of generation", "primary of generation"),
        ("ready ...", "ready ..."),
    ],
)
def test_what_does_not_come_is_named(shown: str, missing: str) -> None:
    assert missing_line(shown, OUTPUT) == missing


def test_the_tutorial_has_commands_files_and_output_for_two_terminals() -> None:
    steps = list(steps_of(blocks_of(Path(DOCS / "tutorial.md"))))
    assert {(step.kind, step.where) for step in steps} == {
        ("type", ""), ("type", "second-terminal"), ("expect", ""), ("expect", "second-terminal"),
        ("save", "node1.yaml"), ("save", "orders.py"),
    }  # fmt: skip
