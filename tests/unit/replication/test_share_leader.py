"""A share-partition between its members, the log and the share coordinator, in virtual time."""

import asyncio
import uuid
from collections.abc import Callable, Coroutine
from dataclasses import replace

import pytest

from headrace.cluster.image import PartitionState
from headrace.protocol.batch import read_header
from headrace.protocol.errors import CodedError, ErrorCode
from headrace.protocol.records import Record, encode_batch, encode_marker
from headrace.replication import share_choice
from headrace.replication.partition import Partition
from headrace.replication.purgatory import DelayedFetch
from headrace.replication.share_choice import Choice
from headrace.replication.share_leader import Acquired, ShareGroupSettings, ShareLeader, Wanted
from headrace.replication.share_letters import (
    DELIVERED_TOO_OFTEN,
    REJECTED,
    DeadLetterStore,
    DeadRecord,
    DeadRecords,
    letter,
)
from headrace.replication.share_manager import IDLE_SECONDS, ShareManager
from headrace.replication.share_state import DeliveryState, SharePartition, StateBatch
from headrace.replication.share_window import Acknowledgement, AcknowledgeType
from headrace.storage.flusher import Flusher
from headrace.storage.log import Origin
from headrace.storage.manager import LogManager
from headrace.storage.settings import LogSettings
from headrace.testing.clock import SimulatedClock
from headrace.testing.disk import SimulatedDisk
from headrace.testing.loop import VirtualClock, run_virtual
from tests.support.intake import RULES
from tests.support.share import ShareStates
from tests.support.storage import append, run_now
from tests.support.wire import batch_of, values_in

GROUP = "jobs"
LOCK = 30.0
NOW = 1_700_000_000_000
LED = PartitionState(replicas=(1,), isr=(1,), leader=1)
EARLIEST = ShareGroupSettings(auto_offset_reset="earliest", record_lock_seconds=LOCK)
Range = tuple[int, int, int]


class Letters(DeadLetterStore):
    """Keeps what is written."""

    def __init__(self) -> None:
        self.written: list[tuple[int, int, str]] = []
        """Offset, deliveries, reason."""
        self.tries: list[float] = []
        self.is_failing = False

    async def write(self, dead: DeadRecords) -> None:
        self.tries.append(asyncio.get_running_loop().time())
        if self.is_failing:
            raise CodedError(ErrorCode.leader_not_available, "nobody leads it")
        self.written += [(each.record.offset, each.delivery_count, each.reason) for each in dead.records]


class Bench:
    """One partition that is led, and its share-partition."""

    def __init__(self) -> None:
        self.store = ShareStates()
        self.settings = EARLIEST
        manager = LogManager(SimulatedDisk(), SimulatedClock(), "/data", cluster_id="here", broker_id=1)
        manager.open()
        topic_id = uuid.uuid4()
        self.partition = Partition(
            topic="t",
            topic_id=topic_id.bytes,
            index=0,
            state=LED,
            log=manager.load("t", 0, topic_id, LogSettings(flush_messages=1 << 40)),
            rules=RULES,
            flusher=Flusher(run_now),
        )
        self.partition.lead(1, LED, now=0)
        self.key = SharePartition(GROUP, topic_id, 0)
        self.clock = VirtualClock(asyncio.get_running_loop())
        self.letters = Letters()
        self.shares = ShareManager(
            store=self.store, settings=lambda _: self.settings, clock=self.clock, letters=self.letters
        )

    def produce(self, *sizes: int) -> None:
        """Append batches of so many records."""
        for size in sizes:
            append(self.partition.log, bytearray(batch_of(*(b"%d" % n for n in range(size)))))
        self.partition.move_high_watermark()

    async def loaded(self) -> ShareLeader:
        leader = self.shares.leader(GROUP, self.partition)
        await asyncio.sleep(0.001)
        return leader

    def lead_anew(self) -> None:
        """As after another broker has led meanwhile."""
        epoch = self.partition.leader_epoch + 1
        self.partition.lead(1, replace(LED, leader_epoch=epoch, partition_epoch=epoch), now=0)
        self.shares.leads(self.partition)


def run(test: Callable[[Bench], Coroutine[None, None, None]]) -> None:
    async def main() -> None:
        bench = Bench()
        await bench.store.initialize(bench.key, 1)
        await test(bench)
        await bench.shares.close()

    run_virtual(main)


def wanted(most: int = 500, *, strict: bool = False, batch_size: int = 500) -> Wanted:
    return Wanted(max_bytes=1 << 20, max_records=most, batch_size=batch_size, is_strict=strict)


def ranges(acquired: Acquired | None) -> list[Range]:
    return [] if acquired is None else [(first, last, count) for first, last, count in acquired.ranges]


def take(leader: ShareLeader, member: str = "a", most: int = 500, *, strict: bool = False) -> list[Range]:
    return ranges(leader.acquire(member, wanted(most, strict=strict)))


async def say(
    leader: ShareLeader, kind: AcknowledgeType, first: int, last: int, member: str = "a", delay: float | None = None
) -> None:
    waiter = leader.acknowledge(member, [Acknowledgement(first, last, kind)], delay)
    if waiter is not None:
        await waiter


def test_batches_come_whole_unless_the_limit_is_strict() -> None:
    async def test(bench: Bench) -> None:
        bench.produce(10, 10, 10)
        leader = await bench.loaded()
        assert take(leader, most=12) == [(0, 19, 1)]
        assert take(leader, "b", most=3, strict=True) == [(20, 22, 1)]
        assert take(leader, "c", most=3, strict=True) == [(23, 25, 1)]
        acquired = leader.acquire("c", wanted())
        assert ranges(acquired) == [(26, 29, 1)]
        assert acquired is not None
        assert acquired.records.length == len(batch_of(*(b"%d" % n for n in range(10)))), "only the batch it is in"
        assert take(leader, "d") == []

    run(test)


def test_ranges_end_with_the_batch_that_has_reached_the_size_asked_for() -> None:
    async def test(bench: Bench) -> None:
        bench.produce(*[4] * 5)
        leader = await bench.loaded()
        assert ranges(leader.acquire("a", wanted(batch_size=6))) == [(0, 7, 1), (8, 15, 1), (16, 19, 1)]

    run(test)


def test_an_acknowledgement_is_answered_once_it_is_committed_and_the_rest_goes_together() -> None:
    async def test(bench: Bench) -> None:
        bench.produce(10)
        leader = await bench.loaded()
        bench.store.changes.clear()
        take(leader)
        bench.store.may_write.clear()
        acks = [asyncio.ensure_future(say(leader, AcknowledgeType.ACCEPT, n, n)) for n in range(5)]
        await asyncio.sleep(1)
        assert not any(ack.done() for ack in acks)
        bench.store.may_write.set()
        await asyncio.gather(*acks)
        assert [list(change.batches) for change in bench.store.changes] == [[], []], "the start offset says it all"
        assert [change.start_offset for change in bench.store.changes] == [1, 5]

    run(test)


def test_what_is_released_or_rejected_is_kept_with_its_count() -> None:
    async def test(bench: Bench) -> None:
        bench.produce(6)
        leader = await bench.loaded()
        take(leader)
        await say(leader, AcknowledgeType.RELEASE, 1, 2)
        await say(leader, AcknowledgeType.REJECT, 3, 3)
        await say(leader, AcknowledgeType.GAP, 5, 5)
        assert bench.store.states[bench.key].batches == (
            StateBatch(1, 1, DeliveryState.AVAILABLE, 1),
            StateBatch(2, 2, DeliveryState.AVAILABLE, 1),
            StateBatch(3, 3, DeliveryState.ARCHIVED, 1),
            StateBatch(5, 5, DeliveryState.ARCHIVED, 1),
        )
        assert take(leader, "b") == [(1, 2, 2)]

    run(test)


def test_a_lock_expires_when_it_is_due_unless_it_is_renewed() -> None:
    async def test(bench: Bench) -> None:
        bench.produce(4)
        leader = await bench.loaded()
        take(leader)
        await asyncio.sleep(LOCK - 1)
        await say(leader, AcknowledgeType.RENEW, 2, 2)
        await asyncio.sleep(0.9)
        assert take(leader, "b") == []
        await asyncio.sleep(0.2)
        assert take(leader, "b") == [(0, 1, 2), (3, 3, 2)]
        counts = bench.shares.counts
        assert (counts.delivered, counts.redelivered, counts.expired) == (7, 3, 3)
        assert counts.acknowledged[AcknowledgeType.RENEW] == 1
        assert bench.shares.locks == 4
        with pytest.raises(CodedError) as caught:
            await say(leader, AcknowledgeType.ACCEPT, 0, 0)
        assert caught.value.code is ErrorCode.invalid_record_state
        await say(leader, AcknowledgeType.ACCEPT, 2, 2)

    run(test)


def test_a_record_that_was_delivered_too_often_is_archived() -> None:
    async def test(bench: Bench) -> None:
        bench.settings = replace(EARLIEST, delivery_count_limit=2)
        bench.produce(2)
        leader = await bench.loaded()
        for count in (1, 2):
            assert take(leader) == [(0, 1, count)]
            await say(leader, AcknowledgeType.RELEASE, 0, 1)
        assert take(leader) == []
        assert bench.store.states[bench.key].start_offset == 2

    run(test)


async def deliver(leader: ShareLeader, most: int = 500) -> list[Range]:
    """What a member gets and releases at once."""
    got = take(leader, most=most)
    for first, last, _ in got:
        await say(leader, AcknowledgeType.RELEASE, first, last)
    return got


@pytest.mark.parametrize("batches", [(8,), (1,) * 8])
def test_a_record_that_makes_its_members_fail_takes_no_others_along(batches: tuple[int, ...]) -> None:
    async def test(bench: Bench) -> None:
        bench.produce(*batches)
        leader = await bench.loaded()
        for count in (1, 2, 3):
            assert await deliver(leader) == [(0, 7, count)]
        assert await deliver(leader) == [(0, 3, 4)], "half of them, from half of the limit on"
        assert [await deliver(leader) for _ in range(4)] == [[(n, n, 5)] for n in range(4)], "each alone, at last"
        bench.produce(2)
        assert [count for _, _, count in take(leader)] == [4], "and not with others"

    run(test)


def test_those_that_are_delivered_alone_wait_until_the_others_are_out() -> None:
    async def test(bench: Bench) -> None:
        bench.settings = replace(EARLIEST, delivery_count_limit=3)
        bench.produce(4, 2)
        leader = await bench.loaded()
        assert take(leader, most=6) == [(0, 5, 1)]
        await say(leader, AcknowledgeType.ACCEPT, 4, 5)
        await say(leader, AcknowledgeType.RELEASE, 0, 3)
        assert take(leader, most=2) == [(0, 3, 2)]
        await say(leader, AcknowledgeType.RELEASE, 2, 2)
        await say(leader, AcknowledgeType.ACCEPT, 0, 1)
        bench.produce(3)
        assert take(leader, "b") == [(2, 2, 3)]
        assert take(leader, "b") == [(6, 8, 1)]

    run(test)


def test_a_choice_takes_no_others_along_either() -> None:
    async def test(bench: Bench) -> None:
        bench.settings = replace(EARLIEST, delivery_count_limit=3, choice=Choice(has_priorities=True))
        bench.produce(4)
        leader = await bench.loaded()
        assert await deliver(leader) == [(0, 3, 1)]
        assert await deliver(leader, 3) == [(0, 2, 2)]
        assert take(leader) == [(0, 0, 3)]
        assert take(leader) == [(1, 1, 3)]
        await say(leader, AcknowledgeType.ACCEPT, 0, 1)
        assert take(leader) == [(2, 2, 3)]
        assert take(leader) == [(3, 3, 2)]

    run(test)


def test_a_record_waits_longer_after_each_delivery_whoever_leads() -> None:
    async def test(bench: Bench) -> None:
        bench.settings = replace(EARLIEST, retry_backoff_seconds=2.0, retry_backoff_max_seconds=5.0)
        bench.produce(1, 1)
        leader = await bench.loaded()
        for count, seconds in ((1, 2.0), (2, 4.0), (3, 5.0)):
            assert take(leader, most=1, strict=True) == [(0, 0, count)]
            await say(leader, AcknowledgeType.RELEASE, 0, 0)
            assert leader.window is not None
            await asyncio.sleep(seconds - 0.1)
            assert leader.available() == 0 or leader.window.next_available(bench.clock.monotonic()) == 1
            if count < 3:
                await asyncio.sleep(0.2)
        assert take(leader, "b") == [(1, 1, 1)], "others go on meanwhile"
        bench.lead_anew()
        leader = await bench.loaded()
        assert take(leader, "b") == [(1, 1, 1)]
        await asyncio.sleep(4.8)
        assert take(leader, "b") == []
        await asyncio.sleep(0.3)
        assert take(leader, "b") == [(0, 0, 4)]

    run(test)


@pytest.mark.parametrize("backoff", [0.0, 3.0])
def test_a_release_may_have_a_delay_of_its_own(backoff: float) -> None:
    async def test(bench: Bench) -> None:
        bench.settings = replace(EARLIEST, retry_backoff_seconds=backoff, retry_backoff_max_seconds=backoff)
        bench.produce(3)
        leader = await bench.loaded()
        take(leader)
        await say(leader, AcknowledgeType.RELEASE, 0, 0, delay=60.0)
        await say(leader, AcknowledgeType.RELEASE, 1, 1, delay=0.0)
        await say(leader, AcknowledgeType.ACCEPT, 2, 2, delay=9.0)
        assert take(leader, "b") == [(1, 1, 2)]
        await say(leader, AcknowledgeType.ACCEPT, 1, 1, member="b")
        woken = asyncio.Event()
        DelayedFetch([leader], lambda _: bool(take(leader, "b")), woken.set)
        began = bench.clock.monotonic()
        await woken.wait()
        assert 59.9 < bench.clock.monotonic() - began < 60.1

    run(test)


@pytest.mark.parametrize("backoff", [0.0, 30.0])
def test_what_waits_is_remembered_also_while_a_group_has_no_members(backoff: float) -> None:
    async def test(bench: Bench) -> None:
        bench.settings = replace(EARLIEST, retry_backoff_seconds=backoff, retry_backoff_max_seconds=backoff)
        bench.produce(4)
        key = bench.partition.topic_id, 0
        leader = await bench.loaded()
        take(leader)
        await say(leader, AcknowledgeType.RELEASE, 1, 2, delay=None if backoff else 30.0)
        bench.shares.forget(GROUP, [key])
        assert list(bench.shares) == [leader], "it has records out"
        await say(leader, AcknowledgeType.ACCEPT, 3, 3)
        await say(leader, AcknowledgeType.ACCEPT, 0, 0)
        bench.shares.forget(GROUP, [key])
        assert not list(bench.shares)
        await asyncio.sleep(10)
        leader = await bench.loaded()
        assert take(leader, "b") == []
        bench.shares.read_again(GROUP, [key])
        leader = await bench.loaded()
        await asyncio.sleep(19)
        assert take(leader, "b") == []
        await asyncio.sleep(2)
        assert take(leader, "b") == [(1, 2, 2)]

    run(test)


def test_what_waited_is_forgotten_where_the_group_begins_anew_or_another_leads() -> None:
    async def test(bench: Bench) -> None:
        bench.produce(2)
        key = bench.partition.topic_id, 0
        for happens in ("reset", "led anew", "past"):
            leader = await bench.loaded()
            count = take(leader)[0][2]
            await say(leader, AcknowledgeType.RELEASE, 0, 1, delay=3600.0)
            bench.shares.forget(GROUP, [key])
            if happens == "reset":
                await bench.store.initialize(bench.key, 2, 0)
            elif happens == "led anew":
                bench.lead_anew()
            else:
                await asyncio.sleep(3601)
                bench.shares.drop_idle()
            assert take(await bench.loaded(), "b")[0][:2] == (0, 1)
            bench.shares.read_again(GROUP, [key])
            await bench.store.initialize(bench.key, 2 + count, 0)

    run(test)


def test_a_delay_that_could_not_be_written_is_forgotten() -> None:
    async def test(bench: Bench) -> None:
        bench.produce(1)
        leader = await bench.loaded()
        take(leader)
        bench.store.failures.append(CodedError(ErrorCode.coordinator_not_available))
        with pytest.raises(CodedError):
            await say(leader, AcknowledgeType.RELEASE, 0, 0, delay=60.0)
        await say(leader, AcknowledgeType.RELEASE, 0, 0)
        assert take(leader, "b") == [(0, 0, 2)]

    run(test)


def test_who_waits_is_woken_when_a_record_has_waited() -> None:
    async def test(bench: Bench) -> None:
        bench.settings = replace(EARLIEST, retry_backoff_seconds=2.0, retry_backoff_max_seconds=5.0)
        bench.produce(1)
        leader = await bench.loaded()
        take(leader)
        await say(leader, AcknowledgeType.RELEASE, 0, 0)
        woken = asyncio.Event()
        DelayedFetch([leader], lambda _: bool(take(leader, "b")), woken.set)
        began = bench.clock.monotonic()
        await woken.wait()
        assert 1.9 < bench.clock.monotonic() - began < 2.1

    run(test)


def test_only_so_many_records_are_out_at_a_time() -> None:
    async def test(bench: Bench) -> None:
        bench.settings = replace(EARLIEST, max_record_locks=8)
        bench.produce(4, 4, 4, 4)
        leader = await bench.loaded()
        assert take(leader) == [(0, 7, 1)]
        assert take(leader, "b") == []
        assert leader.available() == 0
        await say(leader, AcknowledgeType.ACCEPT, 1, 4)
        assert leader.available() > 0
        assert take(leader, "b", strict=True) == [(8, 11, 1)], "one that is slow does not keep the others waiting"

    run(test)


def test_what_a_member_leaves_behind_is_for_the_others() -> None:
    async def test(bench: Bench) -> None:
        bench.produce(4)
        leader = await bench.loaded()
        take(leader, "a", 2, strict=True)
        take(leader, "b", 2, strict=True)
        bench.shares.release(GROUP, "a", (bench.partition.topic_id, 0))
        await asyncio.sleep(0.001)
        assert take(leader, "c") == [(0, 1, 2)]

    run(test)


def test_the_next_leader_goes_on_where_this_one_was() -> None:
    async def test(bench: Bench) -> None:
        bench.produce(6)
        leader = await bench.loaded()
        take(leader)
        await say(leader, AcknowledgeType.ACCEPT, 0, 1)
        await say(leader, AcknowledgeType.ACCEPT, 4, 4)
        await say(leader, AcknowledgeType.RELEASE, 5, 5)
        bench.lead_anew()
        with pytest.raises(CodedError) as caught:
            take(leader)
        assert caught.value.code is ErrorCode.not_leader_or_follower
        leader = await bench.loaded()
        assert take(leader, "b") == [(2, 3, 1), (5, 5, 2)]

    run(test)


def test_a_group_that_begins_with_the_latest_record_begins_there_whoever_leads() -> None:
    async def test(bench: Bench) -> None:
        bench.settings = ShareGroupSettings()
        bench.produce(3)
        leader = await bench.loaded()
        bench.produce(2)
        assert take(leader) == [(3, 4, 1)]
        bench.lead_anew()
        assert take(await bench.loaded()) == [(3, 4, 1)]

    run(test)


@pytest.mark.parametrize(("reset", "first"), [("earliest", 0), ("by_duration:PT0.5S", 1), ("by_duration:PT1M", 0)])
def test_a_new_group_begins_where_its_settings_say(reset: str, first: int) -> None:
    async def test(bench: Bench) -> None:
        bench.settings = ShareGroupSettings(auto_offset_reset=reset)
        for age in (1000, 100):
            append(bench.partition.log, bytearray(batch_of(b"x", timestamp=bench.clock.now_ms() - age)))
        bench.partition.move_high_watermark()
        assert take(await bench.loaded()) == [(first, 1, 1)]

    run(test)


def test_a_failed_write_changes_nothing_and_is_told() -> None:
    async def test(bench: Bench) -> None:
        bench.produce(2)
        leader = await bench.loaded()
        take(leader)
        bench.store.failures.append(CodedError(ErrorCode.coordinator_not_available))
        with pytest.raises(CodedError) as caught:
            await say(leader, AcknowledgeType.ACCEPT, 0, 1)
        assert caught.value.code is ErrorCode.coordinator_not_available
        assert take(leader, "b") == []
        await say(leader, AcknowledgeType.ACCEPT, 0, 0)
        bench.store.failures.append(CodedError(ErrorCode.coordinator_not_available))
        await asyncio.sleep(LOCK + 1)
        assert take(leader, "b") == [(1, 1, 2)], "a lock that expired while nothing could be written is tried again"

    run(test)


@pytest.mark.parametrize("code", [ErrorCode.fenced_state_epoch, ErrorCode.fenced_leader_epoch])
def test_who_is_fenced_reads_again(code: ErrorCode) -> None:
    async def test(bench: Bench) -> None:
        bench.produce(4)
        leader = await bench.loaded()
        take(leader)
        bench.store.failures.append(CodedError(code))
        with pytest.raises(CodedError) as caught:
            await say(leader, AcknowledgeType.ACCEPT, 0, 0)
        assert caught.value.code is ErrorCode.not_leader_or_follower
        await bench.store.initialize(bench.key, 2, 3)
        assert take(await bench.loaded(), "b") == [(3, 3, 1)]

    run(test)


def test_a_group_that_is_not_initialized_is_an_error_each_time() -> None:
    async def test(bench: Bench) -> None:
        await bench.store.delete(bench.key)
        leader = await bench.loaded()
        with pytest.raises(CodedError) as caught:
            leader.acquire("a", wanted())
        assert caught.value.code is ErrorCode.unknown_server_error
        await bench.store.initialize(bench.key, 1)
        bench.produce(1)
        assert take(await bench.loaded()) == [(0, 0, 1)]

    run(test)


def test_deleted_records_are_nobodys() -> None:
    async def test(bench: Bench) -> None:
        bench.produce(4, 4)
        leader = await bench.loaded()
        take(leader, most=4)
        bench.partition.log.advance_start(6)
        await say(leader, AcknowledgeType.ACCEPT, 0, 3)
        assert take(leader, "b") == [(6, 7, 1)]
        await asyncio.sleep(0.001)
        assert bench.store.states[bench.key].start_offset == 6

    run(test)


@pytest.mark.parametrize("committed", [True, False])
def test_markers_and_aborted_records_are_not_delivered(committed: bool) -> None:
    async def test(bench: Bench) -> None:
        bench.settings = replace(EARLIEST, read_committed=committed)
        log = bench.partition.log
        for sequence, producer in ((0, 7), (0, 8), (1, 7)):
            batch = encode_batch(
                [Record(0, NOW, None, b"%d" % producer)],
                producer_id=producer,
                producer_epoch=0,
                base_sequence=sequence,
                transactional=True,
            )
            append(log, batch)
        bench.partition.move_high_watermark()
        leader = await bench.loaded()
        if committed:
            assert take(leader) == [], "nothing is stable yet"
        for producer in (7, 8):
            marker = memoryview(
                encode_marker(
                    committed=producer == 8, producer_id=producer, producer_epoch=0, coordinator_epoch=0, timestamp=NOW
                )
            )
            log.append(marker, read_header(marker), 0, Origin.COORDINATOR)
        bench.produce(1)
        acquired = leader.acquire("a", wanted())
        assert ranges(acquired) == ([(1, 1, 1), (5, 5, 1)] if committed else [(0, 2, 1), (5, 5, 1)])
        assert acquired is not None
        await asyncio.sleep(0.001)
        written = bench.store.states[bench.key]
        done = [batch.first_offset for batch in written.batches if batch.delivery_state == DeliveryState.ARCHIVED]
        assert written.start_offset == (1 if committed else 0)
        assert done == ([2, 3, 4] if committed else [3, 4])

    run(test)


def test_a_huge_batch_comes_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.replication.share_leader._MOST_OF_BATCH", 4)

    async def test(bench: Bench) -> None:
        bench.produce(10)
        leader = await bench.loaded()
        assert take(leader, most=2) == [(0, 3, 1)]
        assert take(leader, "b", most=5) == [(4, 8, 1)]
        assert take(leader, "c") == [(9, 9, 1)]

    run(test)


def test_batches_that_compaction_has_emptied_are_not_delivered() -> None:
    async def test(bench: Bench) -> None:
        bench.produce(2)
        emptied = memoryview(encode_batch([], last_offset=2))
        bench.partition.log.append(emptied, read_header(emptied), 0, Origin.COORDINATOR)
        bench.produce(1)
        leader = await bench.loaded()
        assert take(leader) == [(0, 1, 1), (5, 5, 1)]
        await say(leader, AcknowledgeType.ACCEPT, 0, 1)
        assert bench.store.states[bench.key].start_offset == 5

    run(test)


def test_one_fetch_passes_over_so_many_batches_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("headrace.replication.share_leader._MOST_BATCHES", 3)

    async def test(bench: Bench) -> None:
        bench.produce(*[1] * 10)
        leader = await bench.loaded()
        for first in (0, 3, 6, 9):
            assert take(leader) == [(first, min(first + 2, 9), 1)]
        await say(leader, AcknowledgeType.ACCEPT, 1, 8)
        await say(leader, AcknowledgeType.RELEASE, 9, 9)
        await say(leader, AcknowledgeType.RELEASE, 0, 0)
        assert take(leader) == [(0, 0, 2)], "what lies in between is not looked through at one go"
        assert take(leader) == [(9, 9, 2)]

    run(test)


def test_what_is_handed_out_are_the_batches_of_the_log() -> None:
    async def test(bench: Bench) -> None:
        bench.produce(3, 2)
        leader = await bench.loaded()
        acquired = leader.acquire("a", wanted())
        assert acquired is not None
        records = acquired.records
        assert values_in(records.file.pread(records.length, records.position)) == [b"0", b"1", b"2", b"0", b"1"]

    run(test)


@pytest.mark.parametrize("acknowledged", [(5, 9), (0, 9)])
def test_records_in_the_place_of_lost_ones_are_not_taken_for_these(acknowledged: tuple[int, int]) -> None:
    async def test(bench: Bench) -> None:
        bench.produce(3, 7)
        leader = await bench.loaded()
        take(leader)
        await say(leader, AcknowledgeType.ACCEPT, *acknowledged)
        bench.partition.log.truncate_to(3)
        bench.lead_anew()
        await bench.loaded()
        bench.produce(4)
        assert bench.store.states[bench.key].state_epoch == 2
        first = 0 if acknowledged[0] else 3
        for _ in range(2):
            bench.lead_anew()
            taken = take(await bench.loaded())
            assert [(begin, end) for begin, end, _ in taken] == [(first, 6)], "and so it stays"

    run(test)


@pytest.mark.parametrize("deleted", [False, True])
def test_a_group_that_was_made_to_begin_anew_does_so_for_who_comes_to_a_partition(deleted: bool) -> None:
    async def test(bench: Bench) -> None:
        bench.produce(3)
        leader = await bench.loaded()
        take(leader)
        await say(leader, AcknowledgeType.ACCEPT, 0, 2)
        bench.shares.verify(GROUP, [(bench.partition.topic_id, 0)])
        await asyncio.sleep(0.001)
        assert not leader.is_over
        if deleted:
            await bench.store.delete(bench.key)
        await bench.store.initialize(bench.key, 1 if deleted else 2, 1)
        assert take(await bench.loaded()) == []
        bench.shares.verify(GROUP, [(bench.partition.topic_id, 0)])
        await asyncio.sleep(0.001)
        assert leader.is_over
        assert take(await bench.loaded()) == [(1, 2, 1)]

    run(test)


def test_what_nobody_asks_for_is_forgotten_and_read_again() -> None:
    async def test(bench: Bench) -> None:
        bench.produce(2)
        leader = await bench.loaded()
        take(leader)
        await say(leader, AcknowledgeType.ACCEPT, 0, 0)
        await asyncio.sleep(2 * IDLE_SECONDS)
        bench.shares.drop_idle()
        assert not list(bench.shares)
        assert take(await bench.loaded()) == [(1, 1, 2)]
        bench.shares.forget(GROUP, [(bench.partition.topic_id, 0)])
        assert list(bench.shares), "records are out"

    run(test)


# Dead letters

LETTERED = replace(EARLIEST, letter_topic="dlq.t", copies_records=True, delivery_count_limit=2)


def states(bench: Bench) -> list[tuple[int, int]]:
    """Offsets and states, as they are kept."""
    return [(batch.first_offset, batch.delivery_state) for batch in bench.store.states[bench.key].batches]


def test_a_rejected_record_is_archived_once_its_dead_letter_is_written() -> None:
    async def test(bench: Bench) -> None:
        bench.settings = LETTERED
        bench.produce(3)
        leader = await bench.loaded()
        take(leader)
        bench.letters.is_failing = True
        await say(leader, AcknowledgeType.REJECT, 1, 1)
        await asyncio.sleep(0.1)
        assert states(bench) == [(1, DeliveryState.ARCHIVING)]
        assert (leader.letters_due, leader.letter_failure) == (1, "nobody leads it")
        bench.letters.is_failing = False
        await asyncio.sleep(1)
        assert bench.letters.written == [(1, 1, REJECTED)]
        assert states(bench) == [(1, DeliveryState.ARCHIVED)]
        assert (leader.letters_due, leader.letter_failure) == (0, "")
        assert take(leader, "b") == [], "others are still out, and it is nobody's"

    run(test)


def test_a_record_that_was_delivered_too_often_has_a_dead_letter_and_what_never_was_one_has_none() -> None:
    async def test(bench: Bench) -> None:
        bench.settings = LETTERED
        bench.produce(2)
        marker = memoryview(
            encode_marker(committed=True, producer_id=1, producer_epoch=0, coordinator_epoch=0, timestamp=NOW)
        )
        bench.partition.log.append(marker, read_header(marker), 0, Origin.COORDINATOR)
        bench.produce(2)
        leader = await bench.loaded()
        for _ in range(2):
            assert [(first, last) for first, last, _ in take(leader)] == [(0, 1), (3, 4)]
            await asyncio.sleep(LOCK + 1)
        await asyncio.sleep(1)
        assert bench.letters.written == [(offset, 2, DELIVERED_TOO_OFTEN) for offset in (0, 1, 3, 4)]
        assert leader.window is not None
        assert leader.window.start == 5

    run(test)


def test_dead_letters_are_tried_again_ever_more_seldom_and_the_group_goes_on() -> None:
    async def test(bench: Bench) -> None:
        bench.settings = LETTERED
        bench.produce(4)
        leader = await bench.loaded()
        take(leader, most=4)
        bench.letters.is_failing = True
        await say(leader, AcknowledgeType.REJECT, 0, 3)
        bench.produce(1)
        assert take(leader, "b") == [(4, 4, 1)]
        await asyncio.sleep(600)
        tries = bench.letters.tries
        assert 20 <= len(tries) <= 30
        assert tries[-1] - tries[-2] == 30
        bench.letters.is_failing = False
        await asyncio.sleep(31)
        assert [offset for offset, _, _ in bench.letters.written] == [0, 1, 2, 3]

    run(test)


def test_the_next_leader_writes_the_dead_letters_that_its_predecessor_could_not() -> None:
    async def test(bench: Bench) -> None:
        bench.settings = LETTERED
        bench.produce(3)
        leader = await bench.loaded()
        take(leader)
        bench.letters.is_failing = True
        await say(leader, AcknowledgeType.REJECT, 0, 2)
        await asyncio.sleep(1)
        bench.lead_anew()
        bench.letters.is_failing = False
        leader = await bench.loaded()
        await asyncio.sleep(1)
        assert bench.letters.written == [(offset, 1, REJECTED) for offset in range(3)]
        assert leader.window is not None
        assert leader.window.start == 3

    run(test)


def test_dead_letters_of_records_that_are_deleted_meanwhile_are_counted() -> None:
    async def test(bench: Bench) -> None:
        bench.settings = LETTERED
        bench.produce(3, 3)
        leader = await bench.loaded()
        take(leader)
        bench.letters.is_failing = True
        await say(leader, AcknowledgeType.REJECT, 0, 5)
        await asyncio.sleep(0.1)
        bench.partition.log.advance_start(4)
        bench.letters.is_failing = False
        await asyncio.sleep(1)
        assert [offset for offset, _, _ in bench.letters.written] == [4, 5]
        assert bench.shares.counts.letters_dropped == 4

    run(test)


def test_without_a_topic_for_them_nobody_waits_for_dead_letters() -> None:
    async def test(bench: Bench) -> None:
        bench.settings = LETTERED
        bench.produce(3)
        leader = await bench.loaded()
        take(leader)
        bench.letters.is_failing = True
        await say(leader, AcknowledgeType.REJECT, 0, 0)
        bench.settings = EARLIEST
        await say(leader, AcknowledgeType.REJECT, 1, 2)
        await asyncio.sleep(1)
        assert bench.letters.written == []
        assert leader.window is not None
        assert leader.window.start == 3

    run(test)


def test_many_dead_letters_of_one_batch_go_in_parts() -> None:
    async def test(bench: Bench) -> None:
        bench.settings = LETTERED
        bench.produce(1200)
        leader = await bench.loaded()
        take(leader, most=1200)
        await say(leader, AcknowledgeType.REJECT, 0, 1199)
        await asyncio.sleep(1)
        assert [offset for offset, _, _ in bench.letters.written] == list(range(1200))
        assert len(bench.letters.tries) == 3

    run(test)


def test_a_letter_tells_where_its_record_was_and_has_it_where_the_group_says_so() -> None:
    record = Record(17, NOW, b"alice", b"order", (("trace", b"1"),))
    dead = DeadRecord(record, 5, DELIVERED_TOO_OFTEN)
    of = DeadRecords(
        group_id="jobs", topic="orders", partition=3, letter_topic="dlq.t", copies_records=True, records=[dead]
    )
    about = {
        "__dlq.errors.topic": b"orders",
        "__dlq.errors.partition": b"3",
        "__dlq.errors.offset": b"17",
        "__dlq.errors.group": b"jobs",
        "__dlq.errors.delivery.count": b"5",
        "__dlq.errors.message": b"Offset delivery count exceeded the threshold.",
        "headrace.dlq.timestamp": b"%d" % NOW,
    }
    assert letter(dead, of, NOW + 9) == Record(0, NOW + 9, b"alice", b"order", (("trace", b"1"), *about.items()))
    bare = letter(dead, replace(of, copies_records=False), NOW)
    assert (bare.key, bare.value, dict(bare.headers)) == (None, None, about)
    large = letter(dead, of, NOW, omitted="it is large")
    assert (large.value, dict(large.headers)["headrace.dlq.omitted"]) == (None, b"it is large")


# By a choice


def keyed(*keys: str, base: int = 0) -> bytearray:
    """A batch of records with these keys; a digit behind one is its priority."""
    records = [
        Record(base + n, NOW, key[0].encode(), b"v", (("headrace.priority", key[1:].encode()),) if key[1:] else ())
        for n, key in enumerate(keys)
    ]
    return encode_batch(records)


def produce_keyed(bench: Bench, *batches: str) -> None:
    for batch in batches:
        append(bench.partition.log, keyed(*batch.split()))
    bench.partition.move_high_watermark()


def chosen(leader: ShareLeader, member: str = "a", most: int = 500) -> list[int]:
    """The offsets that a member gets."""
    return [offset for first, last, _ in take(leader, member, most) for offset in range(first, last + 1)]


ORDERED = replace(EARLIEST, choice=Choice(orders_keys=True))


def test_no_record_is_out_while_an_earlier_one_with_its_key_is() -> None:
    async def test(bench: Bench) -> None:
        bench.settings = ORDERED
        produce_keyed(bench, "a b a c", "b d a")
        leader = await bench.loaded()
        assert chosen(leader) == [0, 1, 3, 5]
        assert chosen(leader, "b") == []
        await say(leader, AcknowledgeType.ACCEPT, 0, 0)
        assert chosen(leader, "b") == [2]
        await say(leader, AcknowledgeType.RELEASE, 1, 1)
        await say(leader, AcknowledgeType.REJECT, 2, 2, "b")
        assert chosen(leader, "b") == [1, 6], "what was released comes before what is behind it"
        await say(leader, AcknowledgeType.ACCEPT, 1, 1, "b")
        assert chosen(leader, "b") == [4]

    run(test)


def test_the_order_of_keys_holds_for_the_next_leader_and_while_a_record_waits() -> None:
    async def test(bench: Bench) -> None:
        bench.settings = replace(ORDERED, retry_backoff_seconds=5.0, retry_backoff_max_seconds=60.0)
        produce_keyed(bench, "a a b")
        leader = await bench.loaded()
        assert chosen(leader) == [0, 2]
        await say(leader, AcknowledgeType.RELEASE, 0, 0)
        assert chosen(leader, "b") == []
        bench.lead_anew()
        leader = await bench.loaded()
        assert chosen(leader, "b") == [2], "it was not acknowledged; and the others wait"
        await asyncio.sleep(5)
        assert chosen(leader, "b") == [0]

    run(test)


def test_records_of_a_higher_priority_come_first_and_the_rest_in_the_order_of_the_log() -> None:
    async def test(bench: Bench) -> None:
        bench.settings = replace(EARLIEST, choice=Choice(has_priorities=True))
        produce_keyed(bench, "a b1 c", "d9 e f9")
        leader = await bench.loaded()
        acquired = leader.acquire("a", wanted(2))
        assert ranges(acquired) == [(3, 3, 1), (5, 5, 1)]
        assert acquired is not None
        assert acquired.records.length == len(keyed(*["d9", "e", "f9"])), "only the batch they are in"
        assert chosen(leader, most=2) == [0, 2]
        assert [chosen(leader), chosen(leader)] == [[4], [1]]

    run(test)


def test_a_key_waits_between_two_deliveries_also_where_its_leader_was_forgotten_meanwhile() -> None:
    async def test(bench: Bench) -> None:
        bench.settings = replace(EARLIEST, choice=Choice(key_interval=10.0))
        produce_keyed(bench, "a a b")
        leader = await bench.loaded()
        assert chosen(leader) == [0, 2]
        leader.close()
        leader = await bench.loaded()
        assert chosen(leader) == [], "it is not acknowledged, and its key waits"
        woken: list[float] = []
        watcher = DelayedFetch(
            [leader], lambda _: bool(leader.available()), lambda: woken.append(bench.clock.monotonic())
        )
        began = bench.clock.monotonic()
        await asyncio.sleep(11)
        assert [round(at - began) for at in woken] == [10]
        assert chosen(leader) == [0, 2]
        watcher.cancel()

    run(test)


def test_a_group_with_a_choice_passes_over_markers_and_what_compaction_has_removed() -> None:
    async def test(bench: Bench) -> None:
        bench.settings = ORDERED
        log = bench.partition.log
        produce_keyed(bench, "a b")
        sparse = memoryview(encode_batch([Record(3, NOW, b"c", b"v")], base_offset=None, last_offset=5))
        marker = memoryview(
            encode_marker(committed=True, producer_id=1, producer_epoch=0, coordinator_epoch=0, timestamp=NOW)
        )
        log.append(marker, read_header(marker), 0, Origin.COORDINATOR)
        log.append(sparse, read_header(sparse), 0, Origin.COORDINATOR)
        produce_keyed(bench, "d")
        leader = await bench.loaded()
        got = chosen(leader) + chosen(leader)
        assert got == [0, 1, 3, log.log_end_offset - 1]
        for offset in got:
            await say(leader, AcknowledgeType.ACCEPT, offset, offset)
        assert leader.window is not None
        assert leader.window.start == log.log_end_offset

    run(test)


def test_only_so_many_records_are_chosen_from(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(share_choice, "MOST_AHEAD", 4)

    async def test(bench: Bench) -> None:
        bench.settings = replace(EARLIEST, choice=Choice(has_priorities=True))
        produce_keyed(bench, "a b", "c d", "e9 f9")
        leader = await bench.loaded()
        assert chosen(leader, most=1) == [0]
        await say(leader, AcknowledgeType.ACCEPT, 0, 0)
        assert chosen(leader, most=1) == [4], "it is seen now"

    run(test)


def test_locks_are_renewed_unless_the_group_says_that_they_are_not() -> None:
    async def test(bench: Bench) -> None:
        bench.settings = replace(EARLIEST, may_renew=False)
        bench.produce(1)
        leader = await bench.loaded()
        take(leader)
        with pytest.raises(CodedError, match=r"share\.renew\.acknowledge\.enable") as caught:
            await say(leader, AcknowledgeType.RENEW, 0, 0)
        assert caught.value.code is ErrorCode.invalid_record_state
        bench.settings = EARLIEST
        await say(leader, AcknowledgeType.RENEW, 0, 0)

    run(test)


def test_dead_letters_of_many_runs_go_together() -> None:
    async def test(bench: Bench) -> None:
        bench.settings = LETTERED
        bench.produce(10, 10, 10)
        leader = await bench.loaded()
        take(leader)
        bench.letters.is_failing = True
        for offset in (1, 5, 8, 9, 12, 25):
            await say(leader, AcknowledgeType.REJECT, offset, offset)
        await say(leader, AcknowledgeType.ACCEPT, 2, 4)
        await asyncio.sleep(1)
        bench.letters.is_failing, tried = False, len(bench.letters.tries)
        await asyncio.sleep(3)
        assert [offset for offset, _, _ in bench.letters.written] == [1, 5, 8, 9, 12, 25]
        assert len(bench.letters.tries) == tried + 1
        assert leader.letters_due == 0

    run(test)
