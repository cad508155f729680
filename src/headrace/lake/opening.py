"""Tables by their names: where they are, and of which format."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from headrace.config.names import nearest, shown

from .errors import LakeError
from .places import joined, place_of
from .tables.delta import DeltaTable
from .tables.iceberg import IcebergTable, catalog_at
from .tables.model import LakeTable
from .tables.parquet import LOG, ParquetTable

FORMATS: Final = ("parquet", "delta", "iceberg")
BAD: Final = "_bad"
"""The directory, and the namespace, of tables of bad records."""
_NAMESPACE: Final = "namespace"


@dataclass(frozen=True, slots=True, kw_only=True)
class Lake:
    """A directory of tables, one for each topic, all of one format.

    `options` are those of the object store, `catalog` those of Iceberg's catalog; `namespace` among them names where
    the tables are in it, which is `headrace` by default.
    """

    path: str
    format: str
    options: Mapping[str, str] = field(default_factory=dict, repr=False)
    catalog: Mapping[str, str] = field(default_factory=dict, repr=False)

    def __post_init__(self) -> None:
        if self.format not in FORMATS:
            raise LakeError(
                f"the format of a table is {', '.join(FORMATS)}, not '{shown(self.format)}'"
                f"{nearest(self.format, FORMATS)}"
            )

    def table(self, topic: str) -> LakeTable:
        """The table of a topic, which may not be there yet."""
        if topic == BAD:
            raise LakeError(
                f"a topic named '{BAD}' cannot be archived: {self.path}/{BAD} has the tables of bad records"
            )
        return self._at(topic, ())

    def bad_table(self, topic: str) -> LakeTable:
        """The table of records of a topic that could not be decoded."""
        return self._at(f"{BAD}/{topic}", ("bad",))

    def _at(self, below: str, inner: tuple[str, ...]) -> LakeTable:
        place = place_of(joined(self.path, below), self.options)
        if self.format == "parquet":
            return ParquetTable(place)
        if self.format == "delta":
            return DeltaTable(place, self.options)
        given = dict(self.catalog)
        namespace = tuple(given.pop(_NAMESPACE, "headrace").split("."))
        identifier = (*namespace[:-1], "_".join([namespace[-1], *inner]), below.rpartition("/")[2])
        return IcebergTable(place, self._catalog(given), identifier)

    def _catalog(self, given: Mapping[str, str]) -> Any:
        key = (self.path, tuple(sorted(given.items())))
        if key not in _catalogs:
            _catalogs[key] = catalog_at(place_of(self.path, self.options), {**_file_io(self.options), **given})
        return _catalogs[key]


_catalogs: dict[tuple[object, ...], Any] = {}
_FILE_IO: Final = {
    "aws_endpoint": "s3.endpoint",
    "aws_endpoint_url": "s3.endpoint",
    "aws_access_key_id": "s3.access-key-id",
    "aws_secret_access_key": "s3.secret-access-key",
    "aws_session_token": "s3.session-token",
    "aws_region": "s3.region",
}


def _file_io(options: Mapping[str, str]) -> dict[str, str]:
    """The options of the store by Iceberg's names."""
    return {_FILE_IO[name.lower()]: value for name, value in options.items() if name.lower() in _FILE_IO}


def format_of(path: str, topic: str, options: Mapping[str, str] | None = None) -> str | None:
    """Of which format a topic's table is, by what is in its directory; None if there is no table."""
    place = place_of(joined(path, topic), options)
    if place.names(LOG):
        return "parquet"
    if place.names("_delta_log"):
        return "delta"
    return "iceberg" if place.names("metadata") else None


def topics_in(path: str, options: Mapping[str, str] | None = None) -> list[str]:
    """The topics that have tables in a directory."""
    names = {name.split("/")[0] for name in place_of(path, options).walk() if "/" in name}
    return sorted(name for name in names if name != BAD and format_of(path, name, options) is not None)
