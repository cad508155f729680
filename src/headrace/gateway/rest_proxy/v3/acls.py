"""v3: ACLs, listed, made and removed."""

from collections.abc import Sequence
from enum import IntEnum
from typing import Annotated, Final, Literal, TypeVar
from urllib.parse import urlencode

from msgspec import Meta, Struct

from headrace.client.aio import admin
from headrace.protocol.acl import (
    CLUSTER_NAME,
    AclBinding,
    AclEntry,
    AclFilter,
    AclOperation,
    PatternType,
    PermissionType,
    ResourcePattern,
    ResourceType,
)
from headrace.web.messages import Answer, Request, json_answer
from headrace.web.routes import Reply, Routes

from ...credentials import Clients
from ..failures import Refusal
from ..operations import V3
from .resources import ONE, ClusterPath, Here, Listing, ResourceMetadata, here, listed

_ACLS: Final = f"{ONE}/acls"
_MOST: Final = 1000
_ResourceType = Literal["ANY", "TOPIC", "GROUP", "CLUSTER", "TRANSACTIONAL_ID", "DELEGATION_TOKEN", "USER"]
_PatternType = Literal["ANY", "MATCH", "LITERAL", "PREFIXED"]
_Operation = Literal[
    "ANY",
    "ALL",
    "READ",
    "WRITE",
    "CREATE",
    "DELETE",
    "ALTER",
    "DESCRIBE",
    "CLUSTER_ACTION",
    "DESCRIBE_CONFIGS",
    "ALTER_CONFIGS",
    "IDEMPOTENT_WRITE",
    "CREATE_TOKENS",
    "DESCRIBE_TOKENS",
    "TWO_PHASE_COMMIT",
]
_Permission = Literal["ANY", "DENY", "ALLOW"]
_Text = Annotated[str, Meta(min_length=1, max_length=1000)]
E = TypeVar("E", bound=IntEnum)


class AclQuery(Struct, frozen=True):
    """Which ACLs; what is left out is any."""

    resource_type: _ResourceType = "ANY"
    resource_name: _Text | None = None
    pattern_type: _PatternType = "ANY"
    principal: _Text | None = None
    host: _Text | None = None
    operation: _Operation = "ANY"
    permission: _Permission = "ANY"


class NewAcl(Struct, forbid_unknown_fields=True):
    """An ACL to make."""

    resource_type: Annotated[_ResourceType, Meta(examples=["TOPIC"])]
    resource_name: Annotated[_Text, Meta(examples=["orders"])]
    pattern_type: Annotated[_PatternType, Meta(examples=["LITERAL"])]
    principal: Annotated[_Text, Meta(pattern=r"^[^:]+:.+$", examples=["User:alice"])]
    host: Annotated[_Text, Meta(examples=["*"])]
    operation: Annotated[_Operation, Meta(examples=["READ"])]
    permission: Annotated[_Permission, Meta(examples=["ALLOW"])]


class NewAcls(Struct, forbid_unknown_fields=True):
    """ACLs to make together."""

    data: Annotated[list[NewAcl], Meta(min_length=1, max_length=_MOST)]


class AclData(Struct):
    """An ACL."""

    kind: Annotated[str, Meta(examples=["KafkaAcl"])]
    metadata: ResourceMetadata
    cluster_id: Annotated[str, Meta(examples=["x3OBcDZJQzqDSyTDfXMm0Q"])]
    resource_type: Annotated[str, Meta(examples=["TOPIC"])]
    resource_name: Annotated[str, Meta(examples=["orders"])]
    pattern_type: Annotated[str, Meta(examples=["LITERAL"])]
    principal: Annotated[str, Meta(examples=["User:alice"])]
    host: Annotated[str, Meta(examples=["*"])]
    operation: Annotated[str, Meta(examples=["READ"])]
    permission: Annotated[str, Meta(examples=["ALLOW"])]


class DeletedAcls(Struct):
    """ACLs that are gone."""

    data: list[AclData]


class AclResources:
    """Tells of ACLs, makes and removes them."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients

    def add_to(self, routes: Routes) -> None:
        """All operations."""
        made = {201: Reply("They are there.", None, V3.answer_types, example={})}
        V3.add(
            routes, "GET", _ACLS, "List ACLs.", self._acls, path=ClusterPath, query=AclQuery,
            answers=V3.answered("ACLs.", Listing[AclData]),
        )  # fmt: skip
        V3.add(
            routes, "POST", _ACLS, "Make an ACL.", self._create_acl, path=ClusterPath, kind=NewAcl,
            answers={201: Reply("It is there.", media=V3.answer_types, headers={"Location": "Where it is."})},
        )  # fmt: skip
        V3.add(
            routes, "POST", f"{_ACLS}:batch", "Make ACLs.", self._create_acls, path=ClusterPath, kind=NewAcls,
            answers=made,
        )  # fmt: skip
        V3.add(
            routes, "DELETE", _ACLS, "Remove ACLs.", self._delete_acls, path=ClusterPath, query=AclQuery,
            about="At least the kind of resource must be named.",
            answers=V3.answered("Those that are gone.", DeletedAcls),
        )  # fmt: skip

    async def _acls(self, request: Request, path: ClusterPath, query: AclQuery) -> Answer:
        place = await here(self._clients, request, path.cluster_id)
        found = await admin.acls(place.client.cluster, _filter(query))
        return listed("KafkaAcl", f"{place.resource.url}/acls", [_data(place, rule) for rule in found])

    async def _create_acl(self, request: Request, path: ClusterPath, body: NewAcl) -> Answer:
        place = await self._create(request, path, [body])
        return Answer(
            201, headers=((b"location", _data(place, _binding(body)).metadata.self_.encode("ascii", "replace")),)
        )

    async def _create_acls(self, request: Request, path: ClusterPath, body: NewAcls) -> Answer:
        await self._create(request, path, body.data)
        return Answer(201)

    async def _create(self, request: Request, path: ClusterPath, asked: Sequence[NewAcl]) -> Here:
        rules = [_binding(each) for each in asked]
        place = await here(self._clients, request, path.cluster_id)
        await admin.create_acls(place.client.cluster, rules)
        return place

    async def _delete_acls(self, request: Request, path: ClusterPath, query: AclQuery) -> Answer:
        if query == AclQuery():
            raise Refusal(400, 400, "resource_type cannot be unspecified or UNKNOWN")
        place = await here(self._clients, request, path.cluster_id)
        gone = await admin.delete_acls(place.client.cluster, _filter(query))
        return json_answer(DeletedAcls([_data(place, rule) for rule in gone]))


def _filter(query: AclQuery) -> AclFilter:
    return AclFilter(
        type=ResourceType[query.resource_type],
        pattern=PatternType[query.pattern_type],
        name=query.resource_name,
        principal=query.principal,
        host=query.host,
        operation=AclOperation[query.operation],
        permission=PermissionType[query.permission],
    )


def _binding(asked: NewAcl) -> AclBinding:
    kind = _definite(ResourceType[asked.resource_type], "resource_type", ResourceType.ANY)
    if kind is ResourceType.CLUSTER and asked.resource_name != CLUSTER_NAME:
        raise Refusal(400, 40002, f"The only valid name for the CLUSTER resource is {CLUSTER_NAME}")
    pattern = _definite(PatternType[asked.pattern_type], "pattern_type", PatternType.ANY, PatternType.MATCH)
    return AclBinding(
        resource=ResourcePattern(type=kind, name=asked.resource_name, pattern=pattern),
        entry=AclEntry(
            principal=asked.principal,
            host=asked.host,
            operation=_definite(AclOperation[asked.operation], "operation", AclOperation.ANY),
            permission=_definite(PermissionType[asked.permission], "permission", PermissionType.ANY),
        ),
    )


def _definite(value: E, name: str, *indefinite: E) -> E:
    if value in indefinite:
        raise Refusal(400, 400, f"{name} cannot be {value.name} in an ACL")
    return value


def _data(place: Here, rule: AclBinding) -> AclData:
    words = {
        "resource_type": rule.resource.type.name,
        "resource_name": rule.resource.name,
        "pattern_type": rule.resource.pattern.name,
        "principal": rule.entry.principal,
        "host": rule.entry.host,
        "operation": rule.entry.operation.name,
        "permission": rule.entry.permission.name,
    }
    metadata = ResourceMetadata(
        f"{place.resource.url}/acls?{urlencode(words)}", f"{place.resource.name}/acl={words['principal']}"
    )
    return AclData(kind="KafkaAcl", metadata=metadata, cluster_id=place.cluster_id, **words)
