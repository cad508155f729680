"""The settings of share groups: what a group can be given, and what then is in force."""

import pytest

from headrace.config import BrokerConfig, group_value, validate_group_overrides
from headrace.config.share import duration_ms
from headrace.protocol.errors import CodedError, ErrorCode


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("PT12H", 43_200_000),
        ("P1DT1M1.5S", 86_461_500),
        ("pt0.001s", 1),
        ("P0D", 0),
        ("P", None),
        ("PT", None),
        ("P1DT", None),
        ("P1Y", None),
        ("-PT1H", None),
        ("PT-1H", None),
        ("12h", None),
        ("", None),
    ],
)
def test_a_duration_is_read_as_iso_8601_writes_it(text: str, milliseconds: int | None) -> None:
    assert duration_ms(text) == milliseconds


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("share.auto.offset.reset", "none"),
        ("share.auto.offset.reset", "by_duration:PT-1H"),
        ("share.isolation.level", "serializable"),
        ("share.record.lock.duration.ms", "999"),
        ("share.record.lock.duration.ms", "60001"),
        ("share.delivery.count.limit", "11"),
        ("share.partition.max.record.locks", "10001"),
        ("share.session.timeout.ms", "44999"),
        ("share.heartbeat.interval.ms", "15001"),
    ],
)
def test_what_no_share_group_can_be_given_is_refused(name: str, value: str) -> None:
    config = BrokerConfig.parse({})
    with pytest.raises(CodedError, match=name) as refused:
        validate_group_overrides({name: value}, config.__getitem__)
    assert refused.value.code is ErrorCode.invalid_config


def test_a_group_has_its_own_value_within_the_bounds_of_its_broker() -> None:
    config = BrokerConfig.parse({"group.share.delivery.count.limit": "7", "group.share.max.delivery.count.limit": "8"})
    assert group_value("share.delivery.count.limit", {}, config) == 7
    assert group_value("share.delivery.count.limit", {"share.delivery.count.limit": "3"}, config) == 3
    given_before = {"share.delivery.count.limit": "10"}
    assert group_value("share.delivery.count.limit", given_before, config) == 8
    assert group_value("share.auto.offset.reset", {}, config) == "latest"
