"""What a selector's operators mean: three-valued logic over values that may be missing or of the wrong type.

Each function makes a function that takes the message's `lookup` and gives a value. None is SQL's NULL as a value and
*unknown* as a condition; a condition over anything but a boolean is unknown too.

JMS 3.1, section 3.8.1.2, fixes most of this. Values of different types compare to false, whatever the operator; so do
two strings or two booleans under anything but `=` and `<>`. Exact and approximate numbers compare with each other, and
a boolean is no number. Where Java would throw (a division by zero) or wrap around (an integer overflow), the result is
unknown.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, TypeGuard

Lookup = Callable[[str], object]
"""Gives the value of an identifier, None for one that the message lacks."""

Evaluate = Callable[[Lookup], object]
"""An expression, ready to be asked about a message."""

Comparison = Callable[[Any, Any], bool]
Operation = Callable[[int | float, int | float], int | float]

MIN_INTEGER = -(2**63)
MAX_INTEGER = 2**64 - 1
"""What a long or an unsigned long of AMQP can hold."""

_COMPARISONS: dict[str, Comparison] = {
    "=": operator.eq,
    "<>": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_ANY_TYPE_SYMBOLS = ("=", "<>")
_NUMBERS = (int, float)
"""Not `int | float`, which is built anew at each use and costs more than the comparison."""


class SelectorError(ValueError):
    """A text is no selector; says what is wrong, and at which column (the first is 1)."""

    def __init__(self, problem: str, column: int) -> None:
        super().__init__(f"{problem} (at column {column})")
        self.column = column


def constant(value: object) -> Evaluate:
    """A literal."""
    return lambda lookup: value


def identifier(name: str) -> Evaluate:
    """A property or a header field."""
    return lambda lookup: lookup(name)


def negation(condition: Evaluate) -> Evaluate:
    """NOT: what is unknown stays unknown."""

    def evaluate(lookup: Lookup) -> bool | None:
        value = condition(lookup)
        return not value if isinstance(value, bool) else None

    return evaluate


def all_of(conditions: Sequence[Evaluate]) -> Evaluate:
    """AND: false when one is false, else unknown when one is unknown."""

    def evaluate(lookup: Lookup) -> bool | None:
        result: bool | None = True
        for condition in conditions:
            value = condition(lookup)
            if value is False:
                return False
            if value is not True:
                result = None
        return result

    return evaluate


def any_of(conditions: Sequence[Evaluate]) -> Evaluate:
    """OR: true when one is true, else unknown when one is unknown."""

    def evaluate(lookup: Lookup) -> bool | None:
        result: bool | None = False
        for condition in conditions:
            value = condition(lookup)
            if value is True:
                return True
            if value is not False:
                result = None
        return result

    return evaluate


def comparison(symbol: str, left: Evaluate, right: Evaluate) -> Evaluate:
    """`=`, `<>`, `<`, `<=`, `>` or `>=` between any two expressions."""
    return lambda lookup: _compare(symbol, left(lookup), right(lookup))


def comparison_with_number(symbol: str, name: str, number: int | float) -> Evaluate:
    """An identifier on the left and a numeric literal on the right: what most selectors do, and four calls cheaper."""
    compare = _COMPARISONS[symbol]

    def evaluate(lookup: Lookup) -> bool | None:
        value = lookup(name)
        if isinstance(value, _NUMBERS) and value is not True and value is not False:
            return compare(value, number)
        return None if value is None else False

    return evaluate


def comparison_with_string(symbol: str, name: str, text: str) -> Evaluate:
    """A comparison with a string literal."""
    if symbol not in _ANY_TYPE_SYMBOLS:
        return comparison(symbol, identifier(name), constant(text))
    compare = _COMPARISONS[symbol]

    def evaluate(lookup: Lookup) -> bool | None:
        value = lookup(name)
        if isinstance(value, str):
            return compare(value, text)
        return None if value is None else False

    return evaluate


def between(value: Evaluate, low: Evaluate, high: Evaluate) -> Evaluate:
    """`value BETWEEN low AND high`, both ends included: short for two comparisons.

    `value` is evaluated once: twice would make a hundred of these inside each other cost two to the hundredth.
    """

    def evaluate(lookup: Lookup) -> bool | None:
        actual = value(lookup)
        above = _compare(">=", actual, low(lookup))
        below = _compare("<=", actual, high(lookup))
        if above is False or below is False:
            return False
        return True if above and below else None

    return evaluate


def among(value: Evaluate, allowed: Sequence[object]) -> Evaluate:
    """`value IN (...)`, for strings and numbers."""
    strings = frozenset(literal for literal in allowed if isinstance(literal, str))
    numbers = frozenset(literal for literal in allowed if _is_number(literal))

    def evaluate(lookup: Lookup) -> bool | None:
        actual = value(lookup)
        if isinstance(actual, str):
            return actual in strings
        if _is_number(actual):
            return actual in numbers
        return None if actual is None else False

    return evaluate


def is_null(value: Evaluate) -> Evaluate:
    """`value IS NULL`: the only condition that is never unknown."""
    return lambda lookup: value(lookup) is None


def arithmetic(first: Evaluate, steps: Sequence[tuple[str, Evaluate]]) -> Evaluate:
    """`first` and then, from left to right, `+ - * /` and an operand each."""
    operations = [(_OPERATIONS[symbol], operand) for symbol, operand in steps]

    def evaluate(lookup: Lookup) -> int | float | None:
        result = first(lookup)
        for operation, operand in operations:
            result = _calculate(operation, result, operand(lookup))
        return result if _is_number(result) else None

    return evaluate


def negative(operand: Evaluate) -> Evaluate:
    """Unary minus."""
    return lambda lookup: _calculate(operator.sub, 0, operand(lookup))


def positive(operand: Evaluate) -> Evaluate:
    """Unary plus: nothing, but only for a number."""

    def evaluate(lookup: Lookup) -> int | float | None:
        value = operand(lookup)
        return value if _is_number(value) else None

    return evaluate


def like(value: Evaluate, matches: Callable[[str], bool]) -> Evaluate:
    """`value LIKE pattern`, the pattern being a test of strings; unknown for anything else."""

    def evaluate(lookup: Lookup) -> bool | None:
        actual = value(lookup)
        return matches(actual) if isinstance(actual, str) else None

    return evaluate


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, _NUMBERS) and not isinstance(value, bool)


def _compare(symbol: str, left: object, right: object) -> bool | None:
    if left is None or right is None:
        return None
    if _is_number(left) and _is_number(right):
        return _COMPARISONS[symbol](left, right)
    both_strings = isinstance(left, str) and isinstance(right, str)
    both_booleans = isinstance(left, bool) and isinstance(right, bool)
    if symbol in _ANY_TYPE_SYMBOLS and (both_strings or both_booleans):
        return _COMPARISONS[symbol](left, right)
    return False


def _calculate(operation: Operation, left: object, right: object) -> int | float | None:
    """Unknown for anything but numbers, and for a result that no number type of AMQP holds."""
    if not (_is_number(left) and _is_number(right)):
        return None
    try:
        result = operation(left, right)
    except (ZeroDivisionError, OverflowError):
        return None
    if isinstance(result, int) and not MIN_INTEGER <= result <= MAX_INTEGER:
        return None
    return result


def _divide(left: int | float, right: int | float) -> int | float:
    """As in Java: two integers give an integer, rounded towards zero."""
    if isinstance(left, int) and isinstance(right, int):
        quotient = abs(left) // abs(right)
        return quotient if (left < 0) == (right < 0) else -quotient
    return left / right


_OPERATIONS: dict[str, Operation] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": _divide,
}
