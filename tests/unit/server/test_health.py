"""A broker says what is wrong with it: over the wire, to anyone who may connect."""

from collections.abc import Iterator
from datetime import timedelta
from struct import pack
from uuid import UUID

import pytest

from headrace.client.columnar.settings import ClientSettings
from headrace.client.core.health import describe_health_request, read_health
from headrace.cluster.image import NO_LEADER, ClusterImage, PartitionState, Topic
from headrace.health import HealthReport, ProblemCode
from headrace.net.address import Address
from headrace.net.network import Network
from headrace.ops.health import Unheard, ask_health, complaints
from headrace.protocol.errors import CodedError, ErrorCode
from headrace.protocol.peer import InternalApi
from headrace.server.health import LeaderlessCount
from headrace.testing import Broker
from headrace.testing.cluster import SimulatedCluster
from headrace.testing.loop import run_virtual
from tests.support.process import wait_for
from tests.support.wire import Wire, batch_of, create_topic, produce_request, request
from tests.unit.server.test_connection import fetch_request


async def health_of(network: Network, address: Address, version: int = 0) -> HealthReport:
    """What a broker says of itself."""
    link = await network.connect(address.host, address.port, 5)
    head = pack(">hhih", InternalApi.DESCRIBE_HEALTH, version, 5, -1)
    try:
        return read_health((await link.ask([head, *describe_health_request()]))[4:])
    finally:
        link.close()


def codes(report: HealthReport) -> set[ProblemCode]:
    return {problem.code for problem in report.problems}


def test_a_broker_that_is_well_says_so_to_any_client() -> None:
    with Broker() as broker:
        settings = ClientSettings({"bootstrap.servers": broker.bootstrap})
        report = ask_health(settings.bootstrap[0], settings.connection)
        assert isinstance(report, HealthReport)
        assert report.ready
        assert report.numbers["connections"] == 1


def numbers_of(broker: Broker) -> dict[str, int | float]:
    settings = ClientSettings({"bootstrap.servers": broker.bootstrap})
    report = ask_health(settings.bootstrap[0], settings.connection)
    assert isinstance(report, HealthReport)
    return dict(report.numbers)


def test_a_report_counts_what_clients_have_sent_and_read_also_of_topics_that_are_gone() -> None:
    with Broker() as broker, Wire(broker.bootstrap) as wire:
        create_topic(wire, "sent")
        batch = batch_of(b"a", b"b", b"c")
        before = numbers_of(broker)
        wire.ask(0, 9, produce_request("sent", batch))
        wire.ask(1, 11, fetch_request("sent"))
        assert wire.ask(1, 11, fetch_request("sent", wait_ms=1, min_bytes=100_000)).responses[0].partitions[0].records
        deletion = request(20, 1, topic_names=("sent",), timeout=timedelta(seconds=60))
        assert wire.ask(20, 1, deletion).responses[0].error_code is ErrorCode.none
        wait_for("the deletion", lambda: not numbers_of(broker)["partitions"])
        after = numbers_of(broker)
        assert after["messages_in_total"] == 3
        assert after["bytes_in_total"] == len(batch)
        assert after["messages_out_total"] == 6
        assert after["bytes_out_total"] == 2 * len(batch)
        assert after["requests_total"] >= before["requests_total"] + 4
        assert after["loop_delay_p99_seconds"] >= 0


def test_a_broker_that_is_not_there_is_a_complaint() -> None:
    with Broker() as broker:
        settings = ClientSettings({"bootstrap.servers": broker.bootstrap})
    report = ask_health(settings.bootstrap[0], settings.connection)
    assert isinstance(report, Unheard)
    assert list(complaints({4: report})) == [f"broker 4: {report.reason}"]


def test_a_broker_without_its_store_names_it_and_is_not_ready() -> None:
    async def main() -> None:
        cluster = SimulatedCluster()
        await cluster.start()
        client = cluster.network.host("client")
        first = cluster[0]
        assert (await health_of(client, first.address)).ready
        first.cut_from_store()
        await cluster.until(lambda: first.id not in cluster.registered(), "a session ends")
        report = await health_of(client, first.address)
        assert not report.ready
        assert ProblemCode.STORE_UNREACHABLE in codes(report)
        assert next(p for p in report.problems if p.code is ProblemCode.STORE_UNREACHABLE).subject == "simulated:2181"
        first.heal_store()
        await cluster.until(lambda: first.id in cluster.registered(), "it registers again")
        health = first.broker.health
        await cluster.until(lambda: health.latest is not None and health.latest.ready, "it is ready again")
        await cluster.stop()

    run_virtual(main)


def test_a_version_that_is_not_served_is_refused() -> None:
    async def main() -> None:
        cluster = SimulatedCluster(1, settings={"default.replication.factor": "1", "min.insync.replicas": "1"})
        await cluster.start()
        with pytest.raises(CodedError) as refused:
            await health_of(cluster.network.host("client"), cluster[0].address, version=1)
        assert refused.value.code is ErrorCode.unsupported_version
        await cluster.stop()

    run_virtual(main)


def test_a_clock_that_has_jumped_is_told_until_it_is_back() -> None:
    async def main() -> None:
        cluster = SimulatedCluster(1, settings={"default.replication.factor": "1", "min.insync.replicas": "1"})
        await cluster.start()
        client, machine = cluster.network.host("client"), cluster[0]
        machine.set_clock(10 * 24 * 3_600_000)
        report = await health_of(client, machine.address)
        assert codes(report) == {ProblemCode.CLOCK_JUMPED}
        assert report.ready, "others would not be better off without it"
        assert "10 days" in report.problems[0].message
        machine.set_clock(0)
        assert not codes(await health_of(client, machine.address))
        await cluster.stop()

    run_virtual(main)


def test_partitions_without_a_leader_are_counted_again_only_when_the_metadata_has_changed() -> None:
    class Image(ClusterImage):
        reads = 0

        def topics(self) -> Iterator[Topic]:
            self.reads += 1
            return super().topics()

    def state(leader: int) -> PartitionState:
        return PartitionState(replicas=(1,), isr=(), leader=leader)

    async def main() -> None:
        image = Image(cluster_id="c", controller_id=1)
        image.put_topic(Topic(name="large", id=UUID(int=1), partitions=(state(1), *[state(NO_LEADER)] * 2_500)))
        counted = LeaderlessCount(image)
        for _ in range(3):
            await counted.renew()
        assert (counted.count, image.reads) == (2_500, 1)
        image.put_topic(Topic(name="small", id=UUID(int=2), partitions=(state(NO_LEADER),)))
        await counted.renew()
        assert (counted.count, image.reads) == (2_501, 2)

    run_virtual(main)
