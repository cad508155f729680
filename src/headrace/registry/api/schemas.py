"""Schemas by id, contexts, and what server this is."""

from collections.abc import Awaitable, Callable
from typing import Any

from msgspec import field

from headrace import __version__
from headrace.schema_log.names import DEFAULT_CONTEXT, context_of, normalized, split
from headrace.schema_log.state import RegistryState, Version
from headrace.web.endpoints import path_values
from headrace.web.messages import Answer, Request

from .. import answers, errors
from ..contracts import has_rule_type
from ..decisions import aliased
from ..parsing import TYPES, guid
from ..service import Registry
from .common import (
    Flag,
    Form,
    Handlers,
    Name,
    Paging,
    Row,
    answered,
    by_id,
    has_prefix,
    id_of,
    is_set,
    page,
)
from .media import MEDIA
from .rights import Rights


class Listing(Paging, frozen=True):
    """Which schemas to list."""

    deleted: Flag = "false"
    latest_only: Flag = field(default="false", name="latestOnly")
    subject_prefix: Name = field(default="", name="subjectPrefix")
    rule_type: Name = field(default="", name="ruleType")
    aliases: Flag = "false"


class SchemaById(Form, frozen=True):
    """How to show a schema, and of which subject."""

    subject: Name = ""
    reference_format: Name = field(default="", name="referenceFormat")
    fetch_max_id: Flag = field(default="false", name="fetchMaxId")


class Using(Paging, frozen=True):
    """Which uses of a schema to list."""

    deleted: Flag = "false"
    subject: Name = ""


class ContextsQuery(Paging, frozen=True):
    """Which contexts to list."""

    context_prefix: Name = field(default="", name="contextPrefix")


class Schemas(Handlers):
    """Schemas by id, contexts, and what server this is."""

    def __init__(
        self,
        registry: Registry,
        rights: Rights | None = None,
        cluster_id: Callable[[], Awaitable[str]] | None = None,
    ) -> None:
        super().__init__(registry, rights)
        self._cluster_id = cluster_id

    def table(self) -> list[Row]:
        by_id = "/schemas/ids/{id}"
        return [
            ("GET", "/schemas", "List versions of all subjects.", self.list_schemas, Listing, None),
            ("GET", "/schemas/types", "The types of schema that are served.", self.list_types, None, None),
            ("GET", by_id, "A schema by its id.", self.get_schema, SchemaById, None),
            ("GET", f"{by_id}/schema", "A schema's text by its id.", self.get_schema_text, SchemaById, None),
            ("GET", f"{by_id}/subjects", "Subjects that have a schema.", self.subjects_of_id, Using, None),
            ("GET", f"{by_id}/versions", "Versions that are a schema.", self.versions_of_id, Using, None),
            ("GET", "/schemas/guids/{guid}", "A schema by its GUID.", self.get_by_guid, Form, None),
            ("GET", "/schemas/guids/{guid}/ids", "Contexts and ids of a GUID.", self.ids_of_guid, None, None),
            ("GET", "/contexts", "List contexts.", self.list_contexts, ContextsQuery, None),
            ("GET", "/v1/metadata/id", "Which cluster this registry belongs to.", self.get_cluster, None, None),
            ("GET", "/v1/metadata/version", "The version of this server.", self.get_server_version, None, None),
        ]

    async def list_schemas(self, request: Request, query: Listing) -> Answer:
        async def listed(state: RegistryState) -> list[dict[str, Any]]:
            found: list[Version] = []
            named = answers.aliases(state, query.subject_prefix) if is_set(query.aliases) else {}
            subjects = [s for s in sorted(state.subjects) if s in named or has_prefix(s, query.subject_prefix)]
            for subject in await self.readable(request, subjects):
                entries = state.versions(subject, deleted=is_set(query.deleted))
                found += entries[-1:] if is_set(query.latest_only) else entries
            if query.rule_type:
                found = [entry for entry in found if has_rule_type(entry.schema.rule_set, query.rule_type)]
            return [
                answers.version(entry) | ({"aliases": named[entry.subject]} if entry.subject in named else {})
                for entry in page(found, query)
            ]

        return answered(await self.registry.read(listed))

    async def list_types(self, request: Request) -> Answer:
        return answered(list(TYPES))

    async def get_schema(self, request: Request, query: SchemaById) -> Answer:
        schema_id, subject = id_of(request), await self._named(query.subject)

        async def found(state: RegistryState) -> dict[str, Any]:
            entry = by_id(state, schema_id, subject)
            max_id = state.context(context_of(entry.subject)).next_id - 1
            await self._require_use(request, state, entry, is_named=bool(subject))
            answer = answers.described(entry.schema, await self.registry.text(entry, query.format))
            answer["guid"] = guid(entry.schema)
            if query.reference_format == "qualified" and entry.schema.references:
                answer["references"] = answers.qualified(entry)
            if query.subject:
                answer |= {"subject": entry.subject, "version": entry.version}
            return answer | {"maxId": max_id} if is_set(query.fetch_max_id) else answer

        return answered(await self.registry.read(found))

    async def _require_use(self, request: Request, state: RegistryState, entry: Version, *, is_named: bool) -> None:
        """RegistryError 403 unless the caller may read a subject that has a schema, or the one that it names."""
        if self.rights is not None:
            uses = answers.uses(state, context_of(entry.subject), entry.id, deleted=True)
            subjects = {entry.subject} if is_named else {use.subject for use in uses}
            await self.require_one(request, subjects, entry.id)

    async def _named(self, subject: str) -> str:
        """The subject that a parameter names, or the one that it is another name of."""
        await self.registry.loaded()
        return aliased(self.registry.state, normalized(subject)) if subject else ""

    async def get_schema_text(self, request: Request, query: SchemaById) -> Answer:
        schema_id, subject = id_of(request), await self._named(query.subject)
        entry = await self.registry.read(lambda state: by_id(state, schema_id, subject))
        await self._require_use(request, self.registry.state, entry, is_named=bool(subject))
        return Answer(200, (await self.registry.text(entry, query.format)).encode("utf-8", "replace"), MEDIA)

    async def subjects_of_id(self, request: Request, query: Using) -> Answer:
        entries = await self._uses(request, query)
        return answered(page(list(dict.fromkeys(entry.subject for entry in entries)), query))

    async def versions_of_id(self, request: Request, query: Using) -> Answer:
        entries = await self._uses(request, query)
        places = [{"subject": entry.subject, "version": entry.version} for entry in entries]
        return answered(page(places, query))

    async def _uses(self, request: Request, query: Using) -> list[Version]:
        schema_id, subject = id_of(request), await self._named(query.subject)

        async def found(state: RegistryState) -> list[Version]:
            entry = by_id(state, schema_id, subject)
            entries = answers.uses(state, context_of(entry.subject), schema_id, deleted=is_set(query.deleted))
            readable = set(await self.readable(request, {use.subject for use in entries}))
            name = split(subject)[1]
            return [e for e in entries if e.subject in readable and (not name or split(e.subject)[1] == name)]

        return await self.registry.read(found)

    async def get_by_guid(self, request: Request, query: Form) -> Answer:
        wanted, form = path_values(request.scope)["guid"], query.format

        def found(state: RegistryState) -> Version:
            for name, context in state.contexts.items():
                for schema_id, schema in context.by_id.items():
                    if guid(schema) == wanted:
                        return answers.uses(state, name, schema_id, deleted=True)[0]
            raise errors.schema_not_found(wanted)

        entry = await self.registry.read(found)
        await self._require_use(request, self.registry.state, entry, is_named=False)
        return answered(answers.described(entry.schema, await self.registry.text(entry, form)) | {"guid": wanted})

    async def ids_of_guid(self, request: Request) -> Answer:
        wanted = path_values(request.scope)["guid"]

        def found(state: RegistryState) -> list[dict[str, Any]]:
            return [
                {"context": name, "id": schema_id}
                for name, context in state.contexts.items()
                for schema_id, schema in context.by_id.items()
                if guid(schema) == wanted
            ]

        return answered(await self.registry.read(found))

    async def list_contexts(self, request: Request, query: ContextsQuery) -> Answer:
        def found(state: RegistryState) -> list[str]:
            names = {DEFAULT_CONTEXT, *state.contexts}
            return page(sorted(n for n in names if n.startswith(query.context_prefix)), query)

        return answered(await self.registry.read(found))

    async def get_cluster(self, request: Request) -> Answer:
        cluster = await self._cluster_id() if self._cluster_id else ""
        scope = {"path": [], "clusters": {"kafka-cluster": cluster, "schema-registry-cluster": "headrace"}}
        return answered({"id": "", "scope": scope})

    async def get_server_version(self, request: Request) -> Answer:
        return answered({"version": __version__, "commitId": ""})
