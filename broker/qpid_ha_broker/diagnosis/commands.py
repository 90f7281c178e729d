"""Commands that a text suggests, made complete for the one who reads it, so that they can be pasted as they are. Pure.

Findings, refusals and advice are worded where nobody knows who reads them: `qpid-ha history` is said of the broker that
is meant. Where several brokers share a machine that would be another one, or none. So whoever shows such a text says by
what the reader has come to his broker, and this puts it into each command.
"""

from __future__ import annotations

import re
import shlex
from typing import Final, NamedTuple

OURS: Final = "qpid-ha"
COMMENT: Final = "   # "
"""Between a command and what is said of it."""
ELSEWHERE: Final = "on "
"""How a comment begins that says where a command is typed: what its reader has said here is not said there."""
_WITHOUT_BROKER: Final = frozenset({("coordinator",), ("pause",), ("resume",), ("store",), ("config", "describe")})
"""Commands that go by a configuration or by files: no broker is asked."""
_BROKER_OPTIONS: Final = ("-b", "--broker")
_QUOTED: Final = re.compile(rf"`({OURS} [^`]+)`")


class Reader(NamedTuple):
    """Who reads it: what he has said to come to his broker. All empty: nothing, and nothing has to be said again."""

    broker: str = ""
    """As `-b` has it."""
    password_file: str = ""
    """Of `--password-file`."""
    config: str = ""
    """A configuration file that is not that of the machine: `QPID_HA_CONFIG`."""

    @property
    def user(self) -> str:
        """Of a remote broker; empty: none was given."""
        return self.broker.partition("://")[2].rpartition("@")[0]


def complete(command: str, reader: Reader) -> str:
    """The command with what `reader` has to say besides; one that says it, is typed elsewhere, or is none of ours stays
    as it is."""
    typed, mark, comment = command.partition(COMMENT)
    if comment.startswith(ELSEWHERE):
        return command
    try:
        words = shlex.split(typed)
    except ValueError:
        return command
    if words[:1] != [OURS]:
        return command
    typed, broker = _with_user(typed, words, reader)
    asks = not ({tuple(words[1:2]), tuple(words[1:3])} & _WITHOUT_BROKER or "--here" in words)
    options: list[str] = []
    if asks and not broker and reader.broker:
        broker = reader.broker
        options += ["-b", shlex.quote(broker)]
    if reader.password_file and asks and "://" in broker and "--password-file" not in words:
        options += ["--password-file", shlex.quote(reader.password_file)]
    config = f"QPID_HA_CONFIG={shlex.quote(reader.config)} " if reader.config else ""
    return f"{config}{' '.join([OURS, *options])}{typed.removeprefix(OURS)}{mark}{comment}"


def complete_text(text: str, reader: Reader) -> str:
    """The text with all commands of ours in it complete, which stand between backticks."""
    return _QUOTED.sub(lambda quoted: f"`{complete(quoted[1], reader)}`", text)


def _with_user(typed: str, words: list[str], reader: Reader) -> tuple[str, str]:
    """The command, and the broker that it names itself, as the reader's user; empty: it names none."""
    at = next((number for number, word in enumerate(words[:-1]) if word in _BROKER_OPTIONS), None)
    if at is None:
        return typed, ""
    broker = words[at + 1]
    if not reader.user or "@" in broker or not broker.startswith("amqp"):
        return typed, broker
    as_user = broker.replace("://", f"://{reader.user}@")
    return typed.replace(f" {broker}", f" {as_user}", 1), as_user
