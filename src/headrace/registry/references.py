"""What a schema refers to, asked of a registry."""

from headrace.client.registry import RegisteredSchema, SchemaRegistry
from headrace.schema_log.names import beside

from .schemas.model import Dependency


def dependencies(registry: SchemaRegistry, schema: RegisteredSchema, subject: str) -> list[Dependency]:
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
