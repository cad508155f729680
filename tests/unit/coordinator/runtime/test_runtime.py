"""The coordinator runtime with a user of its own: counters on an internal topic."""

import asyncio
import errno
from collections.abc import Iterator, Mapping
from typing import Any

import pytest

from headrace.cluster.metadata_writer import TopicSpec
from headrace.coordinator.runtime.decision import Decision
from headrace.coordinator.runtime.runtime import Runtime
from headrace.coordinator.runtime.shard import Phase, Replay, Shard
from headrace.protocol.errors import CodedError, ErrorCode
from tests.support.coordinator.world import World

TOPIC = "__counters"
KIND = b"\0\7"


class CounterShard(Shard):
    """Counts up under names; a name that was not counted for a second begins at zero again."""

    contents = "counters"

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.counts: dict[str, int] = {}
        self.waiting: list[asyncio.Future[Mapping[str, Any]]] = []

    @property
    def replays(self) -> Mapping[int, Replay]:
        return {7: self._replay}

    def _replay(self, key: bytes, value: bytes | None) -> None:
        self._set(key[2:].decode(), int(value or b"0"))

    def _set(self, name: str, count: int) -> None:
        self.counts[name] = count

    def _clear(self) -> None:
        self.counts.clear()

    def _resign(self, code: ErrorCode) -> None:
        self._clear()
        for token in self.waiting:
            if not token.done():
                token.set_exception(CodedError(code))

    def _on_timer(self, key: str, name: object) -> None:
        assert name == "idle"
        self.commit(key, self._decide(key, 0))

    def _decide(self, name: str, count: int) -> Decision:
        decision = Decision(self.now_ms())
        decision.record(KIND + name.encode(), str(count).encode())
        decision.when_written(lambda: self._set(name, count))
        return decision

    def count(self, name: str) -> "asyncio.Future[Mapping[str, Any]]":
        token: asyncio.Future[Mapping[str, Any]] = asyncio.get_running_loop().create_future()
        decision = self._decide(name, self.counts.get(name, 0) + 1)
        decision.wake("idle", 1_000)
        decision.reply(token, {"count": self.counts.get(name, 0) + 1})
        self.waiting.append(token)
        self.commit(name, decision)
        return token


class Counters:
    """The runtime of a world's counters."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.runtime: Runtime[CounterShard] = Runtime(
            TopicSpec(name=TOPIC, partitions=2, replication_factor=1),
            image=world.image,
            controller=world.controller,
            replicas=world.replicas,
            clock=world.clock,
            make=lambda partition: CounterShard(partition, world.clock, world.scheduler),
            loaded=lambda _shards, _seconds: None,
        )

    def start(self) -> None:
        async def start() -> None:
            self.runtime.start()

        self.world.run(start())
        self.world.settle()

    def send(self, name: str = "n") -> "asyncio.Future[Mapping[str, Any]]":
        async def send() -> asyncio.Future[Mapping[str, Any]]:
            return self.runtime.shard(name).count(name)

        return self.world.run(send())

    def count(self, name: str = "n") -> int:
        async def answer() -> int:
            values = await self.runtime.shard(name).count(name)
            return int(values["count"])

        return self.world.run(answer())


@pytest.fixture
def counters(world: World) -> Iterator[Counters]:
    counters = Counters(world)
    assert world.run(counters.runtime.find("n")).id == 1
    yield counters
    world.run(counters.runtime.close())


def restarted(counters: Counters) -> Counters:
    counters.world.run(counters.runtime.close())
    counters.world.kill(load=False)
    again = Counters(counters.world)
    again.start()
    return again


def test_state_is_what_the_records_say_after_a_kill(counters: Counters) -> None:
    assert [counters.count(), counters.count(), counters.count("other")] == [1, 2, 1]
    again = restarted(counters)
    assert again.count() == 3
    counters.world.run(again.runtime.close())


def test_a_reply_leaves_when_its_record_is_committed(counters: Counters) -> None:
    counters.count()
    counters.world.holds_syncs = True
    answer = counters.send()
    counters.world.settle()
    assert not answer.done()
    counters.world.sync()
    assert answer.result() == {"count": 2}


def test_nothing_is_changed_by_a_decision_that_cannot_be_written(counters: Counters) -> None:
    counters.count()
    shard = counters.runtime.shard("n")
    counters.world.disk.fail(errno.ENOSPC, kind="append", path=TOPIC)
    with pytest.raises(CodedError) as refused:
        counters.count()
    assert refused.value.code is ErrorCode.coordinator_not_available
    assert (shard.phase, shard.counts, len(shard.timers)) == (Phase.ACTIVE, {"n": 1}, 1)


def test_a_shard_whose_records_cannot_be_committed_gives_up_and_is_read_again(counters: Counters) -> None:
    counters.count()
    shard = counters.runtime.shard("n")
    counters.world.holds_syncs = True
    answer = counters.send()
    shard.partition.commits.fail(CodedError(ErrorCode.not_enough_replicas_after_append))
    with pytest.raises(CodedError) as refused:
        answer.result()
    assert refused.value.code is ErrorCode.coordinator_not_available
    assert (shard.phase, shard.counts, len(shard.timers)) == (Phase.FAILED, {}, 0)
    counters.world.holds_syncs = False
    counters.world.sync()
    with pytest.raises(CodedError) as loading:
        counters.count()
    assert loading.value.code is ErrorCode.coordinator_load_in_progress
    counters.world.settle()
    assert counters.count() == 3, "it was written after all"


def test_what_follows_from_a_decision_is_dropped_where_the_state_was_forgotten(counters: Counters) -> None:
    counters.count()
    shard = counters.runtime.shard("n")
    counters.world.holds_syncs = True
    answer = counters.send()
    followed: list[bool] = []
    shard.when_committed(lambda: followed.append(True))
    shard.give_up(CodedError(ErrorCode.unknown_server_error))
    counters.world.sync()
    counters.world.settle()
    assert not followed
    assert answer.exception() is not None


def test_timers_expire_as_decided(counters: Counters) -> None:
    counters.count()
    counters.world.advance(999)
    assert counters.count() == 2
    counters.world.advance(1_000)
    assert counters.runtime.shard("n").counts == {"n": 0}


def test_records_of_unknown_kinds_are_passed_over(counters: Counters) -> None:
    counters.count()
    decision = Decision(0)
    decision.record(b"\0\x08later", b"x")
    counters.runtime.shard("n").commit("n", decision)
    again = restarted(counters)
    assert again.count() == 2
    counters.world.run(again.runtime.close())


def test_those_who_wait_are_told_when_another_broker_leads(counters: Counters) -> None:
    counters.count()
    shard = counters.runtime.shard("n")
    counters.world.holds_syncs = True
    answer = counters.send()
    counters.runtime.leads_no_more(shard.partition)
    with pytest.raises(CodedError) as refused:
        answer.result()
    assert refused.value.code is ErrorCode.not_coordinator
    assert shard.phase is Phase.CLOSED
