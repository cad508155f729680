"""`headrace doctor` of a cluster: the judgements on paper, then the command against a broker in this process."""

import json
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from headrace.cli.doctor.cluster import CHECKS, Thresholds, store_of, store_problems
from headrace.cli.doctor.gateways import check_gateways
from headrace.cli.doctor.machine import Finding, Status
from headrace.cli.doctor.zookeeper import assess_server, read_answer
from headrace.health import ListenerReport, ProblemCode
from headrace.net.address import Address
from headrace.ops.inspection import Inspection, LongTransaction, OpenProducer
from headrace.ops.overview import ClusterView
from headrace.ops.samples import ClockReading, ClusterSample
from headrace.ops.transactions import ActiveProducer
from headrace.protocol.topic_partition import TopicPartition
from headrace.testing import Broker
from tests.support.cli import Headrace, Run
from tests.support.process import free_port
from tests.unit.ops.test_rates import ORDERS, PAYMENTS, broker, group, health, partition, sample, view

OK, WARN, FAIL = Status.OK, Status.WARN, Status.FAIL
SAFE = {"min.insync.replicas": "1", "unclean.leader.election.enable": "false"}
LIMITS = {"descriptor_limit": 100_000}
HEALTHY = sample(10, b1={"health": health(1, **LIMITS)}, b2={"health": health(2, **LIMITS)})


def inspected(last: ClusterSample = HEALTHY, first: ClusterSample | None = None, **more: Any) -> Inspection:
    return Inspection(first=first or last, last=last, **more)


def findings(check: str, found: Inspection, thresholds: Thresholds = Thresholds()) -> list[Finding]:  # noqa: B008
    return list(CHECKS[check](found, thresholds))


def only(check: str, found: Inspection, thresholds: Thresholds = Thresholds()) -> Finding:  # noqa: B008
    (finding,) = findings(check, found, thresholds)
    assert bool(finding.advice) is (finding.status is not OK)
    return finding


def with_brokers(**readings: Any) -> Inspection:
    return inspected(sample(10, **readings))


def with_view(seen: ClusterView, **more: Any) -> Inspection:
    return inspected(replace(HEALTHY, view=seen), **more)


@pytest.mark.parametrize("check", CHECKS)
def test_a_cluster_that_is_well_passes_every_check(check: str) -> None:
    assert only(check, inspected(topics={"orders": SAFE, "payments": SAFE})).status is OK


def listener(name: str, **facts: Any) -> ListenerReport:
    values: dict[str, Any] = {"bound": "10.0.0.1:1", "advertised": "h:1", "for_brokers": False, "anonymous": False}
    return ListenerReport(**{"name": name, "protocol": "SSL", "remote": True, **values, **facts})


def with_listeners(*each: tuple[ListenerReport, ...]) -> Inspection:
    reports: dict[str, Any] = {
        f"b{at}": {"health": replace(health(at), listeners=found)} for at, found in enumerate(each, 1)
    }
    return inspected(sample(10, **reports))


def test_listeners_that_are_alike_and_closed_are_well() -> None:
    near = listener("PLAINTEXT", anonymous=True, remote=False)
    both = (listener("INSIDE", for_brokers=True), listener("OUTSIDE"), near)
    finding = only("listeners", with_listeners(both, both))
    assert (finding.status, finding.found) == (OK, "INSIDE, OUTSIDE, PLAINTEXT on 2 broker(s)")


def test_a_listener_that_is_lacking_on_a_broker_is_told_and_one_that_is_open_to_all() -> None:
    open_one = listener("PLAINTEXT", anonymous=True)
    finding = only("listeners", with_listeners((open_one, listener("OUTSIDE")), (open_one,)))
    assert (finding.status, finding.found) == (FAIL, "broker 2 has no listener OUTSIDE, which others have")
    finding = only("listeners", with_listeners((open_one,), (open_one,)))
    assert (finding.status, finding.found) == (OK, "PLAINTEXT on 2 broker(s); PLAINTEXT open to all, as was allowed")
    first, second = (listener("A", for_brokers=True), listener("B")), (listener("A"), listener("B", for_brokers=True))
    finding = only("listeners", with_listeners(first, second))
    assert (finding.status, finding.found) == (WARN, "brokers reach each other at different listeners: A, B")


def test_a_broker_that_does_not_answer_is_critical_with_its_reason() -> None:
    finding = only("brokers", with_brokers(b1={}, b2={"reason": "10.0.0.1:9092: connection refused"}))
    assert (finding.status, finding.found) == (FAIL, "broker 2 does not answer: 10.0.0.1:9092: connection refused")


def test_a_broker_that_is_gone_from_the_cluster_is_critical() -> None:
    seen = view(partition(ORDERS), brokers=(broker(1), broker(2, alive=False)))
    finding = only("brokers", inspected(sample(10, seen, b1={})))
    assert (finding.status, finding.found) == (FAIL, "broker 2 is not alive")


def test_an_unreachable_cluster_says_why() -> None:
    finding = only("brokers", inspected(ClusterSample(at=1, reason="no broker answers at 10.0.0.1:9092")))
    assert (finding.status, finding.found) == (FAIL, "no broker answers at 10.0.0.1:9092")


@pytest.mark.parametrize(
    ("code", "check", "status"),
    [
        (ProblemCode.LOG_DIR_FULL, "disk", FAIL),
        (ProblemCode.LOG_DIR_FAILED, "disk", FAIL),
        (ProblemCode.WRITES_STALLED, "disk", FAIL),
        (ProblemCode.DISK_LOW, "disk", WARN),
        (ProblemCode.DESCRIPTORS_SHORT, "limits", WARN),
        (ProblemCode.CLOCK_JUMPED, "clock", FAIL),
        (ProblemCode.RECOVERING, "brokers", WARN),
        (ProblemCode.NOT_REGISTERED, "brokers", FAIL),
        (ProblemCode.UNDER_MIN_ISR, "partitions", FAIL),
    ],
)
def test_what_a_broker_reports_is_told_by_one_check_with_its_advice(
    code: ProblemCode, check: str, status: Status
) -> None:
    found = with_brokers(b1={"health": health(1, code)}, b2={})
    told = {name: [f for f in findings(name, found) if f.status is not OK] for name in CHECKS}
    assert {name for name, some in told.items() if some} == {check}
    assert told[check][0].status is status
    assert told[check][0].advice


def test_a_store_that_brokers_do_not_reach_is_told_with_the_store() -> None:
    (finding,) = store_problems(with_brokers(b1={"health": health(1, ProblemCode.STORE_UNREACHABLE)}, b2={}))
    assert (finding.check, finding.status) == ("store", FAIL)


def test_what_brokers_say_of_partitions_counts_where_old_metadata_does_not_show_it() -> None:
    lost = {"health": health(1, ProblemCode.STORE_UNREACHABLE, ProblemCode.OFFLINE_PARTITIONS)}
    finding = only("partitions", with_brokers(b1=lost, b2={}))
    assert (finding.status, finding.found.startswith("broker 1: offline partitions")) == (FAIL, True)
    seen = view(partition(PAYMENTS, leader=None, isr=()))
    assert only("partitions", inspected(sample(10, seen, b1=lost, b2={}))).found == "1 offline: payments-0"


def test_brokers_that_tell_their_health_alone_are_critical_and_nothing_is_said_of_what_is_not_known() -> None:
    seen = replace(view(brokers=(broker(1),)), controller=None)
    lost = health(1, ProblemCode.STORE_UNREACHABLE, ProblemCode.NOT_REGISTERED)
    found = inspected(sample(10, seen, "the cluster's metadata cannot be read", b1={"health": lost}))
    assert found.last.is_reached
    assert [(f.status, f.found) for f in findings("brokers", found)] == [
        (FAIL, "broker 1: broker not registered: it is so (here)"),
        (FAIL, "the cluster's metadata cannot be read"),
    ]
    assert findings("partitions", found) == findings("settings", found) == []


def test_partitions_are_as_bad_as_their_worst() -> None:
    seen = view(partition(ORDERS, isr=(1,)), partition(PAYMENTS, leader=None, isr=()))
    first, second = findings("partitions", with_view(seen, topics={"orders": SAFE}))
    assert (first.status, first.found) == (FAIL, "1 offline: payments-0")
    assert (second.status, second.found) == (WARN, "1 under-replicated: orders-0")
    (finding,) = findings(
        "partitions",
        with_view(view(partition(ORDERS, isr=(1,))), topics={"orders": {"min.insync.replicas": "2"}}),
    )
    assert (finding.status, finding.found) == (FAIL, "1 under min ISR: orders-0")


@pytest.mark.parametrize(
    ("ahead_ms", "uncertainty_ms", "status"),
    [(300, 5, OK), (5_000, 5, WARN), (-5_000, 5, WARN), (5_000, 4_500, OK), (90_000, 5, FAIL)],
)
def test_clocks_are_compared_as_far_as_they_can_be(ahead_ms: float, uncertainty_ms: float, status: Status) -> None:
    clock = ClockReading(ahead_ms=ahead_ms, uncertainty_ms=uncertainty_ms)
    finding = only("clock", with_brokers(b1={"health": health(1), "clock": clock}, b2={}))
    assert finding.status is status


def test_brokers_without_a_report_are_judged_by_their_log_directories() -> None:
    gib = 1 << 30
    assert only("disk", with_brokers(b1={"disk_free": 100, "disk_total": gib}, b2={})).status is FAIL
    assert only("disk", with_brokers(b1={"disk_free": gib, "disk_total": 100 * gib}, b2={})).status is WARN
    assert only("disk", with_brokers(b1={"disk_free": 90 * gib, "disk_total": 100 * gib}, b2={})).status is OK


@pytest.mark.parametrize(
    ("numbers", "status"),
    [
        ({"descriptor_limit": 20_000, "connections": 10}, OK),
        ({"descriptor_limit": 20_000, "connections": 9_000, "partitions": 9_000}, FAIL),
        ({"descriptor_limit": 1024, "connections": 10}, WARN),
    ],
)
def test_limits_are_held_against_what_is_used(numbers: dict[str, float], status: Status) -> None:
    assert only("limits", with_brokers(b1={"health": health(1, **numbers)}, b2={})).status is status


def test_mixed_versions_are_told() -> None:
    newer = replace(health(2), version="2")
    finding = only("versions", with_brokers(b1={"health": health(1)}, b2={"health": newer}))
    assert (finding.status, finding.found) == (WARN, "mixed: 1 on 1; 2 on 2")


def test_settings_that_endanger_records_are_told_with_the_command_that_mends_them() -> None:
    three = (1, 2, 3)
    offsets = TopicPartition("__consumer_offsets", 0)
    seen = view(
        replace(partition(ORDERS, isr=(1,)), replicas=(1,)),
        replace(partition(PAYMENTS, isr=three), replicas=three),
        replace(partition(offsets, isr=(1,)), replicas=(1,)),
        brokers=(broker(1), broker(2), broker(3)),
    )
    topics = {"payments": {"min.insync.replicas": "1", "unclean.leader.election.enable": "true"}}
    found = findings("settings", with_view(seen, topics=topics))
    assert {f.status for f in found} == {WARN}
    texts = " ".join(f.found for f in found)
    for expected in ("1 topics have one replica: orders", "__consumer_offsets (1)", "min.insync.replicas=1", "unclean"):
        assert expected in texts
    assert "headrace cluster reassign __consumer_offsets --replication-factor 3" in found[0].advice
    strict = view(replace(partition(PAYMENTS, isr=three), replicas=three), brokers=seen.brokers)
    finding = only("settings", with_view(strict, topics={"payments": {"min.insync.replicas": "3"}}))
    assert "need every replica for a write" in finding.found


def test_one_replica_is_no_danger_that_a_lone_broker_could_mend() -> None:
    seen = view(replace(partition(ORDERS, isr=(1,)), replicas=(1,)), brokers=(broker(1),))
    assert only("settings", with_view(seen, topics={"orders": SAFE})).status is OK


def lagging(lag: int, grown: int = 0, members: int = 1) -> Inspection:
    first = sample(10, b1={"ends": {ORDERS: lag - grown}, "groups": (group(0, members),)}, b2={})
    return inspected(sample(12, b1={"ends": {ORDERS: lag}, "groups": (group(0, members),)}, b2={}), first)


@pytest.mark.parametrize(
    ("found", "status"),
    [
        (lagging(99), OK),
        (lagging(100), WARN),
        (lagging(50), OK),
        (lagging(50, grown=20), WARN),
        (lagging(9, grown=9), OK),
    ],
)
def test_lag_is_a_warning_where_it_is_large_or_grows(found: Inspection, status: Status) -> None:
    assert only("groups", found, Thresholds(lag=100)).status is status


def test_lag_says_how_fast_it_grows_and_what_to_do() -> None:
    finding = only("groups", lagging(500, grown=20), Thresholds(lag=100))
    assert finding.found == "group 'billing' (Stable, 1 members) is 500 records behind, growing by 10 a second"
    assert "add consumers" in finding.advice
    assert "start its consumers" in only("groups", lagging(500, members=0), Thresholds(lag=100)).advice


def test_hanging_transactions_are_told_once_with_the_command_that_ends_them() -> None:
    opened = LongTransaction(
        id="billing-1", state="Ongoing", producer_id=7, age_ms=1_000_000, timeout_ms=60_000, partitions=(ORDERS,)
    )
    producers = tuple(
        OpenProducer(
            partition=ORDERS,
            age_ms=2_000_000,
            producer=ActiveProducer(
                producer_id=number, producer_epoch=0, coordinator_epoch=0, last_timestamp=0, start_offset=42
            ),
        )
        for number in (7, 8)
    )
    known, lost = findings("transactions", inspected(transactions=(opened,), producers=producers))
    assert (known.status, known.advice) == (WARN, "`headrace txn abort billing-1` ends it")
    assert lost.status is FAIL
    assert "headrace txn abort --topic orders --partition 0 --start-offset 42" in lost.advice


def test_the_store_is_where_the_brokers_say() -> None:
    found = inspected(brokers={1: {"zookeeper.connect": "zk1:2181,zk2:2181/orders"}, 2: {}})
    assert store_of(found) == "zookeeper://zk1:2181,zk2:2181/orders"
    assert store_of(inspected()) is None


SRVR = "Zookeeper version: 3.9.5-abc, built on x\nLatency min/avg/max: 0/{}/30\nMode: leader\n"


@pytest.mark.parametrize(
    ("answer", "status"),
    [
        (SRVR.format("0.4"), OK),
        (SRVR.format("250.0"), WARN),
        ("This ZooKeeper instance is not currently serving requests\n", FAIL),
        ("srvr is not executed because it is not in the whitelist.\n", WARN),
    ],
)
def test_a_zookeeper_server_is_judged_by_mode_quorum_and_latency(answer: str, status: Status) -> None:
    assert assess_server(read_answer(Address("zk1", 2181), answer, 1.0)).status is status


class _Probe(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        is_well = self.path == "/well/readyz"
        self.send_response(200 if is_well else 503)
        self.end_headers()
        self.wfile.write(b'{"status":"ok","brokers":3}' if is_well else b"{}")

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def gateway() -> Iterator[str]:
    with HTTPServer(("127.0.0.1", 0), _Probe) as server:
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def test_gateways_are_asked_whether_they_are_ready(gateway: str) -> None:
    silent = f"http://127.0.0.1:{free_port()}"
    well, sick, gone = check_gateways([f"{gateway}/well", gateway, silent], 5.0)
    assert (well.status, well.found) == (OK, f"{gateway}/well is ready, 3 brokers")
    assert (sick.status, sick.found) == (FAIL, f"{gateway} is not ready: HTTP 503")
    assert (gone.status, gone.found) == (FAIL, f"{silent} does not answer: connection refused")


# The command


def test_a_lone_broker_is_well(cluster: Broker, headrace: Headrace) -> None:
    done = headrace("doctor", "--json", "--skip", "groups")
    values = json.loads(done.stdout)
    assert (values["status"], values["exit_code"], done.returncode) == ("ok", 0, 0), values
    assert {c["check"] for c in values["checks"]} >= {"brokers", "partitions", "store", "disk", "clock", "settings"}


def test_one_check_and_a_gateway_that_is_down_is_critical(cluster: Broker, headrace: Headrace) -> None:
    silent = f"http://127.0.0.1:{free_port()}"
    done = headrace("doctor", "--check", "gateways", "--check", "versions", "--gateway", silent)
    assert done.returncode == 2
    lines = done.stdout.decode().splitlines()
    assert [line.split()[1] for line in lines if line[0] != " "][:2] == ["gateways", "versions"]
    assert "-> start it, or look at its log" in lines[1]


def test_no_broker_is_code_3_and_says_why(run: Run) -> None:
    result = run("doctor", "-b", f"127.0.0.1:{free_port()}", "--json")
    values = json.loads(result.stdout)
    assert (result.exit_code, values["status"], values["exit_code"]) == (3, "unreachable", 3)
    assert "connection refused" in values["checks"][0]["found"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--cluster", "--check", "disks"], "--check 'disks' is no check; there are brokers, "),
        (["--cluster", "--check", "disk", "--skip", "disk"], "leave nothing to check"),
        (["--gateway", "http://127.0.0.1:1"], "name one with --bootstrap"),
        (["--cluster", "--gateway", "127.0.0.1:8080"], "is not a URL such as http://127.0.0.1:8080"),
        (["--cluster", "--store", "zk1:2181"], "does not look like zookeeper://"),
    ],
)
def test_wrong_options_are_told(run: Run, arguments: list[str], expected: str) -> None:
    result = run("doctor", *arguments)
    assert result.exit_code == 2
    assert expected in result.output


def test_a_client_file_names_a_cluster_to_check(cluster: Broker, run: Run, tmp_path: Path) -> None:
    file = tmp_path / "client.properties"
    file.write_text(f"bootstrap.servers={cluster.bootstrap}\n")
    result = run("doctor", "-F", str(file), "--check", "brokers")
    assert (result.exit_code, "1 of 1 answer" in result.stdout) == (0, True)


def test_the_machine_is_checked_also_where_a_cluster_is_named(cluster: Broker, headrace: Headrace) -> None:
    assert b"crc32c" in headrace("doctor", "--machine").stdout
