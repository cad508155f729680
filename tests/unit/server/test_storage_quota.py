"""Topics that may hold so much and no more: alone, and together with all whose names begin alike."""

from collections.abc import Callable, Iterator

import pytest

from headrace.client.core.topics import TOPIC, alter_configs_request
from headrace.protocol.encode import encode_request
from headrace.protocol.errors import ErrorCode
from headrace.testing import Broker
from tests.support.quotas import set_quotas
from tests.support.wire import Wire, batch_of, produce_request

pytestmark = pytest.mark.slow

VALUE = bytes(1000)
QUOTA = "headrace.storage.quota.bytes"


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker({"log.retention.check.interval.ms": 100, "log.segment.bytes": 4000}) as running:
        yield running


def write(broker: Broker, topic: str, partition: int = 0, acks: int = -1) -> tuple[ErrorCode, str | None]:
    with Wire(broker.bootstrap) as wire:
        batch = batch_of(VALUE, timestamp=-1)
        wire.send(0, 9, produce_request(topic, batch, partition=partition, acks=acks))
        answer = wire.receive(0, 9).responses[0].partition_responses[0]
        return answer.error_code, answer.error_message


def set_topic(broker: Broker, topic: str, **settings: str | None) -> None:
    changes = {name.replace("_", "."): value for name, value in settings.items()}
    with Wire(broker.bootstrap) as wire:
        wire.send_body(44, 1, bytes(encode_request(44, 1, alter_configs_request(TOPIC, [topic], changes))))
        assert wire.receive(44, 1).responses[0].error_code is ErrorCode.none


def until(holds: Callable[[], bool], patience: int = 100_000) -> None:
    for _ in range(patience):
        if holds():
            return
    raise AssertionError("it never came to hold")


def is_refused(broker: Broker, topic: str, partition: int = 0) -> bool:
    return write(broker, topic, partition)[0] is ErrorCode.policy_violation


def test_a_full_topic_refuses_more_and_says_what_to_do(broker: Broker) -> None:
    broker.create_topic("full", 2, **{QUOTA: "5000"})
    until(lambda: is_refused(broker, "full"))
    code, message = write(broker, "full", 1)
    assert code is ErrorCode.policy_violation, "all partitions share it"
    assert message is not None
    assert "topic full holds what headrace.storage.quota.bytes=5000 allows it" in message
    assert "raise the quota, or wait until retention has deleted records" in message
    broker.create_topic("other")
    assert not is_refused(broker, "other")
    set_topic(broker, "full", headrace_storage_quota_bytes=None)
    until(lambda: not is_refused(broker, "full"))


def test_what_retention_frees_is_room_again(broker: Broker) -> None:
    broker.create_topic("freed", 1, **{QUOTA: "10000"})
    until(lambda: is_refused(broker, "freed"))
    set_topic(broker, "freed", retention_bytes="1000")
    until(lambda: not is_refused(broker, "freed"))


def test_who_wants_no_acknowledgement_is_closed(broker: Broker) -> None:
    broker.create_topic("silent", 1, **{QUOTA: "0"})
    until(lambda: is_refused(broker, "silent"))
    with Wire(broker.bootstrap) as wire:
        wire.send(0, 9, produce_request("silent", batch_of(VALUE), acks=0))
        assert wire.is_closed()


def test_all_topics_of_a_prefix_share_its_quota(broker: Broker) -> None:
    for topic in ("team-a.one", "team-a.two", "team-b.one"):
        broker.create_topic(topic)
    set_quotas(broker, {"topic-prefix": "team-a."}, storage_bytes=5000)
    until(lambda: is_refused(broker, "team-a.one"))
    code, message = write(broker, "team-a.two")
    assert code is ErrorCode.policy_violation
    assert message is not None
    assert "topics that begin with team-a. hold what their quota storage_bytes=5000 allows them" in message
    assert not is_refused(broker, "team-b.one")
    set_quotas(broker, {"topic-prefix": "team-a."}, storage_bytes=None)
    until(lambda: not is_refused(broker, "team-a.one"))
