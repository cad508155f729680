"""One module per API family, and here the table of them all but Produce and Fetch, which are served as bytes."""

from headrace.protocol.api import ApiKey

from ..dispatch import Handler
from . import (
    acls,
    api_versions,
    cluster,
    configs,
    consumer_groups,
    delegation_tokens,
    features,
    groups,
    groups_admin,
    groups_offsets,
    markers,
    metadata,
    offsets,
    producer_ids,
    quorum,
    quotas,
    reassignments,
    scram,
    topics,
    transactions,
    transactions_admin,
    txn_offsets,
)

HANDLERS: dict[ApiKey, Handler] = {
    **acls.HANDLERS,
    **api_versions.HANDLERS,
    **cluster.HANDLERS,
    **configs.HANDLERS,
    **consumer_groups.HANDLERS,
    **delegation_tokens.HANDLERS,
    **features.HANDLERS,
    **groups.HANDLERS,
    **groups_admin.HANDLERS,
    **groups_offsets.HANDLERS,
    **markers.HANDLERS,
    **metadata.HANDLERS,
    **offsets.HANDLERS,
    **producer_ids.HANDLERS,
    **quorum.HANDLERS,
    **quotas.HANDLERS,
    **reassignments.HANDLERS,
    **scram.HANDLERS,
    **topics.HANDLERS,
    **transactions.HANDLERS,
    **transactions_admin.HANDLERS,
    **txn_offsets.HANDLERS,
}
