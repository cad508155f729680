"""Avro records of random schemas, read by the loop and by a reader written after Avro's specification."""

import io
import json
from collections.abc import Collection
from decimal import Context, Decimal
from random import Random
from typing import Any, Final

import fastavro

from headrace.formats.avro import AvroColumnDecoder
from headrace.formats.avro_columns import model_of

from .memory import MEMORY
from .mutation import payloads, with_absent
from .reading import Bad, at_the_end, bits, compare

_ROWS: Final = 200
_SOUND: Final = 12
_SCALARS: Final[list[Any]] = [
    "boolean",
    "int",
    "long",
    "float",
    "double",
    "bytes",
    "string",
    {"type": "int", "logicalType": "date"},
    {"type": "long", "logicalType": "timestamp-micros"},
    {"type": "long", "logicalType": "timestamp-millis"},
]
_MOST_MILLIS: Final = (2**63 - 1) // 1000
_PASSED_AS: Final = {"int": "long", "string": "bytes"}
_EXACT: Final = Context(prec=100)


class _Schemas:
    def __init__(self, random: Random) -> None:
        self._random = random
        self._names = 0

    def _name(self) -> str:
        self._names += 1
        return f"N{self._names}"

    def record(self, depth: int) -> dict[str, Any]:
        fields = [{"name": f"f{n}", "type": self.any(depth - 1)} for n in range(self._random.randint(1, 5))]
        return {"type": "record", "name": self._name(), "fields": fields}

    def any(self, depth: int) -> Any:
        random = self._random
        kind = random.randrange(14 if depth > 0 else 9)
        if kind < 6:
            return random.choice(_SCALARS)
        if kind == 6:
            return {"type": "enum", "name": self._name(), "symbols": ["A", "B", "C"][: random.randint(1, 3)]}
        if kind == 7:
            return {"type": "fixed", "name": self._name(), "size": random.choice((0, 1, 3, 8))}
        if kind == 8:
            return self._decimal()
        if kind == 9:
            return self.record(depth)
        if kind == 10:
            return {"type": "map", "values": self.any(depth - 1)}
        if kind == 11:
            return {"type": "array", "items": self._item(depth - 1)}
        if kind == 12:
            return random.sample(["null", random.choice(_SCALARS)], 2)
        return random.sample(["null", "string", "int", {"type": "array", "items": "long"}], 4)

    def _item(self, depth: int) -> Any:
        """What takes bytes: nothing bounds an array of anything else, and it is refused."""
        return (
            ["null", self.any(0)] if self._random.random() < 0.3 else self._random.choice(_SCALARS + ["long"] * depth)
        )

    def _decimal(self) -> Any:
        precision = self._random.choice((1, 5, 18, 19, 38))
        kind = {"logicalType": "decimal", "precision": precision, "scale": self._random.randint(0, precision)}
        if self._random.random() < 0.5:
            return {"type": "bytes", **kind}
        return {"type": "fixed", "name": self._name(), "size": self._random.choice((1, 8, 16, 20)), **kind}


def _written(random: Random, schema: Any, out: bytearray) -> None:
    """Append a sound value."""
    if isinstance(schema, list):
        branch = random.randrange(len(schema))
        out += _long(branch)
        _written(random, schema[branch], out)
        return
    kind = schema["type"] if isinstance(schema, dict) else schema
    if kind == "record":
        for field in schema["fields"]:
            _written(random, field["type"], out)
    elif kind in ("array", "map"):
        _written_items(random, schema, out)
    elif kind == "enum":
        out += _long(random.randrange(len(schema["symbols"])))
    elif kind == "fixed" or (kind == "bytes" and isinstance(schema, dict)):
        size = schema.get("size", random.choice((1, 2, 8, 16, 17)))
        out += b"" if kind == "fixed" else _long(size)
        small = random.choice((b"\0", b"\xff"))
        out += small * (size - 1) + (bytes([small[0] ^ random.randrange(8)]) if size else b"")
    elif kind == "boolean":
        out.append(random.randrange(2))
    elif kind in ("int", "long"):
        limit = random.choice((64, 2**31, 2**62 // 1000 if kind == "long" else 2**31))
        out += _long(random.randrange(-limit, limit))
    elif kind in ("float", "double"):
        out += random.randbytes(4 if kind == "float" else 8)
    elif kind in ("bytes", "string"):
        text = random.choice(("", "a", "plain text", "é", "日本", "😀x")).encode()
        out += _long(len(text)) + text


def _written_items(random: Random, schema: Any, out: bytearray) -> None:
    for _ in range(random.choice((0, 1, 1, 2))):
        count = random.randint(1, 4)
        block = bytearray()
        for _ in range(count):
            if schema["type"] == "map":
                block += _long(1) + random.choice((b"k", b"l"))
            _written(random, schema["values" if schema["type"] == "map" else "items"], block)
        out += _long(count) if random.random() < 0.7 else _long(-count) + _long(len(block))
        out += block
    out += _long(0)


def _long(value: int) -> bytes:
    folded = value << 1 if value >= 0 else (-value << 1) - 1
    out = bytearray()
    while folded > 0x7F:
        out.append(folded & 0x7F | 0x80)
        folded >>= 7
    return bytes([*out, folded])


class _Reader:
    """Reads one record by the letter of the specification; `Bad` where it is none. Fields that are passed over must
    end where they say, whatever they hold.
    """

    def __init__(self, data: bytes) -> None:
        self._in = io.BytesIO(data)
        self._is_passing = False

    def whole(self, schema: Any, passed: Collection[str]) -> Any:
        found = {}
        for field in schema["fields"]:
            self._is_passing = field["name"] in passed
            value = self.value(field["type"])
            if not self._is_passing:
                found[field["name"]] = value
        if self._in.read(1):
            raise Bad("bytes are left over")
        return found

    def _take(self, size: int) -> bytes:
        taken = self._in.read(size) if size >= 0 else b""
        if size != len(taken):
            raise Bad("cut short")
        return taken

    def _long(self) -> int:
        folded = 0
        for place in range(10):
            byte = self._take(1)[0]
            folded += (byte % 128) << 7 * place
            if byte < 128:
                break
        else:
            raise Bad("a number of more than ten bytes")
        if folded >= 2**64:
            raise Bad("a number of more than 64 bits")
        return -(folded // 2) - 1 if folded % 2 else folded // 2

    def value(self, schema: Any) -> Any:
        if isinstance(schema, list):
            return self._union(schema)
        kind: str = schema["type"] if isinstance(schema, dict) else schema
        logical = schema.get("logicalType") if isinstance(schema, dict) else None
        if logical == "decimal" and not self._is_passing:
            return self._decimal(schema)
        if kind == "record":
            return {field["name"]: self.value(field["type"]) for field in schema["fields"]}
        if kind == "enum":
            number = self._long()
            if not 0 <= number < len(schema["symbols"]) and not self._is_passing:
                raise Bad("no such symbol")
            return None if self._is_passing else schema["symbols"][number]
        if kind == "fixed":
            return self._take(schema["size"])
        if kind in ("array", "map"):
            return self._items(schema)
        if self._is_passing:
            return self._scalar(_PASSED_AS.get(kind, kind), None)
        return self._scalar(kind, logical)

    def _scalar(self, kind: str, logical: str | None) -> Any:
        if kind == "null":
            return None
        if kind == "boolean":
            byte = self._take(1)[0]
            if byte > 1 and not self._is_passing:
                raise Bad("a boolean is 0 or 1")
            return bool(byte)
        if kind in ("int", "long"):
            number = self._long()
            if kind == "int" and not -(2**31) <= number < 2**31:
                raise Bad("an int has 32 bits")
            if logical != "timestamp-millis":
                return number
            if abs(number) > _MOST_MILLIS:
                raise Bad("microseconds would not fit")
            return number * 1000
        if kind in ("float", "double"):
            return bits(self._take(4 if kind == "float" else 8))
        data = self._take(self._long())
        try:
            return data.decode() if kind == "string" else data
        except UnicodeDecodeError as error:
            raise Bad("not UTF-8") from error

    def _decimal(self, schema: Any) -> Decimal:
        data = self._take(schema["size"] if schema["type"] == "fixed" else self._long())
        number = int.from_bytes(data, "big", signed=True)
        if not data or abs(number) >= 10 ** schema["precision"]:
            raise Bad("a decimal has other digits")
        return Decimal(number).scaleb(-schema["scale"], _EXACT)

    def _union(self, branches: list[Any]) -> Any:
        number = self._long()
        if not 0 <= number < len(branches):
            raise Bad("no such branch")
        value = self.value(branches[number])
        rest = [branch for branch in branches if branch != "null"]
        if len(rest) == 1 or branches[number] == "null":
            return value
        return {f"member{n}": value if branch == branches[number] else None for n, branch in enumerate(rest)}

    def _items(self, schema: Any) -> list[Any]:
        found: list[Any] = []
        while count := self._long():
            if count < 0:
                self._long()
                count = -count
            if count >= 2**63:
                raise Bad("a count out of range")
            for _ in range(count):
                if schema["type"] == "map":
                    key = self._scalar("bytes" if self._is_passing else "string", None)
                    found.append((key, self.value(schema["values"])))
                else:
                    found.append(self.value(schema["items"]))
        return found


def _check_with_fastavro(schema: Any, data: bytes) -> None:
    """A good record is one that fastavro reads, and that ends where fastavro says."""
    source = io.BytesIO(data)
    fastavro.schemaless_reader(source, schema, None)
    assert not source.read(1), f"fastavro does not read all of {data.hex()}"


def _without_logical(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_without_logical(branch) for branch in schema]
    if not isinstance(schema, dict):
        return schema
    plain = {key: value for key, value in schema.items() if key not in ("logicalType", "precision", "scale")}
    for key in ("items", "values"):
        if key in plain:
            plain[key] = _without_logical(plain[key])
    if "fields" in plain:
        plain["fields"] = [{**field, "type": _without_logical(field["type"])} for field in plain["fields"]]
    return plain


def _passed(random: Random, schema: Any) -> set[str]:
    """Fields that the reader does not have, in some of the rounds."""
    names = [field["name"] for field in schema["fields"]]
    return set(random.sample(names, random.randrange(len(names)))) if random.random() < 0.3 else set()


def run(random: Random) -> int:
    """One schema; every record by itself and among the others."""
    schema = _Schemas(random).record(3)
    sound: list[bytes] = []
    for _ in range(_SOUND):
        out = bytearray()
        _written(random, schema, out)
        sound.append(bytes(out))
    rows = with_absent(random, payloads(random, sound, _ROWS))
    parsed = fastavro.parse_schema(_without_logical(schema))
    passed = _passed(random, schema)
    reader = {**schema, "fields": [field for field in schema["fields"] if field["name"] not in passed]}

    def reference(data: bytes) -> Any:
        value = _Reader(data).whole(schema, passed)
        if not passed:
            _check_with_fastavro(parsed, data)
        return value

    codec = AvroColumnDecoder(json.dumps(reader), model_of(json.dumps(schema)) if passed else None)

    def check(rows: list[bytes | None]) -> None:
        compare(codec.decode(MEMORY.payload(rows)), rows, reference, f"schema {json.dumps(schema)}")

    check(rows)
    return len(rows) + at_the_end(random, rows, check)
