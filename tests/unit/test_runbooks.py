"""The commands that the pages show: each is one that the tools take, and none is repeated without an end."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import click
import pytest

from qpid_ha_agent.cli.admin import admin
from qpid_ha_broker.ha.record_keeper import COORDINATOR, controller_of
from typed_commands import parse

ROOT = Path(__file__).parents[2]
PAGES = sorted([*(ROOT / "docs").glob("*.md"), ROOT / "README.md", ROOT / "vagrant" / "README.md"])
_BLOCK = re.compile(r"^ *```sh\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
_COMMAND = re.compile(r"(?:^\s*|&&\s*|[|;']\s*|\bdo\s+|\bthen\s+)(?:\S*/)?qpid-ha (?P<words>[^#|&;')]*)")
_INLINE = re.compile(r"`qpid-ha ([^`]+)`")
_PLACES = {"$node": "node1", "...": "ha.brokers-url=amqp://a:5672", "HOST:PORT": "node1:5672"}


def lines(page: Path) -> Iterator[str]:
    """Those of the blocks with commands; one that ends with a backslash goes on in the next."""
    for block in _BLOCK.findall(page.read_text(encoding="utf-8")):
        yield from re.sub(r"\\\n\s*", " ", block).splitlines()


def commands(page: Path) -> list[str]:
    """What stands behind `qpid-ha`, for each time that it is called."""
    return [found["words"].strip() for line in lines(page) for found in _COMMAND.finditer(line.partition("  #")[0])]


def mentions(page: Path) -> list[str]:
    """The same of those in a sentence, which may leave out what a command is about."""
    return _INLINE.findall(page.read_text(encoding="utf-8").replace("\n", " "))


def as_typed(words: str) -> list[str]:
    """With something in the places of what the page leaves open."""
    for place, value in _PLACES.items():
        words = words.replace(place, value)
    return shlex.split(words)


SHOWN = [pytest.param(words, id=f"{page.stem}: {words}") for page in PAGES for words in dict.fromkeys(commands(page))]
REFUSALS = "".join([*COORDINATOR, *controller_of("orders")])
"""What members of resource sets refuse with: it names commands, too."""
MENTIONED = [pytest.param(text, id=f"{page.stem}: {text}") for page in PAGES for text in dict.fromkeys(mentions(page))]


def test_the_pages_show_commands() -> None:
    assert len(SHOWN) > 30


@pytest.mark.parametrize("words", SHOWN)
def test_a_command_that_a_page_shows_is_one(words: str) -> None:
    with suppress(click.exceptions.Exit):  # --help, --version
        parse(admin, as_typed(words))


@pytest.mark.parametrize("text", [*MENTIONED, *dict.fromkeys(_INLINE.findall(REFUSALS))])
def test_a_command_that_a_sentence_names_is_one(text: str) -> None:
    with suppress(click.exceptions.Exit, click.MissingParameter, click.exceptions.NoArgsIsHelpError):
        parse(admin, as_typed(text))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_no_page_asks_again_and_again_without_an_end(page: Path) -> None:
    """A login that is refused would be refused for ever: `status --expect STATE --wait DURATION` ends."""
    assert [line for line in lines(page) if re.search(r"\b(until|while)\b.*qpid-ha", line)] == []
