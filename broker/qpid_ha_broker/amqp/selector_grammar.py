"""From a selector's text to something that can be evaluated.

The parser calls `_Builder` bottom up, for each rule as it is recognised, so no syntax tree is ever built or walked, and
how deeply a text is nested cannot exhaust the stack. How deeply the result is nested is limited for the same reason:
it is evaluated by functions that call each other.

One rule covers conditions and values, since nobody can tell `(a)` apart before what follows it. What a thing is
(`SelectorKind`) is checked as it is put to use: `5 AND 'red'` is an error at attach, not a consumer that waits for
ever.
"""

from __future__ import annotations

import functools
import itertools
import math
from enum import Enum
from typing import NamedTuple, cast

from lark import Lark, Token, Transformer, UnexpectedCharacters, UnexpectedInput, UnexpectedToken, v_args

from qpid_ha_broker.amqp import selector_logic as logic
from qpid_ha_broker.amqp.selector_like import MAX_SOUGHT_PIECES, count_sought, cut, like_matcher
from qpid_ha_broker.amqp.selector_logic import MAX_INTEGER, Evaluate, SelectorError

MAX_NESTING = 100
MAX_TOKENS = 700
"""Words, numbers and signs: each takes the parser up to 20 microseconds, in which nobody else is served."""
_QUOTED_CHARACTERS = 40
"""How much of the client's own text an error message repeats."""
_MOST_DIGITS = 24
"""More than any 64-bit integer has, in any notation: Python takes its time over, and then refuses, thousands."""

_GRAMMAR = r"""
?start: disjunction
?disjunction: conjunction
    | conjunction (_OR conjunction)+            -> any_of
?conjunction: negation
    | negation (_AND negation)+                 -> all_of
?negation: predicate
    | NOT negation                              -> negation
?predicate: sum
    | sum COMPARISON sum                        -> comparison
    | sum [NOT] _BETWEEN sum _AND sum           -> between
    | sum [NOT] _IN "(" element ("," element)* ")" -> among
    | sum [NOT] _LIKE STRING [_ESCAPE STRING]   -> like
    | sum _IS [NOT] _NULL                       -> is_null
?sum: product
    | product (SIGN product)+                   -> arithmetic
?product: factor
    | factor (FACTOR_SIGN factor)+              -> arithmetic
?factor: primary
    | SIGN factor                               -> signed
?primary: literal
    | TRUE                                      -> true
    | FALSE                                     -> false
    | IDENTIFIER                                -> identifier
    | QUOTED_IDENTIFIER                         -> quoted_identifier
    | "(" disjunction ")"                       -> nested
?element: literal
    | SIGN number                               -> signed
?literal: number
    | STRING                                    -> string
number: NUMBER

_OR: "OR"i
_AND: "AND"i
NOT: "NOT"i
_BETWEEN: "BETWEEN"i
_IN: "IN"i
_LIKE: "LIKE"i
_ESCAPE: "ESCAPE"i
_IS: "IS"i
_NULL: "NULL"i
TRUE: "TRUE"i
FALSE: "FALSE"i
COMPARISON: /<>|<=|>=|=|<|>/
SIGN: /[+-]/
FACTOR_SIGN: /[*\/]/
IDENTIFIER: /(?:[^\W\d]|\$)[\w$.]*/i
QUOTED_IDENTIFIER: /"[^"]+(?:""[^"]*)*"(?!")/
STRING: /'[^']*(?:''[^']*)*'(?!')/
NUMBER: /(?:0[xX][0-9a-fA-F]+[lL]?|(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[lLfFdD]?)(?![\w$.])/
%ignore /\s+/
"""


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
    constant: int | float | str | bool | None = None
    """A literal's value; None for everything else."""


def compile_condition(text: str) -> Expression:
    """Read a whole selector. Raises SelectorError, and nothing else."""
    try:
        _check_length(text)
        expression = cast(Expression, _parser().parse(text))  # the builder stands in for the syntax tree
    except UnexpectedInput as error:
        raise _explained(text, error) from None
    if expression.sought > MAX_SOUGHT_PIECES:
        text = f"the patterns have {expression.sought} pieces with '_' between two '%'; {MAX_SOUGHT_PIECES} are allowed"
        raise SelectorError(text, expression.column)
    return _condition(expression)


def load_parser() -> None:
    """Have it ready before a client waits for it."""
    _parser()


def _check_length(text: str) -> None:
    last = next(itertools.islice(_parser().lex(text), MAX_TOKENS, None), None)
    if last is not None:
        raise SelectorError(f"the selector has more than {MAX_TOKENS} words, numbers and signs", _column(last))


@functools.cache
def _parser() -> Lark:
    # The plain lexer knows a keyword wherever it stands: no property can be called `and`, and `ANDROID` is not `AND`.
    return Lark(_GRAMMAR, parser="lalr", lexer="basic", maybe_placeholders=True, transformer=_Builder())


@v_args(inline=True)
class _Builder(Transformer[Token, Expression]):
    """Makes the expression of a rule from those of its parts; each method is named after its rule."""

    def any_of(self, *parts: Expression) -> Expression:
        return _joined(SelectorKind.CONDITION, logic.any_of([_condition(part).evaluate for part in parts]), *parts)

    def all_of(self, *parts: Expression) -> Expression:
        return _joined(SelectorKind.CONDITION, logic.all_of([_condition(part).evaluate for part in parts]), *parts)

    def negation(self, _not: Token, part: Expression) -> Expression:
        return _negated(_condition(part))

    def comparison(self, left: Expression, symbol: Token, right: Expression) -> Expression:
        return _joined(SelectorKind.CONDITION, _comparison(left, symbol.value, right), left, right)

    def between(self, value: Expression, negate: Token | None, low: Expression, high: Expression) -> Expression:
        evaluate = logic.between(value.evaluate, low.evaluate, high.evaluate)
        return _negated_if(negate, _joined(SelectorKind.CONDITION, evaluate, value, low, high))

    def among(self, value: Expression, negate: Token | None, *elements: Expression) -> Expression:
        evaluate = logic.among(value.evaluate, [element.constant for element in elements])
        return _negated_if(negate, _joined(SelectorKind.CONDITION, evaluate, value))

    def like(self, value: Expression, negate: Token | None, pattern: Token, escape: Token | None) -> Expression:
        try:
            character = None if escape is None else _escape_character(escape)
            matches = like_matcher(_unquoted(pattern), character)
            sought = count_sought(cut(_unquoted(pattern), character))
        except ValueError as error:
            raise SelectorError(str(error), _column(pattern)) from None
        found = _joined(SelectorKind.CONDITION, logic.like(value.evaluate, matches), value)
        return _negated_if(negate, found._replace(sought=found.sought + sought))

    def is_null(self, value: Expression, negate: Token | None) -> Expression:
        return _negated_if(negate, _joined(SelectorKind.CONDITION, logic.is_null(value.evaluate), value))

    def arithmetic(self, first: Expression, *rest: Token | Expression) -> Expression:
        symbols = [part.value for part in rest if isinstance(part, Token)]
        operands = [_operand(part) for part in rest if isinstance(part, Expression)]
        steps = [(symbol, operand.evaluate) for symbol, operand in zip(symbols, operands, strict=True)]
        return _joined(SelectorKind.NUMBER, logic.arithmetic(_operand(first).evaluate, steps), first, *operands)

    def signed(self, sign: Token, operand: Expression) -> Expression:
        value = _operand(operand).constant
        if isinstance(value, int | float):
            return _literal(-value if sign == "-" else value, SelectorKind.NUMBER, sign)
        make = logic.negative if sign == "-" else logic.positive
        return _joined(SelectorKind.NUMBER, make(operand.evaluate), operand)

    def nested(self, inner: Expression) -> Expression:
        return _not_too_deep(inner._replace(nesting=inner.nesting + 1))

    def identifier(self, token: Token) -> Expression:
        return _property(token.value, token)

    def quoted_identifier(self, token: Token) -> Expression:
        return _property(_unquoted(token), token)

    def string(self, token: Token) -> Expression:
        return _literal(_unquoted(token), SelectorKind.STRING, token)

    def number(self, token: Token) -> Expression:
        return _literal(_number(token), SelectorKind.NUMBER, token)

    def true(self, token: Token) -> Expression:
        return _literal(True, SelectorKind.CONDITION, token)

    def false(self, token: Token) -> Expression:
        return _literal(False, SelectorKind.CONDITION, token)


def _comparison(left: Expression, symbol: str, right: Expression) -> Evaluate:
    if left.kind is SelectorKind.PROPERTY:
        (name,) = left.identifiers
        if right.kind is SelectorKind.NUMBER and isinstance(right.constant, int | float):
            return logic.comparison_with_number(symbol, name, right.constant)
        if isinstance(right.constant, str):
            return logic.comparison_with_string(symbol, name, right.constant)
    return logic.comparison(symbol, left.evaluate, right.evaluate)


def _escape_character(token: Token) -> str:
    character = _unquoted(token)
    if len(character) != 1:
        raise ValueError("the escape must be a single character")
    return character


def _property(name: str, token: Token) -> Expression:
    return Expression(logic.identifier(name), SelectorKind.PROPERTY, _column(token), frozenset([name]))


def _literal(value: int | float | str, kind: SelectorKind, token: Token) -> Expression:
    return Expression(logic.constant(value), kind, _column(token), constant=value)


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


def _condition(expression: Expression) -> Expression:
    if expression.kind not in (SelectorKind.CONDITION, SelectorKind.PROPERTY):
        raise SelectorError(f"{expression.kind.value} stands where a condition belongs", expression.column)
    return expression


def _operand(expression: Expression) -> Expression:
    if expression.kind not in (SelectorKind.NUMBER, SelectorKind.PROPERTY):
        raise SelectorError(f"{expression.kind.value} stands where a number belongs", expression.column)
    return expression


def _unquoted(token: Token) -> str:
    text: str = token.value
    quote = text[0]
    return text[1:-1].replace(quote * 2, quote)


def _number(token: Token) -> int | float:
    """A numeric literal as Java writes it. No `L` on a fraction, and a leading 0 means octal."""
    text: str = token.value.lower()
    is_hexadecimal = text.startswith("0x")
    is_exact = is_hexadecimal or not any(mark in text for mark in ".efd")
    try:
        value = _integer(text.removesuffix("l"), is_hexadecimal) if is_exact else float(text.rstrip("fd"))
    except ValueError:
        raise SelectorError(f"{_quoted(token.value)} is not a number", _column(token)) from None
    if value > MAX_INTEGER if is_exact else math.isinf(value):
        raise SelectorError(f"the number {_quoted(token.value)} is too large", _column(token))
    return value


def _integer(text: str, is_hexadecimal: bool) -> int:
    digits = text[2:] if is_hexadecimal else text
    is_octal = not is_hexadecimal and len(text) > 1 and text.startswith("0")
    significant = digits.lstrip("0") or "0"
    if len(significant) > _MOST_DIGITS:
        return MAX_INTEGER + 1
    return int(significant, 16 if is_hexadecimal else 8 if is_octal else 10)


def _column(token: Token) -> int:
    return 1 + (token.start_pos or 0)


def _explained(text: str, error: UnexpectedInput) -> SelectorError:
    if isinstance(error, UnexpectedToken) and error.token.type != "$END":
        return SelectorError(f"{_quoted(error.token.value)} is not expected here", _column(error.token))
    if isinstance(error, UnexpectedCharacters):
        position = error.pos_in_stream or 0
        character = text[position]
        problem = "the quote is never closed" if character in "'\"" else f"{character!r} is not expected here"
        return SelectorError(problem, position + 1)
    return SelectorError("the selector ends too early", len(text) + 1)


def _quoted(text: str) -> str:
    return repr(text if len(text) <= _QUOTED_CHARACTERS else text[:_QUOTED_CHARACTERS] + "...")
