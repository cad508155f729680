"""The options of a source that is a table of Spark's catalog.

`CREATE TABLE ... USING headrace OPTIONS (...)` hands the options over while the table is made, with those that Spark
keeps of its own; a query that reads the table hands over its schema and none of them. So the schema takes them along,
in the metadata of a column. Nothing secret may be among them: whoever reads a table sees its schema, and Spark writes
that into the files that it makes of it.
"""

import json
from collections.abc import Mapping
from typing import Final

from pyspark.sql.types import StructField, StructType

from headrace.client.properties import is_secret
from headrace.config.setting import ConfigError

_OF_TABLE: Final = "option."
_METADATA: Final = "headrace.options"
_KAFKA: Final = "kafka."
_SECRETS: Final = ("basic.auth.user.info", "bearer.auth.token")


def is_made_a_table(given: Mapping[str, str]) -> bool:
    """Whether the options are those of a table that is being made."""
    return any(name.lower().startswith(_OF_TABLE) for name in given)


def plain_options(given: Mapping[str, str]) -> dict[str, str]:
    """The options of a source, without what the catalog adds to those of a table: them all again with a prefix, and
    what it knows of the table itself.
    """
    if not is_made_a_table(given):
        return dict(given)
    return {name[len(_OF_TABLE) :]: text for name, text in given.items() if name.lower().startswith(_OF_TABLE)}


def with_options(schema: StructType, options: Mapping[str, str]) -> StructType:
    """The schema of a table, which takes its options along; ConfigError if one of them is secret."""
    refuse_secrets(options)
    *others, last = schema.fields
    metadata = {**last.metadata, _METADATA: json.dumps(dict(sorted(options.items())))}
    return StructType([*others, StructField(last.name, last.dataType, last.nullable, metadata)])


def refuse_secrets(options: Mapping[str, str]) -> None:
    """ConfigError if one of a table's options is secret."""
    for name in options:
        plain = name.lower().removeprefix(_KAFKA)
        if is_secret(plain) or plain.removeprefix("schema.registry.") in _SECRETS:
            raise ConfigError(
                f"a table cannot have option {name}: whoever reads the table would see it. Make a view of the session: "
                "register_topics(..., temporary=True), or CREATE TEMPORARY VIEW ... USING headrace OPTIONS (...)"
            )


def options_in(schema: StructType) -> dict[str, str]:
    """The options that the schema of a table takes along; none for other schemas."""
    for field in schema.fields:
        written = (field.metadata or {}).get(_METADATA)
        if written is not None:
            return dict(json.loads(written))
    return {}
