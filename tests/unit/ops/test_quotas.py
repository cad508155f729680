from collections.abc import Iterator

import pytest

from headrace.client.core.quotas import ANY, Match, named
from headrace.client.errors import ClientError
from headrace.ops.quotas import QuotaOperations
from headrace.testing import Broker


@pytest.fixture(scope="module")
def operations() -> Iterator[QuotaOperations]:
    with Broker() as broker, QuotaOperations(broker.bootstrap) as running:
        yield running


def test_quotas_are_set_described_and_removed(operations: QuotaOperations) -> None:
    operations.alter_quotas({"user": "alice", "client-id": None}, {"producer_byte_rate": 1e6})
    operations.alter_quotas({"user": "alice"}, {"request_percentage": 12.5})
    assert operations.describe_quotas(named({"user": "alice"}), strict=True) == [
        ({"user": "alice"}, {"request_percentage": 12.5})
    ]
    assert operations.describe_quotas([Match("client-id", ANY)]) == [
        ({"user": "alice", "client-id": None}, {"producer_byte_rate": 1e6})
    ]
    operations.alter_quotas({"user": "alice"}, {"request_percentage": None})
    assert len(operations.describe_quotas()) == 1


def test_what_the_broker_refuses_says_why(operations: QuotaOperations) -> None:
    with pytest.raises(ClientError, match="quotas of ip 'nowhere': nowhere is not a valid IP"):
        operations.alter_quotas({"ip": "nowhere"}, {"connection_creation_rate": 1})
    with pytest.raises(ClientError, match="Unsupported entity type planet"):
        operations.describe_quotas([Match("planet", ANY)])
