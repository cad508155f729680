"""Which right each API takes, as a table, and what brokers answer to clients that have it, or have it not.

`ROWS` names an API, the right that it takes of the client, and where its answer has the code. For each row the clients
of `CLIENTS` ask the same: one that no ACL is about, one with rights elsewhere, with the right to the resource itself,
to its prefix, to all, to all but denied the resource, and a super user. `outcomes` tells what they were answered, of
any broker, so that ours can be compared with Apache Kafka's.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any, Final
from uuid import UUID

from headrace.config import PLAIN_USERS
from headrace.protocol.acl import CLUSTER_NAME, AclOperation, PatternType, PermissionType, ResourceType
from headrace.protocol.encode import encode_request
from headrace.protocol.errors import ErrorCode
from headrace.security.acl import REFUSALS
from tests.support.wire import Wire, batch_of, request

CLIENTS: Final = ("none", "elsewhere", "denied", "literal", "prefixed", "wildcard", "super")
ALLOWED: Final = ("literal", "prefixed", "wildcard", "super")
USERS: Final = "org.apache.kafka.common.security.plain.PlainLoginModule required {};".format(
    " ".join(f'user_{name}="{name}-secret"' for name in CLIENTS)
)
SETTINGS: Final = {
    "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
    PLAIN_USERS: USERS,
    "authorizer.class.name": "headrace",
    "super.users": "User:super",
    "delegation.token.secret.key": "only for tests",
    "auto.create.topics.enable": "true",
    "offsets.topic.num.partitions": "4",
    "transaction.state.log.num.partitions": "4",
}
"""Of a broker of ours with these users."""
TOPIC: Final = "acl-orders"
GROUP: Final = "acl-readers"
PRODUCER: Final = "acl-producer"
"""A transactional id."""
MISSING: Final = "acl-missing"
DOOMED: Final = "acl-doomed"
_SHARE_TOPIC: Final = UUID("7d3a3f0e-1b1e-4a5c-9c39-5d1a3a1f0b6f")
KEPT: Final = "acl-kept"
"""No row is about it: its offset keeps the group, whichever rows have deleted the other one."""
SHOWN: Final = "shown"
_CREATE_TOKEN: Final = 38
HIDDEN: Final = "hidden"
_AUTHORIZATION: Final = frozenset({*(code.name for code in REFUSALS.values()), HIDDEN})

TOPICS: Final = ResourceType.TOPIC
GROUPS: Final = ResourceType.GROUP
CLUSTER: Final = ResourceType.CLUSTER
IDS: Final = ResourceType.TRANSACTIONAL_ID
Op = AclOperation
Right = tuple[AclOperation, ResourceType, str]
Answer = Callable[[Any], str]


@dataclass(frozen=True, kw_only=True)
class Row:
    """What one API takes."""

    name: str
    api: int
    version: int
    right: Right
    values: Mapping[str, Any]
    outcome: Answer
    refusal: str = ""
    """What is answered without the right; the code of the kind of resource where nothing is said."""
    besides: Sequence[Right] = ()
    """Other rights that it takes, which all clients have here."""
    instead: Sequence[Right] = ()
    """Rights that do as well, and that who is denied this one is denied, too."""
    kafka: str = ""
    """Why Apache Kafka answers something else."""

    @property
    def refused(self) -> str:
        return self.refusal or REFUSALS[self.right[1]].name

    def __str__(self) -> str:
        return self.name


def outcomes(row: Row, wires: Mapping[str, Wire]) -> dict[str, str]:
    """What each client is answered, once the ACLs of the row are in force; they are gone after that."""
    manager = wires["super"]
    ask(manager, 8, 9, _commit())  # again, where another row has deleted it
    acls = _acls(row)
    created = ask(manager, 30, 3, {"creations": acls})
    assert {each.error_code for each in created.results} == {ErrorCode.none}, created
    _wait(lambda: _count(manager) == len(acls))
    try:
        return {name: row.outcome(ask(wires[name], row.api, row.version, row.values)) for name in CLIENTS}
    finally:
        ask(manager, 31, 3, {"filters": [EVERY_ACL]})
        _wait(lambda: _count(manager) == 0)


def expected(row: Row, found: Mapping[str, str]) -> bool:
    """Whether those who may are not refused, and all others are."""
    return all(found[name] not in _AUTHORIZATION if name in ALLOWED else found[name] == row.refused for name in CLIENTS)


def login(bootstrap: str, name: str) -> Wire:
    """A connection of a client."""
    wire = Wire(bootstrap)
    assert wire.ask(17, 1, request(17, 1, mechanism="PLAIN")).error_code is ErrorCode.none
    token = f"\0{name}\0{name}-secret".encode()
    assert wire.ask(36, 2, request(36, 2, auth_bytes=token)).error_code is ErrorCode.none
    return wire


def prepare(wire: Wire) -> None:
    """What the rows are about: a topic, a group, a transactional id."""
    for name in (TOPIC, DOOMED, KEPT):
        created = ask(wire, 19, 7, {**_new_topic(name), "validate_only": False})
        assert created.topics[0].error_code is ErrorCode.none, created
    for kind, key in ((0, GROUP), (1, PRODUCER)):
        wanted = {"key": key, "key_type": kind}
        _wait(partial(lambda wanted: _code(ask(wire, 10, 3, wanted)) == "none", wanted))
    for name in (TOPIC, KEPT):
        _wait(
            partial(
                lambda name: _partitions_code("topics", "partitions")(ask(wire, 8, 9, _commit(name))) == "none", name
            )
        )
    _wait(lambda: _code(ask(wire, 22, 4, _init(PRODUCER))) == "none")


def _acls(row: Row) -> list[dict[str, Any]]:
    operation, kind, name = row.right
    found = [
        acl("literal", operation, kind, name),
        acl("prefixed", operation, kind, name[:4], PatternType.PREFIXED),
        acl("wildcard", operation, kind, "*"),
        acl("denied", Op.ALL, kind, "*"),
        acl("denied", operation, kind, name, permission=PermissionType.DENY),
        acl("elsewhere", Op.ALL, kind, f"{name}-2"),
    ]
    if kind is CLUSTER:  # there is one cluster: no names to be elsewhere, or to begin alike
        found = [
            acl("literal", operation, kind, CLUSTER_NAME),
            acl("prefixed", Op.ALL, kind, CLUSTER_NAME, PatternType.PREFIXED),
            acl("wildcard", Op.ALL, kind, CLUSTER_NAME),
            acl("denied", Op.ALL, kind, CLUSTER_NAME),
            acl("denied", operation, kind, CLUSTER_NAME, permission=PermissionType.DENY),
            acl("elsewhere", _weaker(operation), kind, CLUSTER_NAME),
        ]
    besides = [acl(client, *other) for other in row.besides for client in CLIENTS if client not in ("super",)]
    instead = [acl("denied", *other, permission=PermissionType.DENY) for other in row.instead]
    return [*found, *besides, *instead]


def _weaker(operation: AclOperation) -> AclOperation:
    """Another right to the cluster, that does not imply this one."""
    return Op.CREATE if operation is not Op.CREATE else Op.ALTER_CONFIGS


def acl(
    client: str,
    operation: AclOperation,
    kind: ResourceType,
    name: str,
    pattern: PatternType = PatternType.LITERAL,
    *,
    permission: PermissionType = PermissionType.ALLOW,
) -> dict[str, Any]:
    return {
        "resource_type": kind,
        "resource_name": name,
        "resource_pattern_type": pattern,
        "principal": f"User:{client}",
        "host": "*",
        "operation": operation,
        "permission_type": permission,
    }


EVERY_ACL: Final = {
    "resource_type_filter": 1,
    "resource_name_filter": None,
    "pattern_type_filter": 1,
    "principal_filter": None,
    "host_filter": None,
    "operation": 1,
    "permission_type": 1,
}


def _count(wire: Wire) -> int:
    return sum(len(resource.acls) for resource in ask(wire, 29, 3, EVERY_ACL).resources)


def _wait(holds: Callable[[], bool]) -> None:
    """Apache Kafka's brokers learn of what its controller has changed a little later."""
    deadline = time.monotonic() + 60
    while not holds():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.01)


def ask(wire: Wire, api: int, version: int, values: Mapping[str, Any]) -> Any:
    wire.send_body(api, version, bytes(encode_request(api, version, values)))
    return _token_answer(wire.receive_frame()) if api == _CREATE_TOKEN else wire.receive(api, version)


def _token_answer(frame: bytes) -> Any:
    """The code alone: kio refuses the time -1 that Kafka answers besides an error."""
    return SimpleNamespace(error_code=ErrorCode(int.from_bytes(frame[5:7], "big")))


# Where answers have their codes


def _code(answer: Any) -> str:
    """At the top."""
    return str(answer.error_code.name)


def _first(array: str) -> Answer:
    """With the first of what was asked for."""
    return lambda answer: str(getattr(answer, array)[0].error_code.name)


def _partitions_code(topics: str, partitions: str, code: str = "error_code") -> Answer:
    """With the first partition of the first topic."""

    def find(answer: Any) -> str:
        return str(getattr(getattr(getattr(answer, topics)[0], partitions)[0], code).name)

    return find


def _shows(array: str, name: str, value: str) -> Answer:
    """Whether a list has what was asked about."""
    return lambda answer: SHOWN if any(getattr(each, name) == value for each in getattr(answer, array)) else HIDDEN


# Requests


def _init(transactional_id: str | None) -> dict[str, Any]:
    return {
        "transactional_id": transactional_id,
        "transaction_timeout": 60_000,
        "producer_id": -1,
        "producer_epoch": -1,
    }


def _commit(topic: str = TOPIC) -> dict[str, Any]:
    partition = {"partition_index": 0, "committed_offset": 0, "committed_leader_epoch": -1, "committed_metadata": ""}
    return {
        "group_id": GROUP,
        "generation_id_or_member_epoch": -1,
        "member_id": "",
        "group_instance_id": None,
        "topics": [{"name": topic, "partitions": [partition]}],
    }


def _produce(batch: bytes, transactional_id: str | None = None) -> dict[str, Any]:
    data = {"name": TOPIC, "partition_data": [{"index": 0, "records": batch}]}
    return {"transactional_id": transactional_id, "acks": -1, "timeout": 30_000, "topic_data": [data]}


def _batch(**options: Any) -> bytes:
    return batch_of(b"value", **options)


def _fetch(session_epoch: int = -1) -> dict[str, Any]:
    partition = {"partition": 0, "current_leader_epoch": -1, "fetch_offset": 0, "last_fetched_epoch": -1}
    topic = {"topic": TOPIC, "partitions": [{**partition, "log_start_offset": -1, "partition_max_bytes": 1 << 20}]}
    return {
        "replica_id": -1,
        "max_wait": 0,
        "min_bytes": 0,
        "max_bytes": 1 << 20,
        "isolation_level": 0,
        "session_id": 0,
        "session_epoch": session_epoch,
        "topics": [topic],
        "forgotten_topics_data": [],
        "rack_id": "",
    }


def _heartbeat(names: Sequence[str] | None) -> dict[str, Any]:
    return {
        "group_id": GROUP,
        "member_id": "stranger",
        "member_epoch": 5,
        "instance_id": None,
        "rack_id": None,
        "rebalance_timeout": -1,
        "subscribed_topic_names": names,
        "subscribed_topic_regex": None,
        "server_assignor": None,
        "topic_partitions": None,
    }


def _share_heartbeat(names: Sequence[str] | None) -> dict[str, Any]:
    return {
        "group_id": GROUP,
        "member_id": "stranger",
        "member_epoch": 5,
        "rack_id": None,
        "subscribed_topic_names": names,
    }


def _txn_offsets() -> dict[str, Any]:
    partition = {"partition_index": 0, "committed_offset": 0, "committed_leader_epoch": -1, "committed_metadata": ""}
    return {
        "transactional_id": PRODUCER,
        "group_id": GROUP,
        "producer_id": 7_777,
        "producer_epoch": 0,
        "generation_id": -1,
        "member_id": "",
        "group_instance_id": None,
        "topics": [{"name": TOPIC, "partitions": [partition]}],
    }


def _config(kind: int, name: str) -> dict[str, Any]:
    resource = {"resource_type": kind, "resource_name": name, "configuration_keys": None}
    return {"resources": [resource], "include_synonyms": False, "include_documentation": False}


def _alter(kind: int, name: str, config: str, value: str) -> dict[str, Any]:
    configs = [{"name": config, "config_operation": 0, "value": value}]
    return {
        "resources": [{"resource_type": kind, "resource_name": name, "configs": configs}],
        "validate_only": True,
    }


def _new_topic(name: str) -> dict[str, Any]:
    topic = {"name": name, "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}
    return {"topics": [topic], "timeout": 30_000, "validate_only": True}


def _marker() -> dict[str, Any]:
    marker = {
        "producer_id": 7_777,
        "producer_epoch": 0,
        "transaction_result": False,
        "topics": [{"name": MISSING, "partition_indexes": [0]}],
        "coordinator_epoch": 0,
    }
    return {"markers": [marker]}


def _metadata(name: str | None, *, creates: bool = False) -> dict[str, Any]:
    return {
        "topics": None if name is None else [{"topic_id": UUID(int=0), "name": name}],
        "allow_auto_topic_creation": creates,
        "include_topic_authorized_operations": False,
    }


def _share_state(**values: Any) -> dict[str, Any]:
    topic = {"topic_id": _SHARE_TOPIC, "partitions": [{"partition": 0, **values}]}
    return {"group_id": GROUP, "topics": [topic]}


def _share(**values: Any) -> dict[str, Any]:
    """The end of a session that there is not, as the answers of all who may end it say."""
    return {"group_id": GROUP, "member_id": "member", "share_session_epoch": -1, "topics": (), **values}


def _marked(answer: Any) -> str:
    return _partitions_code("topics", "partitions")(answer.markers[0])


def _member(answer: Any) -> str:
    """LeaveGroup has a code for all, and one for each member."""
    return _code(answer) if answer.error_code is not ErrorCode.none else _first("members")(answer)


def _group_offset(answer: Any) -> str:
    group = answer.groups[0]
    return _code(group) if group.error_code is not ErrorCode.none else _partitions_code("topics", "partitions")(group)


_SYNC: Final = {
    "group_id": GROUP,
    "generation_id": 1,
    "member_id": "stranger",
    "group_instance_id": None,
    "protocol_type": "consumer",
    "protocol_name": "range",
    "assignments": [],
}
_JOIN: Final = {
    "group_id": GROUP,
    "session_timeout": 10_000,
    "rebalance_timeout": 10_000,
    "member_id": "",
    "group_instance_id": None,
    "protocol_type": "consumer",
    "protocols": [{"name": "range", "metadata": b""}],
    "reason": None,
}
_LEAVE: Final = {
    "group_id": GROUP,
    "members": [{"member_id": "stranger", "group_instance_id": None, "reason": None}],
}
_OFFSETS: Final = {
    "groups": [
        {
            "group_id": GROUP,
            "member_id": None,
            "member_epoch": -1,
            "topics": [{"name": TOPIC, "partition_indexes": [0]}],
        }
    ],
    "require_stable": False,
}
_ADD: Final = {
    "v3_and_below_transactional_id": PRODUCER,
    "v3_and_below_producer_id": 7_777,
    "v3_and_below_producer_epoch": 0,
    "v3_and_below_topics": [{"name": TOPIC, "partitions": [0]}],
}
_ADD_OFFSETS: Final = {"transactional_id": PRODUCER, "producer_id": 7_777, "producer_epoch": 0, "group_id": GROUP}
_END: Final = {"transactional_id": PRODUCER, "producer_id": 7_777, "producer_epoch": 0, "committed": True}
_TRANSACTIONAL: Final = _produce(
    _batch(producer_id=7_777, producer_epoch=0, base_sequence=0, transactional=True), PRODUCER
)
_EPOCHS: Final = {
    "replica_id": -1,
    "topics": [{"topic": TOPIC, "partitions": [{"partition": 0, "current_leader_epoch": -1, "leader_epoch": 0}]}],
}
_SHARE_KEY: Final = f"{GROUP}:fTo_DhseSlycOV0aOh8Lbw:0"
_LIST_OFFSETS: Final = {
    "replica_id": -1,
    "isolation_level": 0,
    "topics": [{"name": TOPIC, "partitions": [{"partition_index": 0, "current_leader_epoch": -1, "timestamp": -1}]}],
}
_DELETE_RECORDS: Final = {
    "topics": [{"name": TOPIC, "partitions": [{"partition_index": 0, "offset": 0}]}],
    "timeout": 10_000,
}
_GROW: Final = {
    "topics": [{"name": TOPIC, "count": 3, "assignments": None}],
    "timeout": 10_000,
    "validate_only": True,
}
_MOVE: Final = {
    "topics": [{"name": TOPIC, "partitions": [{"partition_index": 0, "replicas": None}]}],
    "timeout": 10_000,
}
_ELECT: Final = {
    "election_type": 0,
    "topic_partitions": [{"topic": TOPIC, "partitions": [0]}],
    "timeout": 10_000,
}
_QUORUM: Final = {"topics": [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]}
_FEATURES: Final = {
    "timeout": 10_000,
    "feature_updates": [{"feature": "no.such.feature", "max_version_level": 1, "upgrade_type": 1}],
    "validate_only": True,
}
_LOG_DIRS: Final = {"dirs": [{"path": "/no/such/directory", "topics": [{"name": TOPIC, "partitions": [0]}]}]}
_OFFSET_DELETE: Final = {
    "group_id": GROUP,
    "topics": [{"name": TOPIC, "partitions": [{"partition_index": 0}]}],
}
_QUOTA: Final = {
    "entries": [{"entity": [{"entity_type": "user", "entity_name": "x"}], "ops": []}],
    "validate_only": True,
}
_SCRAM: Final = {"deletions": [{"name": "nobody", "mechanism": 1}], "upsertions": []}
_TOKEN: Final = {
    "owner_principal_type": "User",
    "owner_principal_name": "somebody",
    "renewers": [],
    "max_lifetime": -1,
}


def _row(
    name: str,
    api: int,
    version: int,
    right: Right,
    values: Mapping[str, Any],
    outcome: Answer,
    refusal: str = "",
    *,
    besides: Sequence[Right] = (),
    instead: Sequence[Right] = (),
    kafka: str = "",
) -> Row:
    return Row(
        name=name,
        api=api,
        version=version,
        right=right,
        values=values,
        outcome=outcome,
        refusal=refusal,
        besides=besides,
        instead=instead,
        kafka=kafka,
    )


def _cluster(operation: AclOperation) -> Right:
    return (operation, CLUSTER, CLUSTER_NAME)


_WRITE_TOPIC: Final = (Op.WRITE, TOPICS, TOPIC)
_READ_TOPIC: Final = (Op.READ, TOPICS, TOPIC)
_DESCRIBE_TOPIC: Final = (Op.DESCRIBE, TOPICS, TOPIC)
_READ_GROUP: Final = (Op.READ, GROUPS, GROUP)
_DESCRIBE_GROUP: Final = (Op.DESCRIBE, GROUPS, GROUP)
_WRITE_ID: Final = (Op.WRITE, IDS, PRODUCER)
_DESCRIBE_ID: Final = (Op.DESCRIBE, IDS, PRODUCER)
_PRODUCED: Final = _partitions_code("responses", "partition_responses")
_TOPIC_CODE: Final = _partitions_code("topics", "partitions")
_RESULTS_CODE: Final = _partitions_code("results", "partitions")
_ADDED: Final = _partitions_code("results_by_topic_v3_and_below", "results_by_partition", "partition_error_code")

_SHARE_FETCH: Final = {"max_records": 1, "batch_size": 1, "forgotten_topics_data": ()}

ROWS: Final = (
    _row("produce", 0, 12, _WRITE_TOPIC, _produce(_batch()), _PRODUCED),
    _row("produce in a transaction: its id", 0, 11, _WRITE_ID, _TRANSACTIONAL, _PRODUCED, besides=[_WRITE_TOPIC]),
    _row("produce in a transaction: the topic", 0, 11, _WRITE_TOPIC, _TRANSACTIONAL, _PRODUCED, besides=[_WRITE_ID]),
    _row("fetch", 1, 12, _READ_TOPIC, _fetch(), _partitions_code("responses", "partitions")),
    _row("fetch in a session", 1, 12, _READ_TOPIC, _fetch(0), _partitions_code("responses", "partitions")),
    _row("list offsets", 2, 7, _DESCRIBE_TOPIC, _LIST_OFFSETS, _TOPIC_CODE),
    _row("metadata", 3, 12, _DESCRIBE_TOPIC, _metadata(TOPIC), _first("topics")),
    _row("metadata of all topics", 3, 12, _DESCRIBE_TOPIC, _metadata(None), _shows("topics", "name", TOPIC), HIDDEN),
    _row(
        "metadata of a topic that is not there",
        3,
        12,
        (Op.DESCRIBE, TOPICS, MISSING),
        _metadata(MISSING),
        _first("topics"),
    ),
    _row(
        "metadata that makes a topic",
        3,
        12,
        (Op.CREATE, TOPICS, "acl-made"),
        _metadata("acl-made", creates=True),
        _first("topics"),
        besides=[(Op.DESCRIBE, TOPICS, "acl-made")],
        kafka="the topic is there a little later",
    ),
    _row("offset commit: the group", 8, 9, _READ_GROUP, _commit(), _TOPIC_CODE, besides=[_READ_TOPIC]),
    _row("offset commit: the topic", 8, 9, _READ_TOPIC, _commit(), _TOPIC_CODE, besides=[_READ_GROUP]),
    _row("offset fetch: the group", 9, 9, _DESCRIBE_GROUP, _OFFSETS, _group_offset, besides=[_DESCRIBE_TOPIC]),
    _row("offset fetch: the topic", 9, 9, _DESCRIBE_TOPIC, _OFFSETS, _group_offset, besides=[_DESCRIBE_GROUP]),
    _row(
        "offset fetch of all topics",
        9,
        9,
        _DESCRIBE_TOPIC,
        {**_OFFSETS, "groups": [{"group_id": GROUP, "member_id": None, "member_epoch": -1, "topics": None}]},
        lambda answer: _shows("topics", "name", TOPIC)(answer.groups[0]),
        HIDDEN,
        besides=[_DESCRIBE_GROUP],
    ),
    _row(
        "find coordinator: a group",
        10,
        4,
        _DESCRIBE_GROUP,
        {"key_type": 0, "coordinator_keys": [GROUP]},
        _first("coordinators"),
    ),
    _row(
        "find coordinator: a transactional id",
        10,
        4,
        _DESCRIBE_ID,
        {"key_type": 1, "coordinator_keys": [PRODUCER]},
        _first("coordinators"),
    ),
    _row(
        "find coordinator: a share-partition",
        10,
        6,
        _cluster(Op.CLUSTER_ACTION),
        {"key_type": 2, "coordinator_keys": [_SHARE_KEY]},
        _first("coordinators"),
        kafka="the internal topic is there a little later",
    ),
    _row("join group", 11, 9, _READ_GROUP, _JOIN, _code),
    _row(
        "heartbeat",
        12,
        4,
        _READ_GROUP,
        {"group_id": GROUP, "generation_id": 1, "member_id": "stranger", "group_instance_id": None},
        _code,
    ),
    _row("leave group", 13, 5, _READ_GROUP, _LEAVE, _member),
    _row("sync group", 14, 5, _READ_GROUP, _SYNC, _code),
    _row(
        "describe groups",
        15,
        5,
        _DESCRIBE_GROUP,
        {"groups": [GROUP], "include_authorized_operations": False},
        _first("groups"),
    ),
    _row(
        "list groups",
        16,
        5,
        _DESCRIBE_GROUP,
        {"states_filter": [], "types_filter": []},
        _shows("groups", "group_id", GROUP),
        HIDDEN,
    ),
    _row(
        "list groups: the cluster",
        16,
        5,
        _cluster(Op.DESCRIBE),
        {"states_filter": [], "types_filter": []},
        _shows("groups", "group_id", GROUP),
        HIDDEN,
    ),
    _row("create topics", 19, 7, (Op.CREATE, TOPICS, MISSING), _new_topic(MISSING), _first("topics")),
    _row(
        "create topics: the cluster",
        19,
        7,
        _cluster(Op.CREATE),
        _new_topic(MISSING),
        _first("topics"),
        "topic_authorization_failed",
    ),
    _row(
        "create topics: settings in the answer",
        19,
        7,
        (Op.DESCRIBE_CONFIGS, TOPICS, MISSING),
        _new_topic(MISSING),
        lambda answer: str(ErrorCode(answer.topics[0].topic_config_error_code).name),
        besides=[(Op.CREATE, TOPICS, MISSING)],
    ),
    _row(
        "delete topics",
        20,
        6,
        (Op.DELETE, TOPICS, DOOMED),
        {"topics": [{"name": DOOMED, "topic_id": UUID(int=0)}], "timeout": 10_000},
        _first("responses"),
        kafka="the first of them deletes it, a little later",
    ),
    _row(
        "delete topics: the cluster",
        20,
        6,
        _cluster(Op.DELETE),
        {"topics": [{"name": MISSING, "topic_id": UUID(int=0)}], "timeout": 10_000},
        _first("responses"),
        "topic_authorization_failed",
    ),
    _row("delete records", 21, 2, (Op.DELETE, TOPICS, TOPIC), _DELETE_RECORDS, _TOPIC_CODE),
    _row("init producer id", 22, 4, _cluster(Op.IDEMPOTENT_WRITE), _init(None), _code),
    _row("init producer id: a transactional id", 22, 4, _WRITE_ID, _init(PRODUCER), _code),
    _row("offset for leader epoch", 23, 4, _DESCRIBE_TOPIC, _EPOCHS, _TOPIC_CODE),
    _row(
        "offset for leader epoch: the cluster",
        23,
        4,
        _cluster(Op.CLUSTER_ACTION),
        _EPOCHS,
        _TOPIC_CODE,
        "topic_authorization_failed",
    ),
    _row("add partitions to txn: its id", 24, 3, _WRITE_ID, _ADD, _ADDED, besides=[_WRITE_TOPIC]),
    _row("add partitions to txn: the topic", 24, 3, _WRITE_TOPIC, _ADD, _ADDED, besides=[_WRITE_ID]),
    _row("add offsets to txn: its id", 25, 3, _WRITE_ID, _ADD_OFFSETS, _code, besides=[_READ_GROUP]),
    _row("add offsets to txn: the group", 25, 3, _READ_GROUP, _ADD_OFFSETS, _code, besides=[_WRITE_ID]),
    _row("end txn", 26, 3, _WRITE_ID, _END, _code),
    _row("write txn markers", 27, 1, _cluster(Op.ALTER), _marker(), _marked, instead=[_cluster(Op.CLUSTER_ACTION)]),
    _row(
        "write txn markers: as a broker",
        27,
        1,
        _cluster(Op.CLUSTER_ACTION),
        _marker(),
        _marked,
        instead=[_cluster(Op.ALTER)],
    ),
    _row(
        "txn offset commit: its id", 28, 3, _WRITE_ID, _txn_offsets(), _TOPIC_CODE, besides=[_READ_GROUP, _READ_TOPIC]
    ),
    _row(
        "txn offset commit: the group",
        28,
        3,
        _READ_GROUP,
        _txn_offsets(),
        _TOPIC_CODE,
        besides=[_WRITE_ID, _READ_TOPIC],
    ),
    _row(
        "txn offset commit: the topic",
        28,
        3,
        _READ_TOPIC,
        _txn_offsets(),
        _TOPIC_CODE,
        besides=[_WRITE_ID, _READ_GROUP],
    ),
    _row("describe acls", 29, 3, _cluster(Op.DESCRIBE), EVERY_ACL, _code),
    _row(
        "create acls", 30, 3, _cluster(Op.ALTER), {"creations": [acl("none", Op.READ, CLUSTER, "")]}, _first("results")
    ),
    _row(
        "delete acls",
        31,
        3,
        _cluster(Op.ALTER),
        {"filters": [{**EVERY_ACL, "principal_filter": "User:nobody"}]},
        _first("filter_results"),
    ),
    _row(
        "describe configs: a topic", 32, 4, (Op.DESCRIBE_CONFIGS, TOPICS, TOPIC), _config(2, TOPIC), _first("results")
    ),
    _row(
        "describe configs: a group", 32, 4, (Op.DESCRIBE_CONFIGS, GROUPS, GROUP), _config(32, GROUP), _first("results")
    ),
    _row("describe configs: a broker", 32, 4, _cluster(Op.DESCRIBE_CONFIGS), _config(4, "1"), _first("results")),
    _row("describe configs: a logger", 32, 4, _cluster(Op.DESCRIBE_CONFIGS), _config(8, "1"), _first("results")),
    _row(
        "alter configs: a topic",
        33,
        2,
        (Op.ALTER_CONFIGS, TOPICS, TOPIC),
        _alter(2, TOPIC, "retention.ms", "-1"),
        _first("responses"),
    ),
    _row(
        "alter configs: a broker",
        33,
        2,
        _cluster(Op.ALTER_CONFIGS),
        _alter(4, "1", "log.cleaner.backoff.ms", "1"),
        _first("responses"),
    ),
    _row("alter replica log dirs", 34, 2, _cluster(Op.ALTER), _LOG_DIRS, _partitions_code("results", "partitions")),
    _row("describe log dirs", 35, 4, _cluster(Op.DESCRIBE), {"topics": None}, _code),
    _row("create partitions", 37, 3, (Op.ALTER, TOPICS, TOPIC), _GROW, _first("results")),
    _row("create delegation token", 38, 3, (Op.CREATE_TOKENS, ResourceType.USER, "User:somebody"), _TOKEN, _code),
    _row("delete groups", 42, 2, (Op.DELETE, GROUPS, MISSING), {"groups_names": [MISSING]}, _first("results")),
    _row(
        "elect leaders",
        43,
        2,
        _cluster(Op.ALTER),
        _ELECT,
        _partitions_code("replica_election_results", "partition_result"),
    ),
    _row(
        "incremental alter configs: a topic",
        44,
        1,
        (Op.ALTER_CONFIGS, TOPICS, TOPIC),
        _alter(2, TOPIC, "retention.ms", "-1"),
        _first("responses"),
    ),
    _row(
        "incremental alter configs: a group",
        44,
        1,
        (Op.ALTER_CONFIGS, GROUPS, GROUP),
        _alter(32, GROUP, "consumer.session.timeout.ms", "50000"),
        _first("responses"),
    ),
    _row(
        "incremental alter configs: a broker",
        44,
        1,
        _cluster(Op.ALTER_CONFIGS),
        _alter(4, "1", "log.cleaner.backoff.ms", "1"),
        _first("responses"),
    ),
    _row(
        "incremental alter configs: a logger",
        44,
        1,
        _cluster(Op.ALTER_CONFIGS),
        _alter(8, "1", "no.such.logger", "INFO"),
        _first("responses"),
    ),
    _row(
        "alter partition reassignments",
        45,
        0,
        _cluster(Op.ALTER),
        _MOVE,
        lambda answer: (
            _code(answer)
            if answer.error_code is not ErrorCode.none
            else _partitions_code("responses", "partitions")(answer)
        ),
    ),
    _row("list partition reassignments", 46, 0, _cluster(Op.DESCRIBE), {"timeout": 10_000, "topics": None}, _code),
    _row(
        "offset delete: the group",
        47,
        0,
        (Op.DELETE, GROUPS, GROUP),
        _OFFSET_DELETE,
        lambda answer: _code(answer) if answer.error_code is not ErrorCode.none else _TOPIC_CODE(answer),
        besides=[_READ_TOPIC],
    ),
    _row(
        "offset delete: the topic",
        47,
        0,
        _READ_TOPIC,
        _OFFSET_DELETE,
        lambda answer: _code(answer) if answer.error_code is not ErrorCode.none else _TOPIC_CODE(answer),
        besides=[(Op.DELETE, GROUPS, GROUP)],
    ),
    _row("describe client quotas", 48, 1, _cluster(Op.DESCRIBE_CONFIGS), {"components": [], "strict": False}, _code),
    _row("alter client quotas", 49, 1, _cluster(Op.ALTER_CONFIGS), _QUOTA, _first("entries")),
    # By name: of all users, Apache Kafka never answers who may not.
    _row("describe user scram credentials", 50, 0, _cluster(Op.DESCRIBE), {"users": [{"name": "nobody"}]}, _code),
    _row("alter user scram credentials", 51, 0, _cluster(Op.ALTER), _SCRAM, _first("results")),
    _row("describe quorum", 55, 1, _cluster(Op.DESCRIBE), _QUORUM, _code),
    _row(
        "update features",
        57,
        1,
        _cluster(Op.ALTER),
        _FEATURES,
        lambda answer: (
            _code(answer)
            if answer.error_code is not ErrorCode.none or not answer.results
            else _first("results")(answer)
        ),
    ),
    _row(
        "describe producers", 61, 0, _READ_TOPIC, {"topics": [{"name": TOPIC, "partition_indexes": [0]}]}, _TOPIC_CODE
    ),
    _row(
        "describe transactions",
        65,
        0,
        (Op.DESCRIBE, IDS, MISSING),
        {"transactional_ids": [MISSING]},
        _first("transaction_states"),
    ),
    _row(
        "list transactions",
        66,
        0,
        _DESCRIBE_ID,
        {"state_filters": [], "producer_id_filters": []},
        _shows("transaction_states", "transactional_id", PRODUCER),
        HIDDEN,
    ),
    _row("consumer group heartbeat: the group", 68, 1, _READ_GROUP, _heartbeat(None), _code),
    _row(
        "consumer group heartbeat: a topic", 68, 1, _DESCRIBE_TOPIC, _heartbeat([TOPIC]), _code, besides=[_READ_GROUP]
    ),
    _row(
        "consumer group describe",
        69,
        1,
        _DESCRIBE_GROUP,
        {"group_ids": [GROUP], "include_authorized_operations": False},
        _first("groups"),
    ),
    _row("list config resources", 74, 0, _cluster(Op.DESCRIBE_CONFIGS), {}, _code),
    _row(
        "describe topic partitions",
        75,
        0,
        _DESCRIBE_TOPIC,
        {"topics": [{"name": TOPIC}], "response_partition_limit": 10, "cursor": None},
        _first("topics"),
    ),
    _row(
        "describe topic partitions of all topics",
        75,
        0,
        _DESCRIBE_TOPIC,
        {"topics": [], "response_partition_limit": 100, "cursor": None},
        _shows("topics", "name", TOPIC),
        HIDDEN,
    ),
    _row("share group heartbeat: the group", 76, 1, _READ_GROUP, _share_heartbeat(None), _code),
    _row(
        "share group heartbeat: a topic",
        76,
        1,
        _DESCRIBE_TOPIC,
        _share_heartbeat([TOPIC]),
        _code,
        besides=[_READ_GROUP],
    ),
    _row(
        "share group describe",
        77,
        1,
        _DESCRIBE_GROUP,
        {"group_ids": [GROUP], "include_authorized_operations": False},
        _first("groups"),
    ),
    _row(
        "describe share group offsets: the group",
        90,
        0,
        _DESCRIBE_GROUP,
        {"groups": [{"group_id": GROUP, "topics": None}]},
        _first("groups"),
        besides=[_DESCRIBE_TOPIC],
        kafka="it tells the offsets of a group that is not there: none",
    ),
    _row(
        "alter share group offsets: the group",
        91,
        0,
        _READ_GROUP,
        {"group_id": GROUP, "topics": [{"topic_name": TOPIC, "partitions": []}]},
        _code,
        besides=[_READ_TOPIC],
    ),
    _row(
        "delete share group offsets: the group",
        92,
        0,
        (Op.DELETE, GROUPS, GROUP),
        {"group_id": GROUP, "topics": [{"topic_name": TOPIC}]},
        _code,
        besides=[_READ_TOPIC],
    ),
    *(
        _row(name, api, 0, _cluster(Op.CLUSTER_ACTION), _share_state(**values), _RESULTS_CODE, kafka=kafka)
        for name, api, values, kafka in (
            ("initialize share group state", 83, {"state_epoch": 0, "start_offset": 0}, ""),
            ("read share group state", 84, {"leader_epoch": 0}, ""),
            (
                "write share group state",
                85,
                {"state_epoch": 0, "leader_epoch": 0, "start_offset": 0, "state_batches": []},
                "",
            ),
            ("delete share group state", 86, {}, "a topic that is not there is an error"),
            ("read share group state summary", 87, {"leader_epoch": 0}, "a topic that is not there is an error"),
        )
    ),
    _row("share fetch", 78, 2, _READ_GROUP, _share(max_wait=0, min_bytes=0, max_bytes=1, **_SHARE_FETCH), _code),
    _row("share acknowledge", 79, 2, _READ_GROUP, _share(), _code),
)
FREE: Final = {
    17: "how a client says who it is",
    18: "asked before anybody is known",
    36: "how a client says who it is",
    39: "the owner of a token, and its renewers, renew it",
    40: "the owner of a token, and its renewers, let it expire",
    41: "everybody is told of tokens of its own",
    60: "everybody may know the brokers; what may be done with the cluster is told by rights",
}
"""APIs that take no right, and why."""
