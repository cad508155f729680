"""Which subjects belong to which resources."""

from typing import Annotated
from urllib.parse import parse_qsl

import msgspec
from msgspec import Meta, Struct, field

from headrace.schema_log.names import normalized
from headrace.schema_log.records import Json
from headrace.schema_log.state import RegistryState
from headrace.web.endpoints import path_values
from headrace.web.messages import Answer, Request

from .. import associations
from .bodies import SchemaBody, posted_of, read_body
from .common import Flag, Handlers, Name, Paging, Row, answered, page
from .rights import Action, require


class AssociationsOf(Paging, frozen=True):
    """Which associations of a resource."""

    resource_type: Name = field(default="", name="resourceType")
    association_type: Name = field(default="", name="associationType")


class Dissociation(Struct, frozen=True):
    """Which associations to forget."""

    resource_type: Name = field(default="", name="resourceType")
    association_type: Name = field(default="", name="associationType")
    cascade: Flag = field(default="false", name="cascadeLifecycle")


class AssociationBody(Struct, rename="camel", omit_defaults=True):
    """A subject that belongs to a resource."""

    subject: Annotated[str | None, Meta(examples=["orders-value"])] = None
    association_type: Annotated[str | None, Meta(examples=["value"])] = None
    lifecycle: Annotated[str | None, Meta(examples=["WEAK"])] = None
    frozen: Annotated[bool | None, Meta(examples=[False])] = None
    normalize: Annotated[bool | None, Meta(examples=[False])] = None
    schema: SchemaBody | None = None


class AssociationsBody(Struct, rename="camel", omit_defaults=True):
    """A resource and what belongs to it."""

    resource_name: Annotated[str | None, Meta(examples=["orders"])] = None
    resource_namespace: Annotated[str | None, Meta(examples=["lkc-1"])] = None
    resource_id: Annotated[str | None, Meta(examples=["lkc-1:orders"])] = None
    resource_type: Annotated[str | None, Meta(examples=["topic"])] = None
    associations: list[AssociationBody] | None = None


class Associations(Handlers):
    """Which subjects belong to which resources."""

    def table(self) -> list[Row]:
        named, by_id = "/associations/resources/{namespace}/{name}", "/associations/resources/{id}"
        return [
            (
                "POST",
                "/associations",
                "Say which subjects belong to a resource.",
                self.create_associations,
                None,
                AssociationsBody,
            ),
            ("GET", named, "Subjects of a resource.", self.list_associations, AssociationsOf, None),
            (
                "DELETE",
                by_id,
                "Forget which subjects belong to a resource.",
                self.delete_associations,
                Dissociation,
                None,
            ),
        ]

    async def create_associations(self, request: Request) -> Answer:
        body = await read_body(request, AssociationsBody)
        resource, links = associations.requested(msgspec.to_builtins(body))
        subjects = [normalized(link["subject"]) for link in links]
        await require(self.rights, request, Action.WRITE, subjects)
        for wanted in body.associations or ():
            if wanted.schema is not None:
                subject, posted = normalized(wanted.subject or ""), posted_of(wanted.schema)
                await self.require_references(request, subject, posted)
                await self.registry.registered(subject, posted, normalize=bool(wanted.normalize))
        await self.registry.change(
            f"resource {resource}", lambda state: (None, associations.associate(state, resource, links))
        )
        shown = [{n: link[n] for n in ("subject", "associationType", "lifecycle", "frozen")} for link in links]
        about = {n: links[0][n] for n in ("resourceName", "resourceNamespace", "resourceId", "resourceType")}
        return answered({**about, "associations": shown})

    async def list_associations(self, request: Request, query: AssociationsOf) -> Answer:
        values = path_values(request.scope)
        namespace, name = values["namespace"], values["name"]
        kinds = _kinds(request)

        async def listed(state: RegistryState) -> list[Json]:
            found = associations.found(state, namespace, name, query.resource_type, kinds)
            readable = set(await self.readable(request, {normalized(link["subject"]) for link in found}))
            return page([link for link in found if normalized(link["subject"]) in readable], query)

        return answered(await self.registry.read(listed))

    async def delete_associations(self, request: Request, query: Dissociation) -> Answer:
        resource, kinds = path_values(request.scope)["id"], _kinds(request)
        await self.registry.change(
            f"resource {resource}", lambda state: (None, associations.dissociate(state, resource, kinds))
        )
        return Answer(204)


def _kinds(request: Request) -> list[str]:
    """The parameter may come several times."""
    pairs = parse_qsl(request.scope["query_string"].decode("latin-1"))
    return [value for name, value in pairs if name == "associationType"]
