"""Whether data of one Avro schema can be read with another: the specification's rules of schema resolution.

Names are compared without their namespace, and logical types are not looked at, as Java's SchemaCompatibility has it.
A pair of types that is being compared already counts as readable: what else is wrong with it is found where it began.
"""

from collections.abc import Mapping
from typing import Final

from .avro import AvroModel, Enum, Field, Fixed, Items, Named, Node, Record, Ref, Union

PROMOTIONS: Final = {
    "int": {"long", "float", "double"},
    "long": {"float", "double"},
    "float": {"double"},
    "string": {"bytes"},
    "bytes": {"string"},
}
"""Writer's type -> readers' types that take its values."""


def unreadable(reader: AvroModel, writer: AvroModel) -> list[str]:
    """Why the reader cannot read what the writer writes; empty if it can."""
    return _Resolution(reader, writer).compare(reader.root, writer.root, "")


def _problem(kind: str, description: str, detail: str) -> str:
    return f"{{errorType:'{kind}', description:'{description}', additionalInfo:'{detail}'}}"


class _Resolution:
    def __init__(self, reader: AvroModel, writer: AvroModel) -> None:
        self._reader = reader.names
        self._writer = writer.names
        self._met: dict[tuple[str, str], None] = {}
        """Named pairs in the order in which they were met."""
        self._failed: set[tuple[str, str]] = set()
        """Those that were tried for a union and do not fit: so no pair is tried twice in vain."""

    def compare(self, reader: Node, writer: Node, path: str) -> list[str]:
        reader, writer = self._resolved(reader, writer)
        if not (isinstance(reader, Named) and isinstance(writer, Named)):
            return self._anonymous(reader, writer, path)
        pair = (reader.name, writer.name)
        if pair in self._met:
            return []
        self._met[pair] = None
        return self._named(reader, writer, path)

    def _resolved(self, reader: Node, writer: Node) -> tuple[Node, Node]:
        return (
            self._reader[reader.name] if isinstance(reader, Ref) else reader,
            self._writer[writer.name] if isinstance(writer, Ref) else writer,
        )

    def _anonymous(self, reader: Node, writer: Node, path: str) -> list[str]:
        if isinstance(writer, Union):
            if isinstance(reader, Union):
                return self._all_branches(reader, writer, path)
            return [p for branch in writer.branches for p in self.compare(reader, branch, path)]
        if isinstance(reader, Union):
            return self._some_branch(reader, writer, path)
        if reader.kind == writer.kind:
            if isinstance(reader, Items) and isinstance(writer, Items):
                inner = "items" if reader.kind == "array" else "values"
                return self.compare(reader.of, writer.of, f"{path}/{inner}")
            return []
        if reader.kind in PROMOTIONS.get(writer.kind, ()):
            return []
        return [_mismatch(reader, writer, path)]

    def _all_branches(self, reader: Union, writer: Union, path: str) -> list[str]:
        found = [self._some_branch(reader, branch, f"{path}/{i}") for i, branch in enumerate(writer.branches)]
        return [problem for problems in found for problem in problems]

    def _some_branch(self, reader: Union, writer: Node, path: str) -> list[str]:
        writer = self._writer[writer.name] if isinstance(writer, Ref) else writer
        if any(self._tries(branch, writer, path) for branch in reader.branches):
            return []
        label = writer.name if isinstance(writer, Named) else writer.kind
        where = path or "/"
        description = f"The %new schema is missing a type inside a union field at path '{where}' in the %old schema"
        return [_problem("MISSING_UNION_BRANCH", description, f"reader union lacking writer type: {label}")]

    def _tries(self, reader: Node, writer: Node, path: str) -> bool:
        """Compares on trial: pairs met on the way are forgotten if it fails, so that no failure hides behind them."""
        reader, writer = self._resolved(reader, writer)
        pair = (reader.name, writer.name) if isinstance(reader, Named) and isinstance(writer, Named) else None
        if pair in self._failed:
            return False
        before = len(self._met)
        if not self.compare(reader, writer, path):
            return True
        while len(self._met) > before:
            self._met.popitem()
        if pair is not None:
            self._failed.add(pair)
        return False

    def _named(self, reader: Named, writer: Named, path: str) -> list[str]:
        if reader.kind != writer.kind:
            return [_mismatch(reader, writer, path)]
        problems = [] if _same_name(reader, writer) else [_name_mismatch(writer, path)]
        if isinstance(reader, Fixed) and isinstance(writer, Fixed):
            return problems + _sizes(reader, writer, path)
        if isinstance(reader, Enum) and isinstance(writer, Enum):
            return problems + _symbols(reader, writer, path)
        assert isinstance(reader, Record)
        assert isinstance(writer, Record)
        written = {w.name: w for w in reversed(writer.fields)}
        for i, f in enumerate(reader.fields):
            problems += self._field(f, written, f"{path}/fields/{i}")
        return problems

    def _field(self, f: Field, by_name: Mapping[str, Field], path: str) -> list[str]:
        """`by_name` are the fields of the writer's record."""
        names = (f.name, *f.aliases)
        written = next((by_name[name] for name in names if name in by_name), None)
        if written is not None:
            return self.compare(f.type, written.type, f"{path}/type")
        if f.has_default or self._has_enum_default(f.type):
            return []
        description = (
            f"The field '{f.name}' at path '{path}' in the %new schema has no default value and is missing in the "
            "%old schema"
        )
        return [_problem("READER_FIELD_MISSING_DEFAULT_VALUE", description, f.name)]

    def _has_enum_default(self, node: Node) -> bool:
        node = self._reader[node.name] if isinstance(node, Ref) else node
        return isinstance(node, Enum) and node.default is not None


def _same_name(reader: Named, writer: Named) -> bool:
    return reader.simple == writer.simple or writer.name in reader.aliases


def _mismatch(reader: Node, writer: Node, path: str) -> str:
    description = f"The type (path '{path or '/'}') of a field in the %new schema does not match with the %old schema"
    detail = f"reader type: {reader.kind.upper()} not compatible with writer type: {writer.kind.upper()}"
    return _problem("TYPE_MISMATCH", description, detail)


def _name_mismatch(writer: Named, path: str) -> str:
    description = f"The name of the schema has changed (path '{path}/name')"
    return _problem("NAME_MISMATCH", description, f"expected: {writer.name}")


def _sizes(reader: Fixed, writer: Fixed, path: str) -> list[str]:
    if reader.size == writer.size:
        return []
    description = (
        f"The size of FIXED type field at path '{path}/size' in the %new schema does not match with the %old schema"
    )
    return [_problem("FIXED_SIZE_MISMATCH", description, f"expected: {writer.size}, found: {reader.size}")]


def _symbols(reader: Enum, writer: Enum, path: str) -> list[str]:
    missing = [symbol for symbol in writer.symbols if symbol not in reader.symbols]
    if not missing or reader.default is not None:
        return []
    description = (
        f"The %new schema is missing enum symbols '[{', '.join(missing)}]' at path '{path}/symbols' in the %old schema"
    )
    return [_problem("MISSING_ENUM_SYMBOLS", description, f"[{', '.join(missing)}]")]
