"""What whoever follows a page does with its blocks, and when what it shows is there."""

from __future__ import annotations

from pathlib import Path

import pytest

from doc_blocks import DOCS, Block, blocks_of
from followed_page import PageFailed, missing_line, steps_of
from runbook_stories import STORIES, Story
from three_machines import blocks_of_story

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


def test_each_runbook_is_followed() -> None:
    assert STORIES.keys() == {page.stem for page in (DOCS / "runbooks").glob("*.md")}


@pytest.mark.parametrize("page", STORIES)
def test_a_story_names_lines_that_its_page_has(page: str) -> None:
    story = STORIES[page]
    typed = "".join(block.text for block in blocks_of_story(DOCS / "runbooks" / f"{page}.md", story))
    assert all(text in typed for text in (*story.besides.values(), *story.instead.values()))


def _typed(tmp_path: Path, text: str, story: Story) -> list[str]:
    page = tmp_path / "page.md"
    page.write_text(text, encoding="utf-8")
    return [block.text.strip() for block in blocks_of_story(page, story)]


def test_what_a_sentence_says_is_typed_before_the_block_below_it(tmp_path: Path) -> None:
    page = "## Do\n\n```sh\nmend\n```\n\nStart all.\n\n## Check\n\n```sh\nlook\n```\n\n## In the end\n"
    story = Story(besides={"Start all.": "start", "## In the end": "end"})
    assert _typed(tmp_path, page, story) == ["mend", "start", "look", "end"]
    assert _typed(tmp_path, page, Story(first="## Check", besides={"## Do": "break"})) == ["look", "break", "mend"]
    with pytest.raises(PageFailed, match="no line begins with 'Begin'"):
        _typed(tmp_path, page, Story(besides={"Begin": "begin"}))


def test_a_command_is_typed_where_its_comment_says(tmp_path: Path) -> None:
    page = "```sh\nlook        # who it is\nstop 'it'   # on node2, say\nlook   # on every machine: all of it\n```\n"
    look, stop, look_everywhere = _typed(tmp_path, page, Story())[0].splitlines()
    assert look == "look        # who it is"
    assert stop == """ssh node2 'stop '"'"'it'"'"''"""
    assert look_everywhere == "for node in node1 node2 node3; do ssh $node look; done"


def test_numbers_times_and_what_is_left_out_may_differ_from_what_a_page_shows(tmp_path: Path) -> None:
    page = "```text\n14:02:10 node2 follows: 12 of 13, version 2.1, none -  at amqp://10.0.0.1:5672\n```\n"
    [shown] = _typed(tmp_path, page, Story())
    said = "03:04:05 node2 follows: 7 of 8, version 0.1, none 1 node3 at amqp://10.0.0.1:5672\n"
    assert missing_line(shown, said) == ""
    assert missing_line(shown, said.replace("node2", "node3"))
