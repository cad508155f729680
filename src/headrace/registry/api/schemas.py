"""Schemas by id, contexts, and what server this is."""

from collections.abc import Awaitable, Callable
from typing import Any

from headrace import __version__
from headrace.schema_log.names import DEFAULT_CONTEXT, context_of, split
from headrace.schema_log.state import RegistryState, Version
from headrace.web.messages import Answer, Request
from headrace.web.routes import Query
from headrace.web.shapes import Text

from .. import answers, errors
from ..parsing import guid
from ..service import Registry
from .common import ANY_SUBJECT, DELETED, FORM, MEDIA, NO, PAGE, Handlers, Row, answered, by_id, has_prefix, id_of, page


class Schemas(Handlers):
    """Schemas by id, contexts, and what server this is."""

    def __init__(self, registry: Registry, cluster_id: Callable[[], Awaitable[str]] | None = None) -> None:
        super().__init__(registry)
        self._cluster_id = cluster_id

    def table(self) -> list[Row]:
        by_id = "/schemas/ids/{id}"
        listing = {**PAGE, **DELETED, "latestOnly": NO, "subjectPrefix": Query(Text(most=1000), "")}
        using = {**PAGE, **DELETED, **ANY_SUBJECT}
        return [
            ("GET", "/schemas", "List versions of all subjects.", self.list_schemas, listing, None),
            ("GET", "/schemas/types", "The types of schema that are served.", self.list_types, {}, None),
            ("GET", by_id, "A schema by its id.", self.get_schema,
             {**FORM, **ANY_SUBJECT, "fetchMaxId": NO}, None),
            ("GET", f"{by_id}/schema", "A schema's text by its id.", self.get_schema_text,
             {**FORM, **ANY_SUBJECT}, None),
            ("GET", f"{by_id}/subjects", "Subjects that have a schema.", self.subjects_of_id, using, None),
            ("GET", f"{by_id}/versions", "Versions that are a schema.", self.versions_of_id, using, None),
            ("GET", "/schemas/guids/{guid}", "A schema by its GUID.", self.get_by_guid, FORM, None),
            ("GET", "/schemas/guids/{guid}/ids", "Contexts and ids of a GUID.", self.ids_of_guid, {}, None),
            ("GET", "/contexts", "List contexts.", self.list_contexts,
             {**PAGE, "contextPrefix": Query(Text(most=1000), "")}, None),
            ("GET", "/v1/metadata/id", "Which cluster this registry belongs to.", self.get_cluster, {}, None),
            ("GET", "/v1/metadata/version", "The version of this server.", self.get_server_version, {}, None),
        ]  # fmt: skip

    async def list_schemas(self, request: Request) -> Answer:
        query = request.query

        def listed(state: RegistryState) -> list[dict[str, Any]]:
            found: list[Version] = []
            for subject in sorted(state.subjects):
                if has_prefix(subject, query["subjectPrefix"]):
                    entries = state.versions(subject, deleted=query["deleted"])
                    found += entries[-1:] if query["latestOnly"] else entries
            return [answers.version(entry) for entry in page(found, query)]

        return answered(await self.registry.read(listed))

    async def list_types(self, request: Request) -> Answer:  # noqa: ARG002 - as every handler
        return answered(list(self.registry.parser.types))

    async def get_schema(self, request: Request) -> Answer:
        schema_id, query = id_of(request), request.query

        def found(state: RegistryState) -> dict[str, Any]:
            entry = by_id(state, schema_id, query["subject"])
            answer = answers.described(entry.schema, self.text(entry, query["format"]))
            answer["guid"] = guid(entry.schema)
            if query["subject"]:
                answer |= {"subject": entry.subject, "version": entry.version}
            if query["fetchMaxId"]:
                answer["maxId"] = state.context(context_of(entry.subject)).next_id - 1
            return answer

        return answered(await self.registry.read(found))

    async def get_schema_text(self, request: Request) -> Answer:
        schema_id, query = id_of(request), request.query
        entry = await self.registry.read(lambda state: by_id(state, schema_id, query["subject"]))
        return Answer(200, self.text(entry, query["format"]).encode("utf-8", "replace"), MEDIA)

    async def subjects_of_id(self, request: Request) -> Answer:
        entries = await self._uses(request)
        return answered(page(list(dict.fromkeys(entry.subject for entry in entries)), request.query))

    async def versions_of_id(self, request: Request) -> Answer:
        entries = await self._uses(request)
        places = [{"subject": entry.subject, "version": entry.version} for entry in entries]
        return answered(page(places, request.query))

    async def _uses(self, request: Request) -> list[Version]:
        schema_id, query = id_of(request), request.query

        def found(state: RegistryState) -> list[Version]:
            entry = by_id(state, schema_id, query["subject"])
            entries = answers.uses(state, context_of(entry.subject), schema_id, deleted=query["deleted"])
            name = split(query["subject"])[1]
            return [e for e in entries if not name or split(e.subject)[1] == name]

        return await self.registry.read(found)

    async def get_by_guid(self, request: Request) -> Answer:
        wanted, form = request.params["guid"], request.query["format"]

        def found(state: RegistryState) -> Version:
            for name, context in state.contexts.items():
                for schema_id, schema in context.by_id.items():
                    if guid(schema) == wanted:
                        return answers.uses(state, name, schema_id, deleted=True)[0]
            raise errors.schema_not_found(wanted)

        entry = await self.registry.read(found)
        return answered(answers.described(entry.schema, self.text(entry, form)) | {"guid": wanted})

    async def ids_of_guid(self, request: Request) -> Answer:
        wanted = request.params["guid"]

        def found(state: RegistryState) -> list[dict[str, Any]]:
            return [
                {"context": name, "id": schema_id}
                for name, context in state.contexts.items()
                for schema_id, schema in context.by_id.items()
                if guid(schema) == wanted
            ]

        return answered(await self.registry.read(found))

    async def list_contexts(self, request: Request) -> Answer:
        query = request.query

        def found(state: RegistryState) -> list[str]:
            names = {DEFAULT_CONTEXT, *state.contexts}
            return page(sorted(n for n in names if n.startswith(query["contextPrefix"])), query)

        return answered(await self.registry.read(found))

    async def get_cluster(self, request: Request) -> Answer:  # noqa: ARG002 - as every handler
        cluster = await self._cluster_id() if self._cluster_id else ""
        scope = {"path": [], "clusters": {"kafka-cluster": cluster, "schema-registry-cluster": "headrace"}}
        return answered({"id": "", "scope": scope})

    async def get_server_version(self, request: Request) -> Answer:  # noqa: ARG002 - as every handler
        return answered({"version": __version__, "commitId": ""})
