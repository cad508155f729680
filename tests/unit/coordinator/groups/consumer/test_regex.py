"""Expressions are RE2's, and cost what can be told before."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.coordinator.patterns import matcher, topic_matcher
from headrace.protocol.errors import CodedError, ErrorCode
from headrace.protocol.patterns import MOST_STEPS, PatternError

EXPRESSIONS = [
    "orders-.*",
    "(foo|bar)+",
    "(a|ab)*c",
    "[a-c]+[^x]",
    r"\w+\.\d{2,3}",
    "(?i)FoO.*",
    "^abc$",
    "a|b|",
    r".*\bfoo\b.*",
    "x{0,3}y{2}",
    r"[\w.-]+",
    "a(?i:b)c",
    "a+?b*?",
    r"\Bab.*",
    r"[^\d]+z",
]
NAME = "a" * 249


@pytest.mark.parametrize("expression", EXPRESSIONS)
@given(name=st.text(alphabet="abcfoxyzFO.-_019", max_size=9))
def test_it_matches_what_python_matches(expression: str, name: str) -> None:
    expected = re.fullmatch(expression, name) is not None
    assert matcher(expression).matches(name) == topic_matcher(expression).matches(name) == expected


@pytest.mark.parametrize("expression", ["(a*)*b", "(a|a)*" * 20 + "b", "a?" * 60 + "a" * 60 + "b", "(a+a+)+y"])
def test_what_makes_others_backtrack_is_answered_within_its_cost(expression: str) -> None:
    assert matcher(expression).cost(NAME) < MOST_STEPS
    assert not matcher(expression).matches(NAME)


@pytest.mark.parametrize(
    "expression",
    [
        "(",
        "(?=a)b",
        "(?<!a)b",
        r"(a)\1",
        "a{5000}",
        "a" * 2000,
        "((a{30}){30}){30}",
        "((a{0}){4000}){4000000}",
        r"(?:\pL?){100}",
        "(?:.?){800}x",
        "\ud800",
    ],
)
def test_what_cannot_be_served_is_refused(expression: str) -> None:
    with pytest.raises(CodedError) as refused:
        matcher(expression)
    assert refused.value.code is ErrorCode.invalid_regular_expression
    assert refused.value.message.startswith("SubscribedTopicRegex `")


def test_no_topic_name_costs_more_than_a_match_may() -> None:
    largest = matcher("(?:a.?){100}.*")
    assert largest.cost(NAME) < MOST_STEPS
    with pytest.raises(PatternError, match="too large for a text of 32767 characters"):
        largest.matches("a" * 32_767)


@pytest.mark.parametrize("expression", [".{1,249}", "[a-z].{2,248}", "[^_].{0,200}[^-]"])
def test_a_topic_name_may_be_described_by_its_length(expression: str) -> None:
    assert topic_matcher(expression).matches("a" * 200)
    assert not topic_matcher(expression).matches("a" * 250)
    assert topic_matcher(expression).cost(NAME) < MOST_STEPS


def test_what_is_not_ascii_in_an_expression_for_topics_matches_no_part_of_a_letter() -> None:
    assert not topic_matcher("caf[é]").matches("cafe")
    assert topic_matcher("caf[é]?.*").matches("cafe")
