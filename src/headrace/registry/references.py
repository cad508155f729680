"""What a schema refers to, asked of a registry."""

from typing import Protocol

from headrace.client.registry import RegisteredSchema
from headrace.schema_log.names import beside

from .schemas.model import Dependency


class SchemaSource(Protocol):
    """Where schemas are read: a registry over HTTP, or one in this process."""

    def schema(self, schema_id: int, subject: str = "") -> RegisteredSchema | None:
        """The schema of an id, None if there is none; the subject says which context the id is of."""

    def version(self, subject: str, version: int) -> RegisteredSchema:
        """A version of a subject; `NotRegistered` if there is none."""


def dependencies(registry: SchemaSource, schema: RegisteredSchema, subject: str) -> list[Dependency]:
    """What a schema refers to, also by way of others, each before those that refer to it; in the context of the subject
    unless another is named.
    """
    by_name: dict[str, Dependency] = {}
    visiting: set[tuple[str, int]] = set()

    def visit(one: RegisteredSchema, parent: str) -> None:
        for reference in one.references:
            version = (beside(parent, reference.subject), reference.version)
            if reference.name not in by_name and version not in visiting:
                visiting.add(version)
                target = registry.version(*version)
                visit(target, version[0])
                by_name[reference.name] = Dependency(name=reference.name, text=target.text)

    visit(schema, subject)
    return list(by_name.values())
