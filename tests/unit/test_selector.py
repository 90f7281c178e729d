"""Stories about which messages a consumer gets to see."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from qpid_ha_broker.amqp.selectors.expressions import MAX_NESTING
from qpid_ha_broker.amqp.selectors.like import MAX_SOUGHT_CHARACTERS, like_matcher
from qpid_ha_broker.amqp.selectors.selector import MAX_SELECTOR_CHARACTERS, Selector, SelectorError, parse_selector

PROPERTIES: dict[str, object] = {
    "JMSPriority": 7,
    "amqp.subject": "news",
    "color": "red",
    "weight": 2500,
    "ratio": 0.5,
    "big": 2**64 - 1,
    "yes": True,
    "no": False,
    "quote": "it's",
    "two words": "spoken",
    "blob": b"red",
    "$money": 5,
    "_under": 6,
    "größe": 7,
}
TRUTH = {"T": "yes", "F": "no", "U": "absent"}

keywords = (
    "AND OR NOT BETWEEN IN LIKE ESCAPE IS NULL TRUE FALSE a b ( ) , = <> < <= > >= + - * / 1 2.5 0x1F 'x' '%a_' \"q\""
)
pieces = st.sampled_from(keywords.split())
selector_like_texts = st.lists(pieces, max_size=15).map(" ".join)
numbers = st.integers() | st.floats() | st.sampled_from([0, 0.0, 2**63, 10**400, -(10**400)])
any_values = (
    st.none() | st.booleans() | numbers | st.text(max_size=5) | st.binary(max_size=3) | st.lists(st.none(), max_size=1)
)

values = st.recursive(
    st.sampled_from(["a", "b", "1", "0", "2.5", "18446744073709551615", "1e308"]),
    lambda inner: (
        st.builds("({} {} {})".format, inner, st.sampled_from("+-*/"), inner) | st.builds("-{}".format, inner)
    ),
    max_leaves=4,
)
tests = (
    st.builds("{} {} {}".format, values, st.sampled_from(["=", "<>", "<", ">="]), values | st.just("'x'"))
    | st.builds("{} BETWEEN {} AND {}".format, values, values, values)
    | st.builds("{} {}".format, values, st.sampled_from(["IS NULL", "NOT IN ('x', 1)", "LIKE '%x_%'", "NOT LIKE 'x'"]))
    | st.sampled_from(["a", "TRUE"])
)
conditions = st.recursive(
    tests,
    lambda inner: (
        st.builds("(({}) {} ({}))".format, inner, st.sampled_from(["AND", "OR", "="]), inner)
        | st.builds("(NOT {})".format, inner)
    ),
    max_leaves=6,
)


def read_or_explain(text: str) -> Selector | SelectorError:
    try:
        return parse_selector(text)
    except SelectorError as error:
        return error


def is_selected(text: str, properties: dict[str, object] | None = None) -> bool:
    return parse_selector(text).matches((PROPERTIES if properties is None else properties).get)


def outcome(condition: str, properties: dict[str, object] | None = None) -> str:
    """T, F or U: only for an unknown condition is neither it nor its opposite true."""
    if is_selected(condition, properties):
        return "T"
    return "F" if is_selected(f"NOT ({condition})", properties) else "U"


def is_like(text: str, pattern: str) -> bool:
    """What `%` and `_` mean, in the fewest words."""
    if not pattern:
        return not text
    if pattern[0] == "%":
        return is_like(text, pattern[1:]) or (bool(text) and is_like(text[1:], pattern))
    return bool(text) and pattern[0] in ("_", text[0]) and is_like(text[1:], pattern[1:])


@pytest.mark.parametrize("row", ["T T T", "T F F", "T U U", "F T F", "F F F", "F U F", "U T U", "U F F", "U U U"])
def test_and_follows_the_truth_table(row: str) -> None:
    left, right, expected = row.split()
    assert outcome(f"{TRUTH[left]} AND {TRUTH[right]}") == expected
    assert outcome(f"{TRUTH[left]} = TRUE AND {TRUTH[right]} = TRUE") == expected


@pytest.mark.parametrize("row", ["T T T", "T F T", "T U T", "F T T", "F F F", "F U U", "U T T", "U F U", "U U U"])
def test_or_follows_the_truth_table(row: str) -> None:
    left, right, expected = row.split()
    assert outcome(f"{TRUTH[left]} OR {TRUTH[right]}") == expected
    assert outcome(f"{TRUTH[left]} = TRUE OR {TRUTH[right]} = TRUE") == expected


@pytest.mark.parametrize(("value", "expected"), [("T", "F"), ("F", "T"), ("U", "U")])
def test_not_follows_the_truth_table(value: str, expected: str) -> None:
    assert outcome(f"NOT {TRUTH[value]}") == expected


@pytest.mark.parametrize(
    ("condition", "expected"),
    [
        # The usual, and how tightly operators bind.
        ("color = 'red' AND weight > 2000", "T"),
        ("color = 'red' AND weight > 2500", "F"),
        ("COLOR = 'red'", "U"),
        ("no AND no OR yes", "T"),
        ("yes OR no AND no", "T"),
        ("(yes OR no) AND no", "F"),
        ("NOT no AND no", "F"),
        ("NOT NOT yes", "T"),
        ("not color = 'blue' aNd nOt weight < 1", "T"),
        ("1 + 2 * 3 = 7 AND (1 + 2) * 3 = 9 AND 10 - 2 - 3 = 5", "T"),
        ("weight - -2 * 3 = 2506", "T"),
        ("(color = 'red') = yes", "T"),
        # Names.
        ("JMSPriority >= 7 AND amqp.subject = 'news' AND $money = 5 AND _under = 6 AND größe = 7", "T"),
        ("\"two words\" = 'spoken' AND \"color\" = 'red'", "T"),
        ("android = 1 OR nothing = 1 OR inner = 1 OR nullable IS NOT NULL", "U"),
        # Comparisons.
        ("weight = 2500.0", "T"),
        ("weight <> 2500", "F"),
        ("ratio < 1 AND ratio <= 0.5 AND ratio > 0 AND ratio >= .5", "T"),
        ("2500 = weight AND 'red' = color AND 3 < weight", "T"),
        ("color <> 'blue'", "T"),
        ("yes = TRUE AND no = false AND yes <> no", "T"),
        ("big = 18446744073709551615", "T"),
        # Unlike types are not comparable: false, as JMS has it. A boolean is no number, bytes are no string.
        ("weight = '2500'", "F"),
        ("weight <> '2500'", "F"),
        ("color = 2500", "F"),
        ("color <> 2500", "F"),
        ("yes = 1", "F"),
        ("yes <> 1", "F"),
        ("1 = yes", "F"),
        ("yes > 0", "F"),
        ("yes IN (1)", "F"),
        ("blob = 'red'", "F"),
        ("color > 'a'", "F"),
        ("color <= 'z'", "F"),
        ("yes >= no", "F"),
        # What is missing is unknown, but can be asked for.
        ("absent = 1", "U"),
        ("absent <> 1", "U"),
        ("1 = absent", "U"),
        ("absent = 'x'", "U"),
        ("absent = absent", "U"),
        ("absent IS NULL", "T"),
        ("absent IS NOT NULL", "F"),
        ("color IS NULL", "F"),
        ("color is not null", "T"),
        # Arithmetic.
        ("weight / 1000 = 2 AND -7 / 2 = -3 AND 7 / -2 = -3 AND -7 / -2 = 3", "T"),
        ("weight / 1000.0 = 2.5 AND 7. / 2 = 3.5", "T"),
        ("+weight = 2500 AND -weight = -2500 AND --weight = weight", "T"),
        ("absent + 1 = 1", "U"),
        ("color + 1 = 1", "U"),
        ("yes + 1 = 2", "U"),
        ("-color = 1", "U"),
        ("+color = 'red'", "U"),
        ("-yes = -1", "U"),
        ("weight / 0 = 1", "U"),
        ("weight / 0.0 = 1", "U"),
        ("big + 1 > 0", "U"),
        ("big * big > 0", "U"),
        ("weight / 0 = 1 OR color = 'red'", "T"),
        # BETWEEN and IN.
        ("weight BETWEEN 2500 AND 2500", "T"),
        ("weight BETWEEN 2501 AND 3000 OR no", "F"),
        ("weight between 1 and 2 or yes", "T"),
        ("weight NOT BETWEEN 1 AND 2 AND yes", "T"),
        ("weight BETWEEN 1 + 1 AND 2 * weight", "T"),
        ("absent BETWEEN 1 AND 2", "U"),
        ("absent NOT BETWEEN 1 AND 2", "U"),
        ("weight BETWEEN absent AND 1", "F"),
        ("weight BETWEEN absent AND 9999", "U"),
        ("color BETWEEN 1 AND 2", "F"),
        ("color IN ('blue', 'red')", "T"),
        ("color NOT IN ('blue', 'red')", "F"),
        ("color in ('blue')", "F"),
        ("color NOT IN ('blue')", "T"),
        ("absent IN ('blue')", "U"),
        ("absent NOT IN ('blue')", "U"),
        ("weight IN (-1, +2500.0, 'x')", "T"),
        ("weight IN ('2500')", "F"),
        # LIKE.
        ("color LIKE 'r%' AND color LIKE '_ed' AND color LIKE '%' AND color LIKE 'red'", "T"),
        ("color LIKE 'R%'", "F"),
        ("color NOT LIKE 'b%'", "T"),
        ("absent LIKE '%'", "U"),
        ("absent NOT LIKE '%'", "U"),
        ("weight LIKE '25%'", "U"),
        # Literals.
        ("quote = 'it''s' AND '' <> '''' AND 'NOT' = 'NOT'", "T"),
        ("weight = 2500L AND weight = 2.5e3 AND weight = 25E+2 AND weight = 2500d AND weight = 2500.F", "T"),
        ("0x9C4 = weight AND 04704 = weight AND 0xFl = 15 AND 0 = 00", "T"),
        ("-9223372036854775808 < 0 AND 9223372036854775807L > 0", "T"),
        ("TRUE", "T"),
        ("False", "F"),
        ("color", "U"),
        ("weight AND yes", "U"),
    ],
)
def test_a_condition_is_true_false_or_unknown(condition: str, expected: str) -> None:
    assert outcome(condition) == expected


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("'12%3'", {"123": True, "12993": True, "1234": False}),
        ("'l_se'", {"lose": True, "loose": False, "l\nse": True}),
        (r"'\_%' ESCAPE '\'", {"_foo": True, "bar": False}),
        ("'100!%' escape '!'", {"100%": True, "1000": False}),
        ("'a!!b' ESCAPE '!'", {"a!b": True, "a!!b": False}),
        ("'%a%%a'", {"aa": True, "a": False, "xaxa": True}),
        ("'a.*[b'", {"a.*[b": True, "axxb": False}),
        ("''", {"": True, "a": False}),
        ("'%_'", {"": False, "a": True}),
    ],
)
def test_like_knows_two_wildcards_and_how_to_escape_them(arguments: str, expected: dict[str, bool]) -> None:
    assert {value: is_selected(f"x LIKE {arguments}", {"x": value}) for value in expected} == expected


@given(st.text("ab", max_size=9), st.text("ab%_", max_size=9))
@example("ab", "a%b%b")
@example("xaab", "%a_%")
def test_like_agrees_with_trying_every_way(text: str, pattern: str) -> None:
    assert like_matcher(pattern, None)(text) == is_like(text, pattern)


@pytest.mark.parametrize("pattern", ["%a%a%a%a%a%b", "%a_%a_%a_%a_%b", "%" + "a_" * 100 + "b%", "%_" * 1000 + "b"])
def test_a_pattern_of_many_wildcards_is_matched_without_going_back(pattern: str) -> None:
    assert not is_selected(f"x LIKE '{pattern}'", {"x": "a" * 4096})


def test_a_value_is_sought_through_only_as_far_as_nobody_else_has_to_wait() -> None:
    assert is_selected("x LIKE '%_b%'", {"x": "a" * 4095 + "b"})
    assert not is_selected("x LIKE '%_b%'", {"x": "a" * 4096 + "b"})
    assert is_selected("x LIKE 'a%b'", {"x": "a" * 40_960 + "b"})
    with pytest.raises(SelectorError, match="4 are allowed"):
        parse_selector("x LIKE '" + "%a_" * 5 + "%'")
    with pytest.raises(SelectorError, match="4 are allowed"):
        parse_selector(" OR ".join(["NOT x LIKE '%a_%b_%'", "x LIKE '%_c_%'"] * 2))


def test_a_selector_is_at_most_seven_hundred_words_numbers_and_signs() -> None:
    """The parser takes 20 microseconds for each."""
    parse_selector("a IN (" + "'x'," * 340 + "'x')")
    with pytest.raises(SelectorError, match="more than 700 words"):
        parse_selector("a = 1 OR " * 250 + "a = 2")


def test_like_refuses_a_piece_whose_bits_would_take_too_much_memory() -> None:
    parse_selector(f"x LIKE '%_{'a' * (MAX_SOUGHT_CHARACTERS - 1)}%'")
    with pytest.raises(SelectorError, match=f"{MAX_SOUGHT_CHARACTERS} are allowed"):
        parse_selector(f"x LIKE '%_{'a' * MAX_SOUGHT_CHARACTERS}%'")


@pytest.mark.parametrize("text", ["", "  \t\n"])
def test_an_empty_selector_selects_everything(text: str) -> None:
    assert parse_selector(text).matches(PROPERTIES.get)
    assert parse_selector(text).identifiers == frozenset()


def test_a_selector_names_what_it_will_look_up() -> None:
    text = "a = 1 AND (b LIKE 'x' OR \"c d\" IN ('y')) AND e BETWEEN f AND -g * 2 AND h IS NULL AND NOT i AND 'j' = 'k'"
    assert parse_selector(text).identifiers == {"a", "b", "c d", "e", "f", "g", "h", "i"}
    assert parse_selector(text).text == text


@pytest.mark.parametrize(
    ("text", "column", "problem"),
    [
        ("a = ", 5, "ends too early"),
        ("a = 1 AND", 10, "ends too early"),
        ("a = 1 b", 7, "'b' is not expected here"),
        ("a = 1 = 2", 7, "'=' is not expected here"),
        ("a = 1 ANDb = 2", 7, "'ANDb' is not expected here"),
        ("and = 1", 1, "'and' is not expected here"),
        ("a = NULL", 5, "'NULL' is not expected here"),
        ("a # 1", 3, "'#' is not expected here"),
        ("a !=\n 1", 3, "'!' is not expected here"),
        ("a = 'red", 5, "quote is never closed"),
        ('a = 1 AND "b', 11, "quote is never closed"),
        ("a = 3abc", 5, "'3' is not expected here"),
        ("a IN ()", 7, "')' is not expected here"),
        ("a IN (b)", 7, "'b' is not expected here"),
        ("a LIKE b", 8, "'b' is not expected here"),
        ("a LIKE 'x' ESCAPE ''", 8, "single character"),
        ("a LIKE 'x' ESCAPE '!!'", 8, "single character"),
        ("a LIKE 'x!' ESCAPE '!'", 8, "ends with its escape"),
        ("a = 08", 5, "'08' is not a number"),
        ("a = 1.5L", 5, "'1.5L' is not a number"),
        ("a = 18446744073709551616", 5, "too large"),
        ("a = 0x10000000000000000", 5, "too large"),
        ("a = " + "9" * 10_000, 5, "too large"),
        ("a = 1e999", 5, "too large"),
        ("5", 1, "a number stands where a condition belongs"),
        ("a = 1 OR 'x'", 10, "a string stands where a condition belongs"),
        ("NOT a + 1", 5, "a number stands where a condition belongs"),
        ("1 + 'x' = 2", 5, "a string stands where a number belongs"),
        ("a = -(b = 1)", 7, "a condition stands where a number belongs"),
    ],
)
def test_what_is_wrong_is_said_with_its_column(text: str, column: int, problem: str) -> None:
    with pytest.raises(SelectorError, match=re.escape(problem)) as caught:
        parse_selector(text)
    assert caught.value.column == column
    assert f"column {column})" in str(caught.value)


def test_a_selector_longer_than_the_limit_is_refused() -> None:
    text = "yes".ljust(MAX_SELECTOR_CHARACTERS)
    assert is_selected(text)
    with pytest.raises(SelectorError, match=f"{MAX_SELECTOR_CHARACTERS + 1} characters"):
        parse_selector(text + " ")


@pytest.mark.parametrize(
    "nest",
    [
        lambda depth: "(" * depth + "yes" + ")" * depth,
        lambda depth: "NOT " * depth + "yes",
        lambda depth: "-" * depth + "weight = 1",
        lambda depth: "(yes OR " * (depth // 2) + "yes" + ")" * (depth // 2),
        lambda depth: "(" * depth,
    ],
)
def test_deep_nesting_is_an_error_and_not_a_crash(nest: Callable[[int], str]) -> None:
    for depth in (2 * MAX_NESTING, 10_000):
        with pytest.raises(SelectorError):
            parse_selector(nest(depth))


def test_the_deepest_nesting_that_is_let_in_can_be_evaluated() -> None:
    assert is_selected("(" * MAX_NESTING + "yes" + ")" * MAX_NESTING)
    assert is_selected("NOT " * MAX_NESTING + "yes")
    assert is_selected("(yes AND NOT " * 30 + "no" + ")" * 30) is False
    levels = MAX_NESTING // 2
    assert not is_selected("(" * levels + "weight" + " BETWEEN 1 AND 2)" * levels)


def test_a_long_list_of_alternatives_is_not_deep() -> None:
    assert is_selected(" OR ".join(f"weight = {number}" for number in range(2340, 2501)))


@given(st.text() | selector_like_texts)
def test_any_text_is_a_selector_or_a_selector_error(text: str) -> None:
    read = read_or_explain(text)
    assert isinstance(read, Selector) or 1 <= read.column <= len(text) + 1


@pytest.mark.parametrize("text", ["\0", "\ud800", "a = '\ud800\0'", "'", '"', '""', "''", "\x1c", "--", "٣ = 3", "K"])
def test_odd_characters_are_no_exception(text: str) -> None:
    read = read_or_explain(text)
    assert isinstance(read, Selector) or str(read)


@given(conditions, any_values, any_values)
def test_matching_never_raises_whatever_a_message_holds(condition: str, a: object, b: object) -> None:
    assert outcome(condition, {"a": a, "b": b}) in ("T", "F", "U")


@given(st.sampled_from(["=", "<>", "<", "<=", ">", ">="]), st.sampled_from("+-*/"), any_values, any_values)
def test_operators_never_raise_whatever_their_operands(symbol: str, sign: str, a: object, b: object) -> None:
    values = {"a": a, "b": b}
    for condition in (
        f"a {symbol} b",
        f"a {symbol} 3",
        f"a {symbol} 'x'",
        f"a {sign} b {symbol} a",
        f"-a {symbol} +b",
        "a BETWEEN b AND a",
        "a IN ('x', 3)",
        "a LIKE 'x%_'",
        "a IS NULL",
    ):
        assert outcome(condition, values) in ("T", "F", "U")
