"""What has to work again once everything is set right, within bounded time, and what operators do for it meanwhile.

Operators are needed only where data is gone and brokers say so: to start brokers anew whose disks had failed, to choose
a leader where every copy that counts was destroyed, to end transactions that nobody knows of any more, to remove the
logs whose old bytes do not match their checksums any more, which only those find who read them.
"""

import asyncio
from collections.abc import Iterator
from typing import Final

from headrace.cluster.image import PartitionState, Topic
from headrace.protocol.api import ApiKey
from headrace.protocol.errors import CodedError, ErrorCode
from headrace.replication.partition import Partition
from headrace.testing.cluster import Machine, SimulatedCluster
from tests.support.simulation.clients import Failed

from .clients import AGAIN, Client, Scene
from .faults import Faults
from .ledger import INTERNAL, TRANSACTIONS, Ledger
from .operator import LETTERS, STEADY, TARGET
from .transacting import GaveUp, TransactionalProducer, committed_offset, coordinator

HEAL_SECONDS: Final = 60.0
"""Within this time after the last fault everything works again."""
OPERATOR_SECONDS: Final = 15.0
"""After this time operators come."""


def hosted(cluster: SimulatedCluster, broker: int, topic: Topic, index: int) -> Partition | None:
    """A partition as a broker has it."""
    try:
        return cluster[broker].broker.replicas.partition(topic.name, index)
    except CodedError:
        return None


def _failed(machine: Machine) -> list[str]:
    """Why logs of a broker cannot be used."""
    return [each.log.offline for each in machine.broker.replicas.hosted() if each.log.offline is not None]


def _is_whole(state: PartitionState) -> bool:
    return state.leader >= 0 and set(state.isr) == set(state.replicas) and not state.adding and not state.removing


def _described(partition: Partition) -> str:
    stable, high = partition.last_stable_offset, partition.high_watermark
    return f"{partition.topic}-{partition.index} LSO {stable} HW {high}"


class Healing:
    """Waits until everything works, and complains of what does not."""

    def __init__(self, scene: Scene, ledger: Ledger, faults: Faults) -> None:
        self._scene = scene
        self._cluster = scene.cluster
        self._history = scene.history
        self._mix = scene.mix
        self._ledger = ledger
        self._faults = faults
        self._restarted: set[Machine] = set()

    async def heal(self) -> None:
        """Every partition has a leader, and all its replicas in sync, by itself or where an operator had to choose."""
        loop = asyncio.get_running_loop()
        client = Client(self._scene, "healer")
        for machine in self._cluster:
            await self._replace_rotten(machine)
        began = loop.time()
        while not self._is_well() and loop.time() < began + HEAL_SECONDS:
            await asyncio.sleep(0.5)
            if loop.time() > began + OPERATOR_SECONDS:
                await self._restart_failed()
                await self._elect(client)
        client.close()
        for topic in self._cluster.topics().values():
            for index, state in enumerate(topic.partitions):
                if not _is_whole(state):
                    self._complain_of(topic, index, state)

    def _is_well(self) -> bool:
        """Whether the cluster is whole, and knows it: a controller may not have heard yet of a log that has failed."""
        return self._cluster.is_whole() and not any(map(_failed, self._cluster))

    async def _replace_rotten(self, machine: Machine) -> None:
        """Logs that are damaged where no broker looks are removed, of one machine after another."""
        rotten = self._ledger.rotten(machine)
        if not rotten:
            return
        self._faults.log.append(f"an operator removes {', '.join(rotten)} of {machine.name}")
        machine.kill()
        for path in rotten:
            self._ledger.lose_directory(machine, path)
        await self._faults.start(machine)
        for _ in range(40):
            if self._cluster.is_whole():
                break
            await asyncio.sleep(0.5)

    async def _restart_failed(self) -> None:
        """Brokers whose disks have failed a log, and do not fail any more, are started anew: once each."""
        for machine in self._cluster:
            failed = _failed(machine)
            if failed and machine not in self._restarted:
                self._restarted.add(machine)
                self._faults.log.append(f"an operator restarts {machine.name}: {failed[0][:200]}")
                machine.kill()
                await self._faults.start(machine)

    async def _elect(self, client: Client) -> None:
        """Where every copy that counts was destroyed, an operator lets one lead that is left.

        So it is where one of them has an empty disk now, and others lost power: no broker can know who held the most.
        """
        for topic in self._cluster.topics().values():
            for index, state in enumerate(topic.partitions):
                if state.leader < 0 and (state.emptied or (topic.id, index) in self._ledger.lost):
                    values = {
                        "election_type": 1,
                        "topic_partitions": [{"topic": topic.name, "partitions": [index]}],
                        "timeout": 5_000,
                    }
                    try:
                        await client.ask_anyone(ApiKey.ELECT_LEADERS, 2, values)
                    except OSError:
                        await client.pause()

    def _complain_of(self, topic: Topic, index: int, state: PartitionState) -> None:
        kind = "no leader" if state.leader < 0 else "not in sync"
        offline = {}
        for machine in self._cluster:
            held = hosted(self._cluster, machine.id, topic, index)
            offline[machine.id] = "absent" if held is None else (held.log.offline, held.log.log_end_offset)
        self._history.complain(f"{kind}: {topic.name}-{index} is {state}, {offline}")

    def require_quiet(self) -> None:
        """Where nothing went wrong, and nobody moved anything, no replica left an ISR."""
        if not self._mix.faults and not self._mix.does("reassignment") and self._ledger.isr_changes:
            self._history.complain(f"ISR shrank: {self._ledger.isr_changes} changes in a cluster without faults")

    async def serve_probes(self) -> None:
        """Every partition takes a write with acks=all, a group keeps an offset, a transaction is committed."""
        client = Client(self._scene, "probe")
        for topic in list(self._cluster.topics().values()):
            for index in range(len(topic.partitions)) if topic.name not in (*INTERNAL, LETTERS) else ():
                await self._probe(client, topic, index)
        client.close()
        if self._mix.does("transactions") or self._mix.does("copier"):
            await self._probe_transaction()
        if self._mix.does("group"):
            await self._probe_group()

    async def _probe(self, client: Client, topic: Topic, index: int) -> None:
        value = f"probe-{topic.name}-{index}"
        operation = self._history.send("probe", topic.id.hex, index, [value], keys=[value])
        batch = client.batch([value], [value])
        reason = ""
        try:
            async with asyncio.timeout(HEAL_SECONDS):
                while True:
                    try:
                        code, offset = await client.produce_batch(topic.name, topic.id, index, batch)
                        reason = code.name
                        if code is ErrorCode.none:
                            operation.ok(offset=offset)
                            return
                        if code not in AGAIN:
                            break
                    except (OSError, Failed) as error:
                        reason = repr(error)
                    client.mistrust(topic.name)
                    await client.pause()
        except TimeoutError:
            pass
        self._history.complain(f"not served: {topic.name}-{index} takes no write: {reason}")

    async def _probe_transaction(self) -> None:
        producer = TransactionalProducer(self._scene, "probing", TARGET, newer=True)
        try:
            async with asyncio.timeout(HEAL_SECONDS):
                while not producer.count:
                    try:
                        await producer.transact()
                    except (GaveUp, OSError, Failed):
                        producer._producer = None
                        await producer.client.pause()
        except TimeoutError:
            self._history.complain("not served: no transaction can be committed")
        await producer.close()

    async def _probe_group(self) -> None:
        client = Client(self._scene, "group-probe")
        asked = {"partition_index": 0, "committed_offset": 1, "committed_leader_epoch": -1, "committed_metadata": ""}
        values = {
            "group_id": "probes",
            "generation_id_or_member_epoch": -1,
            "member_id": "",
            "group_instance_id": None,
            "topics": [{"name": STEADY, "partitions": [asked]}],
        }
        try:
            async with asyncio.timeout(HEAL_SECONDS):
                while True:
                    try:
                        answer = await client.ask(await coordinator(client, "probes"), ApiKey.OFFSET_COMMIT, 7, values)
                        if answer.topics[0].partitions[0].error_code == ErrorCode.none:
                            break
                    except (OSError, Failed):
                        pass
                    await client.pause()
                if await committed_offset(client, "probes", STEADY, 0) != 1:
                    self._history.complain("lost commit: the probe's offset is not what it has committed")
        except (TimeoutError, GaveUp):
            self._history.complain("not served: no group can commit")
        client.close()

    async def settle(self) -> None:
        """No transaction hangs: the last stable offset of every partition reaches its high watermark.

        Where what the coordinator knew, or a marker that it wrote, was destroyed an operator has to end what is left.
        """
        loop = asyncio.get_running_loop()
        began = loop.time()
        client = Client(self._scene, "settler")
        while hanging := list(self._hanging()):
            if loop.time() > began + HEAL_SECONDS:
                self._history.complain(f"hanging transaction: {[_described(each) for each in hanging]}")
                break
            if loop.time() > began + OPERATOR_SECONDS:
                for each in hanging:
                    if self._ledger.has_lost(TRANSACTIONS) or self._ledger.has_lost(each.topic):
                        await self._abort(client, each)
            await asyncio.sleep(0.5)
        client.close()

    def _hanging(self) -> Iterator[Partition]:
        for topic in self._cluster.topics().values():
            for index, state in enumerate(topic.partitions):
                held = hosted(self._cluster, state.leader, topic, index) if state.leader >= 0 else None
                if held is not None and held.last_stable_offset < held.high_watermark:
                    yield held

    async def _abort(self, client: Client, partition: Partition) -> None:
        """What `headrace txn abort` does for each transaction that is open there."""
        asked = [{"name": partition.topic, "partition_indexes": [partition.index]}]
        try:
            leader = await client.leader_of(partition.topic, partition.index)
            answer = await client.ask(leader, ApiKey.DESCRIBE_PRODUCERS, 0, {"topics": asked})
            for producer in answer.topics[0].partitions[0].active_producers:
                if producer.current_txn_start_offset >= 0:
                    marker = {
                        "producer_id": producer.producer_id,
                        "producer_epoch": producer.producer_epoch,
                        "transaction_result": False,
                        "topics": asked,
                        "coordinator_epoch": max(producer.coordinator_epoch, 0),
                    }
                    await client.ask(leader, ApiKey.WRITE_TXN_MARKERS, 1, {"markers": [marker]})
        except (OSError, Failed):
            client.mistrust(partition.topic)
