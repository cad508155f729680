"""Apache Kafka itself answers members of share groups, and operators, as ours does, through one long history."""

import json
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from headrace.testing import Broker
from tests.support import acls
from tests.support.apache_kafka import WITH_SHARE_GROUPS, ApacheKafka, java_with_kafka
from tests.support.maven import Unavailable
from tests.support.wire import Wire, batch_of, produce_request

pytestmark = [pytest.mark.long, pytest.mark.kafka]

SETTINGS: Final = {"group.initial.rebalance.delay.ms": "0"}
GROUP: Final = "sharing"
PARTITIONS: Final = 4
Step = Callable[["Side"], Any]


class Side:
    """One of the two brokers, with what its clients remember."""

    def __init__(self, bootstrap: str) -> None:
        self.wire = Wire(bootstrap)
        self.epochs: dict[str, int] = {}
        self.partitions: dict[str, set[int]] = {}
        topic = {"name": "t", "num_partitions": PARTITIONS, "replication_factor": 1, "assignments": (), "configs": ()}
        self.ask(19, 7, {"topics": [topic], "timeout": 60_000, "validate_only": False})
        self.until(lambda: not self._find(0, GROUP) and not self._produce())
        for _ in range(9):
            assert not self._produce()

    def ask(self, api: int, version: int, values: Any) -> Any:
        return acls.ask(self.wire, api, version, values)

    def until(self, holds: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 60
        while not holds():
            assert time.monotonic() < deadline
            time.sleep(0.05)

    def _find(self, key_type: int, key: str) -> int:
        return int(self.ask(10, 6, {"key_type": key_type, "coordinator_keys": [key]}).coordinators[0].error_code)

    def _produce(self) -> int:
        answer = self.wire.ask(0, 9, produce_request("t", batch_of(b"x")))
        return int(answer.responses[0].partition_responses[0].error_code)

    def beat(self, member: str, epoch: int | None = None, names: Any = None, group: str = GROUP) -> Any:
        values = {
            "group_id": group,
            "member_id": member,
            "member_epoch": self.epochs.get(member, 0) if epoch is None else epoch,
            "rack_id": None,
            "subscribed_topic_names": names,
        }
        answer = self.ask(76, 1, values)
        if not int(answer.error_code) and group == GROUP:
            self.epochs[member] = answer.member_epoch
            if answer.assignment is not None:
                self.partitions[member] = {i for each in answer.assignment.topic_partitions for i in each.partitions}
        return answer


def find(key_type: int, version: int, key: str) -> Step:
    def step(side: Side) -> Any:
        values = {"key_type": key_type, "coordinator_keys": [key]}
        return side.ask(10, version, values).coordinators[0].error_code.name

    return step


def beat(member: str, epoch: int | None = None, names: Any = None, group: str = GROUP) -> Step:
    return lambda side: side.beat(member, epoch, names, group).error_code.name


def settled(*members: str) -> Step:
    """What members are to read once all is given out; Kafka takes some heartbeats for that."""

    def step(side: Side) -> Any:
        def is_settled() -> bool:
            for member in members:
                side.beat(member)
            found = [side.partitions.get(member, set()) for member in members]
            return set().union(*found) == set(range(PARTITIONS)) and len(set(map(len, found))) == 1

        side.until(is_settled)
        return [len(side.partitions[member]) for member in members]

    return step


def left(member: str) -> Step:
    def step(side: Side) -> Any:
        answer = side.beat(member, -1)
        return answer.error_code.name, answer.member_epoch

    return step


def described(group: str = GROUP) -> Step:
    def step(side: Side) -> Any:
        (found,) = side.ask(77, 1, {"group_ids": [group], "include_authorized_operations": False}).groups
        names = sorted(member.subscribed_topic_names for member in found.members)
        return found.error_code.name, found.group_state, found.assignor_name, names

    return step


def listed(side: Side) -> Any:
    groups = side.ask(16, 5, {"states_filter": [], "types_filter": ["share"]}).groups
    return [(each.group_id, each.protocol_type, each.group_state, each.group_type.lower()) for each in groups]


def offsets(topics: Any = None, group: str = GROUP) -> Step:
    def step(side: Side) -> Any:
        (found,) = side.ask(90, 1, {"groups": [{"group_id": group, "topics": topics}]}).groups
        told = [
            (topic.topic_name, each.partition_index, each.error_code.name, each.start_offset)
            for topic in found.topics
            for each in topic.partitions
        ]
        return found.error_code.name, sorted(told)

    return step


def altered(group: str = GROUP, **wanted: dict[int, int]) -> Step:
    def step(side: Side) -> Any:
        topics = [
            {
                "topic_name": name,
                "partitions": [{"partition_index": index, "start_offset": at} for index, at in of_topic.items()],
            }
            for name, of_topic in wanted.items()
        ]
        answer = side.ask(91, 0, {"group_id": group, "topics": topics})
        codes = [
            (topic.topic_name, each.partition_index, each.error_code.name)
            for topic in answer.responses
            for each in topic.partitions
        ]
        return answer.error_code.name, sorted(codes)

    return step


def offsets_deleted(*names: str, group: str = GROUP) -> Step:
    def step(side: Side) -> Any:
        answer = side.ask(92, 0, {"group_id": group, "topics": [{"topic_name": name} for name in names]})
        return answer.error_code.name, sorted((each.topic_name, each.error_code.name) for each in answer.responses)

    return step


def deleted(group: str = GROUP) -> Step:
    return lambda side: side.ask(42, 2, {"groups_names": [group]}).results[0].error_code.name


def joined_as_consumer(group: str = GROUP) -> Step:
    def step(side: Side) -> Any:
        values = {
            "group_id": group,
            "member_id": "consumerSv3jRqTLW1p3oV0",
            "member_epoch": 0,
            "instance_id": None,
            "rack_id": None,
            "rebalance_timeout": 60_000,
            "subscribed_topic_names": ["t"],
            "subscribed_topic_regex": None,
            "server_assignor": None,
            "topic_partitions": [],
        }
        return side.ask(68, 1, values).error_code.name

    return step


HISTORY: Final[tuple[Step, ...]] = (
    find(2, 6, "no key"),
    find(2, 6, f"{GROUP}:AAAAAAAAAAAAAAAAAAAAAQ:x"),
    find(2, 5, f"{GROUP}:AAAAAAAAAAAAAAAAAAAAAQ:0"),
    beat("", 0, ["t"]),
    beat("a", 0),
    beat("a", 0, []),
    beat("a", -2, ["t"]),
    beat("a", 5),
    beat("a", 0, ["t"], group=""),
    described(),
    beat("a", 0, ["t"]),
    settled("a"),
    beat("b", 0, ["t"]),
    settled("a", "b"),
    beat("c", 1),
    beat("a", 99),
    described(),
    described("nobody"),
    listed,
    joined_as_consumer(),
    joined_as_consumer("consumers"),
    beat("a", 0, ["t"], group="consumers"),
    described("consumers"),
    offsets(),
    offsets([{"topic_name": "t", "partitions": [0, 9]}, {"topic_name": "nowhere", "partitions": [0]}]),
    offsets(group="nobody"),
    altered(t={0: 3}),
    offsets_deleted("t"),
    deleted(),
    left("b"),
    left("b"),
    left("a"),
    described(),
    listed,
    joined_as_consumer(),
    altered("nobody", t={0: 3}),
    altered(t={0: 3, 9: 3}, nowhere={0: 1}),
    offsets([{"topic_name": "t", "partitions": [0]}]),
    altered(t={1: 0}),
    offsets([{"topic_name": "t", "partitions": [0, 1]}]),
    offsets_deleted("nowhere"),
    offsets_deleted("t", group="nobody"),
    offsets_deleted("t"),
    offsets(),
    offsets_deleted("t"),
    deleted("nobody"),
    deleted(),
    described(),
    listed,
)


def dumped(java: list[str], data: Path, topic: str, decoder: str) -> list[Any]:
    """The records of an internal topic of ours, as Apache Kafka's own tool reads them."""
    (file,) = (data / f"{topic}-0").glob("*.log")
    options = ["--files", str(file), f"--{decoder}-decoder", "--print-data-log"]
    printed = subprocess.run(
        [*java, "kafka.tools.DumpLogSegments", *options], check=True, capture_output=True, text=True, timeout=60
    ).stdout
    payloads = [line.partition("payload: ")[2] for line in printed.splitlines() if "payload: " in line]
    return [json.loads(payload)["data"] for payload in payloads if payload.startswith("{")]


def test_its_tools_read_the_records(tmp_path: Path) -> None:
    try:
        java = java_with_kafka(WITH_SHARE_GROUPS)
    except Unavailable as reason:
        pytest.skip(str(reason))
    one_each = {"offsets.topic.num.partitions": "1", "share.coordinator.state.topic.num.partitions": "1"}
    with Broker({**SETTINGS, **one_each}, data=tmp_path) as broker:
        side = Side(broker.bootstrap)
        side.beat("a", 0, ["t"])
        (topic,) = side.ask(90, 1, {"groups": [{"group_id": GROUP, "topics": None}]}).groups[0].topics
        batch = {"first_offset": 4, "last_offset": 6, "delivery_state": 2, "delivery_count": 1}
        partition = {"partition": 0, "state_epoch": 1, "leader_epoch": 7, "start_offset": 3}
        of_topic = {"topic_id": topic.topic_id, "partitions": [{**partition, "state_batches": [batch]}]}
        side.ask(84, 0, {"group_id": GROUP, "topics": [of_topic]})
        (written,) = side.ask(85, 0, {"group_id": GROUP, "topics": [of_topic]}).results[0].partitions
        assert written.error_code.name == "none"
        side.wire.socket.close()
    states = dumped(java, tmp_path, "__share_group_state", "share-group-state")
    assert {(each["stateEpoch"], each["startOffset"]) for each in states if "stateEpoch" in each} == {(1, -1)}
    change = {"firstOffset": 4, "lastOffset": 6, "deliveryState": 2, "deliveryCount": 1}
    assert states[-1] == {"snapshotEpoch": 0, "leaderEpoch": 7, "startOffset": 3, "stateBatches": [change]}
    groups = dumped(java, tmp_path, "__consumer_offsets", "offsets")
    assert [each["subscribedTopicNames"] for each in groups if "subscribedTopicNames" in each] == [["t"]]
    (known,) = [each for each in groups if "initializedTopics" in each]
    assert [(each["topicName"], each["partitions"]) for each in known["initializedTopics"]] == [("t", [0, 1, 2, 3])]
    (*_, last) = [each for each in groups if "assignedPartitions" in each]
    assert (last["memberEpoch"], last["assignedPartitions"][0]["partitions"]) == (2, [0, 1, 2, 3])


@pytest.fixture
def both(tmp_path: Path) -> Iterator[tuple[Side, Side]]:
    theirs = {"group.coordinator.rebalance.protocols": "classic,consumer,share", **SETTINGS}
    try:
        with ApacheKafka(tmp_path, theirs, version=WITH_SHARE_GROUPS) as kafka, Broker(SETTINGS) as ours:
            sides = Side(ours.bootstrap), Side(kafka.bootstrap)
            yield sides
            for side in sides:
                side.wire.socket.close()
    except Unavailable as reason:
        pytest.skip(str(reason))


def test_one_history_has_the_same_answers(both: tuple[Side, Side]) -> None:
    ours, theirs = both
    for number, step in enumerate(HISTORY):
        assert (number, step(ours)) == (number, step(theirs))
