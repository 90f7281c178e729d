"""Reads a selector's text. The grammar, where each rule binds its operands closer than the one above it:

    disjunction  conjunction (OR conjunction)*
    conjunction  negation (AND negation)*
    negation     NOT negation | predicate
    predicate    sum
               | sum ("=" | "<>" | "<" | "<=" | ">" | ">=") sum
               | sum [NOT] BETWEEN sum AND sum
               | sum [NOT] IN "(" element ("," element)* ")"
               | sum [NOT] LIKE STRING [ESCAPE STRING]
               | sum IS [NOT] NULL
    sum          product (("+" | "-") product)*
    product      factor (("*" | "/") factor)*
    factor       ("+" | "-") factor | primary
    primary      NUMBER | STRING | TRUE | FALSE | IDENTIFIER | QUOTED_IDENTIFIER | "(" disjunction ")"
    element      ["+" | "-"] NUMBER | STRING

The method is operator precedence (R. W. Floyd, "Syntactic analysis and operator precedence", 1963): an operator waits
on a stack until one that binds less comes after its last operand. So how deeply a text is nested cannot exhaust the
stack of Python, each token is looked at once, and there is no table that each start of a broker would have to build.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator, Mapping
from enum import IntEnum
from typing import Final, NamedTuple, NoReturn

from qpid_ha_broker.amqp.selectors import expressions as make
from qpid_ha_broker.amqp.selectors.expressions import Expression, Token, quoted
from qpid_ha_broker.amqp.selectors.like import MAX_SOUGHT_PIECES
from qpid_ha_broker.amqp.selectors.logic import SelectorError

MAX_TOKENS: Final = 700
"""Words, numbers and signs: each takes up to 10 microseconds, in which nobody else is served."""
LIKE_COST: Final = 10
SOUGHT_COST: Final = 700
"""Of a piece with `_` between two `%`: it is tried at each place of a long text. In units of about a microsecond."""
_TOKEN: Final = re.compile(
    r"""(?P<IDENTIFIER>(?:[^\W\d]|\$)[\w$.]*)
      | (?P<QUOTED_IDENTIFIER>"[^"]+(?:""[^"]*)*"(?!"))
      | (?P<STRING>'[^']*(?:''[^']*)*'(?!'))
      | (?P<NUMBER>(?:0[xX][0-9a-fA-F]+[lL]?|(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+-]?[0-9]+)?[lLfFdD]?)(?![\w$.]))
      | (?P<COMPARISON><>|<=|>=|=|<|>)
      | (?P<SIGN>[+-])
      | (?P<FACTOR_SIGN>[*/])
      | (?P<BRACKET_OR_COMMA>[(),])
      | (?P<SPACE>\s+)""",
    re.VERBOSE,
)
_KEYWORDS: Final = frozenset(["OR", "AND", "NOT", "BETWEEN", "IN", "LIKE", "ESCAPE", "IS", "NULL", "TRUE", "FALSE"])
"""Wherever they stand: no property can be called `and`, and `ANDROID` is not `AND`."""
_END: Final = ""
_FREE: Final = frozenset(["STRING", "NUMBER", "(", ")", ",", "TRUE", "FALSE", _END])
_AFTER_A_PREDICATE: Final = ("AND", "OR", ")", _END)


class _Binding(IntEnum):
    """How close what stands before an operand binds it."""

    BRACKET = 0
    OR = 1
    AND = 2
    NOT = 3
    PREDICATE = 4
    SUM = 5
    PRODUCT = 6
    SIGN = 7


class _Waiting(NamedTuple):
    """An operator, until its last operand has been read."""

    binding: _Binding
    make: Callable[..., Expression]
    parts: list[Expression | Token | None]
    """What it is made of, but for the last operand."""

    @property
    def lacks_and(self) -> bool:
        """A BETWEEN of which only the value has been read."""
        return self.make is make.between and len(self.parts) == 2


def compile_condition(text: str) -> Expression:
    """Read a whole selector. Raises SelectorError, and nothing else."""
    tokens = list(itertools.islice(_tokens(text), MAX_TOKENS + 1))
    if len(tokens) > MAX_TOKENS and tokens[-1].kind != _END:
        problem = f"the selector has more than {MAX_TOKENS} words, numbers and signs"
        raise SelectorError(problem, tokens[-1].column)
    expression = _Reader(tokens).read()
    if expression.sought > MAX_SOUGHT_PIECES:
        text = f"the patterns have {expression.sought} pieces with '_' between two '%'; {MAX_SOUGHT_PIECES} are allowed"
        raise SelectorError(text, expression.column)
    return make.condition(expression)._replace(cost=_cost(tokens) + SOUGHT_COST * expression.sought)


def _cost(tokens: list[Token]) -> int:
    """Of what is evaluated: literals and brackets are not."""
    words = [token.kind for token in tokens if token.kind not in _FREE]
    return len(words) + (LIKE_COST - 1) * words.count("LIKE")


def _tokens(text: str) -> Iterator[Token]:
    """In order, and then the end. Raises SelectorError."""
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            problem = "the quote is never closed" if text[at] in "'\"" else f"{text[at]!r} is not expected here"
            raise SelectorError(problem, 1 + at)
        if match.lastgroup != "SPACE":
            yield Token(_kind(match), match.group(), 1 + at)
        at = match.end()
    yield Token(_END, "", 1 + at)


def _kind(match: re.Match[str]) -> str:
    group, word = str(match.lastgroup), match.group()
    if group == "BRACKET_OR_COMMA":
        return word
    return word.upper() if group == "IDENTIFIER" and word.upper() in _KEYWORDS else group


class _Reader:
    """Of the tokens of one selector; the last one is the end."""

    def __init__(self, tokens: list[Token]) -> None:
        self._coming = iter(tokens)
        self._token = next(self._coming)
        """The first that has not been taken."""
        self._waiting: list[_Waiting] = []

    def read(self) -> Expression:
        """All of it. Raises SelectorError."""
        expression = self._operand()
        while self._token.kind != _END:
            follow = _FOLLOWING.get(self._token.kind)
            expression = self._refuse() if follow is None else follow(self, expression)
        expression = self._made(expression, _Binding.BRACKET)
        return self._refuse() if self._waiting else expression

    def _operand(self) -> Expression:
        """A primary, after the brackets, signs and NOT before it, which then wait."""
        while (token := self._token).kind not in _PRIMARIES:
            if token.kind == "(":
                self._take()
                self._waiting.append(_Waiting(_Binding.BRACKET, make.nested, []))
            elif token.kind == "SIGN":
                self._waiting.append(_Waiting(_Binding.SIGN, make.signed, [self._take()]))
            elif token.kind == "NOT" and self._binding() <= _Binding.NOT:
                self._waiting.append(_Waiting(_Binding.NOT, make.negation, [self._take()]))
            else:
                self._refuse()
        return _PRIMARIES[token.kind](self._take())

    def _or(self, operand: Expression) -> Expression:
        return self._chain(_Binding.OR, make.any_of, operand)

    def _and(self, operand: Expression) -> Expression:
        operand = self._made(operand, _Binding.PREDICATE)
        if self._waiting and self._waiting[-1].lacks_and:
            self._take()
            self._waiting[-1].parts.append(operand)
            return self._operand()
        return self._chain(_Binding.AND, make.all_of, operand)

    def _sum(self, operand: Expression) -> Expression:
        return self._chain(_Binding.SUM, make.arithmetic, operand, self._token)

    def _product(self, operand: Expression) -> Expression:
        return self._chain(_Binding.PRODUCT, make.arithmetic, operand, self._token)

    def _chain(
        self, binding: _Binding, maker: Callable[..., Expression], operand: Expression, *signs: Token
    ) -> Expression:
        """Any number of operands with the same operator, or with signs that bind alike, are one expression."""
        operand = self._made(operand, binding)
        if self._binding() != binding:
            self._waiting.append(_Waiting(binding, maker, []))
        self._waiting[-1].parts.extend([operand, *signs])
        self._take()
        return self._operand()

    def _compare(self, operand: Expression) -> Expression:
        self._waiting.append(_Waiting(_Binding.PREDICATE, make.comparison, [self._subject(operand), self._take()]))
        return self._operand()

    def _test(self, operand: Expression) -> Expression:
        subject = self._subject(operand)
        negate = self._take_if("NOT")
        if self._take_if("BETWEEN"):
            self._waiting.append(_Waiting(_Binding.PREDICATE, make.between, [subject, negate]))
            return self._operand()
        if self._take_if("IN"):
            return self._predicate(make.among(subject, negate, *self._elements()))
        self._take("LIKE")
        pattern = self._take("STRING")
        escape = self._take("STRING") if self._take_if("ESCAPE") else None
        return self._predicate(make.like(subject, negate, pattern, escape))

    def _is_null(self, operand: Expression) -> Expression:
        subject = self._subject(operand)
        self._take()
        negate = self._take_if("NOT")
        self._take("NULL")
        return self._predicate(make.is_null(subject, negate))

    def _elements(self) -> Iterator[Expression]:
        self._take("(")
        yield self._element()
        while self._take_if(","):
            yield self._element()
        self._take(")")

    def _element(self) -> Expression:
        if sign := self._take_if("SIGN"):
            return make.signed(sign, make.number(self._take("NUMBER")))
        if text := self._take_if("STRING"):
            return make.string(text)
        return make.number(self._take("NUMBER"))

    def _close(self, operand: Expression) -> Expression:
        operand = self._made(operand, _Binding.BRACKET)
        if not self._waiting:
            self._refuse()
        self._take()
        return self._waiting.pop().make(operand)

    def _subject(self, operand: Expression) -> Expression:
        """What a predicate is about. It is no operand of another one."""
        subject = self._made(operand, _Binding.PREDICATE)
        return self._refuse() if self._binding() is _Binding.PREDICATE else subject

    def _predicate(self, expression: Expression) -> Expression:
        """One that ends with a word of its own: nothing that binds as close can follow."""
        return expression if self._token.kind in _AFTER_A_PREDICATE else self._refuse()

    def _made(self, operand: Expression, binding: _Binding) -> Expression:
        """With all that waits for it and binds it closer than `binding`."""
        while self._binding() > binding:
            if self._waiting[-1].lacks_and:
                self._refuse()
            waiting = self._waiting.pop()
            operand = waiting.make(*waiting.parts, operand)
        return operand

    def _binding(self) -> _Binding:
        """Of what waits for the next operand."""
        return self._waiting[-1].binding if self._waiting else _Binding.BRACKET

    def _take(self, kind: str = "") -> Token:
        """The next token, which has to be of that kind, if one is given."""
        token = self._token
        if kind and token.kind != kind:
            self._refuse()
        self._token = next(self._coming)
        return token

    def _take_if(self, kind: str) -> Token | None:
        return self._take() if self._token.kind == kind else None

    def _refuse(self) -> NoReturn:
        if self._token.kind == _END:
            raise SelectorError("the selector ends too early", self._token.column)
        raise SelectorError(f"{quoted(self._token.text)} is not expected here", self._token.column)


_PRIMARIES: Final[Mapping[str, Callable[[Token], Expression]]] = {
    "NUMBER": make.number,
    "STRING": make.string,
    "TRUE": make.true,
    "FALSE": make.false,
    "IDENTIFIER": make.identifier,
    "QUOTED_IDENTIFIER": make.quoted_identifier,
}
_FOLLOWING: Final[Mapping[str, Callable[[_Reader, Expression], Expression]]] = {
    "OR": _Reader._or,
    "AND": _Reader._and,
    "NOT": _Reader._test,
    "BETWEEN": _Reader._test,
    "IN": _Reader._test,
    "LIKE": _Reader._test,
    "IS": _Reader._is_null,
    "COMPARISON": _Reader._compare,
    "SIGN": _Reader._sum,
    "FACTOR_SIGN": _Reader._product,
    ")": _Reader._close,
}
"""What may come after an operand."""
