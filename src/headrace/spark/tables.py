"""Topics as tables of Spark's own catalog: `SELECT * FROM headrace.orders`.

PySpark has no catalogs in Python, so a call registers what there is: a database, and in it a table for each topic.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any, Final

from headrace.client.columnar.api import setting_text
from headrace.client.columnar.cluster import shared_cluster
from headrace.config.names import shown
from headrace.config.setting import ConfigError
from headrace.sql.definition import TableDefinition, define
from headrace.sql.reading import Snapshot
from headrace.sql.statement import portable_name

from .client_options import PREFIX
from .errors import with_query_errors
from .registration import register
from .table_options import options_in, refuse_secrets

_OURS: Final = "headrace"
_INTERNAL: Final = "_"


@with_query_errors
def register_topics(
    spark: Any,
    bootstrap: str,
    *,
    database: str = "headrace",
    topics: Iterable[str] | None = None,
    registry: str | Mapping[str, str] | None = None,
    read: Mapping[str, Mapping[str, str]] | None = None,
    temporary: bool = False,
    **settings: Any,
) -> dict[str, str]:
    """Make each topic a table of the session's catalog, and return the tables' names by topic.

        register_topics(spark, "127.0.0.1:9092", registry="http://127.0.0.1:8080")
        spark.sql("SELECT customer, sum(total) FROM headrace.orders GROUP BY customer")
        spark.readStream.table("headrace.orders")

    The columns are those of `headrace sql`: `registry` and `read` say of what type they are, and else what some records
    look like. Without `topics` it is all but those whose names begin with an underscore. Called again, it looks for new
    topics and new fields. The name of a table has `_` where that of the topic has `.` or `-`. `settings` are Kafka's,
    with underscores for dots. With `temporary`, tables are views of this session by the topics' own names: nothing of
    them is kept in a catalog, so they may have passwords among their settings, but cannot be read as streams.
    """
    register(spark)
    client = {name.replace("_", "."): setting_text(value) for name, value in settings.items()}
    client["bootstrap.servers"] = bootstrap
    cluster = shared_cluster({name: text for name, text in client.items() if name != "isolation.level"})
    names = list(topics) if topics is not None else [one for one in cluster.topics() if not one.startswith(_INTERNAL)]
    where = {"schema.registry.url": registry} if isinstance(registry, str) else dict(registry or {})
    found = [define(cluster, topic, (read or {}).get(topic), where) for topic in names]
    if temporary:
        return {one.topic: _make_view(spark, one, client) for one in found}
    tables = _table_names(database, names)
    for one in found:
        refuse_secrets(table_options(one, client))
    spark.sql(f"CREATE DATABASE IF NOT EXISTS {_quoted(database)}")
    for one in found:
        _make_table(spark, tables[one.topic], table_options(one, client))
    return tables


def table_options(
    definition: TableDefinition, client: Mapping[str, str], snapshot: Snapshot | None = None
) -> dict[str, str]:
    """The options of the source by which a topic is a table; with a snapshot, one that stays as it is.

    Filters are not pushed: Spark keeps what the first filters of a table have left, and reads no more than that for all
    others of a session, or of a query that names the table twice.
    """
    options = {f"{PREFIX}{name}": text for name, text in client.items()}
    options = {f"{PREFIX}isolation.level": "read_committed", **options, **definition.options}
    options |= {"subscribe": definition.topic, "flatten": "true", "startingOffsets": "earliest"}
    if snapshot is not None:
        options["startingOffsets"] = _offsets(snapshot, "start")
        options["endingOffsets"] = _offsets(snapshot, "end")
    return options


def _offsets(snapshot: Snapshot, side: str) -> str:
    by_partition = {str(one.partition): getattr(one, side) for one in snapshot.ranges}
    return json.dumps({snapshot.ranges[0].topic: by_partition})


def _table_names(database: str, topics: list[str]) -> dict[str, str]:
    """The names of tables; ConfigError for topics that would have the same."""
    by_name: dict[str, str] = {}
    for topic in topics:
        other = by_name.setdefault(portable_name(topic).lower(), topic)
        if other != topic:
            raise ConfigError(
                f"topics {shown(other)} and {shown(topic)} would both be table {portable_name(topic)}, as the names of "
                "Spark's catalog have letters, digits and underscores alone: name the topics to register with topics=, "
                "or register views with temporary=True"
            )
    return {topic: f"{_quoted(database)}.{_quoted(portable_name(topic))}" for topic in topics}


def _make_table(spark: Any, name: str, options: Mapping[str, str]) -> None:
    if spark.catalog.tableExists(name):
        if not options_in(spark.table(name).schema):
            raise ConfigError(f"{name} is there and is no table of a topic; name another database=, or drop it")
        spark.sql(f"DROP TABLE {name}")
    given = ", ".join(f"{_quoted(key)} {_literal(text)}" for key, text in options.items())
    spark.sql(f"CREATE TABLE {name} USING {_OURS} OPTIONS ({given})")


def _make_view(spark: Any, definition: TableDefinition, client: Mapping[str, str]) -> str:
    name = _quoted(definition.topic)
    read = spark.read.format(_OURS).options(**table_options(definition, client)).load()
    read.createOrReplaceTempView(name)
    return name


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"


def _literal(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
