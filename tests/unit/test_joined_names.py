"""Names in one text: each can be told from the others, whatever is in it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qpid_ha_broker.events.joined_names import joined, names_of, percent_encoded

NAMES = st.lists(st.text(st.sampled_from("/%2F5aä"), max_size=8), min_size=1, max_size=4)


@given(NAMES)
def test_what_was_joined_is_told_apart(names: list[str]) -> None:
    assert names_of(joined(names)) == names


@pytest.mark.parametrize(
    ("names", "text"),
    [
        (["alice", "c"], "alice/c"),
        (["a/b", "100%"], "a%2Fb/100%25"),
        (["%2F", ""], "%252F/"),
        (["ä.b", "*"], "ä.b/*"),
    ],
)
def test_these_texts_are_in_logs_and_in_requests_of_clients(names: list[str], text: str) -> None:
    assert joined(names) == text


def test_what_nothing_would_have_escaped_is_taken_as_it_is() -> None:
    assert names_of("a%41/b%2e") == ["a%41", "b%2e"]


def test_characters_are_encoded_as_in_a_url() -> None:
    assert percent_encoded("ä/") == "%C3%A4%2F"
