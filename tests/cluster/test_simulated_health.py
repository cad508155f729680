"""What the brokers of a cluster say of partitions that nobody serves."""

from headrace.health import ProblemCode
from headrace.testing.cluster import Machine
from headrace.testing.loop import run_virtual
from tests.support.simulation.runs import TOPIC, Plan, Run

SINGLE = {"min.insync.replicas": "1"}


def offline(machine: Machine) -> int:
    """By the last report of its broker, which is renewed every second."""
    report = machine.broker.health.latest
    return 0 if report is None else int(report.numbers["offline"])


def says_so(machine: Machine) -> bool:
    report = machine.broker.health.latest
    return report is not None and ProblemCode.OFFLINE_PARTITIONS in {problem.code for problem in report.problems}


def test_the_controller_counts_partitions_whose_brokers_are_all_gone() -> None:
    async def main() -> None:
        run = Run(Plan(seed=1))
        cluster = run.cluster
        await cluster.start()
        controller = cluster.controller()
        assert controller is not None
        gone, other = (machine for machine in cluster if machine is not controller)
        await run.client.create_topic(TOPIC, assignments=[[gone.id], [gone.id], [other.id]], configs=SINGLE)
        gone.kill()
        await cluster.until(lambda: offline(controller) == 2 and says_so(controller), "the controller counts both")
        assert offline(other) == 0, "each is counted once"
        other.kill()
        await cluster.until(lambda: offline(controller) == 3, "the third as well")
        await gone.start()
        await other.start()
        await cluster.until(lambda: offline(controller) == 0 and not says_so(controller), "all are led again")
        await cluster.stop()

    run_virtual(main)


def test_partitions_without_a_leader_are_counted_anew_by_the_next_controller() -> None:
    async def main() -> None:
        run = Run(Plan(seed=2))
        cluster = run.cluster
        await cluster.start()
        controller = cluster.controller()
        assert controller is not None
        first, second = (machine for machine in cluster if machine is not controller)
        await run.client.create_topic(TOPIC, assignments=[[controller.id]], configs=SINGLE)
        controller.kill()
        await cluster.until(lambda: offline(first) + offline(second) == 1, "one of the two counts it")
        await controller.start()
        await cluster.until(lambda: offline(first) + offline(second) == 0, "it is led again")
        await cluster.stop()

    run_virtual(main)


def test_brokers_without_their_store_count_what_they_should_lead() -> None:
    async def main() -> None:
        run = Run(Plan(seed=3))
        cluster = run.cluster
        await cluster.start()
        await run.client.create_topic(TOPIC, assignments=[[0, 1, 2], [0, 1, 2], [1, 2, 0]])
        await cluster.until(cluster.is_whole, "all replicas are in sync")
        for machine in cluster:
            machine.cut_from_store()
        await cluster.until(lambda: [offline(machine) for machine in cluster] == [2, 1, 0], "each counts its own")
        assert [says_so(machine) for machine in cluster] == [True, True, False]
        for machine in cluster:
            machine.heal_store()
        await cluster.until(lambda: not any(offline(machine) for machine in cluster), "they lead again")
        await cluster.stop()

    run_virtual(main)
