"""New files of a directory or an object store, by Spark's own file source, which remembers what it has read."""

from typing import Any, ClassVar

from .base import ConnectorError, Given, Option, SourceConnector

_FORMATS = ("csv", "json", "parquet", "text", "orc")


class Files(SourceConnector):
    """Each file is read once, when it is there; files must come whole, by a rename. Further options are Spark's."""

    options: ClassVar = {
        "path": Option("the directory, a glob, or an address such as s3a://bucket/dir", required=True),
        "format": Option("of the files", required=True, choices=_FORMATS),
        "schema": Option("the columns, as Spark's DDL; of parquet and orc it may be left out"),
        "maxFilesPerTrigger": Option("how many files a batch has at most", default="1000"),
    }
    paths: ClassVar = ("path",)
    takes_others: ClassVar = True

    def __init__(self, given: Given) -> None:
        super().__init__(given)
        self._format = self.text("format")
        self.number("maxFilesPerTrigger")
        if self._format in ("csv", "json") and not self.text("schema"):
            raise ConnectorError(f"files in {self._format} need 'schema', such as `id BIGINT, name STRING`", "schema")

    def frame(self, spark: Any) -> Any:
        path, schema = self.text("path"), self.text("schema")
        others = {name: _plain(value) for name, value in self.given.items() if name not in self.options}
        reader = spark.readStream.format(self._format).options(**others)
        reader = reader.option("maxFilesPerTrigger", self.text("maxFilesPerTrigger"))
        if schema:
            reader = reader.schema(schema)
        elif self._format != "text":
            reader = reader.schema(spark.read.format(self._format).options(**others).load(path).schema)
        return reader.load(path)


def _plain(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
