from typing import Any

import pytest

from headrace.cluster.features import FEATURES
from headrace.protocol.api import ApiKey
from headrace.protocol.errors import CodedError, ErrorCode
from headrace.replication.transactions import EPOCH_BUMPING
from tests.support.handlers import Harness, versions


def update(broker: Harness, version: int, *levels: tuple[str, int]) -> Any:
    updates = [{"feature": name, "max_version_level": level} for name, level in levels]
    return broker.ask(ApiKey.UPDATE_FEATURES, version, feature_updates=updates)


@pytest.mark.parametrize("version", versions(ApiKey.API_VERSIONS, since=3))
def test_clients_are_told_of_the_features_and_their_levels(broker: Harness, version: int) -> None:
    answer = broker.ask(ApiKey.API_VERSIONS, version, client_software_name="java", client_software_version="4.1.0")
    levels = {feature.name: feature.level for feature in FEATURES}
    assert {f.name: (f.min_version, f.max_version) for f in answer.supported_features} == {
        name: (level, level) for name, level in levels.items()
    }
    assert {f.name: f.max_version_level for f in answer.finalized_features} == levels
    assert levels["transaction.version"] == EPOCH_BUMPING


@pytest.mark.parametrize("version", versions(ApiKey.UPDATE_FEATURES))
def test_the_level_that_is_in_force_can_be_asked_for_in_every_version(broker: Harness, version: int) -> None:
    answer = update(broker, version, ("group.version", 1), ("transaction.version", 2))
    assert answer.error_code is ErrorCode.none
    if version < 2:
        assert [(r.feature, r.error_code) for r in answer.results] == [
            ("group.version", ErrorCode.none),
            ("transaction.version", ErrorCode.none),
        ]


@pytest.mark.parametrize("version", versions(ApiKey.UPDATE_FEATURES))
@pytest.mark.parametrize(
    ("name", "level", "words"),
    [
        ("group.version", 0, "only support version 1: groups of the consumer protocol"),
        ("metadata.version", 27, "do not support this feature"),
    ],
)
def test_any_other_level_is_refused_in_every_version(
    broker: Harness, version: int, name: str, level: int, words: str
) -> None:
    answer = update(broker, version, (name, level))
    if version < 2:
        (result,) = answer.results
        assert (answer.error_code, result.error_code) == (ErrorCode.none, ErrorCode.invalid_update_version)
        assert words in result.error_message
    else:
        assert answer.error_code is ErrorCode.invalid_update_version
        assert words in answer.error_message


def test_requests_that_ask_for_nothing_or_twice_are_refused(broker: Harness) -> None:
    with pytest.raises(CodedError) as caught:
        update(broker, 2)
    assert caught.value.code is ErrorCode.invalid_request
    twice = update(broker, 1, ("group.version", 1), ("group.version", 1))
    assert [r.error_code for r in twice.results] == [ErrorCode.invalid_request] * 2
