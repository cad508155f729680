"""Controllers that die, or are cut off, in the middle of their work; and moves of partitions under load."""

import asyncio
from functools import partial
from typing import Any

import pytest

from headrace.cluster.image import PartitionState
from headrace.config import BrokerConfig
from headrace.protocol.api import ApiKey
from headrace.protocol.errors import CodedError, ErrorCode
from headrace.replication.partition import Partition
from headrace.testing.cluster import SESSION_SECONDS, Machine, SimulatedCluster
from headrace.testing.loop import run_virtual
from tests.support.simulation.runs import TOPIC, Plan, Run


def controller_of(cluster: SimulatedCluster) -> Machine:
    found = cluster.controller()
    assert found is not None
    return found


async def all_know(cluster: SimulatedCluster) -> None:
    """Every broker that is up holds what the store says, and plays the part that it says."""

    def agree() -> bool:
        for topic in cluster.topics().values():
            for index, state in enumerate(topic.partitions):
                if not all(knows(cluster[broker], topic.name, index, state) for broker in state.replicas):
                    return False
        return True

    def knows(machine: Machine, topic: str, index: int, state: PartitionState) -> bool:
        try:
            partition = machine.broker.replicas.partition(topic, index)
        except CodedError:
            return False
        return partition.state == state and partition.is_leader == (state.leader == machine.id)

    await cluster.until(agree, "every broker knows what the store says", 20)


def test_every_broker_tells_who_the_controller_is_and_how_far_all_have_come() -> None:
    async def main() -> None:
        run = Run(Plan(seed=6))
        cluster = run.cluster
        await cluster.start()
        await asyncio.sleep(1)  # in virtual time: all have told the controller that they know what there is
        asked = {"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}
        for machine in cluster:
            answer = await run.client.ask(machine.address, ApiKey.DESCRIBE_QUORUM, 2, {"topics": [asked]})
            ((partition,),) = (topic.partitions for topic in answer.topics)
            assert (partition.error_code, partition.leader_id) == (ErrorCode.none, controller_of(cluster).id)
            assert partition.leader_epoch > 0
            voters = {voter.replica_id: voter.log_end_offset for voter in partition.current_voters}
            assert voters == dict.fromkeys((each.id for each in cluster), partition.high_watermark)
            assert {node.node_id for node in answer.nodes} == set(voters)
        await run.end()

    run_virtual(main)


def test_subscriptions_to_client_metrics_are_known_to_every_broker() -> None:
    async def main() -> None:
        run = Run(Plan(seed=6))
        cluster = run.cluster
        await cluster.start()
        for machine in cluster:
            config = {"name": "interval.ms", "config_operation": 0, "value": "60000"}
            resource = {"resource_type": 16, "resource_name": f"s{machine.id}", "configs": [config]}
            request = {"resources": [resource], "validate_only": False}
            answer = await run.client.ask(machine.address, ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, request)
            assert answer.responses[0].error_code is ErrorCode.none
        for machine in cluster:
            listed = await run.client.ask(machine.address, ApiKey.LIST_CONFIG_RESOURCES, 0, {})
            assert {each.resource_name for each in listed.config_resources} == {f"s{each.id}" for each in cluster}
        await run.end()

    run_virtual(main)


def test_loggers_are_those_of_the_broker_that_is_asked_whoever_is_the_controller() -> None:
    async def main() -> None:
        run = Run(Plan(seed=6))
        cluster = run.cluster
        await cluster.start()
        brokers = [machine.id for machine in cluster]
        asked = {
            (through, about): await check(run, through, [logger(about)]) for through in brokers for about in brokers
        }
        assert {pair for pair, code in asked.items() if code is ErrorCode.none} == {(id_, id_) for id_ in brokers}
        follower = next(machine.id for machine in cluster if machine is not controller_of(cluster))
        mixed = [logger(follower), {"resource_type": 4, "resource_name": "", "configs": []}]
        assert await check(run, follower, mixed) is ErrorCode.invalid_request
        await run.end()

    def logger(broker: int) -> dict[str, Any]:
        config = {"name": "ROOT", "config_operation": 0, "value": "INFO"}
        return {"resource_type": 8, "resource_name": str(broker), "configs": [config]}

    async def check(run: Run, through: int, resources: list[dict[str, Any]]) -> ErrorCode:
        request = {"resources": resources, "validate_only": True}
        answer = await run.client.ask(run.cluster[through].address, ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, request)
        code = answer.responses[0].error_code
        assert isinstance(code, ErrorCode)
        return code

    run_virtual(main)


def test_a_broker_that_is_cut_off_leads_nothing_by_reading_its_settings_again() -> None:
    async def main() -> None:
        run = Run(Plan(seed=6))
        cluster = run.cluster
        await cluster.start()
        await run.client.create_topic(TOPIC, partitions=3)
        leader = cluster.leader(TOPIC)
        assert reload(leader, "7000000") == ["log.retention.ms not set -> 7000000"]
        assert partition(leader).is_leader
        leader.cut_from_store()
        await cluster.until(lambda: not partition(leader).is_leader, "it has stepped aside")
        assert reload(leader, "8000000") == ["log.retention.ms 7000000 -> 8000000"]
        assert not partition(leader).is_leader
        leader.heal_store()
        await cluster.until(cluster.is_whole, "every partition is whole")
        await all_know(cluster)
        assert leader.broker.config["log.retention.ms"] == 8_000_000
        await run.end()

    def reload(machine: Machine, retention: str) -> list[str]:
        config = machine.broker.config
        new = BrokerConfig.parse({**config.given, "log.retention.ms": retention}, lone=config.lone)
        return machine.broker.reload(new).changed

    def partition(machine: Machine) -> Partition:
        return machine.broker.replicas.partition(TOPIC, 0)

    run_virtual(main)


def test_settings_of_one_broker_change_through_that_broker_whoever_is_the_controller() -> None:
    async def main() -> None:
        run = Run(Plan(seed=6))
        cluster = run.cluster
        await cluster.start()
        brokers = [machine.id for machine in cluster]
        asked = {(through, about): await retention(run, through, about) for through in brokers for about in brokers}
        assert {pair for pair, code in asked.items() if code is ErrorCode.none} == {(id_, id_) for id_ in brokers}
        assert set(asked.values()) == {ErrorCode.none, ErrorCode.invalid_request}
        await cluster.until(lambda: all(in_force(cluster[id_]) == 1_000_000 + id_ for id_ in brokers), "each its own")
        await run.end()

    async def retention(run: Run, through: int, about: int) -> ErrorCode:
        config = {"name": "log.retention.ms", "config_operation": 0, "value": str(1_000_000 + about)}
        resource = {"resource_type": 4, "resource_name": str(about), "configs": [config]}
        answer = await run.client.ask(
            run.cluster[through].address,
            ApiKey.INCREMENTAL_ALTER_CONFIGS,
            1,
            {"resources": [resource], "validate_only": False},
        )
        code = answer.responses[0].error_code
        assert isinstance(code, ErrorCode)
        return code

    def in_force(machine: Machine) -> object:
        return machine.broker.config["log.retention.ms"]

    run_virtual(main)


@pytest.mark.parametrize("after", [0.0, 0.01, 0.03, 0.1, 0.3])
def test_topics_are_whole_or_not_there_when_the_controller_dies_while_they_are_made(after: float) -> None:
    async def main() -> None:
        run = Run(Plan(seed=5))
        cluster = run.cluster
        await cluster.start()
        dying = controller_of(cluster)
        cluster.ensemble.delay_commits(dying.store, 0.02)
        names = [f"t{number}" for number in range(12)]
        making = [asyncio.ensure_future(run.client.create_topic(name, partitions=3)) for name in names]
        await asyncio.sleep(after)
        dying.kill()
        await asyncio.sleep(2 * SESSION_SECONDS)
        await dying.start()
        await asyncio.gather(*making)
        assert sorted(cluster.topics()) == sorted(names)
        await cluster.until(cluster.is_whole, "every partition is whole")
        await all_know(cluster)
        await run.end()

    run_virtual(main, 5, longest=600)


@pytest.mark.parametrize("after", [0.02, 0.05, 0.15])
def test_a_mass_election_is_brought_to_its_end_by_the_next_controller(after: float) -> None:
    async def main() -> None:
        run = Run(Plan(seed=6, brokers=4))
        cluster = run.cluster
        await cluster.start()
        for number in range(10):
            await run.client.create_topic(f"t{number}", partitions=4)
        dying = controller_of(cluster)
        other = next(machine for machine in cluster if machine is not dying)
        cluster.ensemble.delay_commits(dying.store, 0.05)
        other.expire()
        other.kill()
        await asyncio.sleep(after)
        dying.kill()
        left = {machine.id for machine in cluster if machine.is_up}
        states = [state for topic in cluster.topics().values() for state in topic.partitions]
        assert any(state.leader not in left for state in states), "nothing was left to do"

        def all_led() -> bool:
            return all(state.leader in left for topic in cluster.topics().values() for state in topic.partitions)

        await cluster.until(all_led, "every partition is led by a living broker", 10)
        await dying.start()
        await other.start()
        await cluster.until(cluster.is_whole, "every partition is whole")
        await all_know(cluster)
        await run.end()

    run_virtual(main, 6, longest=600)


def test_a_topic_whose_leader_dies_while_it_is_made_gets_another_one() -> None:
    async def main() -> None:
        run = Run(Plan(seed=7))
        cluster = run.cluster
        await cluster.start()
        controller = controller_of(cluster)
        first = next(machine for machine in cluster if machine is not controller)
        others = [machine.id for machine in cluster if machine is not first]
        cluster.ensemble.delay_commits(controller.store, 1.0)
        making = asyncio.ensure_future(run.client.create_topic("t", assignments=[[first.id, *others]]))
        await asyncio.sleep(0.1)
        first.expire()
        first.kill()
        await making
        await cluster.until(lambda: cluster.state("t").leader in others, "another broker leads", 10)
        cluster.ensemble.delay_commits(controller.store, 0.0)
        await first.start()
        await cluster.until(cluster.is_whole, "every partition is whole")
        await run.end()

    run_virtual(main, 7, longest=600)


def test_a_controller_that_was_replaced_while_it_slept_changes_nothing_any_more() -> None:
    async def main() -> None:
        run = Run(Plan(seed=8))
        cluster = run.cluster
        await cluster.start()
        await run.client.create_topic(TOPIC, partitions=3)
        former = controller_of(cluster)
        former.pause()
        await cluster.until(lambda: cluster.controller() not in (None, former), "there is another controller")
        await run.client.create_topic("made-by-the-other", partitions=3, replicas=2)
        before = cluster.topics()
        former.resume()
        await run.client.create_topic("made-after", partitions=3)
        await cluster.until(cluster.is_whole, "every partition is whole")
        assert all(cluster.topics()[name].id == topic.id for name, topic in before.items())
        await all_know(cluster)
        await run.end()

    run_virtual(main, 8, longest=600)


def test_a_controller_that_nobody_can_reach_gives_way_to_one_that_can_be() -> None:
    async def main() -> None:
        run = Run(Plan(seed=9))
        cluster = run.cluster
        await cluster.start()
        await run.client.create_topic(TOPIC, assignments=[[0, 1, 2], [1, 2, 0], [2, 0, 1]])
        former = controller_of(cluster)
        for machine in cluster:
            if machine is not former:
                cluster.network.cut(former.name, machine.name)
        partition = next(machine.id for machine in cluster if machine is not former)
        await run.write_until_acknowledged("goes on", partition=partition)
        assert cluster.controller() is not former
        cluster.network.heal()
        await cluster.until(cluster.is_whole, "every partition is whole")
        await run.end()

    run_virtual(main, 9, longest=600)


# Moves


async def replace_controller(cluster: SimulatedCluster) -> None:
    """Another broker becomes the controller; then the former one comes back."""
    dying = controller_of(cluster)
    dying.kill()
    await cluster.until(lambda: cluster.controller() not in (None, dying), "there is another controller")
    await dying.start()


def moved(*targets: list[int], kill_controller: bool = False) -> None:
    """Lets the replicas of a partition under load be one set of brokers after another."""

    async def main() -> None:
        run = Run(Plan(seed=11, brokers=4, partitions=1))
        cluster = run.cluster
        await cluster.start()
        await run.client.create_topic(TOPIC, assignments=[[0, 1, 2]])
        run.employ()
        await asyncio.sleep(1)
        for target in targets:
            assert await run.client.reassign(TOPIC, 0, target) is ErrorCode.none
            if kill_controller:
                await replace_controller(cluster)
            await cluster.until(partial(is_moved, cluster, target), f"{target} hold it", 30)
        for machine in cluster:
            if not machine.is_up:
                await machine.start()
        await run.require_health()
        await run.dismiss()
        found = await run.reckon()
        assert not found, "\n".join(found)
        holders = [m.id for m in cluster if any(f"/{TOPIC}-0/" in path for path in m.disk.paths())]
        assert sorted(targets[-1]) == holders, "who no longer holds it has kept its log"
        await run.end()

    run_virtual(main, 11, longest=600)


def is_moved(cluster: SimulatedCluster, target: list[int]) -> bool:
    state = cluster.state(TOPIC)
    return list(state.replicas) == target and not state.adding and not state.removing and state.leader in target


@pytest.mark.parametrize(
    "targets",
    [
        pytest.param([[0, 1, 2, 3]], id="grows"),
        pytest.param([[1, 2]], id="shrinks"),
        pytest.param([[1, 2, 3]], id="leaves its leader"),
        pytest.param([[3]], id="moves to one other broker"),
        pytest.param([[3, 1, 2], [0, 1, 2]], id="goes and returns"),
        pytest.param([[2, 1, 0]], id="changes its order"),
    ],
)
def test_a_partition_under_load_moves_and_loses_nothing(targets: list[list[int]]) -> None:
    moved(*targets)


def test_a_move_that_cannot_end_can_be_taken_back() -> None:
    async def main() -> None:
        run = Run(Plan(seed=12, brokers=4, partitions=1))
        cluster = run.cluster
        await cluster.start()
        await run.client.create_topic(TOPIC, assignments=[[0, 1, 2]])
        run.employ()
        await asyncio.sleep(1)
        cluster.network.isolate("b3")
        assert await run.client.reassign(TOPIC, 0, [3, 1, 2]) is ErrorCode.none
        await asyncio.sleep(3)
        assert cluster.state(TOPIC).adding == (3,)
        assert await run.client.reassign(TOPIC, 0, None) is ErrorCode.none
        assert await run.client.reassign(TOPIC, 0, None) is ErrorCode.no_reassignment_in_progress
        cluster.network.heal()
        await run.require_health()
        assert is_moved(cluster, [1, 2, 0]), "those who stay come first, as in Kafka"
        await run.dismiss()
        assert not await run.reckon()
        await run.end()

    run_virtual(main, 12, longest=600)


def test_a_move_is_brought_to_its_end_by_the_next_controller() -> None:
    moved([0, 1, 3], kill_controller=True)
