"""Transactions of a whole cluster: all or nothing for readers of committed records, whoever dies meanwhile."""

import asyncio
from typing import Any

import pytest

from headrace.cluster import feed
from headrace.coordinator.runtime.partitions import partition_of
from headrace.coordinator.transactions.markers import Job, MarkerSender
from headrace.protocol.api import ApiKey
from headrace.protocol.errors import ErrorCode
from headrace.replication.transactions import TransactionMarker
from headrace.testing.cluster import Machine
from headrace.testing.loop import run_virtual
from tests.support.simulation.clients import Failed
from tests.support.simulation.runs import TOPIC, Plan, Run
from tests.support.simulation.transacting import (
    NEWER,
    OLDER,
    TRANSACTION_TOPIC,
    TransactionalProducer,
    committed_values,
)

PARTITIONS = 3
SETTINGS = {"transaction.abort.timed.out.transaction.cleanup.interval.ms": "1000"}


class Transactions:
    """A cluster with producers of both protocols, and the reckoning."""

    def __init__(self, seed: int, count: int = 25) -> None:
        self.run = Run(Plan(seed=seed, partitions=PARTITIONS, settings=SETTINGS))
        self.cluster = self.run.cluster
        self.producers: list[TransactionalProducer] = []
        self._count = count
        self._work: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        await self.run.start()
        for name, newer in (("older-1", OLDER), ("newer-1", NEWER), ("older-2", OLDER), ("newer-2", NEWER)):
            producer = TransactionalProducer(self.cluster, name, TOPIC, newer=newer, timeout_ms=10_000)
            self.producers.append(producer)
            self._work.append(asyncio.ensure_future(producer.run(self._count, range(PARTITIONS))))

    @property
    def is_done(self) -> bool:
        return all(task.done() for task in self._work)

    async def end(self) -> None:
        """Everyone ends; what was committed is on every partition once, what was aborted on none."""
        await asyncio.gather(*self._work)
        await self.cluster.until(self.cluster.is_whole, "every partition is whole", 90)
        seen = [await committed_values(self.run.client, TOPIC, index) for index in range(PARTITIONS)]
        for values in seen:
            assert len(values) == len(set(values)), "a record was seen twice"
        for producer in self.producers:
            for value, told in producer.told.items():
                on = [value in values for values in seen]
                assert all(on) or not any(on), f"{value} was torn: {on}"
                assert told is None or all(on) == told, f"{value} is {on}, its producer was told {told}"
            producer.client.close()
        await self.run.end()

    def told(self) -> int:
        return sum(told is not None for producer in self.producers for told in producer.told.values())


async def again(machine: Machine) -> None:
    """Let a machine be away for a while."""
    await asyncio.sleep(3)
    await machine.start()


def test_without_faults_every_transaction_ends_as_it_was_meant_to() -> None:
    async def main() -> None:
        work = Transactions(seed=1)
        await work.start()
        await work.end()
        assert work.told() == 100

    run_virtual(main, seed=1)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("power", [False, True], ids=["kill", "power"])
def test_transactions_survive_their_coordinators(seed: int, power: bool) -> None:
    async def main() -> None:
        work = Transactions(seed)
        cluster = work.cluster
        await work.start()
        await asyncio.sleep(1)
        for round_ in range(6):
            if work.is_done:
                break
            if cluster.topics().get(TRANSACTION_TOPIC) is None:
                await asyncio.sleep(1)
                continue
            victim = cluster.leader(TRANSACTION_TOPIC, round_ % 2)
            victim.lose_power() if power else victim.kill()
            await again(victim)
            await cluster.until(cluster.is_whole, "every partition is whole", 90)
            await asyncio.sleep(cluster.rng.uniform(0, 1))
        await work.end()
        assert work.told() > 50

    run_virtual(main, seed=seed)


@pytest.mark.parametrize("seed", range(2))
def test_a_coordinator_that_was_paused_past_its_session_tears_nothing(seed: int) -> None:
    async def main() -> None:
        work = Transactions(seed)
        cluster = work.cluster
        await work.start()
        await cluster.until(lambda: TRANSACTION_TOPIC in cluster.topics(), "there is a coordinator")
        for round_ in range(4):
            if work.is_done:
                break
            victim = cluster.leader(TRANSACTION_TOPIC, round_ % 2)
            victim.pause()
            await asyncio.sleep(5)
            victim.resume()
            await cluster.until(cluster.is_whole, "every partition is whole", 90)
        await work.end()

    run_virtual(main, seed=seed)


def test_what_comes_late_fits_no_later_transaction_of_the_newer_protocol() -> None:
    async def main() -> None:
        run = Run(Plan(seed=5, partitions=2, settings=SETTINGS))
        await run.start()
        producer = TransactionalProducer(run.cluster, "x", TOPIC, newer=True, timeout_ms=10_000)
        await producer.init()
        await producer.write(0, "first")
        late = producer.as_it_is(run.cluster)
        await producer.end(commit=True)
        await producer.write(1, "second")
        for commit in (True, False):
            with pytest.raises(Failed) as refused:
                await late.end(commit=commit)
            assert refused.value.code is ErrorCode.producer_fenced
        with pytest.raises(Failed) as refused:
            await late.write(0, "late")
        assert refused.value.code is ErrorCode.invalid_producer_epoch
        await producer.end(commit=False)
        await producer.write(0, "third")
        await producer.end(commit=True)
        assert await committed_values(run.client, TOPIC, 0) == ["first", "third"]
        assert await committed_values(run.client, TOPIC, 1) == []
        for each in (producer, late):
            each.client.close()
        await run.end()

    run_virtual(main, seed=5)


def test_an_answer_that_was_lost_is_given_again_by_the_newer_protocol() -> None:
    async def main() -> None:
        run = Run(Plan(seed=6, partitions=2, settings=SETTINGS))
        await run.start()
        producer = TransactionalProducer(run.cluster, "x", TOPIC, newer=True, timeout_ms=10_000)
        await producer.init()
        await producer.write(0, "first")
        again = producer.as_it_is(run.cluster)
        await producer.end(commit=True)
        await again.end(commit=True)
        await again.write(0, "second")
        await again.end(commit=True)
        assert await committed_values(run.client, TOPIC, 0) == ["first", "second"]
        for each in (producer, again):
            each.client.close()
        await run.end()

    run_virtual(main, seed=6)


@pytest.mark.parametrize("newer", [OLDER, NEWER], ids=["older", "newer"])
def test_a_commit_survives_a_restart_of_all_brokers_before_its_markers(
    newer: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The coordinator comes to lead its shard before it knows the other topics: they are not deleted."""
    monkeypatch.setattr(feed, "MOST_SENT", 1)
    alone = {"transaction.state.log.replication.factor": "1", "transaction.state.log.min.isr": "1"}

    async def main() -> None:
        run = Run(Plan(seed=3, partitions=PARTITIONS, settings={**SETTINGS, **alone}))
        await run.start()
        cluster = run.cluster
        producer = TransactionalProducer(cluster, "x", TOPIC, newer=newer, timeout_ms=10_000)
        with monkeypatch.context() as nothing_sent:
            nothing_sent.setattr(MarkerSender, "_route", lambda *_: None)
            await producer.transact("first", range(PARTITIONS), commit=True)
            await cluster.until(cluster.is_whole, "every partition is whole")
            for machine in cluster:
                machine.kill()
        await asyncio.sleep(5)
        await asyncio.gather(*[machine.start() for machine in cluster])
        await cluster.until(cluster.is_whole, "every partition is whole", 90)
        await producer.init()
        await producer.transact("second", range(PARTITIONS), commit=False)
        for index in range(PARTITIONS):
            assert await committed_values(run.client, TOPIC, index) == ["first"]
        producer.client.close()
        await run.end()

    run_virtual(main, seed=3)


@pytest.mark.parametrize("newer", [OLDER, NEWER], ids=["older", "newer"])
def test_a_partition_that_the_coordinator_does_not_know_is_not_added_until_it_does(newer: bool) -> None:
    async def main() -> None:
        run = Run(Plan(seed=4, partitions=1, settings=SETTINGS))
        await run.start()
        cluster = run.cluster
        producer = TransactionalProducer(cluster, "x", "fresh", newer=newer, timeout_ms=10_000)
        await producer.init()
        await cluster.until(cluster.is_whole, "every partition is whole")
        coordinator = cluster.leader(TRANSACTION_TOPIC, partition_of("x", 2))
        catches_up = hold_feed(coordinator)
        others = [machine.id for machine in cluster if machine is not coordinator]
        making = asyncio.ensure_future(run.client.create_topic("fresh", partitions=1, assignments=[others]))
        await cluster.until(lambda: "fresh" in cluster.topics(), "the topic is made")
        await asyncio.sleep(0.2)
        producer.client.believe("fresh", 0, cluster.leader("fresh").address)
        writing = asyncio.ensure_future(producer.transact("first", [0], commit=True))
        await asyncio.sleep(2)
        assert not writing.done()
        catches_up.set()
        await asyncio.gather(writing, making)
        assert await committed_values(run.client, "fresh", 0) == ["first"]
        producer.client.close()
        await run.end()

    run_virtual(main, seed=4)


def test_a_coordinator_that_knows_an_older_topic_of_that_name_adds_no_partition_of_the_newer_one() -> None:
    """Its marker would go with the older topic, and readers of the newer one wait for ever."""

    async def main() -> None:
        run = Run(Plan(seed=4, partitions=1, settings=SETTINGS))
        await run.start()
        cluster = run.cluster
        producer = TransactionalProducer(cluster, "x", "fresh", newer=True, timeout_ms=10_000)
        await producer.init()
        await cluster.until(cluster.is_whole, "every partition is whole")
        coordinator = cluster.leader(TRANSACTION_TOPIC, partition_of("x", 2))
        others = [machine.id for machine in cluster if machine is not coordinator]
        await run.client.create_topic("fresh", partitions=1, assignments=[others])
        older = cluster.topics()["fresh"].id
        catches_up = hold_feed(coordinator)
        deleting = {"topics": [{"name": "fresh", "topic_id": None}], "timeout": 1_000}
        work = [asyncio.ensure_future(run.client.ask_anyone(ApiKey.DELETE_TOPICS, 6, deleting))]
        await cluster.until(lambda: "fresh" not in cluster.topics(), "the topic is deleted")
        work.append(asyncio.ensure_future(run.client.create_topic("fresh", partitions=1, assignments=[others])))
        await cluster.until(lambda: "fresh" in cluster.topics(), "the topic is made anew")
        assert cluster.topics()["fresh"].id != older
        await asyncio.sleep(1)
        producer.client.believe("fresh", 0, cluster.leader("fresh").address)
        writing = asyncio.ensure_future(producer.transact("first", [0], commit=True))
        await asyncio.sleep(2)
        assert not writing.done()
        catches_up.set()
        await writing
        await asyncio.gather(*work, return_exceptions=True)  # their answers waited for the coordinator, too
        assert await committed_values(run.client, "fresh", 0) == ["first"]
        producer.client.close()
        await run.end()

    run_virtual(main, seed=4)


@pytest.mark.parametrize("newer", [OLDER, NEWER], ids=["older", "newer"])
def test_no_client_ends_a_transaction_that_its_coordinator_knows(newer: bool) -> None:
    async def main() -> None:
        run = Run(Plan(seed=4, partitions=2, settings=SETTINGS))
        await run.start()
        producer = TransactionalProducer(run.cluster, "x", TOPIC, newer=newer, timeout_ms=10_000)
        await producer.init()
        if not newer:
            await producer.add([0, 1])
        for index in (0, 1):
            await producer.write(index, "first")
        for coordinator_epoch in (0, 2**31 - 1):
            assert await client_abort(run, producer, coordinator_epoch) is ErrorCode.invalid_txn_state
        await producer.end(commit=True)
        for index in (0, 1):
            assert await committed_values(run.client, TOPIC, index) == ["first"]
        await producer.init()
        producer.client.close()
        await run.end()

    run_virtual(main, seed=4)


async def client_abort(run: Run, producer: TransactionalProducer, coordinator_epoch: int) -> ErrorCode:
    producer_id, epoch = producer._producer or (-1, -1)
    marker = {
        "producer_id": producer_id,
        "producer_epoch": epoch,
        "transaction_result": False,
        "coordinator_epoch": coordinator_epoch,
        "topics": [{"name": TOPIC, "partition_indexes": [0]}],
    }
    leader = await run.client.leader(TOPIC, 0)
    answer = await run.client.ask(leader, ApiKey.WRITE_TXN_MARKERS, 1, {"markers": [marker]})
    return ErrorCode(answer.markers[0].topics[0].partitions[0].error_code)


def test_a_coordinator_that_was_succeeded_sends_no_more_markers_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """A partition has a marker of a later coordinator, of which this one has not heard: it leaves the id to that."""

    async def main() -> None:
        run = Run(Plan(seed=4, partitions=1, settings=SETTINGS))
        await run.start()
        cluster = run.cluster
        producer = TransactionalProducer(cluster, "x", TOPIC, newer=False, timeout_ms=10_000)
        await producer.init()
        await producer.add([0])
        await producer.write(0, "first")
        await cluster.until(cluster.is_whole, "every partition is whole")
        shard = partition_of("x", 2)
        former = cluster.leader(TRANSACTION_TOPIC, shard)
        producer_id, epoch = producer._producer or (-1, -1)
        later = TransactionMarker(
            producer_id=producer_id,
            producer_epoch=epoch,
            coordinator_epoch=cluster.topics()[TRANSACTION_TOPIC].partitions[shard].leader_epoch + 1,
            committed=True,
        )
        assert await cluster.leader(TOPIC).broker.replicas.append_marker(TOPIC, 0, later) is ErrorCode.none
        sent: list[Job] = []
        route = MarkerSender._route

        def count(sender: MarkerSender, job: Job, partitions: Any) -> None:
            sent.append(job)
            route(sender, job, partitions)

        monkeypatch.setattr(MarkerSender, "_route", count)
        await producer.end(commit=True)
        await asyncio.sleep(5)
        assert len(sent) == 1
        taking_over = asyncio.ensure_future(producer.init())
        await asyncio.sleep(5)
        assert not taking_over.done()
        former.kill()
        await taking_over
        assert await committed_values(run.client, TOPIC, 0) == ["first"]
        await former.start()
        producer.client.close()
        await run.end()

    run_virtual(main, seed=4)


def test_a_coordinator_that_takes_over_before_it_knows_a_topic_made_anew_waits_for_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In the middle of a snapshot it knows of its shard already, and leads the older topic of that name itself."""
    monkeypatch.setattr(feed, "MOST_SENT", 1)

    async def main() -> None:
        one = {"transaction.state.log.num.partitions": "1"}
        run = Run(Plan(seed=4, partitions=1, settings={**SETTINGS, **one}))
        await run.start()
        cluster = run.cluster
        producer = TransactionalProducer(cluster, "x", "fresh", newer=True, timeout_ms=60_000)
        await producer.init()
        await cluster.until(cluster.is_whole, "every partition is whole")
        former = cluster.controller()
        assert former is not None
        successor, other = [machine for machine in cluster if machine is not former]
        await run.elect(TRANSACTION_TOPIC, [former.id, successor.id, other.id])
        await run.client.create_topic("fresh", partitions=1, assignments=[[successor.id]])
        await cluster.until(cluster.is_whole, "every partition is whole")
        is_cut = lose_feed(successor, seconds_per_page=0.5)
        deleting = {"topics": [{"name": "fresh", "topic_id": None}], "timeout": 1_000}
        work = [asyncio.ensure_future(run.client.ask(former.address, ApiKey.DELETE_TOPICS, 6, deleting, seconds=30))]
        await cluster.until(lambda: "fresh" not in cluster.topics(), "the topic is deleted")
        work.append(asyncio.ensure_future(run.client.create_topic("fresh", partitions=1, assignments=[[other.id]])))
        await cluster.until(lambda: "fresh" in cluster.topics(), "the topic is made anew")
        await asyncio.sleep(1)
        producer.client.believe("fresh", 0, other.address)
        with monkeypatch.context() as nothing_sent:
            nothing_sent.setattr(MarkerSender, "_route", lambda *_: None)
            await producer.transact("first", [0], commit=True)
            former.kill()
        is_cut.clear()
        await cluster.until(lambda: cluster.state(TRANSACTION_TOPIC).leader == successor.id, "there is a successor")
        await producer.transact("second", [0], commit=False)
        await asyncio.gather(*work, return_exceptions=True)
        assert await committed_values(run.client, "fresh", 0) == ["first"]
        producer.client.close()
        await run.end()

    run_virtual(main, seed=4)


def hold_feed(machine: Machine) -> asyncio.Event:
    """Keep a broker from taking up what the controller tells it, until the event is set."""
    goes_on = asyncio.Event()
    assert machine.broker._clustered is not None
    subscriber = machine.broker._clustered.member._subscriber
    take = subscriber._take_changes

    async def hold(changes: Any) -> None:
        await goes_on.wait()
        await take(changes)

    subscriber._take_changes = hold  # type: ignore[method-assign]
    return goes_on


def lose_feed(machine: Machine, *, seconds_per_page: float) -> asyncio.Event:
    """Let what the controller tells a broker be lost while the event is set, and take its time after that."""
    is_cut = asyncio.Event()
    is_cut.set()
    assert machine.broker._clustered is not None
    subscriber = machine.broker._clustered.member._subscriber
    take = subscriber.take

    async def lose(answer: Any, position: Any) -> bool:
        is_lost = is_cut.is_set()
        await asyncio.sleep(seconds_per_page)
        return not is_lost and await take(answer, position)

    subscriber.take = lose  # type: ignore[method-assign]
    return is_cut
