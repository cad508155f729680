"""The message types of Protobuf schemas in a registry."""

from collections.abc import Sequence

from google.protobuf.descriptor import Descriptor

from headrace.registry.errors import InvalidSchemaError
from headrace.registry.schemas.model import Dependency
from headrace.registry.schemas.protobuf import descriptors

from .protobuf_plan import pool_of


def message_type(text: str, dependencies: Sequence[Dependency], indexes: Sequence[int]) -> Descriptor:
    """A message type of a schema: its place among those of the file, then among those inside of it, and so on."""
    files = descriptors(text, dependencies).file
    file = files[-1]
    within, names = file.message_type, [file.package] if file.package else []
    for index in indexes:
        if not 0 <= index < len(within):
            raise InvalidSchemaError(f"it has no message at the indexes {list(indexes)}")
        names.append(within[index].name)
        within = within[index].nested_type
    return pool_of({file.name: file for file in files}).FindMessageTypeByName(".".join(names))
