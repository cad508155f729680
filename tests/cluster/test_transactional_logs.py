"""Transactions as clients meet them on the leaders of partitions; who decides them is the test."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from headrace.coordinator.groups.shard import GroupShard
from headrace.coordinator.runtime.shard import Phase
from headrace.net.clock import SystemClock
from headrace.protocol.api import ApiKey
from headrace.protocol.errors import ErrorCode
from headrace.replication.transactions import TransactionMarker
from headrace.testing.client import values_in
from headrace.testing.loop import run_virtual
from tests.support.simulation.clients import ClusterClient
from tests.support.simulation.transactional import GROUP, OFFSETS, TOPIC, Bench, visible

LATEST, EARLIEST = -1, -2
MARKER = TransactionMarker(producer_id=7, producer_epoch=0, coordinator_epoch=0, committed=True)


def on(brokers: int, test: Callable[[Bench], Awaitable[None]], partitions: int = 1) -> None:
    async def main() -> None:
        bench = Bench(brokers)
        await bench.start(partitions)
        await test(bench)
        await bench.stop()

    run_virtual(main, 1, longest=600)


# Reading


def test_committed_readers_stop_before_an_open_transaction_and_drop_what_was_aborted() -> None:
    async def test(bench: Bench) -> None:
        await bench.plain(b"a")
        await bench.write(b"open", 7)
        await bench.plain(b"b")
        fetched = await bench.fetch()
        assert (visible(fetched), fetched.last_stable_offset, fetched.high_watermark) == ([b"a"], 1, 3)
        assert len(values_in((await bench.fetch(committed=False)).records)) == 3
        assert await bench.mark(committed=False) is ErrorCode.none
        fetched = await bench.fetch()
        assert visible(fetched) == [b"a", b"b"]
        assert [(each.producer_id, each.first_offset) for each in fetched.aborted_transactions] == [(7, 1)]
        assert b"open" in values_in((await bench.fetch(committed=False)).records)
        await bench.write(b"c", 7)
        assert await bench.mark(committed=True) is ErrorCode.none
        assert visible(await bench.fetch()) == [b"a", b"b", b"c"]

    on(1, test)


def test_offsets_are_listed_by_what_a_reader_may_see() -> None:
    async def test(bench: Bench) -> None:
        await bench.plain(b"a")
        await bench.write(b"open")
        assert await bench.list_offset(LATEST, committed=True) == 1
        assert await bench.list_offset(LATEST, committed=False) == 2
        assert await bench.list_offset(EARLIEST, committed=True) == 0
        assert await bench.list_offset(1 << 50, committed=True) == -1
        await bench.mark(committed=True)
        assert await bench.list_offset(LATEST, committed=True) == 3

    on(1, test)


@pytest.mark.parametrize("min_bytes", [1, 100])
def test_a_waiting_reader_is_woken_by_a_marker_and_not_by_what_is_behind_an_open_transaction(min_bytes: int) -> None:
    async def test(bench: Bench) -> None:
        await bench.write(b"first" * 30)
        waiting = asyncio.ensure_future(bench.fetch(wait_ms=60_000, min_bytes=min_bytes))
        await asyncio.sleep(0.1)
        for _ in range(5):
            await bench.plain(b"behind")
        await asyncio.sleep(0.1)
        assert not waiting.done()
        await bench.mark(committed=True)
        assert visible(await asyncio.wait_for(waiting, 5))[0] == b"first" * 30

    on(1, test)


# Producing


def test_only_the_batch_that_begins_a_transaction_is_verified() -> None:
    async def test(bench: Bench) -> None:
        for _ in range(3):
            await bench.write(b"x", version=11)
        assert bench.verifier.asked == [(7, 0, (TOPIC, 0), False)]
        await bench.mark(committed=True)
        await bench.write(b"y", version=12)
        assert bench.verifier.asked[1:] == [(7, 0, (TOPIC, 0), True)]

    on(1, test)


@pytest.mark.parametrize(
    ("code", "version", "told"),
    [
        (ErrorCode.transaction_abortable, 11, ErrorCode.transaction_abortable),
        (ErrorCode.transaction_abortable, 10, ErrorCode.invalid_txn_state),
        (ErrorCode.producer_fenced, 9, ErrorCode.invalid_producer_epoch),
        (ErrorCode.invalid_producer_id_mapping, 12, ErrorCode.invalid_producer_id_mapping),
        (ErrorCode.concurrent_transactions, 12, ErrorCode.concurrent_transactions),
        (ErrorCode.concurrent_transactions, 11, ErrorCode.not_enough_replicas),
        (ErrorCode.not_coordinator, 12, ErrorCode.not_enough_replicas),
        (ErrorCode.network_exception, 7, ErrorCode.not_enough_replicas),
    ],
)
def test_what_the_coordinator_refuses_is_told_and_not_written(code: ErrorCode, version: int, told: ErrorCode) -> None:
    async def test(bench: Bench) -> None:
        bench.verifier.code = code
        assert await bench.produce(bench.batch(b"x"), version=version) is told
        assert await bench.list_offset(LATEST, committed=False) == 0

    on(1, test)


def test_a_batch_that_was_verified_before_a_marker_came_begins_nothing() -> None:
    async def test(bench: Bench) -> None:
        bench.verifier.open.clear()
        late = asyncio.ensure_future(bench.produce(bench.batch(b"late")))
        await bench.verifier.was_asked.wait()
        assert await bench.mark(committed=False) is ErrorCode.none
        bench.verifier.open.set()
        assert await late is ErrorCode.invalid_txn_state
        assert await bench.list_offset(LATEST, committed=True) == await bench.list_offset(LATEST, committed=False)

    on(1, test)


def test_batches_sent_at_once_keep_their_order_while_the_first_is_verified() -> None:
    async def test(bench: Bench) -> None:
        await bench.plain(b"so that there is one connection")
        bench.verifier.first_takes = 1.0
        sent = [bench.produce(bench.batch(b"%d" % number)) for number in range(5)]
        assert await asyncio.gather(*sent) == [ErrorCode.none] * 5
        await bench.mark(committed=True)
        assert visible(await bench.fetch(1)) == [b"%d" % number for number in range(5)]

    on(1, test)


@pytest.mark.parametrize("version", [11, 12])
@pytest.mark.parametrize(
    "passing", [ErrorCode.coordinator_load_in_progress, ErrorCode.concurrent_transactions, ErrorCode.network_exception]
)
def test_what_follows_a_batch_that_is_to_come_again_is_not_taken_before_it(passing: ErrorCode, version: int) -> None:
    async def test(bench: Bench) -> None:
        first, second, third = bench.batch(b"first"), bench.batch(b"second"), bench.batch(b"third")
        bench.verifier.code = passing
        refusal = await bench.produce(first, version=version)
        assert refusal in (ErrorCode.not_enough_replicas, ErrorCode.concurrent_transactions)
        bench.verifier.code = ErrorCode.none
        assert await bench.produce(second, version=version) is refusal
        for after_a_gap in (second, third):
            code = await bench.produce(after_a_gap, version=version)
            assert code is ErrorCode.out_of_order_sequence_number
        for batch in (first, second, third):
            assert await bench.produce(batch, version=version) is ErrorCode.none
        await bench.mark(epoch=1 if version == 12 else 0, committed=True, transaction_version=2 if version == 12 else 1)
        assert visible(await bench.fetch()) == [b"first", b"second", b"third"]

    on(1, test)


def test_bad_transactional_batches_are_refused_and_the_log_stays_readable() -> None:
    async def test(bench: Bench) -> None:
        await bench.plain(b"good")
        refused = {
            ErrorCode.transactional_id_authorization_failed: bench.produce(bench.batch(b"x"), transactional_id=None),
            ErrorCode.invalid_record: bench.produce(bench.batch(b"x", -1, -1, base_sequence=-1)),
            ErrorCode.out_of_order_sequence_number: bench.produce(bench.batch(b"x", 9, base_sequence=5), version=12),
        }
        for code, asked in refused.items():
            assert await asked is code
        await bench.mark(5, 3, committed=True)
        assert await bench.produce(bench.batch(b"x", 5, 2)) is ErrorCode.invalid_producer_epoch
        assert await bench.mark(5, 2, committed=True) is ErrorCode.invalid_producer_epoch
        assert await bench.mark(5, 3, committed=True, coordinator_epoch=-1) is ErrorCode.transaction_coordinator_fenced
        assert await bench.mark(5, 3, committed=True, topic=OFFSETS) is ErrorCode.none
        fetched = await bench.fetch()
        assert (visible(fetched), fetched.last_stable_offset) == ([b"good"], 2)

    on(1, test)


def test_without_a_coordinator_no_transactional_batch_is_taken() -> None:
    async def test(bench: Bench) -> None:
        bench.cluster[0].broker.replicas.verifier = None
        assert await bench.produce(bench.batch(b"x")) is ErrorCode.invalid_txn_state
        assert await bench.commit_offset(5) is ErrorCode.invalid_txn_state

    on(1, test)


def test_a_marker_for_a_partition_that_is_not_here_says_so() -> None:
    async def test(bench: Bench) -> None:
        assert await bench.cluster[0].broker.replicas.append_marker("gone", 0, MARKER) is (
            ErrorCode.unknown_topic_or_partition
        )
        follower = next(m for m in bench.cluster if m is not bench.cluster.leader(TOPIC))
        assert await follower.broker.replicas.append_marker(TOPIC, 0, MARKER) is ErrorCode.not_leader_or_follower

    on(3, test)


@pytest.mark.parametrize("version", [1, 2])
def test_clients_cannot_write_markers(version: int) -> None:
    async def test(bench: Bench) -> None:
        await bench.write(b"x")
        marker = {
            "producer_id": 7,
            "producer_epoch": 0,
            "transaction_result": True,
            "topics": [{"name": TOPIC, "partition_indexes": [0, 5]}],
            "coordinator_epoch": 0,
            "transaction_version": 1,
        }
        answer = await bench.ask(ApiKey.WRITE_TXN_MARKERS, version, {"markers": [marker]})
        codes = [each.error_code for each in answer.markers[0].topics[0].partitions]
        assert codes == [ErrorCode.cluster_authorization_failed] * 2
        assert await bench.list_offset(LATEST, committed=True) == 0

    on(1, test)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({}, ErrorCode.none),
        ({"coordinator_epoch": 1}, ErrorCode.cluster_authorization_failed),
        ({"coordinator_epoch": 2**31 - 1}, ErrorCode.cluster_authorization_failed),
        ({"producer_epoch": 1}, ErrorCode.invalid_producer_epoch),
        ({"producer_epoch": 32_767}, ErrorCode.invalid_producer_epoch),
    ],
)
def test_an_operator_aborts_what_hangs_under_the_epochs_that_are_known_and_no_others(
    changes: dict[str, int], code: ErrorCode
) -> None:
    async def test(bench: Bench) -> None:
        await bench.write(b"x")
        marker = {
            "producer_id": 7,
            "producer_epoch": 0,
            "transaction_result": False,
            "topics": [{"name": TOPIC, "partition_indexes": [0]}],
            "coordinator_epoch": 0,
            "transaction_version": 2,
            **changes,
        }
        for _ in range(2):
            answer = await bench.ask(ApiKey.WRITE_TXN_MARKERS, 2, {"markers": [marker]})
            assert answer.markers[0].topics[0].partitions[0].error_code is code
        fetched = await bench.fetch()
        assert (visible(fetched), fetched.last_stable_offset) == ([], 2 if code is ErrorCode.none else 0)

    on(1, test)


def test_brokers_write_markers_on_each_other() -> None:
    async def test(bench: Bench) -> None:
        await bench.write(b"x")
        leader = bench.cluster.leader(TOPIC)
        asker = next(machine for machine in bench.cluster if machine is not leader)
        peers = asker.broker._clustered.peers  # type: ignore[union-attr]
        marker = {
            "producer_id": 7,
            "producer_epoch": 1,
            "transaction_result": False,
            "topics": [{"name": TOPIC, "partition_indexes": [0]}, {"name": "gone", "partition_indexes": [0]}],
            "coordinator_epoch": 0,
            "transaction_version": 2,
        }
        answer = await peers.ask(leader.id, ApiKey.WRITE_TXN_MARKERS, 2, {"markers": [marker]})
        codes = [topic.partitions[0].error_code for topic in answer.markers[0].topics]
        assert codes == [ErrorCode.none, ErrorCode.unknown_topic_or_partition]
        fetched = await bench.fetch()
        assert (visible(fetched), fetched.last_stable_offset) == ([], 2)

    on(3, test)


def test_producers_are_described_with_their_open_transactions() -> None:
    async def test(bench: Bench) -> None:
        await bench.plain(b"a")
        await bench.write(b"x")

        async def described() -> Any:
            topics = [{"name": TOPIC, "partition_indexes": [0]}]
            answer = await bench.ask(ApiKey.DESCRIBE_PRODUCERS, 0, {"topics": topics})
            return answer.topics[0].partitions[0].active_producers[0]

        found = await described()
        assert (found.producer_id, found.producer_epoch, found.last_sequence) == (7, 0, 0)
        assert (found.current_txn_start_offset, found.coordinator_epoch) == (1, -1)
        await bench.mark(7, 1, committed=True, coordinator_epoch=4, transaction_version=2)
        found = await described()
        assert (found.producer_epoch, found.current_txn_start_offset, found.coordinator_epoch) == (1, -1, 4)

    on(1, test)


# Clusters


def test_followers_know_what_is_open_and_what_was_aborted() -> None:
    async def test(bench: Bench) -> None:
        await bench.write(b"aborted", 7)
        await bench.mark(7, committed=False)
        await bench.write(b"open", 8)
        await bench.plain(b"behind")

        def agree() -> bool:
            held = [machine.broker.replicas.partition(TOPIC, 0) for machine in bench.cluster]
            return all(
                (partition.last_stable_offset, partition.log.aborted_between(0, 9)[:1]) == (2, [(7, 0, 1, 2)])
                for partition in held
            )

        await bench.cluster.until(agree, "all replicas say the same")
        former = bench.cluster.leader(TOPIC)
        former.kill()
        await bench.cluster.until(lambda: bench.cluster.leader(TOPIC) is not former, "another leads", 60)
        await asyncio.sleep(5)
        fetched = await bench.fetch()
        assert (visible(fetched), fetched.last_stable_offset) == ([], 2)
        assert await bench.mark(8, committed=True) is ErrorCode.none
        assert visible(await bench.fetch()) == [b"open", b"behind"]

    on(3, test)


def test_a_marker_counts_once_the_isr_has_it_and_is_refused_where_that_is_too_small() -> None:
    async def test(bench: Bench) -> None:
        await bench.write(b"x")
        leader = bench.cluster.leader(TOPIC)
        others = [machine for machine in bench.cluster if machine is not leader]
        for machine in others:
            machine.pause()
        ended = asyncio.ensure_future(bench.mark(committed=True))
        await asyncio.sleep(0.5)
        assert not ended.done()
        assert leader.broker.replicas.partition(TOPIC, 0).last_stable_offset == 0
        assert await asyncio.wait_for(ended, 60) is not ErrorCode.none
        for machine in others:
            machine.resume()
        await bench.cluster.until(bench.cluster.is_whole, "all are there again")
        await asyncio.sleep(5)
        assert await bench.mark(committed=True) is ErrorCode.none
        assert visible(await bench.fetch()) == [b"x"]

    on(3, test)


# Offsets of groups


@pytest.mark.parametrize("committed", [True, False])
def test_offsets_of_a_transaction_count_with_it_or_not_at_all(committed: bool) -> None:
    async def test(bench: Bench) -> None:
        assert await bench.commit_plainly(3) is ErrorCode.none
        assert await bench.commit_offset(10) is ErrorCode.none
        assert await bench.commit_offset(11) is ErrorCode.none
        assert await bench.committed_offset() is ErrorCode.unstable_offset_commit
        assert await bench.committed_offset(stable=False) == 3
        assert await bench.mark(committed=committed, topic=OFFSETS) is ErrorCode.none
        assert await bench.committed_offset() == (11 if committed else 3)
        assert bench.verifier.asked == [(7, 0, (OFFSETS, 0), False)]

    on(1, test)


@pytest.mark.parametrize("marked_before", [True, False])
def test_offsets_of_a_transaction_move_with_the_leader_of_their_partition(marked_before: bool) -> None:
    async def test(bench: Bench) -> None:
        assert await bench.commit_plainly(3) is ErrorCode.none
        assert await bench.commit_offset(10) is ErrorCode.none
        if marked_before:
            assert await bench.mark(committed=True, topic=OFFSETS) is ErrorCode.none
        former = bench.cluster.leader(OFFSETS)
        former.kill()
        await bench.cluster.until(lambda: bench.cluster.leader(OFFSETS) is not former, "another leads")
        await asyncio.sleep(5)
        if not marked_before:
            assert await bench.committed_offset() is ErrorCode.unstable_offset_commit
            assert await bench.mark(committed=True, topic=OFFSETS) is ErrorCode.none
        assert await bench.committed_offset() == 10

    on(3, test)


def test_of_two_commits_the_one_written_later_counts_whenever_they_are_decided() -> None:
    async def test(bench: Bench) -> None:
        assert await bench.commit_offset(10, 7) is ErrorCode.none
        assert await bench.commit_offset(20, 8) is ErrorCode.none
        assert await bench.mark(8, committed=True, topic=OFFSETS) is ErrorCode.none
        assert await bench.committed_offset() is ErrorCode.unstable_offset_commit
        assert await bench.mark(7, committed=True, topic=OFFSETS) is ErrorCode.none
        assert await bench.committed_offset() == 20
        assert await bench.commit_offset(30, 7) is ErrorCode.none
        assert await bench.commit_plainly(25) is ErrorCode.none
        assert await bench.mark(7, committed=True, topic=OFFSETS) is ErrorCode.none
        assert await bench.committed_offset() == 25
        bench.cluster[0].kill()
        await bench.cluster[0].start()
        await asyncio.sleep(5)
        assert await bench.committed_offset() == 25

    on(1, test)


@pytest.mark.parametrize("version", range(6))
def test_offsets_are_taken_in_every_version(version: int) -> None:
    async def test(bench: Bench) -> None:
        assert await bench.commit_offset(10, version=version) is ErrorCode.none
        assert bench.verifier.asked == [(7, 0, (OFFSETS, 0), version >= 5)]
        await bench.mark(committed=True, topic=OFFSETS)
        assert await bench.committed_offset() == 10

    on(1, test)


def test_bad_commits_get_kafkas_codes() -> None:
    async def test(bench: Bench) -> None:
        bad: list[tuple[ErrorCode, dict[str, Any]]] = [
            (ErrorCode.unknown_topic_or_partition, {"topic": "gone"}),
            (ErrorCode.unknown_topic_or_partition, {"partition": 9}),
            (ErrorCode.offset_metadata_too_large, {"metadata": "x" * 5000}),
            (ErrorCode.invalid_group_id, {"group_id": ""}),
            (ErrorCode.illegal_generation, {"generation_id": 3, "member_id": "m"}),
        ]
        for code, asked in bad:
            assert await bench.commit_offset(10, **asked) is code
        for refused, version, told in [
            (ErrorCode.transaction_abortable, 4, ErrorCode.transaction_abortable),
            (ErrorCode.transaction_abortable, 3, ErrorCode.invalid_txn_state),
            (ErrorCode.network_exception, 5, ErrorCode.coordinator_load_in_progress),
            (ErrorCode.concurrent_transactions, 5, ErrorCode.concurrent_transactions),
        ]:
            bench.verifier.code = refused
            assert await bench.commit_offset(10, version=version) is told
        bench.verifier.code = ErrorCode.none
        assert await bench.mark(7, 5, committed=True, topic=OFFSETS) is ErrorCode.none
        assert await bench.commit_offset(10, 7, 4) is ErrorCode.invalid_producer_epoch
        assert await bench.committed_offset() == -1

    on(1, test)


async def _delete_group(bench: Bench) -> None:
    answer = await bench.ask(ApiKey.DELETE_GROUPS, 2, {"groups_names": [GROUP]}, OFFSETS)
    assert answer.results[0].error_code == ErrorCode.none


async def _delete_offset(bench: Bench) -> None:
    topics = [{"name": TOPIC, "partitions": [{"partition_index": 0}]}]
    answer = await bench.ask(ApiKey.OFFSET_DELETE, 0, {"group_id": GROUP, "topics": topics}, OFFSETS)
    assert answer.topics[0].partitions[0].error_code == ErrorCode.none


def serves_offsets(bench: Bench) -> bool:
    """Whether a broker that was started has opened the log of group offsets, and leads it."""
    return any(held.topic == OFFSETS and held.is_leader for held in bench.cluster[0].broker.replicas.hosted())


@pytest.mark.parametrize("delete", [_delete_group, _delete_offset], ids=["group", "offset"])
@pytest.mark.parametrize("reloaded", ["never", "before the marker", "after it"])
def test_what_was_deleted_does_not_come_back_with_a_transaction(
    delete: Callable[[Bench], Awaitable[None]], reloaded: str
) -> None:
    async def restart(bench: Bench) -> None:
        bench.cluster[0].kill()
        await bench.cluster[0].start()
        await bench.cluster.until(lambda: serves_offsets(bench), "it leads again")
        bench.employ_verifier()

    async def test(bench: Bench) -> None:
        assert await bench.commit_plainly(3) is ErrorCode.none
        assert await bench.commit_offset(10) is ErrorCode.none
        await delete(bench)
        assert await bench.committed_offset() == -1
        if reloaded == "before the marker":
            await restart(bench)
        assert await bench.mark(committed=True, topic=OFFSETS) is ErrorCode.none
        if reloaded == "after it":
            await restart(bench)
        assert await bench.committed_offset() == -1
        assert await bench.commit_offset(11) is ErrorCode.none
        assert await bench.mark(committed=True, topic=OFFSETS) is ErrorCode.none
        assert await bench.committed_offset() == 11

    on(1, test)


def test_the_offsets_of_a_deleted_topic_do_not_come_back_with_a_transaction() -> None:
    async def test(bench: Bench) -> None:
        assert await bench.commit_offset(10) is ErrorCode.none
        (shard,) = bench.cluster[0].broker._groups.runtime.active()
        admin = ClusterClient(bench.cluster, "deleter")
        await admin.ask_anyone(ApiKey.DELETE_TOPICS, 5, {"topic_names": [TOPIC], "timeout": 1_000})
        await bench.cluster.until(lambda: not shard.pending.has_any(GROUP), "the offsets of the topic are gone")
        admin.close()
        assert await bench.mark(committed=True, topic=OFFSETS) is ErrorCode.none
        assert shard.offsets.get(GROUP, TOPIC, 0) is None

    on(1, test)


def test_a_marker_that_comes_while_a_shard_is_read_counts() -> None:
    async def test(bench: Bench) -> None:
        assert await bench.commit_plainly(3) is ErrorCode.none
        assert await bench.commit_offset(10) is ErrorCode.none
        machine = bench.cluster[0]
        machine.kill()
        await machine.start()
        await bench.cluster.until(lambda: serves_offsets(bench), "it leads again")
        shard = GroupShard(
            machine.broker.replicas.partition(OFFSETS, 0),
            SystemClock(),
            asyncio.get_running_loop(),
            machine.broker._groups.kinds,
        )
        reading = asyncio.ensure_future(shard.load())
        await asyncio.sleep(0)
        assert shard.phase is Phase.LOADING
        marker = shard.partition.append_marker(MARKER, now_ms=0)
        shard.transaction_ended(7, True, marker.last_offset)
        await reading
        found = shard.offsets.get(GROUP, TOPIC, 0)
        assert found is not None
        assert found.offset == 10
        shard.close()

    on(1, test)
