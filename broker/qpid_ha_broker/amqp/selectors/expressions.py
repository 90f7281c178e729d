"""What the rules of the selectors' grammar (`selector_grammar`) make of their parts: something that can be evaluated.

One rule covers conditions and values, since nobody can tell `(a)` apart before what follows it. What a thing is
(`SelectorKind`) is checked as it is put to use: `5 AND 'red'` is an error at attach, not a consumer that waits for
ever. How deeply an expression is nested is limited: it is evaluated by functions that call each other.
"""

from __future__ import annotations

import math
from enum import Enum
from typing import NamedTuple

from qpid_ha_broker.amqp.selectors import logic
from qpid_ha_broker.amqp.selectors.like import count_sought, cut, like_matcher
from qpid_ha_broker.amqp.selectors.logic import MAX_INTEGER, Evaluate, SelectorError
from qpid_ha_broker.amqp.wire.jms_ids import IDENTIFIERS, canonical_id

MAX_NESTING = 100
_QUOTED_CHARACTERS = 40
"""How much of the client's own text an error message repeats."""
_MOST_DIGITS = 24
"""More than any 64-bit integer has, in any notation: Python takes its time over, and then refuses, thousands."""


class Token(NamedTuple):
    """A word, number, string or sign of a selector's text."""

    kind: str
    """Its group in the lexer, a keyword in capitals, or the bracket or comma itself; empty at the end of the text."""
    text: str
    column: int
    """Of its first character; the first of a text is 1."""


class SelectorKind(Enum):
    """What is known of an expression before there is a message."""

    CONDITION = "a condition"
    NUMBER = "a number"
    STRING = "a string"
    PROPERTY = "a property"
    """Its type is the message's business."""


class Expression(NamedTuple):
    """A part of a selector, with what its surroundings must know of it."""

    evaluate: Evaluate
    kind: SelectorKind
    column: int
    identifiers: frozenset[str] = frozenset()
    nesting: int = 0
    sought: int = 0
    """Pieces of LIKE patterns that have to be sought step by step."""
    cost: int = 0
    """Of a whole selector: see `Selector`."""
    constant: int | float | str | bool | None = None
    """A literal's value; None for everything else."""


def any_of(*parts: Expression) -> Expression:
    """`a OR b OR c`."""
    return _joined(SelectorKind.CONDITION, logic.any_of([condition(part).evaluate for part in parts]), *parts)


def all_of(*parts: Expression) -> Expression:
    """`a AND b AND c`."""
    return _joined(SelectorKind.CONDITION, logic.all_of([condition(part).evaluate for part in parts]), *parts)


def negation(_not: Token, part: Expression) -> Expression:
    """`NOT a`."""
    return _negated(condition(part))


def comparison(left: Expression, symbol: Token, right: Expression) -> Expression:
    """`a = b`, and the other five signs."""
    left, right = _as_id(left, right), _as_id(right, left)
    return _joined(SelectorKind.CONDITION, _comparison(left, symbol.text, right), left, right)


def between(value: Expression, negate: Token | None, low: Expression, high: Expression) -> Expression:
    """`a [NOT] BETWEEN b AND c`."""
    evaluate = logic.between(value.evaluate, low.evaluate, high.evaluate)
    return _negated_if(negate, _joined(SelectorKind.CONDITION, evaluate, value, low, high))


def among(value: Expression, negate: Token | None, *elements: Expression) -> Expression:
    """`a [NOT] IN (b, c)`."""
    evaluate = logic.among(value.evaluate, [_as_id(element, value).constant for element in elements])
    return _negated_if(negate, _joined(SelectorKind.CONDITION, evaluate, value))


def like(value: Expression, negate: Token | None, pattern: Token, escape: Token | None) -> Expression:
    """`a [NOT] LIKE 'b' [ESCAPE 'c']`."""
    try:
        character = None if escape is None else _escape_character(escape)
        matches = like_matcher(_unquoted(pattern), character)
        sought = count_sought(cut(_unquoted(pattern), character))
    except ValueError as error:
        raise SelectorError(str(error), pattern.column) from None
    condition = _joined(SelectorKind.CONDITION, logic.like(value.evaluate, matches), value)
    return _negated_if(negate, condition._replace(sought=condition.sought + sought))


def is_null(value: Expression, negate: Token | None) -> Expression:
    """`a IS [NOT] NULL`."""
    return _negated_if(negate, _joined(SelectorKind.CONDITION, logic.is_null(value.evaluate), value))


def arithmetic(first: Expression, *rest: Token | Expression) -> Expression:
    """`a + b - c`, or `a * b / c`."""
    symbols = [part.text for part in rest if isinstance(part, Token)]
    operands = [_operand(part) for part in rest if isinstance(part, Expression)]
    steps = [(symbol, operand.evaluate) for symbol, operand in zip(symbols, operands, strict=True)]
    return _joined(SelectorKind.NUMBER, logic.arithmetic(_operand(first).evaluate, steps), first, *operands)


def signed(sign: Token, operand: Expression) -> Expression:
    """`-a`, or `+a`."""
    value = _operand(operand).constant
    if isinstance(value, int | float):
        return _literal(-value if sign.text == "-" else value, SelectorKind.NUMBER, sign)
    make = logic.negative if sign.text == "-" else logic.positive
    return _joined(SelectorKind.NUMBER, make(operand.evaluate), operand)


def nested(inner: Expression) -> Expression:
    """`(a)`."""
    return _not_too_deep(inner._replace(nesting=inner.nesting + 1))


def identifier(token: Token) -> Expression:
    """A property or a header field."""
    return _property(token.text, token)


def quoted_identifier(token: Token) -> Expression:
    """One whose name is in double quotes."""
    return _property(_unquoted(token), token)


def string(token: Token) -> Expression:
    """A literal."""
    return _literal(_unquoted(token), SelectorKind.STRING, token)


def number(token: Token) -> Expression:
    """A literal."""
    return _literal(_number(token), SelectorKind.NUMBER, token)


def true(token: Token) -> Expression:
    """A literal."""
    return _literal(True, SelectorKind.CONDITION, token)


def false(token: Token) -> Expression:
    """A literal."""
    return _literal(False, SelectorKind.CONDITION, token)


def _comparison(left: Expression, symbol: str, right: Expression) -> Evaluate:
    if left.kind is SelectorKind.PROPERTY:
        (name,) = left.identifiers
        if right.kind is SelectorKind.NUMBER and isinstance(right.constant, int | float):
            return logic.comparison_with_number(symbol, name, right.constant)
        if isinstance(right.constant, str):
            return logic.comparison_with_string(symbol, name, right.constant)
    return logic.comparison(symbol, left.evaluate, right.evaluate)


def _as_id(part: Expression, other: Expression) -> Expression:
    """A literal that is compared with the id of a message says the same in several ways: see `jms_ids`."""
    if isinstance(part.constant, str) and other.kind is SelectorKind.PROPERTY and other.identifiers <= IDENTIFIERS:
        text = canonical_id(part.constant)
        return part._replace(constant=text, evaluate=logic.constant(text))
    return part


def _escape_character(token: Token) -> str:
    character = _unquoted(token)
    if len(character) != 1:
        raise ValueError("the escape must be a single character")
    return character


def _property(name: str, token: Token) -> Expression:
    return Expression(logic.identifier(name), SelectorKind.PROPERTY, token.column, frozenset([name]))


def _literal(value: int | float | str, kind: SelectorKind, token: Token) -> Expression:
    return Expression(logic.constant(value), kind, token.column, constant=value)


def _joined(kind: SelectorKind, evaluate: Evaluate, *parts: Expression) -> Expression:
    identifiers = frozenset().union(*(part.identifiers for part in parts))
    nesting = 1 + max(part.nesting for part in parts)
    sought = sum(part.sought for part in parts)
    return _not_too_deep(Expression(evaluate, kind, parts[0].column, identifiers, nesting, sought))


def _negated(condition: Expression) -> Expression:
    return _joined(SelectorKind.CONDITION, logic.negation(condition.evaluate), condition)


def _negated_if(negate: Token | None, condition: Expression) -> Expression:
    return condition if negate is None else _negated(condition)


def _not_too_deep(expression: Expression) -> Expression:
    if expression.nesting > MAX_NESTING:
        raise SelectorError(f"the selector is nested more than {MAX_NESTING} deep", expression.column)
    return expression


def condition(expression: Expression) -> Expression:
    """The expression as it is, if it can be true or false."""
    if expression.kind not in (SelectorKind.CONDITION, SelectorKind.PROPERTY):
        raise SelectorError(f"{expression.kind.value} stands where a condition belongs", expression.column)
    return expression


def _operand(expression: Expression) -> Expression:
    if expression.kind not in (SelectorKind.NUMBER, SelectorKind.PROPERTY):
        raise SelectorError(f"{expression.kind.value} stands where a number belongs", expression.column)
    return expression


def _unquoted(token: Token) -> str:
    text = token.text
    quote = text[0]
    return text[1:-1].replace(quote * 2, quote)


def _number(token: Token) -> int | float:
    """A numeric literal as Java writes it. No `L` on a fraction, and a leading 0 means octal."""
    text = token.text.lower()
    is_hexadecimal = text.startswith("0x")
    is_exact = is_hexadecimal or not any(mark in text for mark in ".efd")
    try:
        value = _integer(text.removesuffix("l"), is_hexadecimal) if is_exact else float(text.rstrip("fd"))
    except ValueError:
        raise SelectorError(f"{quoted(token.text)} is not a number", token.column) from None
    if value > MAX_INTEGER if is_exact else math.isinf(value):
        raise SelectorError(f"the number {quoted(token.text)} is too large", token.column)
    return value


def _integer(text: str, is_hexadecimal: bool) -> int:
    digits = text[2:] if is_hexadecimal else text
    is_octal = not is_hexadecimal and len(text) > 1 and text.startswith("0")
    significant = digits.lstrip("0") or "0"
    if len(significant) > _MOST_DIGITS:
        return MAX_INTEGER + 1
    return int(significant, 16 if is_hexadecimal else 8 if is_octal else 10)


def quoted(text: str) -> str:
    """Some text of the client, for an error message."""
    return repr(text if len(text) <= _QUOTED_CHARACTERS else text[:_QUOTED_CHARACTERS] + "...")
