"""Which APIs this package asks brokers for, in which versions.

The ends are chosen, not merely what can be encoded:
- Metadata before 4 would create the topics it is asked about.
- Produce from 12 on, EndTxn from 5 and InitProducerId from 5 are the second transaction protocol, where a broker adds
  partitions by itself and each transaction has an epoch of its own; AddPartitionsToTxn from 4 is for brokers.
- CreateTopics before 4 must be told how many replicas there are to be.
- DeleteTopics from 6 names topics by their ids too; LeaveGroup before 3 knows one member only.
- ShareFetch and ShareAcknowledge before 2 renew no locks.
- OffsetFetch from 8 and FindCoordinator from 4 ask for many groups at once; OffsetCommit from 10 needs topic ids.
"""

from collections.abc import Mapping
from typing import Final

from headrace.protocol.api import ApiKey

from .errors import VersionNotServed

Ranges = Mapping[int, tuple[int, int]]
"""The lowest and the highest version of each API."""

SPOKEN: Final[dict[int, tuple[int, int]]] = {
    ApiKey.PRODUCE: (3, 11),
    ApiKey.FETCH: (4, 17),
    ApiKey.LIST_OFFSETS: (1, 8),
    ApiKey.METADATA: (4, 12),
    ApiKey.OFFSET_COMMIT: (2, 8),
    ApiKey.OFFSET_FETCH: (1, 7),
    ApiKey.FIND_COORDINATOR: (0, 3),
    ApiKey.JOIN_GROUP: (2, 9),
    ApiKey.HEARTBEAT: (0, 4),
    ApiKey.LEAVE_GROUP: (3, 5),
    ApiKey.SYNC_GROUP: (0, 5),
    ApiKey.DESCRIBE_GROUPS: (0, 5),
    ApiKey.LIST_GROUPS: (0, 5),
    ApiKey.SASL_HANDSHAKE: (1, 1),
    ApiKey.API_VERSIONS: (0, 3),
    ApiKey.CREATE_TOPICS: (4, 7),
    ApiKey.DELETE_TOPICS: (1, 5),
    ApiKey.INIT_PRODUCER_ID: (0, 4),
    ApiKey.ADD_PARTITIONS_TO_TXN: (0, 3),
    ApiKey.END_TXN: (0, 3),
    ApiKey.SASL_AUTHENTICATE: (0, 2),
    ApiKey.DESCRIBE_CONFIGS: (1, 4),
    ApiKey.ALTER_REPLICA_LOG_DIRS: (1, 2),
    ApiKey.DESCRIBE_LOG_DIRS: (1, 4),
    ApiKey.CREATE_PARTITIONS: (0, 3),
    ApiKey.DELETE_GROUPS: (0, 2),
    ApiKey.ELECT_LEADERS: (1, 2),
    ApiKey.DESCRIBE_CLIENT_QUOTAS: (0, 1),
    ApiKey.ALTER_CLIENT_QUOTAS: (0, 1),
    ApiKey.INCREMENTAL_ALTER_CONFIGS: (0, 1),
    ApiKey.ALTER_PARTITION_REASSIGNMENTS: (0, 1),
    ApiKey.LIST_PARTITION_REASSIGNMENTS: (0, 0),
    ApiKey.DESCRIBE_CLUSTER: (0, 1),
    ApiKey.DESCRIBE_TOPIC_PARTITIONS: (0, 0),
    ApiKey.DESCRIBE_TRANSACTIONS: (0, 0),
    ApiKey.LIST_TRANSACTIONS: (0, 2),
    ApiKey.CONSUMER_GROUP_DESCRIBE: (0, 1),
    ApiKey.SHARE_GROUP_HEARTBEAT: (1, 1),
    ApiKey.SHARE_GROUP_DESCRIBE: (1, 1),
    ApiKey.SHARE_FETCH: (2, 2),
    ApiKey.SHARE_ACKNOWLEDGE: (2, 2),
    ApiKey.DESCRIBE_SHARE_GROUP_OFFSETS: (0, 1),
    ApiKey.ALTER_SHARE_GROUP_OFFSETS: (0, 0),
    ApiKey.DESCRIBE_PRODUCERS: (0, 0),
    ApiKey.WRITE_TXN_MARKERS: (1, 1),
    ApiKey.DESCRIBE_ACLS: (1, 3),
    ApiKey.CREATE_ACLS: (1, 3),
    ApiKey.DELETE_ACLS: (1, 3),
    ApiKey.DESCRIBE_USER_SCRAM_CREDENTIALS: (0, 0),
    ApiKey.ALTER_USER_SCRAM_CREDENTIALS: (0, 0),
    ApiKey.CREATE_DELEGATION_TOKEN: (1, 3),
    ApiKey.RENEW_DELEGATION_TOKEN: (1, 2),
    ApiKey.EXPIRE_DELEGATION_TOKEN: (1, 2),
    ApiKey.DESCRIBE_DELEGATION_TOKEN: (1, 3),
}


def agreed(api_key: int, served: Ranges, most: int | None = None) -> int:
    """The highest version that both sides speak, of those up to `most`."""
    low, high = SPOKEN[api_key]
    name = ApiKey(api_key).name
    if api_key not in served:
        raise VersionNotServed(f"the broker does not serve {name}")
    served_low, served_high = served[api_key]
    version = min(high, served_high, high if most is None else most)
    if version < max(low, served_low):
        raise VersionNotServed(
            f"the broker serves {name} in versions {served_low} to {served_high}, this client speaks {low} to {high}"
        )
    return version
