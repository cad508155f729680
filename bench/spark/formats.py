"""Values decoded by the source (`format`), beside Spark's own functions: the same topic, the same columns.

What stands where other works have their ceiling is what a user would do without the option. Every query reads all
fields of all orders, and what they come to is the same in each.
"""

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from ..model import CPU, Aim, BenchError, Figure, Of, Sample, Work
from ..setting import Server, Setting
from . import jars, orders, topics
from .jars import Part
from .session import driver

ROWS: Final = 1_000_000
_RUNS: Final = 2
"""Of a query, of which the last one counts: the first compiles and warms."""

Encode = Callable[[dict[str, Any]], bytes]
_checksums: Final[set[int]] = set()


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """A way to get the columns of orders out of a topic."""

    source: str = "headrace"
    decoder: str = "the source"
    parts: tuple[Part, ...] = ()
    """What it needs beside PySpark."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Values:
    """What the values of a topic are."""

    name: str
    title: str
    encode: Encode
    options: dict[str, str]
    """Of our source, to decode them by itself."""
    is_framed: bool = False


def read(setting: Setting, values: Values, way: Way) -> Sample:
    """Orders per second, and the processor time that each took in all processes."""
    for part in way.parts:
        jars.require(part)
    with ExitStack() as stack:
        server = stack.enter_context(topics.broker(setting))
        encode, options = values.encode, _options(server)
        descriptors = stack.enter_context(setting.directory()) / "orders.desc"
        descriptors.write_bytes(orders.descriptors())
        if values.is_framed:
            url = stack.enter_context(topics.registry(setting, server))
            encode = orders.framed(encode, topics.register(url, orders.AVRO))
            options |= {"schema.registry.url": url} if way.decoder == "the source" else {}
        topics.fill(server, topics.orders_in(encode), ROWS)
        if way.decoder == "the source":
            options |= {name: str(descriptors) if value == _FILE else value for name, value in values.options.items()}
        return _last_of_runs(server, way, options, str(descriptors))


_FILE: Final = "<descriptors>"


def _options(server: Server) -> dict[str, str]:
    return {"kafka.bootstrap.servers": server.bootstrap, "subscribe": topics.TOPIC, "startingOffsets": "earliest"}


def _last_of_runs(server: Server, way: Way, options: dict[str, str], descriptors: str) -> Sample:
    for _ in range(_RUNS):
        cpu = driver().cpu_seconds() + server.cpu_seconds()
        found = driver().run(
            kind="orders", format=way.source, decoder=way.decoder, options=options, descriptors=descriptors
        )
        used = driver().cpu_seconds() + server.cpu_seconds() - cpu
        _check(found["rows"], found["checksum"])
    return {"rows": ROWS / found["seconds"], CPU: used / ROWS * 1e6}


def _check(rows: int, checksum: int) -> None:
    """All formats have the same orders, so all queries of a run come to the same."""
    _checksums.add(checksum)
    if rows != ROWS or len(_checksums) != 1:
        raise BenchError(f"{rows} of {ROWS} orders were read, with checksums {_checksums}")


JSON: Final = Values(
    name="json", title="JSON, format=json", encode=orders.as_json, options={"format": "json", "schema": orders.DDL}
)
AVRO: Final = Values(
    name="avro", title="Avro, format=avro", encode=orders.as_avro, options={"format": "avro", "schema": orders.AVRO}
)
FRAMED: Final = Values(
    name="registry",
    title="Avro of a schema registry, format=avro",
    encode=orders.as_avro,
    options={"format": "avro"},
    is_framed=True,
)
PROTOBUF: Final = Values(
    name="protobuf",
    title="Protobuf, format=protobuf",
    encode=orders.as_protobuf,
    options={"format": "protobuf", "descriptorFile": _FILE, "messageName": orders.MESSAGE},
)
_FUNCTIONS: Final[tuple[tuple[Values, str, tuple[Part, ...]], ...]] = (
    (JSON, "from_json", ()),
    (AVRO, "from_avro", (Part.AVRO,)),
    (FRAMED, "from_avro behind the head", (Part.AVRO,)),
    (PROTOBUF, "from_protobuf", (Part.PROTOBUF,)),
    (PROTOBUF, "google.protobuf", ()),
)
_FIGURE: Final = Figure(key="rows", label="rows", unit="/s", aim=Aim(of=Of.RATIO, bound=1.0, at_least=True))


def works() -> list[Work]:
    return list(_works())


def _works() -> Iterator[Work]:
    for values, decoder, parts in _FUNCTIONS:
        name = decoder.partition(" ")[0].replace("google.protobuf", "python")
        words = f"{decoder} in mapInArrow" if decoder == "google.protobuf" else decoder
        raw = Way(decoder=decoder, parts=parts)
        own = Way(source="kafka", decoder=decoder, parts=(Part.CONNECTOR, *parts))
        yield _work(f"spark-format-{values.name}-{name}", values, raw, f"the same source without format, then {words}")
        yield _work(
            f"spark-format-{values.name}-{name}-connector", values, own, f"Spark's own Kafka connector, then {words}"
        )


def _work(name: str, values: Values, way: Way, against: str) -> Work:
    return Work(
        name=name,
        title=f"Spark reads {values.title}, beside {against.replace('the same source without format', 'raw values')}",
        against=against,
        figures=(_FIGURE,),
        broker=partial(read, values=values, way=Way()),
        ceiling=partial(read, values=values, way=way),
        cpu_unit="µs/row",
        rounds=2,
    )
