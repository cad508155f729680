"""The controller as the handlers of a broker in a cluster use it.

Requests that only the controller can carry out have been forwarded before they come here, so this broker is it; where
it is not any more, they are told so. What a broker itself needs, such as a topic of its own, it asks of the controller
as a client would. What was changed is known to all living brokers before it is answered, so that a client can use it
at once wherever it asks next.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeVar
from uuid import UUID

from headrace.cluster.active_controller import ActiveController
from headrace.cluster.entries import EntryKind, EntryValues
from headrace.cluster.image import ClusterImage, Topic
from headrace.cluster.metadata_writer import DEFAULT, DecideEntry, Quorum, QuorumReplica, TopicSpec
from headrace.cluster.producer_ids import ProducerIds
from headrace.cluster.store import MetadataStore, StoreError
from headrace.config import AlterConfigOp
from headrace.net.peers import Peers
from headrace.protocol.api import ApiKey
from headrace.protocol.errors import CodedError, ErrorCode

from .member import ClusterMember

KNOWN_SECONDS: Final = 5.0
"""How long to wait for all brokers to know of a change."""
CREATE_VERSION: Final = 5
_LOOK_SECONDS: Final = 0.02

T = TypeVar("T")


class ClusterController:
    """A `cluster.controller.Controller` of one broker among several."""

    def __init__(self, member: ClusterMember, image: ClusterImage, peers: Peers, store: MetadataStore) -> None:
        self._member = member
        self._image = image
        self._peers = peers
        self._producer_ids = ProducerIds(store, image.cluster_id)

    async def _active_controller(self) -> ActiveController:
        """The controller that this broker is, once it has taken over."""
        deadline = asyncio.get_running_loop().time() + KNOWN_SECONDS
        while (active := self._member.active_controller) is not None:
            if active.is_ready:
                return active
            if asyncio.get_running_loop().time() >= deadline:
                break
            await asyncio.sleep(_LOOK_SECONDS)
        raise CodedError(ErrorCode.not_controller, "this broker is not the controller; ask the one that is")

    async def create_topic(self, spec: TopicSpec, *, validate_only: bool = False) -> Topic:
        if self._member.active_controller is None:
            return await self._ask_for_topic(spec)
        active = await self._active_controller()
        topic = await active.writer.create_topic(spec, validate_only=validate_only)
        return topic if validate_only else await self._known(active, await active.settled(topic))

    async def delete_topic(self, name: str, topic_id: UUID | None = None) -> Topic:
        active = await self._active_controller()
        return await self._known(active, await active.writer.delete_topic(name, topic_id))

    async def create_partitions(
        self, name: str, total: int, assignments: Sequence[Sequence[int]] | None = None, *, validate_only: bool = False
    ) -> Topic:
        active = await self._active_controller()
        topic = await active.writer.create_partitions(name, total, assignments, validate_only=validate_only)
        return topic if validate_only else await self._known(active, await active.settled(topic))

    async def alter_topic_configs(
        self, name: str, changes: Sequence[AlterConfigOp], *, replace_all: bool = False, validate_only: bool = False
    ) -> Topic:
        active = await self._active_controller()
        topic = await active.writer.alter_topic_configs(
            name, changes, replace_all=replace_all, validate_only=validate_only
        )
        active.recovery.look()
        return await self._known(active, topic)

    async def alter_broker_configs(
        self, broker: str, changes: Sequence[AlterConfigOp], *, replace_all: bool = False, validate_only: bool = False
    ) -> Mapping[str, str]:
        active = await self._active_controller()
        configs = await active.writer.alter_broker_configs(
            broker, changes, replace_all=replace_all, validate_only=validate_only
        )
        active.recovery.look()
        return await self._known(active, configs)

    async def alter_group_configs(
        self, group_id: str, changes: Sequence[AlterConfigOp], *, replace_all: bool = False, validate_only: bool = False
    ) -> Mapping[str, str]:
        active = await self._active_controller()
        configs = await active.writer.alter_group_configs(
            group_id, changes, replace_all=replace_all, validate_only=validate_only
        )
        return await self._known(active, configs)

    async def alter_client_metrics(
        self, name: str, changes: Sequence[AlterConfigOp], *, replace_all: bool = False, validate_only: bool = False
    ) -> Mapping[str, str]:
        active = await self._active_controller()
        configs = await active.writer.alter_client_metrics(
            name, changes, replace_all=replace_all, validate_only=validate_only
        )
        return await self._known(active, configs)

    async def change_entries(
        self, kind: EntryKind, changes: Mapping[str, DecideEntry], *, validate_only: bool = False
    ) -> Mapping[str, EntryValues]:
        active = await self._active_controller()
        entries = await active.writer.change_entries(kind, changes, validate_only=validate_only)
        return entries if validate_only else await self._known(active, entries)

    async def describe_quorum(self) -> Quorum:
        """Brokers follow the controller's feed; those that live and are not in it yet have come nowhere."""
        active = await self._active_controller()
        feed = active.feed
        replicas = {}
        for broker in active.image.brokers:
            progress = feed.progress(broker)
            replicas[broker] = QuorumReplica(-1, None, None) if progress is None else QuorumReplica(*progress)
        leader = active.image.controller_id
        replicas[leader] = QuorumReplica(feed.version, None, 0.0)
        return Quorum(leader, feed.epoch, feed.version, replicas)

    async def elect(self, name: str, index: int) -> None:
        active = await self._active_controller()
        await active.writer.elect(name, index)
        await self._known(active, None)

    async def elect_uncleanly(
        self, partitions: Sequence[tuple[str, int]], position: int | None = None
    ) -> list[CodedError | None]:
        active = await self._active_controller()
        return await self._known(active, await active.recovery.elect(partitions, position))

    async def reassign(self, name: str, index: int, target: Sequence[int] | None) -> None:
        active = await self._active_controller()
        await active.writer.reassign(name, index, target)

    async def allocate_producer_id(self) -> int:
        try:
            return await self._producer_ids.next()
        except StoreError as error:
            raise CodedError(ErrorCode.coordinator_not_available, str(error)) from error

    async def _known(self, active: ActiveController, changed: T) -> T:
        """What was changed, once every living broker has taken it up, or has had time enough to."""
        await active.feed.applied_by(list(active.image.brokers), active.feed.version, KNOWN_SECONDS)
        return changed

    async def _ask_for_topic(self, spec: TopicSpec) -> Topic:
        """As a client of the controller would; the topic once it is known here."""
        controller = self._member.controller
        if controller is None:
            raise CodedError(ErrorCode.not_controller, "there is no controller at the moment")
        try:
            answer = await self._peers.ask(controller, ApiKey.CREATE_TOPICS, CREATE_VERSION, _create_request(spec))
        except ConnectionError as error:
            raise CodedError(ErrorCode.request_timed_out, str(error)) from error
        result = answer.topics[0]
        if result.error_code not in (ErrorCode.none, ErrorCode.topic_already_exists):
            raise CodedError(result.error_code, result.error_message or "")
        return await self._appears(spec.name)

    async def _appears(self, name: str) -> Topic:
        deadline = asyncio.get_running_loop().time() + KNOWN_SECONDS
        while asyncio.get_running_loop().time() < deadline:
            topic = self._image.topic(name)
            if topic is not None:
                return topic
            await asyncio.sleep(_LOOK_SECONDS)
        raise CodedError(ErrorCode.leader_not_available, f"topic '{name}' was created and is not known here yet")


def _create_request(spec: TopicSpec) -> dict[str, Any]:
    topic = {
        "name": spec.name,
        "num_partitions": spec.partitions,
        "replication_factor": spec.replication_factor if spec.replication_factor != DEFAULT else -1,
        "assignments": [{"partition_index": p, "broker_ids": list(r)} for p, r in spec.assignments.items()],
        "configs": [{"name": name, "value": value} for name, value in spec.configs.items()],
    }
    return {"topics": [topic], "timeout": int(KNOWN_SECONDS * 1000), "validate_only": False}
