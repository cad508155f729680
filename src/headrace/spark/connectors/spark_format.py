"""Whatever Spark itself can read and write as a stream: a `format` with its options, or a `table` of its catalog."""

from typing import Any, ClassVar, Final

from .base import Batch, ConnectorError, Given, Option, SinkConnector, SourceConnector

_ONE: Final = "it needs 'format' or 'table', one of them"


class SparkSource(SourceConnector):
    """`spark.readStream.format(...)` or `.table(...)`; all further options are the format's."""

    options: ClassVar = {
        "format": Option("a format that Spark knows, by itself or from a package, such as delta or rate"),
        "table": Option("a table of Spark's catalog"),
        "path": Option("what to load, where the format has it"),
        "schema": Option("the columns, as Spark's DDL, where the format needs it"),
    }
    takes_others: ClassVar = True

    def __init__(self, given: Given) -> None:
        super().__init__(given)
        _require_one(given)

    def frame(self, spark: Any) -> Any:
        reader = spark.readStream.options(**_others(self.given, self.options))
        if self.text("schema"):
            reader = reader.schema(self.text("schema"))
        if self.text("table"):
            return reader.table(self.text("table"))
        reader = reader.format(self.text("format"))
        return reader.load(self.text("path")) if self.text("path") else reader.load()


class SparkSink(SinkConnector):
    """Each batch appended by `df.write`: at least once, but for Delta tables, which know a batch by its number."""

    options: ClassVar = {
        "format": Option("a format that Spark can write, such as delta, csv or jdbc"),
        "table": Option("a table of Spark's catalog"),
        "path": Option("where to, where the format has it"),
        "partitionBy": Option("columns by which files lie in directories", is_list=True),
    }
    takes_others: ClassVar = True

    def __init__(self, given: Given) -> None:
        super().__init__(given)
        _require_one(given)

    def check(self, columns: list[str]) -> None:
        for name in self.texts("partitionBy"):
            if name not in columns:
                raise ConnectorError(f"there is no column '{name}' to partition by; there are {', '.join(columns)}")

    def write(self, rows: Any, batch: Batch) -> None:
        writer = rows.write.mode("append").options(**_others(self.given, self.options))
        if self.texts("partitionBy"):
            writer = writer.partitionBy(*self.texts("partitionBy"))
        if self.text("format") == "delta":
            writer = writer.option("txnAppId", batch.query).option("txnVersion", batch.number)
        if self.text("table"):
            writer.saveAsTable(self.text("table"))
            return
        writer = writer.format(self.text("format"))
        writer.save(self.text("path")) if self.text("path") else writer.save()


def _require_one(given: Given) -> None:
    if ("format" in given) == ("table" in given):
        raise ConnectorError(_ONE)


def _others(given: Given, known: Any) -> dict[str, str]:
    return {
        name: str(value).lower() if isinstance(value, bool) else str(value)
        for name, value in given.items()
        if name not in known
    }
