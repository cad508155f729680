"""Topics and groups of a cluster that takes connections and says nothing."""

import socket
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from headrace.client.errors import ClusterUnreachable
from headrace.ops.groups import GroupAdmin

pytestmark = pytest.mark.slow

NAME = "t"


@pytest.fixture
def admin() -> Iterator[GroupAdmin]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield GroupAdmin(f"127.0.0.1:{listener.getsockname()[1]}", timeout=0.2)


@pytest.mark.parametrize(
    "call",
    [
        lambda admin: admin.list_topics(),
        lambda admin: admin.create_topics([NAME]),
        lambda admin: admin.delete_topics([NAME]),
        lambda admin: admin.create_partitions(NAME, 2),
        lambda admin: admin.alter_configs(NAME, {"retention.ms": "1"}),
        lambda admin: admin.list_groups(),
        lambda admin: admin.describe_group(NAME),
    ],
    ids=[
        "list_topics",
        "create_topics",
        "delete_topics",
        "create_partitions",
        "alter_configs",
        "list_groups",
        "describe_group",
    ],
)
def test_what_has_no_answer_in_time_is_a_cluster_that_is_not_reached(
    admin: GroupAdmin, call: Callable[[GroupAdmin], object]
) -> None:
    with pytest.raises(ClusterUnreachable) as failure:
        call(admin)
    assert failure.value.message


@pytest.mark.parametrize("wrapped", [lambda error: error, KafkaException], ids=["error", "exception"])
def test_groups_that_no_broker_lists_are_a_cluster_that_is_not_reached(
    admin: GroupAdmin, monkeypatch: pytest.MonkeyPatch, wrapped: Callable[[KafkaError], object]
) -> None:
    listed: Future[Any] = Future()
    listed.set_result(SimpleNamespace(valid=[], errors=[wrapped(KafkaError(KafkaError._TIMED_OUT))]))
    monkeypatch.setattr(admin, "_client", SimpleNamespace(list_consumer_groups=lambda **_: listed))
    with pytest.raises(ClusterUnreachable):
        admin.list_groups()


def test_offsets_are_asked_for_again_while_a_leader_changes(admin: GroupAdmin, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = 0

    def list_offsets(request: dict[Any, Any], **_: object) -> dict[Any, Future[Any]]:
        nonlocal asked
        asked += 1
        outcome: Future[Any] = Future()
        if asked == 1:
            outcome.set_exception(KafkaException(KafkaError(KafkaError.NOT_LEADER_FOR_PARTITION)))
        else:
            outcome.set_result(SimpleNamespace(offset=7))
        return dict.fromkeys(request, outcome)

    monkeypatch.setattr(admin, "_client", SimpleNamespace(list_offsets=list_offsets, poll=lambda _: None))
    assert admin.end_offsets(NAME, [0, 1]) == {0: 7, 1: 7}
    assert asked == 2
