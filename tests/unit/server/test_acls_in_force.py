"""ACLs that change under running clients, and what of a request is carried out where not all of it is allowed."""

from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import Any
from uuid import UUID

import pytest
from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AclBinding as ClientAcl
from confluent_kafka.admin import (
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from headrace.protocol.acl import CLUSTER_NAME, PatternType
from headrace.protocol.encode import encode_request
from headrace.protocol.errors import ErrorCode
from headrace.testing import Broker
from tests.support.acls import CLIENTS, CLUSTER, EVERY_ACL, GROUPS, IDS, SETTINGS, TOPICS, Op, Right, acl, ask, login
from tests.support.process import wait_for
from tests.support.wire import Closed, Wire, batch_of, values_in

WAIT_MS = 20_000
"""How long a fetch that nobody answers may wait."""
PARTITION = {
    "partition": 0,
    "current_leader_epoch": -1,
    "fetch_offset": 0,
    "last_fetched_epoch": -1,
    "log_start_offset": -1,
    "partition_max_bytes": 1 << 20,
}
Wires = Mapping[str, Wire]


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(SETTINGS) as running:
        yield running


@pytest.fixture
def wires(broker: Broker) -> Iterator[Wires]:
    with ExitStack() as stack:
        found = {name: stack.enter_context(login(broker.bootstrap, name)) for name in CLIENTS}
        yield found
        ask(found["super"], 31, 3, {"filters": [EVERY_ACL]})


def allow(wires: Wires, *rights: Right, client: str = "literal", pattern: PatternType = PatternType.LITERAL) -> None:
    created = ask(wires["super"], 30, 3, {"creations": [acl(client, *right, pattern) for right in rights]})
    assert {each.error_code for each in created.results} == {ErrorCode.none}


def withdraw(wires: Wires, right: Right) -> None:
    operation, kind, name = right
    asked = {**EVERY_ACL, "operation": operation, "resource_type_filter": kind, "resource_name_filter": name}
    (result,) = ask(wires["super"], 31, 3, {"filters": [asked]}).filter_results
    assert result.matching_acls


def metadata(*topics: tuple[str | None, UUID]) -> dict[str, Any]:
    return {
        "topics": [{"name": name, "topic_id": topic_id} for name, topic_id in topics],
        "allow_auto_topic_creation": False,
        "include_topic_authorized_operations": False,
    }


def make(wires: Wires, *names: str, partitions: int = 1) -> dict[str, UUID]:
    topics = [
        {"name": name, "num_partitions": partitions, "replication_factor": 1, "assignments": [], "configs": []}
        for name in names
    ]
    answer = ask(wires["super"], 19, 7, {"topics": topics, "timeout": 30_000, "validate_only": False})
    assert {topic.error_code for topic in answer.topics} <= {ErrorCode.none, ErrorCode.topic_already_exists}
    described = ask(wires["super"], 3, 12, metadata(*((name, UUID(int=0)) for name in names)))
    return {topic.name: topic.topic_id for topic in described.topics}


def produce(
    *names: str, acks: int = -1, batch: bytes | None = None, transactional_id: str | None = None
) -> dict[str, Any]:
    records = batch or batch_of(b"value")
    data = [{"name": name, "partition_data": [{"index": 0, "records": records}]} for name in names]
    return {"transactional_id": transactional_id, "acks": acks, "timeout": 30_000, "topic_data": data}


def fetch(*names: str, wait_ms: int = 0, session_id: int = 0, epoch: int = -1) -> dict[str, Any]:
    topics = [
        {
            "topic": name,
            "partitions": [PARTITION],
        }
        for name in names
    ]
    return {
        "replica_id": -1,
        "max_wait": wait_ms,
        "min_bytes": 1,
        "max_bytes": 1 << 20,
        "isolation_level": 0,
        "session_id": session_id,
        "session_epoch": epoch,
        "topics": topics,
        "forgotten_topics_data": [],
        "rack_id": "",
    }


def written(answer: Any) -> dict[str, ErrorCode]:
    return {topic.name: topic.partition_responses[0].error_code for topic in answer.responses}


def read(answer: Any) -> dict[str, tuple[ErrorCode, list[bytes | None]]]:
    return {
        topic.topic: (topic.partitions[0].error_code, values_in(topic.partitions[0].records or b""))
        for topic in answer.responses
    }


DENIED = ErrorCode.topic_authorization_failed


def test_of_a_produce_request_what_is_allowed_is_written(wires: Wires) -> None:
    make(wires, "mine", "theirs")
    allow(wires, (Op.WRITE, TOPICS, "mine"))
    answer = written(ask(wires["literal"], 0, 9, produce("theirs", "mine", "nowhere")))
    assert answer == {"theirs": DENIED, "mine": ErrorCode.none, "nowhere": DENIED}
    assert read(ask(wires["super"], 1, 12, fetch("theirs")))["theirs"][1] == []


def test_without_acks_a_record_that_may_not_be_written_closes_the_connection(wires: Wires) -> None:
    make(wires, "theirs")
    ask_nothing(wires["none"], 0, 9, produce("theirs", acks=0))
    with pytest.raises(Closed):
        wires["none"].receive_frame()


def ask_nothing(wire: Wire, api: int, version: int, values: Mapping[str, Any]) -> None:
    wire.send_body(api, version, bytes(encode_request(api, version, values)))


def test_topics_are_refused_by_id_as_by_name_and_unknown_ids_as_unknown(wires: Wires) -> None:
    ids = make(wires, "theirs")
    data = [
        {"topic_id": topic_id, "partition_data": [{"index": 0, "records": batch_of(b"v")}]} for topic_id in ids.values()
    ]
    data.append({**data[0], "topic_id": UUID(int=77)})
    answer = ask(wires["none"], 0, 13, {"acks": -1, "timeout": 30_000, "transactional_id": None, "topic_data": data})
    codes = [topic.partition_responses[0].error_code for topic in answer.responses]
    assert codes == [DENIED, ErrorCode.unknown_topic_id]
    by_id = fetch("x", "y")
    for topic, topic_id in zip(by_id["topics"], (ids["theirs"], UUID(int=77)), strict=True):
        topic["topic_id"] = topic_id
    answer = ask(wires["none"], 1, 13, by_id)
    assert [topic.partitions[0].error_code for topic in answer.responses] == [DENIED, ErrorCode.unknown_topic_id]
    asked = metadata((None, ids["theirs"]), (None, UUID(int=77)))
    topics = {topic.topic_id: topic for topic in ask(wires["none"], 3, 12, asked).topics}
    assert topics[ids["theirs"]].error_code is DENIED
    assert not topics[ids["theirs"]].name
    assert topics[UUID(int=77)].error_code is ErrorCode.unknown_topic_id


def test_a_right_that_is_withdrawn_bites_in_a_running_fetch_session(wires: Wires) -> None:
    make(wires, "session-a", "session-b")
    ask(wires["super"], 0, 9, produce("session-a", "session-b"))
    right = (Op.READ, TOPICS, "session-a")
    allow(wires, right, (Op.READ, TOPICS, "session-b"))
    opened = ask(wires["literal"], 1, 12, fetch("session-a", "session-b", epoch=0))
    assert {name: code for name, (code, _) in read(opened).items()} == dict.fromkeys(
        ("session-a", "session-b"), ErrorCode.none
    )
    withdraw(wires, right)
    again = read(ask(wires["literal"], 1, 12, fetch(session_id=opened.session_id, epoch=1)))
    assert again["session-a"] == (DENIED, [])
    assert again["session-b"][0] is ErrorCode.none
    allow(wires, right)
    again = read(ask(wires["literal"], 1, 12, fetch(session_id=opened.session_id, epoch=2)))
    assert again["session-a"] == (ErrorCode.none, [b"value"])


def test_a_fetch_that_waits_gives_nothing_once_the_right_is_withdrawn(wires: Wires) -> None:
    make(wires, "waiting")
    right = (Op.READ, TOPICS, "waiting")
    allow(wires, right)
    ask_nothing(wires["literal"], 1, 12, fetch("waiting", wait_ms=WAIT_MS))
    withdraw(wires, right)
    assert written(ask(wires["super"], 0, 9, produce("waiting")))["waiting"] is ErrorCode.none
    assert read(wires["literal"].receive(1, 12))["waiting"] == (DENIED, [])


def test_a_transaction_cannot_go_on_nor_be_committed_without_the_right(wires: Wires, broker: Broker) -> None:
    make(wires, "ledger")
    write_id, write = (Op.WRITE, IDS, "payer"), (Op.WRITE, TOPICS, "ledger")
    allow(wires, write_id, write)
    producer = Producer(
        {
            "bootstrap.servers": broker.bootstrap,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "literal",
            "sasl.password": "literal-secret",
            "transactional.id": "payer",
            "transaction.timeout.ms": 60_000,
            "log_level": 0,
        }
    )
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce("ledger", b"in time")
    producer.flush(30)
    withdraw(wires, write_id)
    with pytest.raises(KafkaException) as refused:
        producer.commit_transaction(30)
    assert refused.value.args[0].code() == ErrorCode.transactional_id_authorization_failed.value
    isolated = {**fetch("ledger"), "isolation_level": 1}
    assert read(ask(wires["super"], 1, 12, isolated))["ledger"] == (ErrorCode.none, [])


def test_nothing_is_added_to_a_transaction_by_producing_to_a_topic_that_is_not_the_clients(wires: Wires) -> None:
    make(wires, "theirs")
    allow(wires, (Op.WRITE, IDS, "adder"), (Op.DESCRIBE, IDS, "adder"))
    wait_for("the coordinator", lambda: coordinator(wires["super"], "adder") is ErrorCode.none)
    begun = ask(wires["literal"], 22, 4, init("adder"))
    assert begun.error_code is ErrorCode.none
    batch = batch_of(
        b"v", producer_id=begun.producer_id, producer_epoch=begun.producer_epoch, base_sequence=0, transactional=True
    )
    answer = ask(wires["literal"], 0, 12, produce("theirs", batch=batch, transactional_id="adder"))
    assert written(answer) == {"theirs": DENIED}
    described = ask(wires["super"], 66, 0, {"state_filters": ["Ongoing"], "producer_id_filters": []})
    assert "adder" not in {each.transactional_id for each in described.transaction_states}


def init(transactional_id: str | None) -> dict[str, Any]:
    return {
        "transactional_id": transactional_id,
        "transaction_timeout": 60_000,
        "producer_id": -1,
        "producer_epoch": -1,
    }


def coordinator(wire: Wire, transactional_id: str) -> ErrorCode:
    return ErrorCode(ask(wire, 10, 3, {"key": transactional_id, "key_type": 1}).error_code)


def test_who_may_write_to_any_topic_may_be_idempotent(wires: Wires) -> None:
    asked = init(None)
    assert ask(wires["literal"], 22, 4, asked).error_code is ErrorCode.cluster_authorization_failed
    allow(wires, (Op.WRITE, TOPICS, "some"), pattern=PatternType.PREFIXED)
    assert ask(wires["literal"], 22, 4, asked).error_code is ErrorCode.none
    assert ask(wires["none"], 22, 4, asked).error_code is ErrorCode.cluster_authorization_failed


def test_a_regular_expression_stands_for_the_topics_that_a_member_may_describe(wires: Wires) -> None:
    ids = make(wires, "rx-open", "rx-shut")
    allow(wires, (Op.READ, GROUPS, "rx"), (Op.DESCRIBE, TOPICS, "rx-open"))
    wait_for(
        "the coordinator", lambda: ask(wires["super"], 10, 3, {"key": "rx", "key_type": 0}).error_code is ErrorCode.none
    )
    beat = heartbeat(epoch=0, regex="rx-.*", owned=[], rebalance_timeout=10_000)
    answer = ask(wires["literal"], 68, 1, beat)
    assert answer.error_code is ErrorCode.none, answer
    epoch, assigned = settled(wires["literal"], answer)
    assert assigned == {ids["rx-open"]}
    allow(wires, (Op.DESCRIBE, TOPICS, "rx-shut"))

    def grown() -> bool:
        nonlocal epoch, assigned
        epoch, now = settled(wires["literal"], ask(wires["literal"], 68, 1, heartbeat(epoch=epoch)))
        assigned = now or assigned
        return assigned == set(ids.values())

    wait_for("the topic that may now be described", grown)
    ask(wires["literal"], 68, 1, heartbeat(epoch=-1))


def heartbeat(
    *, epoch: int, regex: str | None = None, owned: list[Any] | None = None, rebalance_timeout: int = -1
) -> dict[str, Any]:
    return {
        "group_id": "rx",
        "member_id": "member",
        "member_epoch": epoch,
        "instance_id": None,
        "rack_id": None,
        "rebalance_timeout": rebalance_timeout,
        "subscribed_topic_names": None,
        "subscribed_topic_regex": regex,
        "server_assignor": None,
        "topic_partitions": owned,
    }


def settled(wire: Wire, answer: Any) -> tuple[int, set[UUID]]:
    """The epoch and the topics that a member is told; nothing where nothing has changed."""
    assert answer.error_code is ErrorCode.none, answer
    assignment = answer.assignment
    return answer.member_epoch, set() if assignment is None else {each.topic_id for each in assignment.topic_partitions}


def test_a_group_that_reads_a_hidden_topic_is_not_described(wires: Wires) -> None:
    make(wires, "rx-open")
    allow(wires, (Op.READ, GROUPS, "rx"), (Op.DESCRIBE, TOPICS, "rx-open"))
    wait_for(
        "the coordinator", lambda: ask(wires["super"], 10, 3, {"key": "rx", "key_type": 0}).error_code is ErrorCode.none
    )
    beat = {**heartbeat(epoch=0, owned=[], rebalance_timeout=10_000), "subscribed_topic_names": ["rx-open"]}
    assert ask(wires["literal"], 68, 1, beat).error_code is ErrorCode.none
    allow(wires, (Op.DESCRIBE, GROUPS, "rx"), client="prefixed")
    asked = {"group_ids": ["rx"], "include_authorized_operations": True}
    (group,) = ask(wires["prefixed"], 69, 1, asked).groups
    assert (group.error_code, group.members) == (DENIED, ())
    (group,) = ask(wires["literal"], 69, 1, asked).groups
    assert group.error_code is ErrorCode.none
    assert group.authorized_operations == 1 << Op.READ | 1 << Op.DESCRIBE
    ask(wires["literal"], 68, 1, heartbeat(epoch=-1))


def test_who_may_not_see_settings_is_told_nothing_of_those_of_a_new_topic(wires: Wires) -> None:
    allow(wires, (Op.CREATE, TOPICS, "unseen"))
    topic = {"name": "unseen", "num_partitions": 2, "replication_factor": 1, "assignments": [], "configs": []}
    (made,) = ask(wires["literal"], 19, 7, {"topics": [topic], "timeout": 30_000, "validate_only": False}).topics
    assert (made.error_code, made.num_partitions, made.configs) == (ErrorCode.none, -1, ())
    assert ErrorCode(made.topic_config_error_code) is DENIED


def test_that_a_topic_is_there_is_not_told_to_who_may_not_describe_it(wires: Wires) -> None:
    ids = make(wires, "secret")
    for name in ("secret", "no-such"):
        (topic,) = ask(wires["none"], 3, 12, metadata((name, UUID(int=0)))).topics
        assert (topic.error_code, topic.topic_id, topic.partitions) == (DENIED, None, ())
        deletion = {"topics": [{"name": name, "topic_id": UUID(int=0)}], "timeout": 30_000}
        assert ask(wires["none"], 20, 6, deletion).responses[0].error_code is DENIED
    deletion = {"topics": [{"name": None, "topic_id": ids["secret"]}], "timeout": 30_000}
    (refused,) = ask(wires["none"], 20, 6, deletion).responses
    assert (refused.error_code, refused.name, refused.error_message) == (DENIED, None, None)
    allow(wires, (Op.DESCRIBE, TOPICS, "secret"))
    (refused,) = ask(wires["literal"], 20, 6, deletion).responses
    assert (refused.error_code, refused.name) == (DENIED, "secret")
    assert make(wires, "secret") == ids


def test_the_clusters_own_topics_are_written_by_nobody_else(wires: Wires) -> None:
    wait_for(
        "the coordinator", lambda: ask(wires["super"], 10, 3, {"key": "g", "key_type": 0}).error_code is ErrorCode.none
    )
    allow(wires, (Op.ALL, TOPICS, "__consumer_offsets"), (Op.ALL, CLUSTER, CLUSTER_NAME))
    answer = written(ask(wires["literal"], 0, 9, produce("__consumer_offsets")))
    assert answer == {"__consumer_offsets": ErrorCode.invalid_topic_exception}
    assert written(ask(wires["none"], 0, 9, produce("__consumer_offsets"))) == {"__consumer_offsets": DENIED}


def test_confluents_admin_client_makes_describes_and_deletes_acls(broker: Broker, wires: Wires) -> None:
    admin = AdminClient(
        {
            "bootstrap.servers": broker.bootstrap,
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "super",
            "sasl.password": "super-secret",
        }
    )
    orders = ClientAcl(
        ResourceType.TOPIC,
        "orders",
        ResourcePatternType.PREFIXED,
        "User:literal",
        "*",
        AclOperation.WRITE,
        AclPermissionType.ALLOW,
    )
    for future in admin.create_acls([orders]).values():
        future.result(30)
    everything = AclBindingFilter(
        ResourceType.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY
    )
    assert admin.describe_acls(everything).result(30) == [orders]
    (future,) = admin.delete_acls([everything]).values()
    assert future.result(30) == [orders]
    assert admin.describe_acls(everything).result(30) == []
