"""Batches that an idempotent producer sends behind one that is refused, step by step, in virtual time.

All go over one connection and none is sent again before its turn comes, as if all were under way at once.
"""

from headrace.protocol.errors import ErrorCode
from tests.support.checker.history import Operation
from tests.support.simulation.runs import TOPIC, Run

from .test_simulated_failover import acknowledged, told

PRODUCER = 7
NONE, OUT_OF_ORDER = ErrorCode.none, ErrorCode.out_of_order_sequence_number
TOO_FEW, NOT_LEADER = ErrorCode.not_enough_replicas, ErrorCode.not_leader_or_follower


class Pipelined:
    """A producer that sends batches of one record, by their sequence numbers."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._operations: list[Operation] = []

    async def send(self, *sequences: int, to: int = 0) -> list[ErrorCode]:
        """What a broker answers to each."""
        return [await self._send(sequence, to) for sequence in sequences]

    async def _send(self, sequence: int, to: int) -> ErrorCode:
        operations = self._operations
        while len(operations) <= sequence:
            value = f"batch {len(operations)}"
            operations.append(self._run.history.send("pipelined", TOPIC, 0, [value], stream="pipelined"))
        broker = self._run.cluster[to].address
        code, offset = await self._run.client.produce(
            broker, TOPIC, 0, b"batch %d" % sequence, ids=(PRODUCER, 0, sequence)
        )
        if code is NONE:
            operations[sequence].ok(offset=offset)
        return code


async def alone(run: Run) -> None:
    """Broker 0 leads, and is all that is in sync."""
    run.cluster[1].kill()
    run.cluster[2].kill()
    partition = run.cluster[0].broker.replicas.partition(TOPIC, 0)
    await run.cluster.until(lambda: partition.is_short_of_replicas, "b0 is alone")


async def joined(run: Run) -> None:
    """Another one is in sync with broker 0, and it knows that."""
    await run.cluster[1].start()
    partition = run.cluster[0].broker.replicas.partition(TOPIC, 0)
    await run.cluster.until(lambda: not partition.is_short_of_replicas, "b1 is in sync again")
    assert partition.is_leader


async def refused_once(run: Run) -> Pipelined:
    """A producer whose batch 0 was taken and whose batch 1 was refused; it would be taken now."""
    producer = Pipelined(run)
    assert await producer.send(0) == [NONE]
    await alone(run)
    assert await producer.send(1) == [TOO_FEW]
    await joined(run)
    return producer


def test_what_follows_a_refused_batch_is_refused_like_it_until_that_comes_again() -> None:
    """librdkafka would begin a new epoch when told OUT_OF_ORDER, and then write batch 1 again, which is in the log."""

    async def story(run: Run) -> None:
        producer = Pipelined(run)
        assert await producer.send(0) == [NONE]
        run.cluster[1].kill()
        run.cluster[2].kill()
        assert await producer.send(1) == [ErrorCode.not_enough_replicas_after_append]
        assert await producer.send(1, 2) == [TOO_FEW, TOO_FEW]
        await joined(run)
        assert await producer.send(3, 4) == [TOO_FEW, TOO_FEW]
        assert await producer.send(1, 2, 3, 4) == [NONE] * 4
        held = await run.client.read_all(TOPIC, 0)
        assert list(held.values()) == [b"batch %d" % sequence for sequence in range(5)]
        await run.cluster[2].start()

    told(story)


def test_a_producers_first_batch_that_is_refused_is_not_passed_by_its_second() -> None:
    """librdkafka would take the first for written when told that the second is."""

    async def story(run: Run) -> None:
        await acknowledged(run, "a")
        await alone(run)
        producer = Pipelined(run)
        assert await producer.send(0) == [TOO_FEW]
        await joined(run)
        assert await producer.send(1) == [TOO_FEW]
        assert await producer.send(0, 1) == [NONE, NONE]
        await run.cluster[2].start()

    told(story)


def test_a_broker_that_comes_to_lead_between_two_batches_takes_none_before_the_first() -> None:
    async def story(run: Run) -> None:
        producer = Pipelined(run)
        assert await producer.send(0, 1) == [NONE, NONE]
        assert await producer.send(2, 3, to=1) == [NOT_LEADER, NOT_LEADER]
        await run.elect(TOPIC, [1, 0, 2])
        partition = run.cluster[1].broker.replicas.partition(TOPIC, 0)
        await run.cluster.until(lambda: partition.is_leader, "b1 leads")
        assert await producer.send(4, to=1) == [NOT_LEADER]
        assert await producer.send(2, 3, 4, to=1) == [NONE] * 3

    told(story)


def test_a_batch_after_a_gap_is_out_of_order_whatever_was_refused_before() -> None:
    async def story(run: Run) -> None:
        producer = await refused_once(run)
        assert await producer.send(3) == [OUT_OF_ORDER]
        assert await producer.send(1, 2, 3) == [NONE] * 3
        await run.cluster[2].start()

    told(story)


def test_a_producer_that_never_sends_the_refused_batch_again_learns_that_it_is_missing() -> None:
    async def story(run: Run) -> None:
        producer = await refused_once(run)
        assert await producer.send(2, 3, 4, 5, 6, 7) == [TOO_FEW] * 4 + [OUT_OF_ORDER] * 2
        assert await producer.send(*range(1, 8)) == [NONE] * 7
        await run.cluster[2].start()

    told(story)


def test_what_a_connection_was_refused_ends_with_it() -> None:
    async def story(run: Run) -> None:
        producer = await refused_once(run)
        run.client.close()
        assert await producer.send(2) == [OUT_OF_ORDER]
        assert await producer.send(1, 2) == [NONE, NONE]
        await run.cluster[2].start()

    told(story)
