"""Expressions that clients send for topics and transactional ids: RE2's, as in Kafka."""

from headrace.config import shown
from headrace.protocol.errors import CodedError, ErrorCode
from headrace.protocol.patterns import Pattern, PatternError, pattern


def matcher(regex: str) -> Pattern:
    """The expression, ready to match; INVALID_REGULAR_EXPRESSION where it is none, or too large."""
    try:
        return pattern(regex)
    except PatternError as error:
        raise CodedError(
            ErrorCode.invalid_regular_expression,
            f"SubscribedTopicRegex `{shown(regex)}` is not a valid regular expression: {error}.",
        ) from None
