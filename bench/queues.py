"""A queue: members of a share group receive records and accept them, each acknowledgement with the next fetch.

Beside it Apache Kafka's share groups, asked the same by the same program, with the JVM settings of its start script.
Both have one core. That is harder for a JVM, whose compiler and collector share it with the broker, most of all on a
machine that does other work: the ratio says little there, and is no figure to be told of both brokers elsewhere.
A lone broker of ours syncs the state of a group before it answers, as it is the only copy; Apache Kafka does not.
"""

import asyncio
import time
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final
from uuid import UUID

from headrace.protocol.encode import encode_request
from tests.support.apache_kafka import AS_IN_PRODUCTION, WITH_SHARE_GROUPS, ApacheKafka
from tests.support.maven import Unavailable

from . import machine
from .frames import batch_of, request_frame
from .model import CPU, Aim, BenchError, Figure, Of, Sample, Skipped, Work
from .setting import Server, Setting
from .wire import Link, Links, decoded, run

TOPIC: Final = "bench"
GROUP: Final = "workers"
_PARTITIONS: Final = 3
_MEMBERS: Final = 8
_PER_BATCH: Final = 500
_VALUE_SIZE: Final = 100
_WARM_UP: Final = 1_000_000
"""Records before those that count: a JVM compiles meanwhile."""
_RECORDS: Final = 600_000
_SECONDS: Final = 120.0
"""By then all of them have to be done."""
_METADATA, _PRODUCE, _FIND, _FETCH, _INITIALIZE = (3, 12), (0, 9), (10, 6), (78, 2), (83, 0)


async def _ask(link: Link, api: tuple[int, int], **values: Any) -> Any:
    frame = request_frame(*api, bytes(encode_request(*api, values)), flexible=True)
    return decoded(*api, await link.ask(frame))


async def _topic_id(link: Link) -> UUID:
    topic = {"name": TOPIC, "topic_id": None}
    answer = await _ask(link, _METADATA, topics=(topic,), include_topic_authorized_operations=False)
    return UUID(int=answer.topics[0].topic_id.int)


async def _fill(link: Link, records: int) -> None:
    batch = batch_of(_PER_BATCH, _VALUE_SIZE).data
    for number in range(records // _PER_BATCH):
        data = {"index": number % _PARTITIONS, "records": batch}
        topics = ({"name": TOPIC, "partition_data": (data,)},)
        answer = await _ask(link, _PRODUCE, transactional_id=None, acks=-1, timeout=30_000, topic_data=topics)
        if answer.responses[0].partition_responses[0].error_code:
            raise BenchError(f"a batch was refused: {answer}")


async def _initialize(link: Link, topic_id: UUID) -> None:
    """Have the group begin with the first record, as its coordinator does."""
    name = urlsafe_b64encode(topic_id.bytes).decode().rstrip("=")
    keys = tuple(f"{GROUP}:{name}:{index}" for index in range(_PARTITIONS))
    states = [{"partition": index, "state_epoch": 1, "start_offset": 0} for index in range(_PARTITIONS)]
    deadline = time.perf_counter() + _SECONDS
    while time.perf_counter() < deadline:
        await _ask(link, _FIND, key_type=2, coordinator_keys=keys)
        topics = ({"topic_id": topic_id, "partitions": states},)
        answer = await _ask(link, _INITIALIZE, group_id=GROUP, topics=topics)
        if not any(each.error_code for each in answer.results[0].partitions):
            return
        await asyncio.sleep(0.1)
    raise BenchError("the share group could not be initialized")


class _Queue:
    """The members of the group, and what they have accepted."""

    def __init__(self, topic_id: UUID) -> None:
        self._topic_id = topic_id
        self.accepted = 0
        self._enough = 0

    async def drain(self, links: list[Link], first: int, enough: int) -> None:
        """Accept so many records, in sessions of their own."""
        self._enough = enough
        async with asyncio.TaskGroup() as tasks:
            for number, link in enumerate(links):
                tasks.create_task(self._work(link, f"member-{first + number}"))

    async def _work(self, link: Link, member_id: str) -> None:
        epoch, acks = 0, dict[int, list[dict[str, Any]]]()
        deadline = time.perf_counter() + _SECONDS
        while self.accepted < self._enough or acks:
            if time.perf_counter() > deadline:
                raise BenchError(f"{self.accepted} records were accepted in {_SECONDS:.0f} s")
            acks = await self._turn(link, member_id, epoch, acks, is_last=self.accepted >= self._enough)
            epoch += 1

    async def _turn(
        self, link: Link, member_id: str, epoch: int, acks: dict[int, list[dict[str, Any]]], *, is_last: bool
    ) -> dict[int, list[dict[str, Any]]]:
        """Acknowledge what was received before, receive more; what is to be acknowledged next."""
        partitions = [
            {"partition_index": index, "acknowledgement_batches": acks.get(index, ())} for index in range(_PARTITIONS)
        ]
        answer = await _ask(
            link,
            _FETCH,
            group_id=GROUP,
            member_id=member_id,
            share_session_epoch=-1 if is_last else epoch,
            max_wait=100,
            min_bytes=1,
            max_bytes=50 << 20,
            max_records=_PER_BATCH,
            batch_size=_PER_BATCH,
            topics=({"topic_id": self._topic_id, "partitions": partitions},) if epoch == 0 or acks else (),
            forgotten_topics_data=(),
        )
        received = dict[int, list[dict[str, Any]]]()
        if answer.error_code:
            raise BenchError(f"a fetch was refused: {answer.error_code!r}")
        for topic in answer.responses:
            for each in topic.partitions:
                if each.error_code or each.acknowledge_error_code:
                    raise BenchError(f"a partition has answered {each.error_code!r}, {each.acknowledge_error_code}")
                for run_of in each.acquired_records:
                    first, last = run_of.first_offset, run_of.last_offset
                    said = {"first_offset": first, "last_offset": last, "acknowledge_types": (1,)}
                    received.setdefault(each.partition_index, []).append(said)
        self.accepted += sum(a["last_offset"] - a["first_offset"] + 1 for said in acks.values() for a in said)
        return received


async def _measure(server: Server) -> Sample:
    async with Links(server.port) as connections:
        links = [await connections.open() for _ in range(_MEMBERS)]
        topic_id = await _topic_id(links[0])
        await _initialize(links[0], topic_id)
        await _fill(links[0], _WARM_UP + _RECORDS)
        queue = _Queue(topic_id)
        await queue.drain(links, 0, _WARM_UP)
        first, cpu, began = queue.accepted, server.cpu_seconds(), time.perf_counter()
        await queue.drain(links, _MEMBERS, _WARM_UP + _RECORDS)
        seconds, cpu, records = time.perf_counter() - began, server.cpu_seconds() - cpu, queue.accepted - first
    return {"rate": records / seconds, CPU: cpu / records * 1e6}


def queue(setting: Setting) -> Sample:
    """One round against a fresh broker."""
    with setting.broker() as server:
        server.create_topic(TOPIC, {}, _PARTITIONS)
        return run(_measure(server))


@contextmanager
def _kafka(setting: Setting) -> Iterator[Server]:
    """A fresh node of Apache Kafka, on the core that ours would have."""
    with setting.directory() as directory, ExitStack() as stack:
        try:
            with machine.on_core(machine.SERVER_CORE):
                kafka = stack.enter_context(ApacheKafka(directory, version=WITH_SHARE_GROUPS, jvm=AS_IN_PRODUCTION))
        except Unavailable as reason:
            raise Skipped(f"Apache Kafka is not here to compare with: {reason}") from None
        yield Server(process=kafka.process, port=int(kafka.bootstrap.rpartition(":")[2]))


def kafkas_queue(setting: Setting) -> Sample:
    """One round of the same against Apache Kafka."""
    with _kafka(setting) as server:
        server.create_topic(TOPIC, {}, _PARTITIONS)
        return run(_measure(server))


def works() -> list[Work]:
    """Records received and accepted."""
    return [
        Work(
            name="queue",
            title=f"queue: receive and accept, {_VALUE_SIZE} B records, {_MEMBERS} members",
            against=f"share groups of Apache Kafka {WITH_SHARE_GROUPS}",
            figures=(Figure(key="rate", label="", unit="records/s", aim=Aim(of=Of.RATIO, bound=1.5, at_least=True)),),
            broker=queue,
            ceiling=kafkas_queue,
            cpu_unit="µs/record",
            rounds=3,
        )
    ]
