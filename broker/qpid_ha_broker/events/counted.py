"""How a number of things is written, in log lines, refusals and answers for people."""

from __future__ import annotations


def counted(number: object, thing: str, things: str = "") -> str:
    """`1 message`, `2 messages`.

    `thing` may go on with a verb, and `things` then with that of several: `1 message was`. `number`: what is none, as
    of an older broker that does not tell it, is written as it is.
    """
    return f"{number} {thing if number == 1 else things or f'{thing}s'}"
