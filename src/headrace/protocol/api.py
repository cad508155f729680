"""Which APIs the broker serves, in which versions: what ApiVersions tells clients.

A version stands here only once it works end to end: clients use what they are told at once.
"""

from enum import IntEnum
from typing import Final, NamedTuple

from .schema import response_shape


class ApiKey(IntEnum):
    """Kafka's API keys, by their wire names."""

    PRODUCE = 0
    FETCH = 1
    LIST_OFFSETS = 2
    METADATA = 3
    OFFSET_COMMIT = 8
    OFFSET_FETCH = 9
    FIND_COORDINATOR = 10
    JOIN_GROUP = 11
    HEARTBEAT = 12
    LEAVE_GROUP = 13
    SYNC_GROUP = 14
    DESCRIBE_GROUPS = 15
    LIST_GROUPS = 16
    SASL_HANDSHAKE = 17
    API_VERSIONS = 18
    CREATE_TOPICS = 19
    DELETE_TOPICS = 20
    DELETE_RECORDS = 21
    INIT_PRODUCER_ID = 22
    OFFSET_FOR_LEADER_EPOCH = 23
    ADD_PARTITIONS_TO_TXN = 24
    ADD_OFFSETS_TO_TXN = 25
    END_TXN = 26
    WRITE_TXN_MARKERS = 27
    TXN_OFFSET_COMMIT = 28
    DESCRIBE_ACLS = 29
    CREATE_ACLS = 30
    DELETE_ACLS = 31
    DESCRIBE_CONFIGS = 32
    ALTER_CONFIGS = 33
    ALTER_REPLICA_LOG_DIRS = 34
    DESCRIBE_LOG_DIRS = 35
    SASL_AUTHENTICATE = 36
    CREATE_PARTITIONS = 37
    CREATE_DELEGATION_TOKEN = 38
    RENEW_DELEGATION_TOKEN = 39
    EXPIRE_DELEGATION_TOKEN = 40
    DESCRIBE_DELEGATION_TOKEN = 41
    DELETE_GROUPS = 42
    ELECT_LEADERS = 43
    INCREMENTAL_ALTER_CONFIGS = 44
    ALTER_PARTITION_REASSIGNMENTS = 45
    LIST_PARTITION_REASSIGNMENTS = 46
    OFFSET_DELETE = 47
    DESCRIBE_CLIENT_QUOTAS = 48
    ALTER_CLIENT_QUOTAS = 49
    DESCRIBE_USER_SCRAM_CREDENTIALS = 50
    ALTER_USER_SCRAM_CREDENTIALS = 51
    DESCRIBE_QUORUM = 55
    ALTER_PARTITION = 56
    UPDATE_FEATURES = 57
    DESCRIBE_CLUSTER = 60
    DESCRIBE_PRODUCERS = 61
    DESCRIBE_TRANSACTIONS = 65
    LIST_TRANSACTIONS = 66
    CONSUMER_GROUP_HEARTBEAT = 68
    CONSUMER_GROUP_DESCRIBE = 69
    LIST_CONFIG_RESOURCES = 74
    DESCRIBE_TOPIC_PARTITIONS = 75
    SHARE_GROUP_HEARTBEAT = 76
    SHARE_GROUP_DESCRIBE = 77
    SHARE_FETCH = 78
    SHARE_ACKNOWLEDGE = 79
    INITIALIZE_SHARE_GROUP_STATE = 83
    READ_SHARE_GROUP_STATE = 84
    WRITE_SHARE_GROUP_STATE = 85
    DELETE_SHARE_GROUP_STATE = 86
    READ_SHARE_GROUP_STATE_SUMMARY = 87
    DESCRIBE_SHARE_GROUP_OFFSETS = 90
    ALTER_SHARE_GROUP_OFFSETS = 91
    DELETE_SHARE_GROUP_OFFSETS = 92


class Versions(NamedTuple):
    """A range of versions, both ends included. `advertised_min` differs from `min` only for Produce."""

    min: int
    max: int
    advertised_min: int
    peers_max: int
    """The last version that other brokers of the cluster may ask for; clients are not told of those after `max`."""


def _range(low: int, high: int, advertised: int | None = None, peers: int | None = None) -> Versions:
    return Versions(low, high, low if advertised is None else advertised, high if peers is None else peers)


SUPPORTED: Final[dict[ApiKey, Versions]] = {
    # librdkafka before 2.6 decides that compression works by asking for Produce v0 (KAFKA-18659).
    ApiKey.PRODUCE: _range(3, 13, advertised=0),
    ApiKey.FETCH: _range(4, 18),
    ApiKey.LIST_OFFSETS: _range(1, 11),
    ApiKey.METADATA: _range(0, 13),
    ApiKey.OFFSET_COMMIT: _range(2, 10),
    ApiKey.OFFSET_FETCH: _range(1, 10),
    ApiKey.FIND_COORDINATOR: _range(0, 6),
    ApiKey.JOIN_GROUP: _range(0, 9),
    ApiKey.HEARTBEAT: _range(0, 4),
    ApiKey.LEAVE_GROUP: _range(0, 5),
    ApiKey.SYNC_GROUP: _range(0, 5),
    ApiKey.DESCRIBE_GROUPS: _range(0, 6),
    ApiKey.LIST_GROUPS: _range(0, 5),
    ApiKey.SASL_HANDSHAKE: _range(0, 1),
    ApiKey.API_VERSIONS: _range(0, 4),
    ApiKey.CREATE_TOPICS: _range(2, 7),
    ApiKey.DELETE_TOPICS: _range(1, 6),
    ApiKey.DELETE_RECORDS: _range(0, 2),
    ApiKey.INIT_PRODUCER_ID: _range(0, 5),
    ApiKey.OFFSET_FOR_LEADER_EPOCH: _range(2, 4),
    ApiKey.ADD_PARTITIONS_TO_TXN: _range(0, 3),
    ApiKey.ADD_OFFSETS_TO_TXN: _range(0, 4),
    ApiKey.END_TXN: _range(0, 5),
    ApiKey.DESCRIBE_ACLS: _range(1, 3),
    ApiKey.CREATE_ACLS: _range(1, 3),
    ApiKey.DELETE_ACLS: _range(1, 3),
    ApiKey.DESCRIBE_CONFIGS: _range(1, 4),
    ApiKey.ALTER_CONFIGS: _range(0, 2),
    ApiKey.ALTER_REPLICA_LOG_DIRS: _range(1, 2),
    ApiKey.DESCRIBE_LOG_DIRS: _range(1, 5),
    ApiKey.SASL_AUTHENTICATE: _range(0, 2),
    ApiKey.CREATE_PARTITIONS: _range(0, 3),
    ApiKey.CREATE_DELEGATION_TOKEN: _range(1, 3),
    ApiKey.RENEW_DELEGATION_TOKEN: _range(1, 2),
    ApiKey.EXPIRE_DELEGATION_TOKEN: _range(1, 2),
    ApiKey.DESCRIBE_DELEGATION_TOKEN: _range(1, 3),
    ApiKey.DELETE_GROUPS: _range(0, 2),
    ApiKey.ELECT_LEADERS: _range(0, 2),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: _range(0, 1),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: _range(0, 1),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: _range(0, 0),
    ApiKey.OFFSET_DELETE: _range(0, 0),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: _range(0, 1),
    ApiKey.ALTER_CLIENT_QUOTAS: _range(0, 1),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: _range(0, 0),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: _range(0, 0),
    ApiKey.WRITE_TXN_MARKERS: _range(1, 2),
    ApiKey.TXN_OFFSET_COMMIT: _range(0, 5),
    ApiKey.DESCRIBE_QUORUM: _range(0, 2),
    ApiKey.UPDATE_FEATURES: _range(0, 2),
    ApiKey.DESCRIBE_CLUSTER: _range(0, 2),
    ApiKey.DESCRIBE_PRODUCERS: _range(0, 0),
    ApiKey.DESCRIBE_TRANSACTIONS: _range(0, 0),
    ApiKey.LIST_TRANSACTIONS: _range(0, 2),
    ApiKey.CONSUMER_GROUP_HEARTBEAT: _range(0, 1),
    ApiKey.CONSUMER_GROUP_DESCRIBE: _range(0, 1),
    ApiKey.LIST_CONFIG_RESOURCES: _range(0, 1),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: _range(0, 0),
    ApiKey.SHARE_GROUP_HEARTBEAT: _range(1, 1),
    ApiKey.SHARE_GROUP_DESCRIBE: _range(1, 1),
    ApiKey.SHARE_FETCH: _range(1, 2),
    ApiKey.SHARE_ACKNOWLEDGE: _range(1, 2),
    ApiKey.INITIALIZE_SHARE_GROUP_STATE: _range(0, 0),
    ApiKey.READ_SHARE_GROUP_STATE: _range(0, 0),
    ApiKey.WRITE_SHARE_GROUP_STATE: _range(0, 1),
    ApiKey.DELETE_SHARE_GROUP_STATE: _range(0, 0),
    ApiKey.READ_SHARE_GROUP_STATE_SUMMARY: _range(0, 1),
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: _range(0, 1),
    ApiKey.ALTER_SHARE_GROUP_OFFSETS: _range(0, 0),
    ApiKey.DELETE_SHARE_GROUP_OFFSETS: _range(0, 0),
}

REFETCH: Final = "?refetch"
"""After the directory in AlterReplicaLogDirs: a failed log there begins anew, and fetches all from the leader."""
START_EMPTY: Final = "?start-empty"
"""The same, although what only that log held is lost."""
PEERS_ONLY: Final[dict[ApiKey, Versions]] = {ApiKey.ALTER_PARTITION: _range(2, 3)}
"""What only other brokers of the cluster may ask for. It does not stand in the answer of ApiVersions; clients get
CLUSTER_AUTHORIZATION_FAILED."""


def response_header_is_flexible(api_key: int, version: int) -> bool:
    """Whether a response's header ends in tagged fields. Never for ApiVersions: its readers do not know yet."""
    return api_key != ApiKey.API_VERSIONS and response_shape(api_key, version).flexible
