"""Subjects and their versions, and tests of what would be compatible."""

from typing import Any
from urllib.parse import parse_qsl, unquote

from headrace.schema_log.state import RegistryState, Version
from headrace.web.messages import Answer, Request
from headrace.web.routes import Query
from headrace.web.shapes import Text

from .. import answers, decisions, errors
from ..errors import RegistryError
from .common import (
    DELETED,
    FORM,
    MEDIA,
    NO,
    PAGE,
    SCHEMA_BODY,
    Handlers,
    Row,
    answered,
    has_prefix,
    is_wanted,
    number_of,
    page,
    read_body,
    subject_of,
)


class Subjects(Handlers):
    """Subjects and their versions, and tests of what would be compatible."""

    def table(self) -> list[Row]:
        versions, version = "/subjects/{subject}/versions", "/subjects/{subject}/versions/{version}"
        listing = {**PAGE, **DELETED, "deletedOnly": NO}
        prefix = {"subjectPrefix": Query(Text(most=1000), ":*:")}
        normalize = {"normalize": NO}
        one = {**DELETED, **FORM, "referenceFormat": Query(Text(most=100), "")}
        permanent = {"permanent": NO}
        return [
            ("GET", "/subjects", "List subjects.", self.list_subjects, {**listing, **prefix}, None),
            ("POST", "/subjects/{subject}", "Find the version that is a schema.", self.look_up,
             {**normalize, **DELETED, **FORM}, SCHEMA_BODY),
            ("DELETE", "/subjects/{subject}", "Delete a subject.", self.delete_subject, permanent, None),
            ("GET", "/subjects/{subject}/metadata", "The latest version with some metadata.",
             self.get_with_metadata, {**DELETED, **FORM}, None),
            ("GET", versions, "List a subject's versions.", self.list_versions,
             {**listing, "deletedAsNegative": NO}, None),
            ("POST", versions, "Register a schema.", self.register, normalize, SCHEMA_BODY),
            ("GET", version, "A version of a subject.", self.get_version, one, None),
            ("DELETE", version, "Delete a version.", self.delete_version, permanent, None),
            ("GET", f"{version}/schema", "A version's schema alone.", self.get_version_text, one, None),
            ("GET", f"{version}/referencedby", "Ids of schemas that refer to a version.", self.referenced_by,
             {**PAGE, **DELETED}, None),
            ("POST", f"/compatibility{version}", "Test a schema against a version.", self.test_version,
             {**normalize, "verbose": NO}, SCHEMA_BODY),
            ("POST", f"/compatibility{versions}", "Test a schema against a subject.", self.test_subject,
             {**normalize, "verbose": NO}, SCHEMA_BODY),
        ]  # fmt: skip

    async def list_subjects(self, request: Request) -> Answer:
        prefix, query = request.query["subjectPrefix"], request.query

        def listed(state: RegistryState) -> list[str]:
            found = sorted(s for s in state.subjects if has_prefix(s, prefix) and is_wanted(state, s, query))
            return page(found, query)

        return answered(await self.registry.read(listed))

    async def look_up(self, request: Request) -> Answer:
        subject, posted = subject_of(request), decisions.posted_of(await read_body(request))
        query = request.query

        def found(state: RegistryState) -> Version:
            return decisions.look_up(
                state, self.registry.parser, subject, posted, normalize=query["normalize"], deleted=query["deleted"]
            )

        return self.version(await self.registry.read(found), query["format"])

    async def delete_subject(self, request: Request) -> Answer:
        subject, permanent = subject_of(request), request.query["permanent"]
        gone, _ = await self.registry.change(
            subject, lambda state: decisions.delete_subject(state, subject, permanent=permanent)
        )
        return answered(gone)

    async def get_with_metadata(self, request: Request) -> Answer:
        subject, query = subject_of(request), request.query
        pairs = parse_qsl(request.scope["query_string"].decode("latin-1"))
        names = [value for name, value in pairs if name == "key"]
        values = [value for name, value in pairs if name == "value"]
        wanted = {unquote(name): unquote(value) for name, value in zip(names, values, strict=False)}

        def found(state: RegistryState) -> Version:
            versions = state.versions(subject, deleted=query["deleted"])
            if not versions:
                raise errors.subject_not_found(subject)
            for entry in reversed(versions):
                properties = (entry.schema.metadata or {}).get("properties") or {}
                if wanted.items() <= properties.items():
                    return entry
            raise errors.schema_not_found()

        return self.version(await self.registry.read(found), query["format"])

    async def list_versions(self, request: Request) -> Answer:
        subject, query = subject_of(request), request.query

        def listed(state: RegistryState) -> list[int]:
            with_deleted = query["deleted"] or query["deletedOnly"]
            if not state.versions(subject, deleted=with_deleted):
                raise errors.subject_not_found(subject)
            if query["deletedAsNegative"]:
                entries = state.versions(subject, deleted=True)
                return page([-e.version if e.deleted else e.version for e in entries], query)
            entries = [
                e for e in state.versions(subject, deleted=with_deleted) if e.deleted or not query["deletedOnly"]
            ]
            return page([e.version for e in entries], query)

        return answered(await self.registry.read(listed))

    async def register(self, request: Request) -> Answer:
        subject, posted = subject_of(request), decisions.posted_of(await read_body(request))
        entry = await self.registered(subject, posted, normalize=request.query["normalize"])
        return answered(answers.registered(entry))

    async def get_version(self, request: Request) -> Answer:
        entry = await self._find(request)
        answer = answers.version(entry, self.text(entry, request.query["format"]))
        if request.query["referenceFormat"] == "qualified" and entry.schema.references:
            answer["references"] = answers.qualified(entry)
        return answered(answer)

    async def get_version_text(self, request: Request) -> Answer:
        entry = await self._find(request)
        return Answer(200, self.text(entry, request.query["format"]).encode("utf-8", "replace"), MEDIA)

    async def delete_version(self, request: Request) -> Answer:
        subject, number, permanent = subject_of(request), number_of(request), request.query["permanent"]
        gone, _ = await self.registry.change(
            subject, lambda state: decisions.delete_version(state, subject, number, permanent=permanent)
        )
        return answered(gone)

    async def referenced_by(self, request: Request) -> Answer:
        subject, number, query = subject_of(request), number_of(request), request.query

        def listed(state: RegistryState) -> list[int]:
            entry = decisions.find_version(state, subject, number, deleted=True)
            return page(answers.referrers(state, entry, deleted=query["deleted"]), query)

        return answered(await self.registry.read(listed))

    async def test_version(self, request: Request) -> Answer:
        return await self._test(request, number_of(request))

    async def test_subject(self, request: Request) -> Answer:
        return await self._test(request, None)

    async def _test(self, request: Request, number: int | None) -> Answer:
        subject, posted = subject_of(request), decisions.posted_of(await read_body(request))
        query = request.query
        try:
            reasons = await self.registry.read(
                lambda state: decisions.test(
                    state, self.registry.parser, subject, posted, number, normalize=query["normalize"]
                )
            )
        except RegistryError as error:
            if error.code != 42201 or not query["verbose"]:
                raise
            reasons = [error.message]
        answer: dict[str, Any] = {"is_compatible": not reasons}
        return answered(answer | {"messages": reasons} if query["verbose"] else answer)

    async def _find(self, request: Request) -> Version:
        subject, number, deleted = subject_of(request), number_of(request), request.query["deleted"]
        return await self.registry.read(lambda state: decisions.find_version(state, subject, number, deleted=deleted))
