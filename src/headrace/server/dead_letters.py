"""Writes the dead letters of share groups to their topics: by its own hand where this broker leads the partition, else
by Produce to the broker that does; with acks=all.

As in Kafka (KIP-1191) the letters of a partition go to the partition of the same number, counted around where there are
fewer, of a topic that takes them (`errors.deadletterqueue.group.enable`) and whose name has the prefix that brokers are
set to. Where it does not exist it is made if `errors.deadletterqueue.auto.create.topics.enable` says so. Unlike in
Kafka nothing is given up while a letter cannot be written: who has to write it tries again.
"""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from math import inf
from typing import Final

from headrace.cluster.controller import Controller
from headrace.cluster.image import ClusterImage, Topic
from headrace.cluster.metadata_writer import TopicSpec
from headrace.config import BrokerConfig
from headrace.config.share import LETTER_TOPICS_CREATED, LETTER_TOPICS_PREFIX, TAKES_LETTERS
from headrace.health import HealthProblem, ProblemCode, problem
from headrace.net.clock import Clock
from headrace.net.peers import Peers, PeerUnreachable, Purpose
from headrace.protocol.api import ApiKey
from headrace.protocol.batch import check_batch
from headrace.protocol.errors import CodedError, ErrorCode
from headrace.protocol.records import Record, encode_batch
from headrace.protocol.validation import SlowBatch
from headrace.replication.intake import admit
from headrace.replication.partition import Partition
from headrace.replication.replica_manager import ReplicaManager
from headrace.replication.share_letters import DeadLetterStore, DeadRecord, DeadRecords, letter
from headrace.replication.share_manager import ShareManager
from headrace.replication.storage_quota import check_room, take_room
from headrace.storage.log import Appended

WRITE_SECONDS: Final = 10.0
MOST_AT_ONCE: Final = 2
"""Share-partitions whose letters are written at a time to one topic: each has up to a MiB of records in memory, and a
topic that does not answer delays no other."""
LARGEST_BATCH: Final = 512 << 10
"""Bytes of letters that go together."""
_VERSION: Final = 9
"""Of Produce: topics by name, batches of every codec."""
_ACKS: Final = -1
_PER_LETTER: Final = 400
"""Bytes of a letter besides its record, about."""
_NAMED: Final = 3


class DeadLetterTopics(DeadLetterStore):
    """The topics that share groups name for their dead letters."""

    def __init__(
        self,
        *,
        broker_id: int,
        config: BrokerConfig,
        image: ClusterImage,
        controller: Controller,
        replicas: ReplicaManager,
        clock: Clock,
        peers: Peers | None,
    ) -> None:
        self._broker_id = broker_id
        self._config = config
        self._image = image
        self._controller = controller
        self._replicas = replicas
        self._clock = clock
        self._peers = peers
        self._turns: defaultdict[str, asyncio.Semaphore] = defaultdict(lambda: asyncio.Semaphore(MOST_AT_ONCE))
        """By topic."""

    async def write(self, dead: DeadRecords) -> None:
        async with self._turns[dead.letter_topic]:
            topic = await self._topic(dead)
            for some in _portions(dead.records):
                await self._write(topic, dead, some)

    async def _write(self, topic: Topic, dead: DeadRecords, some: Sequence[DeadRecord]) -> None:
        """Letters that are too large for their topic go in smaller batches; one that is so alone without its record."""
        try:
            await self._append(topic, dead, [letter(each, dead, self._clock.now_ms()) for each in some])
        except CodedError as error:
            if error.code not in (ErrorCode.message_too_large, ErrorCode.record_list_too_large):
                raise
            if len(some) > 1:
                middle = len(some) // 2
                await self._write(topic, dead, some[:middle])
                await self._write(topic, dead, some[middle:])
                return
            reason = error.message or f"it is too large for topic {topic.name}"
            await self._append(topic, dead, [letter(some[0], dead, self._clock.now_ms(), omitted=reason)])

    async def _topic(self, dead: DeadRecords) -> Topic:
        name = dead.letter_topic
        prefix: str = self._config[LETTER_TOPICS_PREFIX] or ""
        if name.startswith("__") or not name.startswith(prefix):
            raise CodedError(
                ErrorCode.invalid_topic_exception,
                f"topic {name} may not have dead letters: names of such topics begin with '{prefix}', as "
                f"{LETTER_TOPICS_PREFIX} of the broker says",
            )
        topic = self._image.topic(name) or await self._create(name)
        if topic.configs.get(TAKES_LETTERS, "false").strip().lower() != "true":
            raise CodedError(
                ErrorCode.policy_violation, f"topic {name} does not take dead letters: set {TAKES_LETTERS}=true on it"
            )
        return topic

    async def _create(self, name: str) -> Topic:
        if not self._config[LETTER_TOPICS_CREATED]:
            raise CodedError(
                ErrorCode.unknown_topic_or_partition,
                f"topic {name}, for dead letters, does not exist: create it with {TAKES_LETTERS}=true",
            )
        spec = TopicSpec(
            name=name,
            partitions=int(self._config["num.partitions"]),
            replication_factor=1 if self._config.lone else int(self._config["default.replication.factor"]),
            configs={TAKES_LETTERS: "true"},
        )
        try:
            return await self._controller.create_topic(spec)
        except CodedError:
            topic = self._image.topic(name)
            if topic is None:
                raise
            return topic

    async def _append(self, topic: Topic, dead: DeadRecords, letters: Sequence[Record]) -> None:
        index = dead.partition % len(topic.partitions)
        batch = encode_batch(letters)
        leader = topic.partitions[index].leader
        if leader == self._broker_id:
            await self._append_here(self._replicas.partition(topic.name, index), memoryview(batch))
        elif self._peers is None or leader < 0:
            raise CodedError(ErrorCode.leader_not_available, f"{topic.name}-{index} has no leader for now")
        else:
            await self._send(self._peers, leader, topic.name, index, bytes(batch))

    async def _append_here(self, partition: Partition, batch: memoryview) -> None:
        if partition.rooms:
            check_room(partition.rooms, len(batch))
        appended = await self._appended(partition, batch)
        if partition.rooms:
            take_room(partition.rooms, len(batch))
        end = appended.last_offset + 1
        if partition.is_acknowledged(end, _ACKS):
            return
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def committed(error: CodedError | None) -> None:
            if not done.done():
                done.set_exception(error) if error is not None else done.set_result(None)

        deadline = inf if partition.followers is None else self._clock.monotonic() + WRITE_SECONDS
        partition.wait(end, _ACKS, committed, deadline)
        await done

    async def _appended(self, partition: Partition, batch: memoryview) -> Appended:
        header, now_ms = check_batch(batch), self._clock.now_ms()
        partition.check_isr()
        try:
            return partition.append(batch, header, now_ms=now_ms, version=_VERSION)
        except SlowBatch:
            rules = partition.rules
            batch, header = await self._replicas.in_thread(
                lambda: admit(batch, header, rules, now_ms, _VERSION, in_thread=True)
            )
            return partition.append(batch, header, is_admitted=True)

    async def _send(self, peers: Peers, leader: int, topic: str, index: int, batch: bytes) -> None:
        values = {
            "transactional_id": None,
            "acks": _ACKS,
            "timeout": int(WRITE_SECONDS * 1000),
            "topic_data": [{"name": topic, "partition_data": [{"index": index, "records": batch}]}],
        }
        try:
            answer = await peers.ask(
                leader, ApiKey.PRODUCE, _VERSION, values, purpose=Purpose.LETTERS, timeout=2 * WRITE_SECONDS
            )
        except PeerUnreachable as error:
            raise CodedError(ErrorCode.leader_not_available, str(error)) from error
        told = answer.responses[0].partition_responses[0]
        if told.error_code is not ErrorCode.none:
            raise CodedError(told.error_code, told.error_message or f"{topic}-{index}: {told.error_code.name}")


def _portions(records: Iterable[DeadRecord]) -> Iterator[Sequence[DeadRecord]]:
    """Records whose letters go together."""
    some: list[DeadRecord] = []
    size = 0
    for each in records:
        more = _PER_LETTER + len(each.record.key or b"") + len(each.record.value or b"")
        if some and size + more > LARGEST_BATCH:
            yield some
            some, size = [], 0
        some.append(each)
        size += more
    if some:
        yield some


def letter_problems(shares: Callable[[], ShareManager]) -> Callable[[], Iterator[HealthProblem]]:
    """What is wrong with the dead letters that this broker has to write."""

    def problems() -> Iterator[HealthProblem]:
        failing = [leader for leader in shares() if leader.letter_failure]
        if failing:
            named = sorted({leader.key.group_id for leader in failing})
            more = f" and {len(named) - _NAMED} more" if len(named) > _NAMED else ""
            yield problem(
                ProblemCode.DEAD_LETTERS_WAIT,
                f"group {', '.join(named[:_NAMED])}{more}",
                f"{sum(leader.letters_due for leader in failing)} record(s) wait: {failing[0].letter_failure}",
            )

    return problems
