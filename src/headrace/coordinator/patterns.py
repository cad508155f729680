"""Expressions that clients send for topics and transactional ids: RE2's, as in Kafka."""

from headrace.config import shown
from headrace.protocol.errors import CodedError, ErrorCode
from headrace.protocol.patterns import Pattern, PatternError, pattern


def topic_matcher(regex: str) -> Pattern:
    """As `matcher`, for names of topics, which are ASCII: larger expressions are taken."""
    return matcher(regex, of_ascii=True)


def matcher(regex: str, *, of_ascii: bool = False) -> Pattern:
    """The expression, ready to match; INVALID_REGULAR_EXPRESSION where it is none, or too large."""
    try:
        return pattern(regex, of_ascii=of_ascii)
    except PatternError as error:
        raise CodedError(
            ErrorCode.invalid_regular_expression,
            f"SubscribedTopicRegex `{shown(regex)}` is not a valid regular expression: {error}.",
        ) from None
