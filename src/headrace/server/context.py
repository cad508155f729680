"""What handlers are given: the broker's parts, and the facts of one request."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from headrace.cluster.controller import Controller
from headrace.cluster.image import ClusterImage
from headrace.config import BrokerConfig
from headrace.config.log_levels import PROCESS_LEVELS, LogLevels
from headrace.coordinator.groups.service import GroupCoordinator
from headrace.coordinator.share.service import ShareCoordinator
from headrace.coordinator.transactions.service import TransactionCoordinator
from headrace.net.clock import Clock
from headrace.replication.replica_manager import ReplicaManager
from headrace.replication.share_state import ShareStateStore
from headrace.security.authorizer import Authorizer
from headrace.security.quotas.client_quotas import ClientQuotas

from .partition_ends import PartitionEnds


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """The parts of the broker that handlers use."""

    config: BrokerConfig
    clock: Clock
    image: ClusterImage
    controller: Controller
    replicas: ReplicaManager
    groups: GroupCoordinator
    transactions: TransactionCoordinator
    share: ShareCoordinator
    """The share-partitions that this broker coordinates."""
    share_state: ShareStateStore
    """The state of share-partitions, wherever they are coordinated."""
    ends: PartitionEnds
    active_controller: Callable[[], int | None]
    """Which broker is the controller now, as far as this one knows; a lone broker always is."""
    quotas: ClientQuotas | None = None
    """None where nobody can be limited."""
    log_levels: LogLevels = PROCESS_LEVELS
    """How much each logger says."""
    authorizer: Authorizer | None = None
    """Who may do what; None where everybody may do everything."""


class RequestInfo(NamedTuple):
    """The facts of a request besides its body."""

    api_key: int
    version: int
    client_id: str | None
    principal: str
    host: str
    peer_broker: int | None = None
    """The broker of this cluster that asks, if one does."""
    connection: int = 0
    """The number of the connection it came on: a connection that was opened later has a higher one."""
    forwarded_by: int | None = None
    """The broker that was asked, where that is another one than the one that answers."""
    by_token: bool = False
    """Whether it has shown a delegation token only."""
    listener: str = ""
    """The name of the listener on which it came: the answer has brokers' addresses there."""


def reachable_controller(ctx: Context, info: RequestInfo) -> int:
    """The controller, as whoever asks is told: this broker, which forwards to it, where it has not the listener."""
    image = ctx.image
    controller = image.brokers.get(image.controller_id)
    is_reached = controller is None or controller.endpoint(info.listener) is not None
    return image.controller_id if is_reached else ctx.config.node_id
