import pytest

from headrace.protocol.errors import CodedError, ErrorCode
from headrace.security.quotas.entities import (
    ANY,
    DEFAULT,
    EXACT,
    Component,
    QuotaChange,
    altered,
    check_entity,
    check_filter,
    check_operations,
    entity_of,
    entry_name,
)

ALICE = (("user", "alice"),)


@pytest.mark.parametrize(
    "parts",
    [
        (("user", "alice"),),
        (("user", None),),
        (("user", "a,b=c%/d é"), ("client-id", None)),
        (("user", None), ("client-id", "x=y")),
        (("client-id", ".."),),
        (("ip", "10.0.0.1"),),
        (("ip", None),),
        (("topic-prefix", "team-a."),),
    ],
)
def test_an_entity_keeps_its_kinds_and_names(parts: tuple[tuple[str, str | None], ...]) -> None:
    entity = check_entity(reversed(parts))
    assert entity == parts
    assert entity_of(entry_name(entity)) == parts


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ((), "Invalid empty client quota entity"),
        ((("user", ""),), "Empty user not supported"),
        ((("group", "g"),), "Unhandled client quota entity type: group"),
        ((("user", "a"), ("user", "b")), "duplicate entity entry user"),
        ((("user", "a"), ("ip", "10.0.0.1")), "Invalid quota entity combination"),
        ((("user", "a"), ("topic-prefix", "t")), "Invalid empty client quota entity"),
        ((("ip", "no-such.example"),), "no-such.example is not a valid IP"),
        ((("client-id", "x" * 3000),), "more than 2000 characters"),
        ((("topic-prefix", None),), "there is no default"),
    ],
)
def test_what_is_no_entity_is_refused(parts: tuple[tuple[str, str | None], ...], words: str) -> None:
    with pytest.raises(CodedError, match=words) as caught:
        check_entity(parts)
    assert caught.value.code is ErrorCode.invalid_request


@pytest.mark.parametrize(
    ("entity", "key", "value", "words"),
    [
        (ALICE, "producer_byte_rat", 1.0, "Invalid configuration key producer_byte_rat"),
        (ALICE, "connection_creation_rate", 1.0, "Invalid configuration key"),
        ((("ip", None),), "producer_byte_rate", 1.0, "Invalid configuration key"),
        (ALICE, "producer_byte_rate", 0.0, "must be greater than 0"),
        (ALICE, "request_percentage", -1.0, "must be greater than 0"),
        (ALICE, "request_percentage", float("nan"), "must be greater than 0"),
        (ALICE, "request_percentage", float("inf"), "must be greater than 0"),
        (ALICE, "consumer_byte_rate", 1.5, "consumer_byte_rate cannot be a fractional value"),
        (ALICE, "consumer_byte_rate", 1e19, "too large for a LONG"),
        ((("ip", None),), "connection_creation_rate", 3e9, "too large for an INT"),
    ],
)
def test_what_is_no_quota_is_refused(
    entity: tuple[tuple[str, str | None], ...], key: str, value: float, words: str
) -> None:
    with pytest.raises(CodedError, match=words):
        check_operations(entity, [QuotaChange(key, value)])


def test_a_quota_that_stands_twice_is_refused() -> None:
    with pytest.raises(CodedError, match="Duplicate quota key request_percentage"):
        check_operations(ALICE, [QuotaChange("request_percentage", 1.0), QuotaChange("request_percentage", None)])


def test_quotas_are_set_and_removed() -> None:
    check_operations(ALICE, [QuotaChange("whatever_was_there", None)])
    first = altered({}, [QuotaChange("producer_byte_rate", 1000.0), QuotaChange("request_percentage", 12.5)])
    assert first == {"producer_byte_rate": "1000.0", "request_percentage": "12.5"}
    assert altered(first, [QuotaChange("producer_byte_rate", None), QuotaChange("consumer_byte_rate", None)]) == {
        "request_percentage": "12.5"
    }
    assert altered(first, [QuotaChange(key, None) for key in first]) == {}


@pytest.mark.parametrize(
    ("components", "strict", "expected"),
    [
        ([], False, {"alice", "default", "alice+app", "alice+", "app", "ip"}),
        ([], True, set()),
        ([Component("user", EXACT, "alice")], False, {"alice", "alice+app", "alice+"}),
        ([Component("user", EXACT, "alice")], True, {"alice"}),
        ([Component("user", DEFAULT, None)], False, {"default"}),
        ([Component("user", ANY, None)], True, {"alice", "default"}),
        ([Component("user", ANY, None), Component("client-id", DEFAULT, None)], True, {"alice+"}),
        ([Component("client-id", ANY, None)], False, {"app", "alice+app", "alice+"}),
        ([Component("ip", ANY, None)], True, {"ip"}),
    ],
)
def test_a_filter_finds_what_kafkas_finds(components: list[Component], strict: bool, expected: set[str]) -> None:
    entities = {
        "alice": ALICE,
        "default": (("user", None),),
        "alice+app": (("user", "alice"), ("client-id", "app")),
        "alice+": (("user", "alice"), ("client-id", None)),
        "app": (("client-id", "app"),),
        "ip": (("ip", "10.0.0.1"),),
    }
    wanted = check_filter(components, strict=strict)
    assert {name for name, entity in entities.items() if wanted.matches(entity)} == expected


@pytest.mark.parametrize(
    ("components", "code", "words"),
    [
        ([Component("", ANY, None)], ErrorCode.invalid_request, "Invalid empty entity type"),
        ([Component("group", ANY, None)], ErrorCode.unsupported_version, "Unsupported entity type group"),
        ([Component("user", EXACT, None)], ErrorCode.invalid_request, "MATCH_TYPE_EXACT, but set match string to null"),
        ([Component("user", DEFAULT, "a")], ErrorCode.invalid_request, "MATCH_TYPE_DEFAULT, but also"),
        ([Component("user", ANY, "a")], ErrorCode.invalid_request, "MATCH_TYPE_SPECIFIED, but also"),
        ([Component("user", 3, None)], ErrorCode.invalid_request, "Unknown match type 3"),
        ([Component("user", ANY, None)] * 2, ErrorCode.invalid_request, "cannot appear more than once"),
        ([Component("user", ANY, None), Component("ip", ANY, None)], ErrorCode.invalid_request, "should not be used"),
    ],
)
def test_filters_that_make_no_sense_are_refused(components: list[Component], code: ErrorCode, words: str) -> None:
    with pytest.raises(CodedError, match=words) as caught:
        check_filter(components, strict=False)
    assert caught.value.code is code
