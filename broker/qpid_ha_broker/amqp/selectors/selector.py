"""Which messages a consumer wants, in the words of JMS: `color = 'red' AND size BETWEEN 3 AND 5`.

A selector is read once, when a link attaches, and asked once per message from then on. So the text becomes nested
functions (`selector_logic`).

Source: JMS 3.1, section 3.8.1; the filter `apache.org:selector-filter:string` of the AMQP filter registry.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache

from qpid_ha_broker.amqp.selectors.grammar import compile_condition
from qpid_ha_broker.amqp.selectors.logic import Evaluate, Lookup, SelectorError, constant

__all__ = ["MAX_SELECTOR_CHARACTERS", "Lookup", "Selector", "SelectorError", "parse_selector"]

MAX_SELECTOR_CHARACTERS = 16384


@dataclass(frozen=True, slots=True)
class Selector:
    """Promise: `matches` answers for whatever `lookup` gives, and never raises unless `lookup` does."""

    text: str
    identifiers: frozenset[str]
    """The names that `matches` may look up: where all are header fields, the properties need not be parsed."""
    cost: int
    """What a message costs at most, in units of about a microsecond; looking the names up comes on top."""
    _evaluate: Evaluate = field(repr=False, compare=False)

    def matches(self, lookup: Lookup) -> bool:
        """Whether the condition is true: not when it is false, and not when it is unknown.

        `lookup` gives the value of a property or header field by its name, None when there is none.
        """
        return self._evaluate(lookup) is True


@lru_cache(maxsize=16)
def parse_selector(text: str) -> Selector:
    """Read a selector; one of nothing but white space selects everything.

    Raises SelectorError for any text that is not a selector, and for one that is too long or too deeply nested. The
    last few are remembered: an attach reads one several times, and a long one takes milliseconds.
    """
    if len(text) > MAX_SELECTOR_CHARACTERS:
        raise SelectorError(f"the selector has {len(text)} characters; {MAX_SELECTOR_CHARACTERS} are allowed", column=1)
    if not text.strip():
        return Selector(text, frozenset(), 0, constant(True))
    condition = compile_condition(text)
    return Selector(text, condition.identifiers, condition.cost, condition.evaluate)
