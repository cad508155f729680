"""The monitoring port of a broker in this process, and what it tells of it."""

import asyncio
import gzip
import json
import urllib.request
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest
import uvloop

from headrace.config import BrokerConfig, ConfigError
from headrace.coordinator.groups.offsets.records import OFFSETS_TOPIC
from headrace.metrics.exposition import put_process, render
from headrace.metrics.names import BROKER
from headrace.net.address import Address
from headrace.net.ports import HeldPort
from headrace.protocol.api import ApiKey
from headrace.protocol.errors import ErrorCode
from headrace.replication.share_state import UNINITIALIZED, SharePartition, ShareStateChange, StateBatch
from headrace.server.broker import Broker
from headrace.server.monitoring.monitor import Monitor, metrics_address
from headrace.testing.client import SimulatedClient
from headrace.testing.cluster import Machine, SimulatedCluster
from headrace.testing.loop import run_virtual
from tests.support.metrics import get, parse, scrape
from tests.support.wire import Wire, batch_of, create_topic, produce_request
from tests.unit.server.test_connection import fetch_request

ANYWHERE = {"listeners": "PLAINTEXT://127.0.0.1:0", "headrace.metrics.listener": "127.0.0.1:0"}
Talk = Callable[[Broker, Monitor, str], Awaitable[None]]


def with_broker(data: Path, talk: Talk, **settings: str) -> None:
    async def main() -> None:
        given = {name.replace("_", "."): value for name, value in settings.items()}
        config = BrokerConfig.parse({**ANYWHERE, "log.dirs": str(data), **given})
        broker, monitor = Broker(config), Monitor(config)
        await monitor.start()
        await broker.start()
        try:
            await talk(broker, monitor, f"http://{monitor.address}")
        finally:
            await monitor.close()
            await broker.stop()

    uvloop.run(main())


def test_a_broker_that_starts_lives_and_is_not_ready_until_it_serves(tmp_path: Path) -> None:
    async def talk(broker: Broker, monitor: Monitor, url: str) -> None:
        assert await asyncio.to_thread(get, f"{url}/healthz") == (200, "ok\n")
        status, body = await asyncio.to_thread(get, f"{url}/readyz")
        assert (status, json.loads(body)["status"]) == (503, "starting")
        assert (await asyncio.to_thread(scrape, url))("headrace_ready") == 0
        monitor.serving(broker.metrics)
        status, body = await asyncio.to_thread(get, f"{url}/readyz")
        assert (status, json.loads(body)["ready"]) == (200, True)
        monitor.stopping()
        assert (await asyncio.to_thread(get, f"{url}/readyz"))[0] == 503
        assert (await asyncio.to_thread(get, f"{url}/healthz"))[0] == 200

    with_broker(tmp_path, talk)


def test_every_metric_that_is_scraped_is_in_the_table_and_the_other_way_round(tmp_path: Path) -> None:
    async def talk(broker: Broker, monitor: Monitor, url: str) -> None:
        monitor.serving(broker.metrics)
        found = await asyncio.to_thread(scrape, url)
        assert found.kinds == {name: metric.kind.value for name, metric in BROKER.items()}

    with_broker(tmp_path, talk)


def test_what_is_scraped_agrees_with_what_was_sent_and_read(tmp_path: Path) -> None:
    batch = batch_of(b"a", b"b", b"c")

    def use(bootstrap: str) -> None:
        with Wire(bootstrap) as wire:
            create_topic(wire, "t", 2)
            create_topic(wire, "other", 2)
            for topic in ("t", "t", "other"):
                wire.ask(0, 9, produce_request(topic, batch))
            wire.ask(0, 9, produce_request("unknown", batch))
            wire.ask(1, 11, fetch_request("t"))

    async def talk(broker: Broker, monitor: Monitor, url: str) -> None:
        monitor.serving(broker.metrics)
        await asyncio.to_thread(use, broker.bootstrap)
        await broker.health.report()
        found = await asyncio.to_thread(scrape, url)
        assert found("headrace_topic_messages_in_total", topic="t") == 6
        assert found("headrace_partition_messages_in_total", topic="t", partition="0") == 6
        assert found("headrace_partition_bytes_in_total", topic="t", partition="0") == 2 * len(batch)
        assert found("headrace_partition_log_size_bytes", topic="t", partition="0") == 2 * len(batch)
        assert found("headrace_partition_messages_in_total", topic="t", partition="1") == 0
        assert found("headrace_messages_in_total") == 9
        assert found("headrace_topic_messages_out_total", topic="t") == 6
        assert found("headrace_topic_bytes_out_total", topic="t") == 2 * len(batch)
        assert found("headrace_partition_high_watermark", topic="t", partition="0") == 6
        assert found("headrace_requests_total", api="Produce") == 4
        assert found("headrace_request_seconds_count", api="Produce") == 4
        assert found("headrace_request_local_seconds_count", api="Produce") == 4
        assert found("headrace_request_remote_seconds_count", api="Produce") == 3
        assert found("headrace_request_send_seconds_count", api="Fetch") == 1
        assert found("headrace_request_seconds_sum", api="Produce") > 0
        assert found("headrace_produce_errors_total", error="unknown_topic_or_partition") == 1
        assert found("headrace_log_sync_seconds_count") >= 3
        assert found("headrace_leaders") == 4
        assert found("headrace_active_controller") == 1
        assert found.sum("headrace_health_problem") == 0

    with_broker(tmp_path, talk, auto_create_topics_enable="false")


def test_partitions_beyond_the_limit_are_in_the_sums_alone_and_that_is_said(tmp_path: Path) -> None:
    def use(bootstrap: str) -> None:
        with Wire(bootstrap) as wire:
            for topic in ("a", "b"):
                create_topic(wire, topic, 3)
                wire.ask(0, 9, produce_request(topic, batch_of(b"x")))

    async def talk(broker: Broker, monitor: Monitor, url: str) -> None:
        monitor.serving(broker.metrics)
        await asyncio.to_thread(use, broker.bootstrap)
        found = await asyncio.to_thread(scrape, url)
        assert found("headrace_metrics_partitions_left_out") == 5
        assert found("headrace_metrics_topics_left_out") == 1
        assert found("headrace_messages_in_total") == 2
        series = [labels for name, labels in found.values if name == "headrace_partition_log_end_offset"]
        assert len(series) == 1

    with_broker(tmp_path, talk, headrace_metrics_max_partitions="1")


def test_requests_are_not_timed_where_that_is_switched_off(tmp_path: Path) -> None:
    def use(bootstrap: str) -> None:
        with Wire(bootstrap) as wire:
            create_topic(wire, "t")

    async def talk(broker: Broker, monitor: Monitor, url: str) -> None:
        monitor.serving(broker.metrics)
        await asyncio.to_thread(use, broker.bootstrap)
        found = await asyncio.to_thread(scrape, url)
        assert found.sum("headrace_requests_total") == 0
        assert found("headrace_partitions") >= 0

    with_broker(tmp_path, talk, headrace_metrics_requests_enable="false")


def test_who_accepts_gzip_and_openmetrics_gets_them(tmp_path: Path) -> None:
    def ask(url: str) -> tuple[str, str]:
        headers = {"Accept": "application/openmetrics-text; version=1.0.0", "Accept-Encoding": "gzip"}
        with urllib.request.urlopen(urllib.request.Request(f"{url}/metrics", headers=headers)) as answer:
            assert answer.headers["Content-Encoding"] == "gzip"
            return answer.headers["Content-Type"], gzip.decompress(answer.read()).decode()

    async def talk(broker: Broker, monitor: Monitor, url: str) -> None:
        monitor.serving(broker.metrics)
        kind, text = await asyncio.to_thread(ask, url)
        assert kind.startswith("application/openmetrics-text")
        assert text.endswith("# EOF\n")

    with_broker(tmp_path, talk)


async def commit(client: SimulatedClient, coordinator: Address, group: str, **offsets: int) -> None:
    partitions = [
        {
            "partition_index": int(name.removeprefix("p")),
            "committed_offset": offset,
            "committed_leader_epoch": -1,
            "committed_metadata": "",
        }
        for name, offset in offsets.items()
    ]
    values = {
        "group_id": group,
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "group_instance_id": None,
        "topics": [{"name": "t", "partitions": partitions}],
    }
    answer = await client.ask(coordinator, ApiKey.OFFSET_COMMIT, 7, values)
    assert all(partition.error_code is ErrorCode.none for partition in answer.topics[0].partitions)


async def cluster_with_traffic(cluster: SimulatedCluster, client: SimulatedClient) -> Machine:
    """Ten records in each of three partitions, led by three brokers; returns the coordinator of groups."""
    await cluster.start()
    topic = {
        "name": "t",
        "num_partitions": -1,
        "replication_factor": -1,
        "assignments": [{"partition_index": n, "broker_ids": [n, (n + 1) % 3]} for n in range(3)],
        "configs": [],
    }
    await client.ask(cluster[0].address, ApiKey.CREATE_TOPICS, 7, {"topics": [topic], "timeout": 5_000})
    find = {"key_type": 0, "coordinator_keys": ["readers"]}
    await client.ask(cluster[0].address, ApiKey.FIND_COORDINATOR, 4, find)
    await cluster.until(cluster.is_whole, "all replicas are in sync")
    await asyncio.sleep(3.0)
    for index in range(3):
        answer = await client.produce(cluster[index].address, "t", *[b"v"] * 10, partition=index)
        assert answer.error_code is ErrorCode.none
    await asyncio.sleep(1.0)
    return cluster.leader(OFFSETS_TOPIC)


def test_the_coordinator_of_a_group_tells_its_lag_also_in_partitions_that_others_lead() -> None:
    async def main() -> None:
        cluster = SimulatedCluster(settings={"offsets.topic.num.partitions": "1"})
        client = SimulatedClient(cluster.network.host("client"))
        coordinator = await cluster_with_traffic(cluster, client)
        await commit(client, coordinator.address, "readers", p0=10, p1=7, p2=0)
        lag = coordinator.broker.metrics.watched.group_lag
        await lag.look()
        await asyncio.sleep(5.0)
        await lag.look()
        found = {(one.partition, one.records): round(one.seconds, 1) for one in lag.latest.lags}
        assert found == {(0, 0): 0.0, (1, 3): 5.0, (2, 10): 5.0}
        assert lag.latest.groups["readers"].records == 13
        scraped = parse(render(await coordinator.broker.metrics.collect()).body.decode())
        assert scraped("headrace_group_lag_records", group="readers", topic="t", partition="2") == 10
        assert scraped("headrace_group_lag_seconds_max", group="readers") == pytest.approx(5, abs=0.1)
        assert scraped("headrace_groups", state="Empty") == 1
        client.close()
        await cluster.stop()

    run_virtual(main)


def test_the_share_coordinator_tells_the_lag_of_share_groups() -> None:
    async def main() -> None:
        cluster = SimulatedCluster(settings={"share.coordinator.state.topic.num.partitions": "1"})
        client = SimulatedClient(cluster.network.host("client"))
        await cluster_with_traffic(cluster, client)
        store, topic = cluster[0].broker.share_state, cluster.topics()["t"]
        for index in (1, 2):
            key = SharePartition("workers", topic.id, index)
            await store.initialize(key, 1, 2 if index == 1 else UNINITIALIZED)
            state = await store.read(key, 0)
            done = [StateBatch(5, 6, 2, 1)] if index == 1 else []
            change = ShareStateChange(
                state_epoch=state.state_epoch, leader_epoch=0, delivery_complete_count=len(done) * 2, batches=done
            )
            await store.write(key, change)
        coordinator = cluster.leader("__share_group_state").broker
        await coordinator.metrics.watched.group_lag.look()
        found = [(one.group, one.partition, one.records) for one in coordinator.metrics.watched.group_lag.latest.lags]
        assert found == [("workers", 1, 6)], "where nobody has begun to read there is no lag to be known"
        client.close()
        await cluster.stop()

    run_virtual(main)


def test_lost_and_returned_replicas_and_new_leaders_are_counted() -> None:
    async def main() -> None:
        cluster = SimulatedCluster(settings={"offsets.topic.num.partitions": "1"})
        client = SimulatedClient(cluster.network.host("client"))
        await cluster_with_traffic(cluster, client)

        def counted(name: str) -> int:
            return sum(getattr(machine.broker.replicas, name) for machine in cluster if machine.is_up)

        elections = counted("leader_elections")
        cluster[2].kill()
        await cluster.until(lambda: counted("isr_shrinks") > 0, "ISRs shrink")
        await cluster.until(lambda: counted("leader_elections") > elections - 2, "another leads")
        await cluster[2].start()
        await cluster.until(lambda: counted("isr_expands") > 0, "ISRs expand")
        await cluster.until(cluster.is_whole, "all replicas are in sync")
        client.close()
        await cluster.stop()

    run_virtual(main)


def test_every_metric_of_the_table_has_a_value_in_a_cluster_that_is_used() -> None:
    names: set[str] = set()

    async def main() -> None:
        cluster = SimulatedCluster(settings={"offsets.topic.num.partitions": "1", "headrace.audit": "log"})
        client = SimulatedClient(cluster.network.host("client"))
        coordinator = await cluster_with_traffic(cluster, client)
        await commit(client, coordinator.address, "readers", p0=10)
        await client.produce(cluster[0].address, "t", b"v", partition=99)
        for machine in cluster:
            await machine.broker.metrics.watched.group_lag.look()
            machine.broker.metrics.watched.throttled.add("alice", "app", 0.5)
            snapshot = await machine.broker.metrics.collect()
            put_process(snapshot)
            names.update(parse(render(snapshot).body.decode()).names())
        client.close()
        await cluster.stop()

    run_virtual(main)
    of_tls = {name for name in BROKER if name.startswith("headrace_tls_")}
    assert names == BROKER.keys() - {"headrace_metrics_scrape_seconds"} - of_tls


@pytest.mark.parametrize(
    ("listener", "listen", "expected"),
    [
        ("auto", "PLAINTEXT://10.0.0.1:9092", Address("127.0.0.1", 9644)),
        ("auto", "PLAINTEXT://127.0.0.1:0", Address("127.0.0.1", 0)),
        ("auto", "PLAINTEXT://127.0.0.1:65535", Address("127.0.0.1", 0)),
        ("off", "PLAINTEXT://127.0.0.1:9092", None),
        ("[::1]:1234", "PLAINTEXT://127.0.0.1:9092", Address("::1", 1234)),
    ],
)
def test_the_address_follows_from_the_setting(listener: str, listen: str, expected: Address | None) -> None:
    config = BrokerConfig.parse({"headrace.metrics.listener": listener, "listeners": listen})
    assert metrics_address(config) == expected


def test_an_address_that_is_asked_for_and_taken_is_refused_and_one_of_ours_done_without() -> None:
    async def main() -> None:
        with HeldPort() as held:
            held._sock.listen()
            asked = BrokerConfig.parse({"headrace.metrics.listener": f"127.0.0.1:{held.number}"})
            with pytest.raises(ConfigError, match=f"127.0.0.1:{held.number}: cannot listen there"):
                await Monitor(asked).start()
            ours = Monitor(BrokerConfig.parse({"listeners": f"PLAINTEXT://127.0.0.1:{held.number - 552}"}))
            await ours.start()
            assert ours.address is None
            await ours.close()

    asyncio.run(main())


def test_an_address_that_is_none_is_refused_with_what_it_should_look_like() -> None:
    with pytest.raises(ConfigError, match="an address like 127"):
        BrokerConfig.parse({"headrace.metrics.listener": "9644"})
