"""The coordinator of a lone broker: what producers are told, and what holds when disks fail and brokers die."""

import errno
from datetime import timedelta

import pytest

from headrace.coordinator.runtime.fields import LONGEST_ID
from headrace.coordinator.transactions.records import TRANSACTION_TOPIC
from headrace.protocol.api import ApiKey
from headrace.protocol.errors import ErrorCode, ProtocolViolation
from tests.support.coordinator.world import World

from .producers import TOPIC, Producer

WEEK_MS = 7 * 86_400_000


@pytest.fixture
def producer(world: World) -> Producer:
    world.topic(TOPIC)
    producer = Producer(world)
    found = world.ask(ApiKey.FIND_COORDINATOR, 3, key="x", key_type=1)
    assert (found.error_code, found.node_id) == (ErrorCode.none, 1)
    assert producer.init() is ErrorCode.none
    return producer


def test_the_internal_topic_is_made_when_the_first_id_is_looked_for(world: World, producer: Producer) -> None:
    topic = world.image.topic(TRANSACTION_TOPIC)
    assert topic is not None
    assert (topic.internal, len(topic.partitions), topic.configs["cleanup.policy"]) == (True, 2, "compact")
    assert (producer.id, producer.epoch) == (0, 0)


def test_without_the_internal_topic_nobody_is_coordinator(world: World) -> None:
    assert Producer(world).init() is ErrorCode.not_coordinator


def test_a_transaction_is_begun_described_and_ended(world: World, producer: Producer) -> None:
    assert producer.state() == "Empty"
    assert producer.add(0, 1) is ErrorCode.none
    found = producer.describe()
    assert (found.transaction_state, found.topics[0].partitions) == ("Ongoing", (0, 1))
    assert producer.end() is ErrorCode.none
    world.settle()
    assert producer.state() == "CompleteCommit"
    assert producer.end() is ErrorCode.none
    assert producer.end(commit=False) is ErrorCode.invalid_txn_state
    assert producer.add(0) is ErrorCode.none
    assert producer.end(commit=False) is ErrorCode.none


def test_the_newer_protocol_gives_an_epoch_with_every_end(world: World, producer: Producer) -> None:
    for number in range(1, 4):
        assert producer.add(0) is ErrorCode.none
        assert producer.end(version=5) is ErrorCode.none
        assert producer.epoch == number
        world.settle()


@pytest.mark.parametrize("version", [0, 1, 2, 3])
def test_a_zombie_is_told_so_in_the_words_of_its_version(world: World, producer: Producer, version: int) -> None:
    fenced = ErrorCode.invalid_producer_epoch if version < 2 else ErrorCode.producer_fenced
    assert producer.add(0) is ErrorCode.none
    successor = Producer(world)
    assert successor.init() is ErrorCode.none
    assert (successor.id, successor.epoch) == (producer.id, producer.epoch + 2)
    assert producer.add(0, version=version) is fenced
    assert producer.add_offsets(version=version) is fenced
    assert producer.end(version=version) is fenced


@pytest.mark.parametrize("version", [3, 4])
def test_a_zombie_cannot_take_its_id_back(world: World, producer: Producer, version: int) -> None:
    assert Producer(world).init() is ErrorCode.none
    fenced = ErrorCode.invalid_producer_epoch if version < 4 else ErrorCode.producer_fenced
    assert producer.init(version=version, resumes=True) is fenced


@pytest.mark.parametrize("version", [3, 5])
def test_what_is_asked_in_the_wrong_state_is_refused(world: World, producer: Producer, version: int) -> None:
    assert producer.end(version=version) is ErrorCode.invalid_txn_state
    stranger = Producer(world, "nobody")
    stranger.id, stranger.epoch = 5, 0
    assert stranger.add(0) is ErrorCode.invalid_producer_id_mapping
    assert stranger.end(version=version) is ErrorCode.invalid_producer_id_mapping
    producer.id += 1
    assert producer.add(0) is ErrorCode.invalid_producer_id_mapping


@pytest.mark.parametrize("timeout_ms", [0, -1, 900_001])
def test_timeouts_are_bounded(world: World, producer: Producer, timeout_ms: int) -> None:
    assert producer.init(timeout_ms) is ErrorCode.invalid_transaction_timeout
    assert producer.init(900_000) is ErrorCode.none


@pytest.mark.parametrize("name", ["", "x" * (LONGEST_ID + 1)])
def test_ids_that_are_empty_or_too_long_are_refused(world: World, producer: Producer, name: str) -> None:
    del producer
    assert Producer(world, name).init() is ErrorCode.invalid_request
    assert Producer(world, name[:LONGEST_ID] or "y").init() is ErrorCode.none


def test_one_partition_that_does_not_exist_keeps_all_from_being_added(world: World, producer: Producer) -> None:
    codes = producer.add_each([(TOPIC, [0, 99]), ("gone", [0])])
    missing = ErrorCode.unknown_topic_or_partition
    assert codes == [ErrorCode.operation_not_attempted, missing, missing]
    assert producer.state() == "Empty"
    world.settle()


def test_a_partition_of_a_deleted_topic_needs_no_marker(world: World, producer: Producer) -> None:
    world.topic("short-lived", 1)
    assert producer.add_each([(TOPIC, [0]), ("short-lived", [0])]) == [ErrorCode.none] * 2
    world.run(world.controller.delete_topic("short-lived"))
    assert producer.end() is ErrorCode.none
    world.settle()
    assert producer.state() == "CompleteCommit"


def test_what_has_timed_out_is_aborted_and_its_producer_shut_out(world: World, producer: Producer) -> None:
    assert producer.init(1_000) is ErrorCode.none
    assert producer.add(0) is ErrorCode.none
    assert world.run(world.transactions.abort_overdue()) == 0
    world.clock.advance(1_001)
    assert world.run(world.transactions.abort_overdue()) == 1
    world.settle()
    assert producer.state() == "CompleteAbort"
    assert producer.end() is ErrorCode.producer_fenced


@pytest.mark.parametrize("by_ms", [-1_800_000, 1_800_000])
def test_a_time_of_day_that_is_set_anew_neither_hastens_nor_delays_a_timeout(
    world: World, producer: Producer, by_ms: int
) -> None:
    assert producer.init(1_000) is ErrorCode.none
    assert producer.add(0) is ErrorCode.none
    world.clock.jump(by_ms)
    assert world.run(world.transactions.abort_overdue()) == 0
    world.clock.advance(1_001)
    assert world.run(world.transactions.abort_overdue()) == 1
    world.settle()


def test_a_transaction_of_a_later_time_of_day_is_timed_from_when_it_was_read(world: World, producer: Producer) -> None:
    assert producer.init(1_000) is ErrorCode.none
    assert producer.add(0) is ErrorCode.none
    world.clock.jump(-1_800_000)
    world.kill()
    assert world.run(world.transactions.abort_overdue()) == 0
    world.clock.advance(1_001)
    assert world.run(world.transactions.abort_overdue()) == 1
    world.settle()


def test_ids_are_forgotten_after_their_time(world: World, producer: Producer) -> None:
    world.clock.advance(WEEK_MS - 1)
    assert world.run(world.transactions.expire(world.clock.now_ms())) == 0
    world.clock.advance(1)
    assert world.run(world.transactions.expire(world.clock.now_ms())) == 1
    assert producer.describe().error_code is ErrorCode.transactional_id_not_found
    world.kill()
    assert producer.describe().error_code is ErrorCode.transactional_id_not_found
    assert producer.add(0) is ErrorCode.invalid_producer_id_mapping


@pytest.mark.parametrize("power", [False, True])
def test_an_id_keeps_its_producer_and_its_transaction_over_a_death(
    world: World, producer: Producer, power: bool
) -> None:
    assert producer.add(0, 1) is ErrorCode.none
    world.crash() if power else world.kill()
    found = producer.describe()
    assert (found.transaction_state, found.producer_id, found.topics[0].partitions) == ("Ongoing", 0, (0, 1))
    assert producer.end() is ErrorCode.none
    world.settle()
    assert Producer(world).init() is ErrorCode.none


def test_an_outcome_is_told_to_nobody_before_it_is_certain(world: World, producer: Producer) -> None:
    assert producer.add(0) is ErrorCode.none
    world.holds_syncs = True
    ending = world.send(ApiKey.END_TXN, 3, **producer.end_values())
    partition = world.replicas.partition(TOPIC, 0)
    assert not ending.done()
    assert partition.log.log_end_offset == 0
    world.loop.call_soon(world.sync)
    world.settle()
    assert ending.result().error_code is ErrorCode.none
    assert partition.log.log_end_offset == 1
    world.holds_syncs = False
    world.loop.call_soon(world.sync)
    world.settle()


def test_what_cannot_be_written_never_happened(world: World, producer: Producer) -> None:
    world.disk.fail(errno.ENOSPC, kind="append", path=TRANSACTION_TOPIC)
    assert producer.add(0) is ErrorCode.coordinator_not_available
    for partition in world.replicas.hosted():
        partition.log.condition.revive()
    assert producer.state() == "Empty"
    assert producer.add(0) is ErrorCode.none


def test_a_request_that_its_client_has_given_up_ends_no_later_transaction(world: World, producer: Producer) -> None:
    """KAFKA-17754 with the older protocol: the client asks again on another connection, and goes on."""
    assert producer.add(0) is ErrorCode.none
    producer.connection = 2
    assert producer.end() is ErrorCode.none
    world.settle()
    assert producer.add(1) is ErrorCode.none
    producer.connection = 1
    with pytest.raises(ProtocolViolation):
        producer.end()
    with pytest.raises(ProtocolViolation):
        producer.add(2)
    producer.connection = 2
    assert producer.describe().topics[0].partitions == (1,)
    assert producer.end(commit=False) is ErrorCode.none


def test_transactions_are_listed_by_state_producer_duration_and_name(world: World, producer: Producer) -> None:
    other = Producer(world, "other")
    assert other.init() is ErrorCode.none
    assert producer.add(0) is ErrorCode.none
    world.clock.advance(500)

    def listed(**filters: object) -> set[str]:
        answer = world.ask(ApiKey.LIST_TRANSACTIONS, 2, **filters)
        assert answer.error_code is ErrorCode.none
        return {each.transactional_id for each in answer.transaction_states}

    assert listed() == {"x", "other"}
    assert listed(state_filters=["Ongoing"]) == {"x"}
    assert listed(producer_id_filters=[other.id]) == {"other"}
    assert (listed(duration_filter=499), listed(duration_filter=500)) == ({"x"}, set())
    assert listed(transactional_id_pattern="o.*") == {"other"}
    unknown = world.ask(ApiKey.LIST_TRANSACTIONS, 2, state_filters=["Nowhere"])
    assert (unknown.unknown_state_filters, unknown.transaction_states) == (("Nowhere",), ())
    wrong = world.ask(ApiKey.LIST_TRANSACTIONS, 2, transactional_id_pattern="(")
    assert wrong.error_code is ErrorCode.invalid_regular_expression


def test_offsets_are_part_of_a_transaction_through_their_partition(world: World, producer: Producer) -> None:
    assert producer.add_offsets("g") is ErrorCode.none
    found = producer.describe()
    assert (found.transaction_state, found.topics[0].topic) == ("Ongoing", "__consumer_offsets")
    assert found.transaction_timeout == timedelta(seconds=60)
    assert producer.end() is ErrorCode.none
    world.settle()
