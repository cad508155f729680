"""Subjects and their versions, and tests of what would be compatible."""

from typing import Any
from urllib.parse import parse_qsl, unquote

from msgspec import Struct, field

from headrace.schema_log.state import RegistryState, Version
from headrace.web.messages import Answer, Request

from .. import answers, decisions, errors
from ..errors import RegistryError
from ..parsing import Posted
from .bodies import SchemaBody, posted_of, read_body
from .common import (
    Flag,
    Form,
    Handlers,
    Name,
    Paging,
    Permanent,
    Row,
    answered,
    has_prefix,
    is_set,
    is_wanted,
    number_of,
    page,
)
from .media import MEDIA


class SubjectsQuery(Paging, frozen=True):
    """Which subjects to list."""

    deleted: Flag = "false"
    deleted_only: Flag = field(default="false", name="deletedOnly")
    subject_prefix: Name = field(default=":*:", name="subjectPrefix")


class VersionsQuery(Paging, frozen=True):
    """Which versions to list."""

    deleted: Flag = "false"
    deleted_only: Flag = field(default="false", name="deletedOnly")
    deleted_as_negative: Flag = field(default="false", name="deletedAsNegative")


class ReferrersQuery(Paging, frozen=True):
    """Which referrers to list."""

    deleted: Flag = "false"


class Normalize(Struct, frozen=True):
    """Whether to bring a schema into its usual form first."""

    normalize: Flag = "false"


class LookUp(Normalize, frozen=True):
    """How to find a schema."""

    deleted: Flag = "false"
    format: Name = ""


class Comparison(Normalize, frozen=True):
    """How to test a schema."""

    verbose: Flag = "false"


class Shown(Form, frozen=True):
    """How to show a version."""

    deleted: Flag = "false"
    reference_format: Name = field(default="", name="referenceFormat")


class Subjects(Handlers):
    """Subjects and their versions, and tests of what would be compatible."""

    def table(self) -> list[Row]:
        versions, version = "/subjects/{subject}/versions", "/subjects/{subject}/versions/{version}"
        return [
            ("GET", "/subjects", "List subjects.", self.list_subjects, SubjectsQuery, None),
            ("POST", "/subjects/{subject}", "Find the version that is a schema.", self.look_up, LookUp, SchemaBody),
            ("DELETE", "/subjects/{subject}", "Delete a subject.", self.delete_subject, Permanent, None),
            (
                "GET",
                "/subjects/{subject}/metadata",
                "The latest version with some metadata.",
                self.get_with_metadata,
                Shown,
                None,
            ),
            ("GET", versions, "List a subject's versions.", self.list_versions, VersionsQuery, None),
            ("POST", versions, "Register a schema.", self.register, Normalize, SchemaBody),
            ("GET", version, "A version of a subject.", self.get_version, Shown, None),
            ("DELETE", version, "Delete a version.", self.delete_version, Permanent, None),
            ("GET", f"{version}/schema", "A version's schema alone.", self.get_version_text, Shown, None),
            (
                "GET",
                f"{version}/referencedby",
                "Ids of schemas that refer to a version.",
                self.referenced_by,
                ReferrersQuery,
                None,
            ),
            (
                "POST",
                f"/compatibility{version}",
                "Test a schema against a version.",
                self.test_version,
                Comparison,
                SchemaBody,
            ),
            (
                "POST",
                f"/compatibility{versions}",
                "Test a schema against a subject.",
                self.test_subject,
                Comparison,
                SchemaBody,
            ),
        ]

    async def list_subjects(self, request: Request, query: SubjectsQuery) -> Answer:
        prefix = query.subject_prefix

        async def listed(state: RegistryState) -> list[str]:
            found = sorted(s for s in state.subjects if has_prefix(s, prefix) and is_wanted(state, s, query))
            return page(list(await self.readable(request, found)), query)

        return answered(await self.registry.read(listed))

    async def look_up(self, request: Request, query: LookUp) -> Answer:
        subject, posted = await self._posted(request)

        async def found(state: RegistryState) -> Version:
            return await decisions.look_up(
                state,
                self.registry.judge,
                subject,
                posted,
                normalize=is_set(query.normalize),
                deleted=is_set(query.deleted),
            )

        return await self.version(await self.registry.read(found), query.format)

    async def delete_subject(self, request: Request, query: Permanent) -> Answer:
        subject, permanent = await self.subject(request), is_set(query.permanent)
        gone, _ = await self.registry.change(
            subject, lambda state: decisions.delete_subject(state, subject, permanent=permanent)
        )
        return answered(gone)

    async def get_with_metadata(self, request: Request, query: Shown) -> Answer:
        subject = await self.subject(request)
        pairs = parse_qsl(request.scope["query_string"].decode("latin-1"))
        names = [value for name, value in pairs if name == "key"]
        values = [value for name, value in pairs if name == "value"]
        wanted = {unquote(name): unquote(value) for name, value in zip(names, values, strict=False)}

        def found(state: RegistryState) -> Version:
            versions = state.versions(subject, deleted=is_set(query.deleted))
            if not versions:
                raise errors.subject_not_found(subject)
            for entry in reversed(versions):
                properties = (entry.schema.metadata or {}).get("properties") or {}
                if wanted.items() <= properties.items():
                    return entry
            raise errors.schema_not_found()

        return await self.version(await self.registry.read(found), query.format)

    async def list_versions(self, request: Request, query: VersionsQuery) -> Answer:
        subject = await self.subject(request)

        def listed(state: RegistryState) -> list[int]:
            with_deleted = is_set(query.deleted) or is_set(query.deleted_only)
            if not state.versions(subject, deleted=with_deleted):
                raise errors.subject_not_found(subject)
            if is_set(query.deleted_as_negative):
                entries = state.versions(subject, deleted=True)
                return page([-e.version if e.deleted else e.version for e in entries], query)
            entries = [
                e for e in state.versions(subject, deleted=with_deleted) if e.deleted or not is_set(query.deleted_only)
            ]
            return page([e.version for e in entries], query)

        return answered(await self.registry.read(listed))

    async def register(self, request: Request, query: Normalize) -> Answer:
        subject, posted = await self._posted(request)
        entry = await self.registry.registered(subject, posted, normalize=is_set(query.normalize))
        return answered(answers.registered(entry))

    async def get_version(self, request: Request, query: Shown) -> Answer:
        entry = await self._find(request, query)
        answer = answers.version(entry, await self.registry.text(entry, query.format))
        if query.reference_format == "qualified" and entry.schema.references:
            answer["references"] = answers.qualified(entry)
        return answered(answer)

    async def get_version_text(self, request: Request, query: Shown) -> Answer:
        entry = await self._find(request, query)
        return Answer(200, (await self.registry.text(entry, query.format)).encode("utf-8", "replace"), MEDIA)

    async def delete_version(self, request: Request, query: Permanent) -> Answer:
        subject, number, permanent = await self.subject(request), number_of(request), is_set(query.permanent)
        gone, _ = await self.registry.change(
            subject, lambda state: decisions.delete_version(state, subject, number, permanent=permanent)
        )
        return answered(gone)

    async def referenced_by(self, request: Request, query: ReferrersQuery) -> Answer:
        subject, number = await self.subject(request), number_of(request)

        def listed(state: RegistryState) -> list[int]:
            entry = decisions.find_version(state, subject, number, deleted=True)
            return page(answers.referrers(state, entry, deleted=is_set(query.deleted)), query)

        return answered(await self.registry.read(listed))

    async def test_version(self, request: Request, query: Comparison) -> Answer:
        return await self._test(request, query, number_of(request))

    async def test_subject(self, request: Request, query: Comparison) -> Answer:
        return await self._test(request, query, None)

    async def _posted(self, request: Request) -> tuple[str, Posted]:
        subject, posted = await self.subject(request), posted_of(await read_body(request, SchemaBody))
        await self.require_references(request, subject, posted)
        return subject, posted

    async def _test(self, request: Request, query: Comparison, number: int | None) -> Answer:
        subject, posted = await self._posted(request)
        reasons: list[str]
        try:
            reasons = await self.registry.read(
                lambda state: decisions.test(
                    state, self.registry.judge, subject, posted, number, normalize=is_set(query.normalize)
                )
            )
        except RegistryError as error:
            if error.code != 42201 or not is_set(query.verbose):
                raise
            reasons = [error.message]
        answer: dict[str, Any] = {"is_compatible": not reasons}
        return answered(answer | {"messages": reasons} if is_set(query.verbose) else answer)

    async def _find(self, request: Request, query: Shown) -> Version:
        subject, number, deleted = await self.subject(request), number_of(request), is_set(query.deleted)
        return await self.registry.read(lambda state: decisions.find_version(state, subject, number, deleted=deleted))
