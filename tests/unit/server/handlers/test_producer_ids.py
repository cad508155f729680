from datetime import timedelta

import pytest

from headrace.protocol.api import ApiKey
from headrace.protocol.errors import ErrorCode
from tests.support.handlers import Harness, versions


@pytest.mark.parametrize("version", versions(ApiKey.INIT_PRODUCER_ID))
def test_every_producer_gets_an_id_of_its_own(broker: Harness, version: int) -> None:
    answers = [broker.ask(ApiKey.INIT_PRODUCER_ID, version, transactional_id=None) for _ in range(3)]
    assert [(a.error_code, a.producer_id, a.producer_epoch) for a in answers] == [
        (ErrorCode.none, number, 0) for number in range(3)
    ]


@pytest.mark.parametrize("version", versions(ApiKey.INIT_PRODUCER_ID, since=3))
def test_a_producer_that_lost_its_place_gets_a_new_id(broker: Harness, version: int) -> None:
    first = broker.ask(ApiKey.INIT_PRODUCER_ID, version, transactional_id=None)
    again = broker.ask(
        ApiKey.INIT_PRODUCER_ID, version, transactional_id=None, producer_id=first.producer_id, producer_epoch=0
    )
    assert (again.error_code, again.producer_epoch) == (ErrorCode.none, 0)
    assert again.producer_id != first.producer_id


@pytest.mark.parametrize(
    "values",
    [
        {"transactional_id": "", "transaction_timeout": timedelta(seconds=1)},
        {"transactional_id": "t", "producer_id": 5, "producer_epoch": -1},
        {"transactional_id": None, "producer_id": 5, "producer_epoch": -1},
        {"transactional_id": None, "producer_id": -1, "producer_epoch": 0},
    ],
)
def test_what_cannot_be_given_is_refused(broker: Harness, values: dict[str, object]) -> None:
    answer = broker.ask(ApiKey.INIT_PRODUCER_ID, 5, **values)
    assert (answer.error_code, answer.producer_id, answer.producer_epoch) == (ErrorCode.invalid_request, -1, -1)
