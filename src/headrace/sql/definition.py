"""How the values of a topic become columns: as declared, by the schema registry, or as some of them look."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from headrace.client.columnar.cluster import Cluster
from headrace.client.columnar.model import EARLIEST, LATEST, Range, TopicPartition
from headrace.client.columnar.reader import read_ranges
from headrace.client.registry import NotRegistered, RegisteredSchema, shared_registry
from headrace.formats import ValueDecoder, decoder_for
from headrace.formats.flat import FlatDecoder
from headrace.formats.registered import SCHEMA_TYPES
from headrace.formats.registry_options import registry_settings

from .inference import Inferred, inferred

_SAMPLED: Final = 500
"""Records looked at from either end of a topic."""
_PARTITIONS: Final = 8
_MOST_BYTES: Final = 4 << 20
"""Of a fetch, after which no more of a partition's end is looked at."""
_FORMATS: Final = {kind: name for name, kind in SCHEMA_TYPES.items()} | {"JSON": "json-schema"}
_VALUE_OPTIONS: Final = frozenset({"format", "schema", "descriptorfile", "messagename", "subject", "subject.version"})


@dataclass(frozen=True, slots=True, kw_only=True)
class TableDefinition:
    """The table that a topic is."""

    topic: str
    options: Mapping[str, str] = field(repr=False)
    """How values are decoded, as options of the Spark source."""
    origin: str
    """Where this is from."""

    def decoder(self) -> FlatDecoder:
        """What makes rows of records; OptionError where the options cannot be meant."""
        decoder = decoder_for({**self.options, "subscribe": self.topic})
        assert decoder is None or isinstance(decoder, ValueDecoder)
        return FlatDecoder(decoder)


def define(
    cluster: Cluster,
    topic: str,
    declared: Mapping[str, str] | None = None,
    registry: Mapping[str, str] | None = None,
    *,
    find_registry: Callable[[], Mapping[str, str]] = dict,
    read_committed: bool = True,
) -> TableDefinition:
    """The table of a topic.

    What `declared` says of values counts, with options of the Spark source: `format`, `schema`, `keyFormat`. What it
    leaves open is the schema of the subject `<topic>-value` in the registry that `registry` names, if it has one, and
    else what some records from both ends of the topic look like. Where these carry the ids of schemas and no registry
    is named, one is looked for.
    """
    given = dict(declared or {})
    if "schema" in given and not _names(given) & {"format", "schema.registry.url"}:
        given["format"] = "json"
    if _names(given) & _VALUE_OPTIONS:
        return _declared(cluster, topic, given, registry or {}, read_committed)
    sample = _sample(cluster, topic, read_committed)
    where = registry or (find_registry() if sample.is_framed else {})
    found = _registered(topic, where)
    if found is not None:
        options = {"keyFormat": sample.key_format, **given, **where, "format": _FORMATS[found.type]}
        return TableDefinition(topic=topic, options=options, origin=f"subject {found.subject} version {found.version}")
    return TableDefinition(topic=topic, options={**sample.options, **given}, origin=_seen(sample))


def _names(options: Mapping[str, str]) -> set[str]:
    return {name.lower() for name in options}


def _declared(
    cluster: Cluster, topic: str, given: dict[str, str], registry: Mapping[str, str], read_committed: bool
) -> TableDefinition:
    names = _names(given)
    chosen = next((value.lower() for name, value in given.items() if name.lower() == "format"), "")
    has_own = names & {"schema", "descriptorfile", "schema.registry.url"}
    if chosen in ("avro", "protobuf", "json-schema", "") and not has_own:
        given = {**registry, **given}
    if chosen == "json" and not has_own:
        given["schema"] = _sample(cluster, topic, read_committed).schema
    if "keyformat" not in names:
        given["keyFormat"] = _sample(cluster, topic, read_committed).key_format
    return TableDefinition(topic=topic, options={k: v for k, v in given.items() if v}, origin="as declared")


def _registered(topic: str, registry: Mapping[str, str]) -> RegisteredSchema | None:
    settings = registry_settings({name.lower(): value for name, value in registry.items()})
    if settings is None:
        return None
    try:
        found = shared_registry(settings).version(f"{topic}-value")
    except NotRegistered:
        return None
    return found if found.type in _FORMATS else None


def _seen(sample: Inferred) -> str:
    what = {"json": "JSON", "string": "text", "raw": "bytes"}[sample.format]
    return f"{what}, as {sample.values} values look" if sample.values else "bytes: the topic has no values to judge by"


def _sample(cluster: Cluster, topic: str, read_committed: bool) -> Inferred:
    """What some records of a topic look like, from the beginning and from the end of its partitions."""
    partitions = [TopicPartition(topic, number) for number in range(cluster.partitions([topic])[topic])]
    first = cluster.offsets(dict.fromkeys(partitions, EARLIEST))
    last = cluster.offsets(dict.fromkeys(partitions, LATEST), read_committed=read_committed)
    filled = [(where, first[where] or 0, last[where] or 0) for where in partitions]
    filled = sorted((one for one in filled if one[1] < one[2]), key=lambda one: one[1] - one[2])[:_PARTITIONS]
    each = max(1, _SAMPLED // max(1, len(filled)))
    keys: list[Any] = []
    values: list[Any] = []
    for where, start, end in filled:
        heads = Range(*where, start, min(end, start + each))
        tails = Range(*where, max(heads.end, end - each), end)
        for wanted in (heads, tails):
            for batch in read_ranges(cluster, [wanted], read_committed=read_committed):
                keys += batch.column("key").to_pylist()
                values += batch.column("value").to_pylist()
                if batch.nbytes > _MOST_BYTES:
                    break
    return inferred(keys, values)
