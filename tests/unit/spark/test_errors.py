"""Which errors of a query pass by themselves."""

import pytest

from headrace.client.columnar.model import UnknownTopic
from headrace.client.errors import ClientError, ClusterUnreachable
from headrace.client.registry import RegistryUnreachable
from headrace.config.setting import ConfigError
from headrace.spark.errors import QueryError, Unreachable, is_unreachable, with_query_errors


def raised(error: Exception) -> QueryError:
    @with_query_errors
    def call() -> None:
        raise error

    with pytest.raises(QueryError) as found:
        call()
    return found.value


@pytest.mark.parametrize(
    "error",
    [
        ClusterUnreachable("no broker answers at b:1", "_TRANSPORT"),
        RegistryUnreachable("http://r does not answer"),
        ClientError("orders-0: has no leader", "LEADER_NOT_AVAILABLE"),
        ClientError("the batch is decided, and could not be committed", "COORDINATOR_NOT_AVAILABLE"),
    ],
)
def test_a_cluster_that_is_away_is_told_from_a_query_that_is_wrong(error: Exception) -> None:
    plain = raised(error)
    assert isinstance(plain, Unreachable)
    assert str(plain) == str(error)
    assert is_unreachable(RuntimeError(f"Traceback ...\n{type(plain).__module__}.{type(plain).__name__}: {plain}"))


@pytest.mark.parametrize(
    "error",
    [
        ConfigError("unknown option x"),
        UnknownTopic("orders"),
        ClientError("not let in", "SASL_AUTHENTICATION_FAILED"),
        ClientError("batch 7 is torn"),
    ],
)
def test_what_does_not_pass_by_itself_is_no_outage(error: Exception) -> None:
    assert not is_unreachable(raised(error))
