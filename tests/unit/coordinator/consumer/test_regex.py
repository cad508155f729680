"""Expressions match as Python's would, in time that no expression can make long."""

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.coordinator.consumer.regex import Matcher, matcher
from headrace.protocol.errors import CodedError, ErrorCode

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


@pytest.mark.parametrize("expression", EXPRESSIONS)
@given(name=st.text(alphabet="abcfoxyzFO.-_019", max_size=9))
def test_it_matches_what_python_matches(expression: str, name: str) -> None:
    assert matcher(expression).matches(name) == (re.fullmatch(expression, name) is not None)


@pytest.mark.parametrize("expression", ["(a*)*b", "(a|a)*" * 20 + "b", "a?" * 60 + "a" * 60, "(x+x+)+y"])
def test_what_makes_others_backtrack_is_answered_at_once(expression: str) -> None:
    assert not matcher(expression).matches("a" * 249 if "x" not in expression else "x" * 249)


@pytest.mark.parametrize("expression", ["(", "(?=a)b", "(?<!a)b", r"(a)\1", "a{5000}", "a" * 2000, "((a{30}){30}){30}"])
def test_what_cannot_be_served_is_refused(expression: str) -> None:
    with pytest.raises(CodedError) as refused:
        matcher(expression)
    assert refused.value.code is ErrorCode.invalid_regular_expression
    assert refused.value.message.startswith("SubscribedTopicRegex `")


@pytest.mark.parametrize("expression", ["(){4000000000}", "(?:){4000000000}", "((a{0}){4000}){4000000}"])
def test_repeating_nothing_takes_no_time(expression: str) -> None:
    started = time.thread_time()
    try:
        assert Matcher(expression).matches("")
    except CodedError:
        assert "{4000" in expression, "it may be refused as too large"
    assert time.thread_time() - started < 2
