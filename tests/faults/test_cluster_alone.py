"""A leader that is left alone: paused past its session, or without the followers that it needs.

The tests share one cluster and leave it as they found it: three brokers that run.
"""

import time
from collections.abc import Iterator
from contextlib import ExitStack

import pytest
from confluent_kafka import Consumer, TopicPartition

from headrace.protocol.errors import ErrorCode
from tests.support.faults.load import IMPATIENT, Load, logs_of, read_all, wait_for_equal_replicas
from tests.support.faults.view import View
from tests.support.process import ClusterProcesses, wait_for
from tests.support.wire import Closed, Wire, batch_of, produce_request, values_in

pytestmark = pytest.mark.slow

PRODUCE = 0
VERSION = 9


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcesses]:
    # Who is killed or stands still is missed only after what the tests do meanwhile.
    settings = {"zookeeper.session.timeout.ms": "10000"}
    with ClusterProcesses(tmp_path_factory.mktemp("alone"), 3, settings=settings) as processes:
        yield processes


def code_in(answer: object) -> ErrorCode:
    """What an answer to a Produce of one batch says of it."""
    (topic,) = answer.responses  # type: ignore[attr-defined]
    return ErrorCode(int(topic.partition_responses[0].error_code))


def send(wire: Wire, topic: str, value: bytes, acks: int) -> None:
    wire.send(PRODUCE, VERSION, produce_request(topic, batch_of(value), acks=acks, version=VERSION))


def produce(wire: Wire, topic: str, value: bytes, acks: int = -1) -> ErrorCode:
    send(wire, topic, value, acks)
    return code_in(wire.receive(PRODUCE, VERSION))


def is_refused(wire: Wire) -> bool:
    """Whether the next answer is an error; to have none at all is one, too."""
    try:
        return code_in(wire.receive(PRODUCE, VERSION)) is not ErrorCode.none
    except Closed:
        return True


def write_beyond_followers(cluster: ClusterProcesses, topic: str, leader: int, load: Load, wire: Wire) -> list[bytes]:
    """Have the leader acknowledge, with acks=1, what its followers do not get to know. Then it stands still."""
    values = [b"tail %d" % number for number in range(5)]
    for value in values:
        load.history.send("tail", topic, 0, [value.decode()], acks=1)
    followers = [broker for number, broker in cluster.brokers.items() if number != leader]
    with ExitStack() as undo:
        for follower in followers:
            follower.pause()
            undo.callback(follower.resume)
        for value in values:
            assert produce(wire, topic, value, acks=1) is ErrorCode.none
        cluster[leader].pause()
    return values


def test_a_paused_leader_is_fenced_and_loses_what_only_it_had(cluster: ClusterProcesses) -> None:
    view = View(cluster.bootstrap, "paused")
    view.create([(1, 2, 3)], min_insync_replicas="2")
    with Load(cluster.bootstrap, "paused", 1) as load, ExitStack() as held:
        load.wait_for_answers(time.monotonic())
        leader = view.known_leader()
        early = held.enter_context(Wire(cluster[leader].bootstrap))
        late = [held.enter_context(Wire(cluster[leader].bootstrap)) for _ in range(2)]
        tail = write_beyond_followers(cluster, "paused", leader, load, early)
        other = View(bootstrap_without(cluster, leader), "paused").wait_for_other_leader(leader)
        load.wait_for_answers(time.monotonic())
        logs = logs_of(cluster, "paused", 0)
        only_there = [value for value in tail if value in values_in(logs[leader]) and value not in logs[other]]
        assert only_there, "nothing but the paused leader's log has the tail"
        for wire, value in zip(late, (b"late 1", b"late 2"), strict=True):  # they lie in its sockets when it wakes
            load.history.send("late", "paused", 0, [value.decode()])
            send(wire, "paused", value, acks=-1)
        cluster[leader].resume()
        assert all(is_refused(wire) for wire in late), "what only one has is not acknowledged to all"
        view.wait_until_in_sync()
        load.wait_for_answers(time.monotonic())
        load.wait_for_reader()
    assert load.problems() == []
    seen = set(load.history.seen("paused", 0).values())
    assert seen.isdisjoint([*(value.decode() for value in only_there), "late 1", "late 2"])
    wait_for_equal_replicas(cluster, "paused", {0: 3})
    assert not {"late 1", "late 2"} & set(load.history.placed()["paused", 0].values())


def bootstrap_without(cluster: ClusterProcesses, number: int) -> str:
    return ",".join(broker.bootstrap for other, broker in cluster.brokers.items() if other != number)


def visible(bootstrap: str, topic: str) -> int:
    """How many records consumers are shown."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "visible", **IMPATIENT})
    try:
        return int(consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=30)[1])
    finally:
        consumer.close()


def test_too_few_replicas_refuse_writes_and_show_none_until_a_follower_returns(cluster: ClusterProcesses) -> None:
    view = View(cluster.bootstrap, "few")
    view.create([(1, 2, 3)], min_insync_replicas="2")
    leader = view.known_leader()
    followers = sorted(set(cluster.brokers) - {leader})
    with Wire(cluster[leader].bootstrap) as wire:
        assert produce(wire, "few", b"before") is ErrorCode.none
        for number in followers:
            cluster[number].kill()
        assert produce(wire, "few", b"during") is ErrorCode.not_enough_replicas_after_append
        wait_for("the ISR is too small", lambda: view.isr() == {leader})
        assert produce(wire, "few", b"refused") is ErrorCode.not_enough_replicas
        assert produce(wire, "few", b"for one", acks=1) is ErrorCode.none
        assert visible(cluster[leader].bootstrap, "few") == 1
        cluster[followers[0]].start()
        wait_for("a follower is back", lambda: len(view.isr()) == 2)
        # The leader may be the last to hear of it; what it refuses is not written.
        wait_for("writes are taken", lambda: produce(wire, "few", b"after") is not ErrorCode.not_enough_replicas)
    found = list(read_all(cluster.bootstrap, "few", 1)[0].values())
    assert found == ["before", "during", "for one", "after"]
    cluster[followers[1]].start()
    view.wait_until_in_sync()
    wait_for_equal_replicas(cluster, "few", {0: 3})
