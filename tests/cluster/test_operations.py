"""A cluster of processes in the hands of those who run it: `headrace cluster`.

The tests share one cluster and leave it as they found it: three brokers, no topics.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

from tests.support.process import ClusterProcesses, wait_for
from tests.support.simulation.commands import by_broker, described, headrace, run

pytestmark = pytest.mark.slow

RECORD = bytes(10_000)

MakeTopic = Callable[..., str]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ClusterProcesses]:
    settings = {
        "leader.imbalance.check.interval.seconds": "3600",
        "auto.create.topics.enable": "false",
        "zookeeper.session.timeout.ms": "10000",  # no broker is missed but those that are killed
    }
    with ClusterProcesses(tmp_path_factory.mktemp("operations"), 3, settings=settings) as processes:
        yield processes


@pytest.fixture
def topic(cluster: ClusterProcesses) -> Iterator[MakeTopic]:
    """Makes topics, given who holds each partition."""
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    made: list[str] = []

    def make(name: str, replicas: Sequence[Sequence[int]], **configs: str) -> str:
        config = {setting.replace("_", "."): value for setting, value in configs.items()}
        new = NewTopic(name, len(replicas), replica_assignment=[list(r) for r in replicas], config=config)
        admin.create_topics([new])[name].result(60)
        made.append(name)
        return name

    yield make
    for future in admin.delete_topics(made).values() if made else ():
        future.result(60)


def produce(cluster: ClusterProcesses, topic: str, partition: int, count: int, acks: str = "all") -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": acks})
    failed: list[Any] = []

    def delivered(error: object, _message: object) -> None:
        if error is not None:
            failed.append(error)

    for _ in range(count):
        producer.produce(topic, RECORD, partition=partition, on_delivery=delivered)
    assert producer.flush(60) == 0
    assert not failed


def refusal(cluster: ClusterProcesses, *arguments: str) -> str:
    done = headrace(cluster, "cluster", *arguments)
    assert done.returncode in (1, 2), done.stdout
    return done.stderr


def state_of(view: Any, topic: str, partition: int = 0) -> Any:
    return next(p for p in view["partitions"] if (p["topic"], p["partition"]) == (topic, partition))


def settles(cluster: ClusterProcesses, holds: Callable[[Any], bool]) -> None:
    """Returns when the cluster shows something of itself: the broker that is asked may be the last to hear of it."""
    wait_for("the cluster shows it", lambda: holds(described(cluster)))


def wait_until_well(cluster: ClusterProcesses) -> None:
    wait_for("every replica in sync", lambda: bool(described(cluster)["health"]["ok"]))


def test_describe_shows_who_holds_what_and_that_all_is_well(cluster: ClusterProcesses, topic: MakeTopic) -> None:
    orders = topic("orders", [(1, 2, 3), (2, 3, 1), (3, 1, 2), (1, 3, 2)])
    produce(cluster, orders, 0, 20)
    view = described(cluster)
    assert view["controller"] in cluster.brokers
    assert [(b["id"], b["port"], b["alive"]) for b in view["brokers"]] == [
        (number, broker.port, True) for number, broker in cluster.brokers.items()
    ]
    assert by_broker(view, "replicas") == {1: 4, 2: 4, 3: 4}
    assert by_broker(view, "leads") == {1: 2, 2: 1, 3: 1}
    assert all(size >= 20 * len(RECORD) for size in by_broker(view, "bytes").values())
    assert view["health"]["ok"]
    assert state_of(view, orders)["min_isr"] == 2
    shown = headrace(cluster, "cluster", "describe", "--partitions").stdout
    assert "all replicas are in sync" in shown
    assert f"{orders}  3          1       1,3,2" in shown


def test_a_partition_goes_where_it_is_sent_with_all_its_records(cluster: ClusterProcesses, topic: MakeTopic) -> None:
    orders = topic("orders", [(1,), (2,)])
    produce(cluster, orders, 0, 20)
    assert run(cluster, "reassign", orders, "--partition", "0", "--to", "3,1", "--wait")["state"] == "moved"
    settles(cluster, lambda view: state_of(view, orders)["leader"] == 3)
    state = state_of(described(cluster), orders)
    assert (state["replicas"], state["leader"], set(state["isr"])) == ([3, 1], 3, {1, 3})
    offsets = json.loads(headrace(cluster, "topic", "describe", orders, "--json").stdout)[0]["partitions"][0]
    assert (offsets["end_offset"], offsets["leader"], offsets["offline"], offsets["elr"]) == (20, 3, [], [])
    assert offsets["leader_epoch"] > 0
    assert state_of(described(cluster), orders, 1)["replicas"] == [2]


def test_a_dry_run_is_a_plan_that_can_be_carried_out_later(
    cluster: ClusterProcesses, topic: MakeTopic, tmp_path: Path
) -> None:
    orders = topic("orders", [(1,), (2,), (3,)])
    plan = run(cluster, "reassign", orders, "--to", "2", "--dry-run")
    assert state_of(described(cluster), orders)["replicas"] == [1]
    assert "2 partitions change" in headrace(cluster, "cluster", "reassign", orders, "--to", "2", "--dry-run").stdout
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(plan))
    assert run(cluster, "reassign", "--file", str(file), "--wait")["replicas_moved"] == 2
    settles(cluster, lambda view: [state_of(view, orders, index)["replicas"] for index in range(3)] == [[2], [2], [2]])


def test_what_cannot_be_is_refused_in_words(cluster: ClusterProcesses, topic: MakeTopic) -> None:
    orders = topic("orders", [(1, 2, 3)])
    assert "broker 9 is not alive; there are 1,2,3" in refusal(cluster, "reassign", orders, "--to", "1,2,9")
    assert "topic 'nothing' does not exist" in refusal(cluster, "reassign", "nothing", "--to", "1")
    assert "has no partition 5" in refusal(cluster, "reassign", orders, "--partition", "5", "--to", "1")
    assert "too few" in refusal(cluster, "reassign", orders, "--to", "1,2")
    assert "too few" in refusal(cluster, "drain", "3")
    assert "there is no broker 9" in refusal(cluster, "drain", "9")
    assert run(cluster, "elect", orders, "--unclean")["elected"] == 0, "where somebody leads nothing is asked or lost"


def test_rebalance_levels_replicas_and_leaders(cluster: ClusterProcesses, topic: MakeTopic) -> None:
    topic("orders", [(1, 2)] * 9)
    assert run(cluster, "rebalance", "--dry-run")["replicas_moved"] == 6
    assert by_broker(described(cluster), "replicas") == {1: 9, 2: 9, 3: 0}
    assert run(cluster, "rebalance", "--wait")["replicas_moved"] == 6
    settles(cluster, lambda view: by_broker(view, "leads") == {1: 3, 2: 3, 3: 3})
    assert by_broker(described(cluster), "replicas") == {1: 6, 2: 6, 3: 6}
    assert run(cluster, "rebalance")["state"] == "level"


def test_a_move_is_held_to_its_rate_and_can_be_taken_back(cluster: ClusterProcesses, topic: MakeTopic) -> None:
    orders = topic("orders", [(1,)])
    produce(cluster, orders, 0, 300)
    run(cluster, "reassign", orders, "--to", "2,3", "--throttle", "10k")
    view = described(cluster)
    assert view["throttle"] == 10_000
    assert view["health"]["moving"] == 1
    assert view["moves"]["total_bytes"] > 2 * view["moves"]["copied_bytes"]
    assert view["health"]["ok"], "a replica on its way is not one that is missing"
    assert len(run(cluster, "reassign", orders, "--cancel")["partitions"]) == 1
    assert run(cluster, "throttle", "off")["topics"] == [orders]
    settles(cluster, lambda view: (view["throttle"], view["health"]["moving"]) == (None, 0))
    assert state_of(described(cluster), orders)["replicas"] == [1]


def test_a_broker_that_is_killed_is_missed_and_leads_again_when_asked_to(
    cluster: ClusterProcesses, topic: MakeTopic
) -> None:
    orders, alone = topic("orders", [(1, 2, 3)] * 3), topic("alone", [(1,)])
    cluster[1].kill()
    settles(cluster, lambda view: (view["health"]["offline"], view["health"]["under_replicated"]) == (1, 3))
    view = described(cluster)
    assert [b["alive"] for b in view["brokers"]] == [False, True, True]
    assert state_of(view, orders)["leader"] in (2, 3)
    offline = state_of(view, alone)
    assert (offline["leader"], offline["offline"], offline["problem"]) == (None, [1], "offline")
    assert "not alive: 1" in headrace(cluster, "topic", "describe", alone).stdout
    assert headrace(cluster, "cluster", "describe", "--check").returncode == 1
    cluster[1].start()
    wait_until_well(cluster)
    assert described(cluster)["health"]["not_led_by_preferred"] == 3
    assert run(cluster, "elect")["elected"] == 3
    settles(cluster, lambda view: by_broker(view, "leads") == {1: 4, 2: 0, 3: 0})


def test_a_fourth_broker_gets_its_share_then_is_drained_and_removed(
    cluster: ClusterProcesses, topic: MakeTopic
) -> None:
    orders = topic("orders", [(1, 2, 3), (2, 3, 1), (3, 1, 2), (1, 3, 2)])
    cluster.add(4)
    settles(cluster, lambda view: by_broker(view, "replicas").get(4) == 0)
    assert run(cluster, "rebalance", "--wait")["replicas_moved"] == 3
    settles(cluster, lambda view: by_broker(view, "leads") == {1: 1, 2: 1, 3: 1, 4: 1})
    assert by_broker(described(cluster), "replicas") == {1: 3, 2: 3, 3: 3, 4: 3}
    assert run(cluster, "drain", "4", "--wait", "--throttle", "100M")["replicas_moved"] == 3
    settles(cluster, lambda view: (by_broker(view, "replicas")[4], view["throttle"]) == (0, None))
    assert cluster.brokers.pop(4).stop() == 0
    wait_for("broker 4 is forgotten", lambda: 4 not in by_broker(described(cluster), "leads"))
    wait_until_well(cluster)
    produce(cluster, orders, 0, 5)


def test_an_unclean_leader_is_elected_only_when_that_is_meant(cluster: ClusterProcesses, topic: MakeTopic) -> None:
    orders = topic("orders", [(2, 3)], min_insync_replicas="1")
    cluster[3].kill()
    wait_for("broker 3 is missed", lambda: state_of(described(cluster), orders)["isr"] == [2])
    produce(cluster, orders, 0, 1, acks="1")
    cluster[2].kill()
    cluster[3].start()
    wait_for("nobody leads", lambda: state_of(described(cluster), orders)["leader"] is None)
    assert "preferred" not in headrace(cluster, "cluster", "elect", orders).stdout
    assert state_of(described(cluster), orders)["leader"] is None
    (choice,) = run(cluster, "elect", orders, "--unclean", "--dry-run")["choices"]
    assert (choice["leader"], choice["unknown"], choice["replicas"][0]["broker"]) == (3, [2], 3)
    assert state_of(described(cluster), orders)["leader"] is None
    assert "needs --yes" in refusal(cluster, "elect", orders, "--unclean")
    assert "does not live" in refusal(cluster, "elect", orders, "--unclean", "--yes", "--replica", "2")
    assert run(cluster, "elect", orders, "--unclean", "--yes", "--replica", "3")["elected"] == 1
    settles(cluster, lambda view: state_of(view, orders)["leader"] == 3)
    cluster[2].start()
    wait_until_well(cluster)
